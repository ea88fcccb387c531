package twophase;

import static twophase.Nodes.*;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.function.BiFunction;
import org.apache.spark.sql.catalyst.analysis.Analyzer;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.classic.SparkSession;

/**
 * The rules by which the analyser of one session routes statements to twophase.
 *
 * RouteNames runs before any name is resolved; RouteNewColumns, ClaimInserts and ReplaceInsertCommands run after that,
 * around the rules that check INSERTs and turn them into commands. Python decides; it is called once for each node that
 * writes, with the node's facts as JSON.
 */
public final class Routing {
    private static final String SINGLE_PASS = "spark.sql.analyzer.singlePassResolver.";

    private final SparkSession session;
    private final Analyzer analyzer;
    private final RouteNames names;
    private final StagedTables tables;
    private final List installed = new ArrayList();

    private Routing(SparkSession session, RouteNames names, StagedTables tables) {
        this.session = session;
        this.analyzer = session.sessionState().analyzer();
        this.names = names;
        this.tables = tables;
    }

    /** What transactions have staged, of which Python informs the rules. */
    public StagedTables tables() {
        return tables;
    }

    /** Lets Spark itself analyse, but not run, what this thread has routed since a time, if anything. */
    public boolean analyzeRouted(long since) {
        return names.analyzeRouted(since);
    }

    /** Whether Spark may analyse a query by its experimental resolver, without the rules of extensions. */
    public boolean isSinglePass() {
        return isOn("enabled") || isOn("enabledTentatively")
            || isOn("dualRunWithLegacy") && isOn("returnSinglePassResultInDualRun");
    }

    private boolean isOn(String setting) {
        try {
            return Boolean.parseBoolean(session.sessionState().conf().getConfString(SINGLE_PASS + setting));
        } catch (NoSuchElementException error) {
            return false;  // This Spark does not have it.
        }
    }

    /** Adds the rules after those of other extensions; ClaimInserts before Spark's own that make commands of statements. */
    private void install(boolean readsPathsByName) throws Exception {
        List before = rules("hintResolutionRules");
        before.add(added(names));
        before.add(added(new LegacyInserts(names)));
        put("hintResolutionRules", before);
        List relations = rules("extendedResolutionRules");
        relations.add(added(new LegacyInserts(names)));  // As soon as the rows are resolved.
        if (readsPathsByName) {
            relations.add(added(new PathReads.ByName()));
        }
        put("extendedResolutionRules", relations);
        List after = rules("postHocResolutionRules");
        after.add(place(after, "PreprocessTableInsertion"), added(new RouteNewColumns(names)));
        after.add(place(after, "DataSourceAnalysis"), added(new ClaimInserts(names)));
        after.add(added(new ReplaceInsertCommands(names)));
        put("postHocResolutionRules", after);
    }

    /** The place of a rule of Spark among others; behind them if it is not there. */
    private static int place(List rules, String name) {
        int place = 0;
        while (place < rules.size() && !kind(rules.get(place)).startsWith(name)) {
            place++;
        }
        return place;
    }

    private Rule added(Rule rule) {
        installed.add(rule);
        return rule;
    }

    /** Removes the rules. */
    public void uninstall() throws Exception {
        String[] batches = {"hintResolutionRules", "extendedResolutionRules", "postHocResolutionRules"};
        for (int index = 0; index < batches.length; index++) {
            List rules = rules(batches[index]);
            rules.removeAll(installed);
            put(batches[index], rules);
        }
    }

    private List rules(String batch) throws Exception {
        return listed(field(batch).get(analyzer));
    }

    private void put(String batch, List rules) throws Exception {
        field(batch).set(analyzer, seq(rules));
    }

    private Field field(String name) throws Exception {
        Field field = analyzer.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }

    /** Created without arguments, so that Py4J needs no array of Python objects. */
    public static final class Maker {
        /** Routes the statements of a session. */
        public Object install(BiFunction python, SparkSession session, List catalogs, String catalog, List providers,
                boolean readsPathsByName) throws Exception {
            StagedTables tables = new StagedTables(session.sparkContext());
            RouteNames names = new RouteNames(python, session, tables, new HashSet(catalogs), catalog, new HashSet(providers));
            Routing routing = new Routing(session, names, tables);
            routing.install(readsPathsByName);
            return routing;
        }
    }
}
