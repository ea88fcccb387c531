package twophase;

import static twophase.Nodes.*;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Method;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BiFunction;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.CommandExecutionMode;
import org.apache.spark.sql.internal.SessionState;
import scala.Option;

/** A rule of the analyser of one session. Python decides; it is asked about a node by the node's facts, as JSON. */
public abstract class SessionRule extends Rule {
    private static final String OFF = "twophase.routing.off";
    private static final Method SCRIPT = script();
    private static final ObjectMapper JSON = new ObjectMapper();
    /** This thread's last routed statement, in its original form, and when: Spark may refuse it with its own error. */
    private static final ThreadLocal REFUSABLE = new ThreadLocal();

    protected final BiFunction python;
    protected final SparkSession session;
    protected final SparkContext context;
    /** What transactions have staged. */
    protected final StagedTables tables;
    /** Names of the session's twophase catalogs; the name of the one that serves session tables, and its formats. */
    protected final Set catalogs;
    protected final String catalog;
    protected final Set providers;

    protected SessionRule(BiFunction python, SparkSession session, StagedTables tables, Set catalogs, String catalog, Set providers) {
        this.python = python;
        this.session = session;
        this.context = session.sparkContext();
        this.tables = tables;
        this.catalogs = catalogs;
        this.catalog = catalog;
        this.providers = providers;
    }

    protected SessionRule(SessionRule other) {
        this(other.python, other.session, other.tables, other.catalogs, other.catalog, other.providers);
    }

    public TreeNode apply(TreeNode tree) {
        LogicalPlan plan = (LogicalPlan) tree;
        return plan.analyzed() || isOff() ? plan : changed(plan);
    }

    /** A plan that is not analysed yet, as twophase routes it. */
    protected abstract LogicalPlan changed(LogicalPlan plan);

    protected boolean isOff() {
        return context.getLocalProperty(OFF) != null;
    }

    /** Lets Spark itself analyse, but not run, what this thread has routed since a time, if anything. */
    public boolean analyzeRouted(long since) {
        Object[] routed = (Object[]) REFUSABLE.get();
        REFUSABLE.remove();
        if (routed == null || routed[0] != session || ((Long) routed[2]).longValue() < since) {
            return false;
        }
        context.setLocalProperty(OFF, "true");
        try {
            state().executePlan((LogicalPlan) routed[1], CommandExecutionMode.SKIP()).assertAnalyzed();
        } finally {
            context.setLocalProperty(OFF, null);
        }
        return true;
    }

    /** Adds the context in which Spark resolves a name. */
    protected void place(Map facts, List parts) {
        facts.put("parts", parts);
        if (parts != null && !parts.isEmpty()) {
            SessionNames.place(state(), facts, (String) parts.get(0), parts.size());
        }
    }

    /** What serves the session's own tables. */
    protected String extension() {
        return SessionNames.extension(state());
    }

    protected static Map facts(String question, String node) {
        Map facts = new HashMap();
        facts.put("question", question);
        facts.put("node", node);
        return facts;
    }

    protected Object ask(Map facts) {
        return python.apply(json(facts), null);
    }

    protected Map answer(Map facts) {
        Object answer = ask(facts);
        try {
            return answer == null ? null : (Map) JSON.readValue((String) answer, Map.class);
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
    }

    protected SessionState state() {
        return session.sessionState();
    }

    /** Remembers a statement that Spark may refuse or run itself: no part of a script, as others ran before it. */
    protected void remember(LogicalPlan plan) {
        if (!isInScript()) {
            REFUSABLE.set(new Object[] {session, plan, Long.valueOf(System.currentTimeMillis())});
        }
    }

    /** Forgets what this thread remembers: another statement begins. */
    protected static void forget() {
        REFUSABLE.remove();
    }

    protected static boolean isInScript() {
        return SCRIPT != null && ((Option) call(SCRIPT, null, new Object[0])).isDefined();
    }

    /** SqlScriptingContextManager.get; null in a Spark without it, where EXECUTE IMMEDIATE accepts no script. */
    private static Method script() {
        try {
            return Class.forName("org.apache.spark.sql.catalyst.SqlScriptingContextManager").getMethod("get", new Class[0]);
        } catch (ReflectiveOperationException error) {
            return null;
        }
    }

    protected LogicalPlan parsed(String statement) {
        try {
            return state().sqlParser().parsePlan(statement);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }
}
