package twophase;

import static twophase.Nodes.*;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BiFunction;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.AnalysisContext;
import org.apache.spark.sql.catalyst.analysis.Analyzer;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.GlobalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.QualifiedColType;
import org.apache.spark.sql.catalyst.plans.logical.SerdeInfo;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreeNodeTag;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.CommandExecutionMode;
import org.apache.spark.sql.execution.datasources.DataSourceAnalysis;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.internal.SessionState;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/**
 * The rules by which the analyser of one session routes statements to twophase.
 *
 * Names runs before any name is resolved; Bring, Take and Exchange run after that, around the rules that check INSERTs and
 * turn them into commands. Python decides; it is called once for each node that writes, with the node's facts as JSON.
 */
public final class Routing {
    private static final String LOGICAL = "org.apache.spark.sql.catalyst.plans.logical.";
    private static final String OFF = "twophase.routing.off";
    private static final String TRANSACTION = "twophase.transaction";
    private static final String HINTS = "twophase.hints";
    private static final String MERGES_SCHEMA = "twophase.merge_schema";
    private static final String EXTENSION = "spark.sql.catalog.spark_catalog";
    private static final String SINGLE_PASS = "spark.sql.analyzer.singlePassResolver.";
    private static final List ROW_WRITES = list("AppendData", "OverwriteByExpression", "OverwritePartitionsDynamic");
    private static final List CREATES = list("CreateTableAsSelect", "ReplaceTableAsSelect", "CreateTable", "ReplaceTable");
    private static final List TRUNCATES = Arrays.asList(new Object[] {"TruncateTable", "TruncatePartition"});
    /** Of tables: what a transaction may do to one that it has made. */
    private static final List ALTERS = Arrays.asList(new Object[] {"AddColumns", "AlterColumns", "AlterColumn", "DropColumns",
        "RenameColumn", "SetTableProperties", "UnsetTableProperties", "CommentOnTable", "RenameTable"});
    /** Of databases: what is a statement of a transaction. */
    private static final List NAMESPACES = Arrays.asList(new Object[] {"CreateNamespace", "DropNamespace"});
    /** Of session tables: changes of columns. */
    private static final List EVOLVES = list("AddColumns", "AlterColumns", "DropColumns", "RenameColumn");
    private static final List NAMES = list("UnresolvedRelation", "UnresolvedTable", "UnresolvedTableOrView", "UnresolvedView");
    /** A node that was routed. */
    private static final TreeNodeTag ROUTED = new TreeNodeTag("twophase.routed");
    /** On the rows of an INSERT: the table to write, and whether it is overwritten. */
    private static final TreeNodeTag TAKEN = new TreeNodeTag("twophase.taken");
    private static final Method SCRIPT = script();
    private static final ObjectMapper JSON = new ObjectMapper();
    /** This thread's last routed statement, in its original form: Spark may refuse it with its own error. */
    private static final ThreadLocal REFUSABLE = new ThreadLocal();

    private final BiFunction python;
    private final SparkSession session;
    private final SparkContext context;
    private final Analyzer analyzer;
    /** Names of the session's twophase catalogs; the name of the one that serves session tables, and its formats. */
    private final Set catalogs;
    private final String catalog;
    private final Set providers;
    private final List installed = new ArrayList();
    /** The staged tables of the session catalog, by transaction of the session. */
    private final Map staged = new ConcurrentHashMap();
    /** The transactions of blocks, and those of them that read one snapshot. */
    private final Set pinned = ConcurrentHashMap.newKeySet();
    private final Set snapshots = ConcurrentHashMap.newKeySet();

    private Routing(BiFunction python, SparkSession session, Set catalogs, String catalog, Set providers) {
        this.python = python;
        this.session = session;
        this.context = session.sparkContext();
        this.analyzer = session.sessionState().analyzer();
        this.catalogs = catalogs;
        this.catalog = catalog;
        this.providers = providers;
    }

    // -- before names are resolved ------------------------------------------------------------------------------------

    /** Renames the targets of statements, and inside a transaction their sources, to names in a twophase catalog. */
    public final class Names extends Rule {
        public TreeNode apply(TreeNode tree) {
            LogicalPlan plan = (LogicalPlan) tree;
            if (plan.analyzed() || isOff()) {
                return plan;
            }
            boolean inside = transaction() != null;
            String kind = kind(plan);
            if (begins(plan, kind)) {
                REFUSABLE.remove();
            }
            if (inside ? !isQuery(plan) : COMMANDS.contains(kind)) {
                askOfCommand(plan, kind, inside);
            }
            return named(plan, inside, use(kind));
        }
    }

    /** Whether a plan is another statement, and not part of one that was routed. */
    private static boolean begins(LogicalPlan plan, String kind) {
        if (kind.equals("InsertIntoStatement") || ROW_WRITES.contains(kind)) {
            TreeNode table = (TreeNode) get(plan, "table");
            return kind((Object) table).equals("UnresolvedRelation") && !isStaging(parts(table));
        }
        return !isQuery(plan) && plan.getTagValue(ROUTED).isEmpty();
    }

    /** The use that a statement makes of the tables that it names. */
    private static String use(String kind) {
        if (kind.startsWith("ShowPartitions") || kind.startsWith("ShowTablePartition") || kind.startsWith("Analyze")) {
            return "published";
        }
        if (kind.equals("CreateView") || kind.equals("AlterViewAs")) {
            return "kept";
        }
        return kind.startsWith("Describe") || kind.startsWith("Show") || kind.startsWith("Refresh") ? "description" : "rows";
    }

    /** Commands that are reported to Python outside transactions, too. */
    private static final List COMMANDS = list("SetCatalogAndNamespace", "CreateNamespace", "AddPartitions", "RenamePartitions",
        "RecoverPartitions", "RepairTable");

    private void askOfCommand(LogicalPlan plan, String kind, boolean inside) {
        if (kind.equals("InsertIntoStatement") || ROW_WRITES.contains(kind) || isCreate(plan, kind, inside)
            || inside && (TRUNCATES.contains(kind) || kind.equals("DropTable") || ALTERS.contains(kind)
                || NAMESPACES.contains(kind))) {
            return;  // It is decided as a write.
        }
        Map facts = facts("command", kind);
        LogicalPlan name = nameBelow(plan);
        place(facts, name == null ? null : parts(name));
        facts.put("saves", Boolean.valueOf(context.getLocalProperty(HINTS) != null));
        facts.put("temporary", Boolean.valueOf(isTemporary(plan)));
        facts.put("pattern", has(plan, "pattern") ? text(get(plan, "pattern")) : null);
        ask(facts);
    }

    /** Whether a table is created that is decided as a write: from a query or, inside a transaction, from nothing. */
    private boolean isCreate(LogicalPlan plan, String kind, boolean inside) {
        if (!CREATES.contains(kind) || !plan.getClass().getName().startsWith(LOGICAL)) {
            return false;
        }
        return kind.endsWith("AsSelect") || inside && context.getLocalProperty(HINTS) == null;
    }

    private LogicalPlan named(LogicalPlan plan, final boolean inside, final String use) {
        if (plan.analyzed() || plan.getTagValue(ROUTED).isDefined()) {
            return plan;
        }
        String kind = kind(plan);
        if (kind.equals("RelationTimeTravel")) {
            return travelling(plan);
        }
        boolean describes = use.equals("description") || use.equals("published");
        if (kind.equals("UnresolvedRelation") || (describes && NAMES.contains(kind))) {
            return inside ? read(plan, kind, use) : plan;
        }
        LogicalPlan mapped = (LogicalPlan) plan.mapChildren(new scala.runtime.AbstractFunction1() {
            public Object apply(Object child) {
                return named((LogicalPlan) child, inside, use);
            }
        });
        if (!mapped.getClass().getName().startsWith(LOGICAL)) {
            return mapped;
        }
        if (CREATES.contains(kind)) {
            return isCreate(mapped, kind, inside) ? create(mapped, kind) : mapped;
        }
        if (kind.equals("InsertIntoStatement") || ROW_WRITES.contains(kind)) {
            return write(mapped, kind, inside);
        }
        if (inside && kind.equals("DropTable")) {
            return drop(mapped, kind);
        }
        if (inside && (ALTERS.contains(kind) || NAMESPACES.contains(kind))) {
            return alter(mapped, kind);
        }
        if (!inside && EVOLVES.contains(kind)) {
            return evolve(mapped, kind);
        }
        return inside && TRUNCATES.contains(kind) ? truncate(mapped, kind) : mapped;
    }

    /** A table that a statement in a transaction reads: the staged version, if any. */
    private LogicalPlan read(LogicalPlan relation, String kind, String use) {
        List parts = parts(relation);
        if (!isPinned() && !mayBeStaged((String) parts.get(parts.size() - 1))) {
            return relation;
        }
        Map facts = facts("read", kind);
        place(facts, parts);
        facts.put("use", use);
        facts.put("view", listed(AnalysisContext.get().catalogAndNamespace()));
        Map answer = answer(facts);
        if (answer == null) {
            return relation;
        }
        LogicalPlan result = (LogicalPlan) with(relation, "multipartIdentifier", seq((List) answer.get("parts")));
        result.setTagValue(ROUTED, Boolean.TRUE);
        return kind.equals("UnresolvedRelation") ? aliased(result, (List) answer.get("parts")) : result;
    }

    /** A table that is read as of a version: a session table has those that savepoints keep. */
    private LogicalPlan travelling(LogicalPlan plan) {
        LogicalPlan relation = (LogicalPlan) get(plan, "relation");
        if (!kind(relation).equals("UnresolvedRelation") || ((Option) get(plan, "version")).isEmpty()) {
            return plan;
        }
        Map facts = facts("travel", "RelationTimeTravel");
        place(facts, parts(relation));
        facts.put("view", listed(AnalysisContext.get().catalogAndNamespace()));
        Map answer = answer(facts);
        if (answer == null) {
            return plan;
        }
        Object renamed = with(relation, "multipartIdentifier", seq((List) answer.get("parts")));
        return (LogicalPlan) with(plan, "relation", renamed);
    }

    private LogicalPlan create(LogicalPlan plan, String kind) {
        TreeNode name = (TreeNode) get(plan, "name");
        TreeNode specification = (TreeNode) get(plan, "tableSpec");
        if (!kind((Object) name).equals("UnresolvedIdentifier")) {
            return plan;
        }
        if (namesSessionTable(parts(name))) {
            Object session = seq(Arrays.asList(new Object[] {"spark_catalog", parts(name).get(1), parts(name).get(2)}));
            remember(creating((LogicalPlan) with(plan, "name", with(name, "nameParts", session))));
            return plan;
        }
        Option serde = (Option) get(specification, "serde");
        Map facts = facts(kind.startsWith("Create") ? "create" : "replace", kind);
        place(facts, parts(name));
        facts.put("provider", serde.isDefined() ? "hive" : text(get(specification, "provider")));
        facts.put("delimited", Boolean.valueOf(serde.isDefined() && saysNoFormat((SerdeInfo) serde.get())));
        Map answer = answer(facts);
        if (answer == null) {
            return plan;
        }
        LogicalPlan result = (LogicalPlan) with(plan, "name", with(name, "nameParts", seq((List) answer.get("parts"))));
        Map options = has(plan, "writeOptions") ? (Map) get(plan, "writeOptions", Map.class) : new HashMap();
        result = (LogicalPlan) with(result, "tableSpec", routed(specification, options, answer));
        result.setTagValue(ROUTED, Boolean.TRUE);
        remember(plan);
        return result;
    }

    /** Whether it is a saveAsTable of a session table: Python has decided it, and has set its full name. */
    private boolean namesSessionTable(List parts) {
        return parts.size() == 3 && parts.get(0).equals(catalog) && String.valueOf(context.getLocalProperty(HINTS)).contains("\"session_table\": true");
    }

    private boolean bringsColumns() {
        return String.valueOf(context.getLocalProperty(HINTS)).contains("\"brings_columns\": true");
    }

    private LogicalPlan write(LogicalPlan plan, String kind, boolean inside) {
        TreeNode table = (TreeNode) get(plan, "table");
        boolean isInsert = kind.equals("InsertIntoStatement");
        boolean overwrites = isInsert ? Boolean.TRUE.equals(get(plan, "overwrite")) : !kind.equals("AppendData");
        if (!kind((Object) table).equals("UnresolvedRelation") || isStaging(parts(table))) {
            return plan;
        }
        // Outside a transaction, an INSERT into a session table is taken over after stock Spark has analysed it, which
        // knows no columns but those of the table.
        if (isInsert && !inside && !bringsColumns() && !(overwrites && namesOurs(parts(table)))) {
            return plan;
        }
        return write(plan, table, isInsert, overwrites);
    }

    /** A write of a table that is not resolved yet, as Python decides it. */
    private LogicalPlan write(LogicalPlan plan, TreeNode table, boolean isInsert, boolean overwrites) {
        String kind = kind(plan);
        Map facts = facts(isInsert ? "insert" : "write", kind);
        place(facts, parts(table));
        facts.put("overwrite", Boolean.valueOf(overwrites));
        facts.put("options", options(table));
        if (isInsert) {
            facts.put("partition", specification(plan));
            facts.put("if_not_exists", get(plan, "ifPartitionNotExists"));
            facts.put("replaces_rows", Boolean.valueOf(replacesRows(plan)));
        }
        Map answer = answer(facts);
        if (answer == null) {
            return plan;
        }
        if (answer.get("writes_nothing") != null) {
            return new GlobalLimit(new Literal(Integer.valueOf(0), org.apache.spark.sql.types.DataTypes.IntegerType), (LogicalPlan) get(plan, "query"));
        }
        LogicalPlan result = plan;
        TreeNode renamed = answer.get("parts") == null ? table : with(table, "multipartIdentifier", seq((List) answer.get("parts")));
        String scope = (String) answer.get("scope");
        if (scope != null && isInsert) {
            renamed = overwritten(renamed, scope);
            result = (LogicalPlan) with(result, "overwrite", Boolean.FALSE);
        }
        result = (LogicalPlan) with(result, "table", renamed);
        if (answer.get("if_not_exists") != null) {
            result = (LogicalPlan) with(result, "ifPartitionNotExists", Boolean.FALSE);
        }
        if (scope != null && kind.equals("OverwritePartitionsDynamic")) {
            result = append("byName", result, (LogicalPlan) get(plan, "query"), scope);
        }
        result.setTagValue(ROUTED, Boolean.TRUE);
        return result;
    }

    /** A target that states the scope of its overwrite. */
    private static TreeNode overwritten(TreeNode table, Object scope) {
        Map options = new HashMap(((CaseInsensitiveStringMap) get(table, "options")).asCaseSensitiveMap());
        options.put(OVERWRITE, scope);
        return with(table, "options", new CaseInsensitiveStringMap(options));
    }

    /** An INSERT of no rows that states an overwrite, in place of a TRUNCATE TABLE [PARTITION] inside a transaction. */
    private LogicalPlan truncate(LogicalPlan plan, String kind) {
        Map facts = facts("truncate", kind);
        place(facts, parts(nameBelow(plan)));
        facts.put("partition", kind.equals("TruncatePartition") ? get((TreeNode) get(plan, "partitionSpec"), "spec", Map.class) : null);
        Map answer = answer(facts);
        if (answer == null) {
            return plan;
        }
        LogicalPlan insert = parsed((String) answer.get("insert"));
        LogicalPlan result = (LogicalPlan) with(insert, "table", overwritten((TreeNode) get(insert, "table"), answer.get("scope")));
        result.setTagValue(ROUTED, Boolean.TRUE);
        return result;
    }

    private LogicalPlan parsed(String statement) {
        try {
            return state().sqlParser().parsePlan(statement);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private static String quoted(String name) {
        return "`" + name.replace("`", "``") + "`";
    }

    /** A DROP TABLE inside a transaction: of a session table, by the name that it has in our catalog. */
    private LogicalPlan drop(LogicalPlan plan, String kind) {
        LogicalPlan name = nameBelow(plan);
        Map facts = facts("drop", kind);
        place(facts, parts(name));
        Map answer = answer(facts);
        if (answer == null) {
            return plan;
        }
        LogicalPlan result = (LogicalPlan) with(plan, "child", with(name, "nameParts", seq((List) answer.get("parts"))));
        result.setTagValue(ROUTED, Boolean.TRUE);
        return result;
    }

    /** An ALTER TABLE, CREATE or DROP DATABASE inside a transaction: by the name in our catalog, if Spark's own is meant. */
    private LogicalPlan alter(LogicalPlan plan, String kind) {
        final LogicalPlan name = nameBelow(plan);
        Map facts = facts(NAMESPACES.contains(kind) ? "namespace" : "alter", kind);
        place(facts, parts(name));
        Map answer = answer(facts);
        if (answer == null) {
            return plan;
        }
        final Object renamed = with(name, partsName(name), seq((List) answer.get("parts")));
        LogicalPlan result = (LogicalPlan) plan.mapChildren(new scala.runtime.AbstractFunction1() {
            public Object apply(Object child) {
                return child == name ? renamed : child;
            }
        });
        result.setTagValue(ROUTED, Boolean.TRUE);
        return result;
    }

    /** An ALTER TABLE of columns: of a session table that can evolve, by the name that it has in our catalog. */
    private LogicalPlan evolve(LogicalPlan plan, String kind) {
        LogicalPlan name = nameBelow(plan);
        if (catalog == null || name == null || !kind((Object) name).equals("UnresolvedTable")) {
            return plan;
        }
        Map facts = facts("evolve", kind);
        place(facts, parts(name));
        boolean isPlain = kind.equals("AddColumns") && addsBehind((List) listed(get(plan, "columnsToAdd")))
            || kind.equals("AlterColumns") && isPlain((List) listed(get(plan, "specs")));
        facts.put("is_plain", Boolean.valueOf(isPlain));
        Map answer = answer(facts);
        if (answer == null) {
            return plan;
        }
        LogicalPlan result = (LogicalPlan) with(plan, "table", with(name, "multipartIdentifier", seq((List) answer.get("parts"))));
        result.setTagValue(ROUTED, Boolean.TRUE);
        return result;
    }

    /** Whether all new columns come behind the others, as Spark itself can add them to a session table. */
    private static boolean addsBehind(List columns) {
        for (Iterator all = columns.iterator(); all.hasNext();) {
            QualifiedColType column = (QualifiedColType) all.next();
            if (column.path().isDefined() || column.position().isDefined()) {
                return false;
            }
        }
        return true;
    }

    /** Whether one column's default changes, for new rows only, or its collation, for no row: as Spark itself can do it. */
    private static boolean isPlain(List columns) {
        TreeNode column = (TreeNode) columns.get(0);
        Option type = (Option) get(column, "newDataType");
        return columns.size() == 1 && (type.isEmpty() || ((DataType) type.get()).sql().startsWith("STRING COLLATE "))
            && text(get(column, "newNullability")) == null && text(get(column, "newComment")) == null
            && text(get(column, "newPosition")) == null;
    }

    private boolean namesOurs(List parts) {
        if (parts.size() > 1 && catalogs.contains(parts.get(0))) {
            return true;
        }
        return parts.size() < 3 && catalogs.contains(state().catalogManager().currentCatalog().name());
    }

    // -- after names are resolved -------------------------------------------------------------------------------------

    /** A rule about each write of a plan, which may be below a WITH, or one of several. */
    public abstract class OfWrites extends Rule {
        abstract LogicalPlan replaced(LogicalPlan plan);

        public TreeNode apply(TreeNode tree) {
            LogicalPlan plan = (LogicalPlan) tree;
            return plan.analyzed() || isOff() ? plan : each(plan);
        }

        LogicalPlan each(LogicalPlan plan) {
            if (!kind(plan).equals("WithCTE") && !isSeveralWrites(plan)) {
                return replaced(plan);
            }
            return (LogicalPlan) plan.mapChildren(new scala.runtime.AbstractFunction1() {
                public Object apply(Object child) {
                    return each((LogicalPlan) child);
                }
            });
        }
    }

    /** Writes a table by its name in our catalog if it says that its rows may bring columns, before Spark counts them. */
    public final class Bring extends OfWrites {
        LogicalPlan replaced(LogicalPlan plan) {
            boolean isInsert = kind(plan).equals("InsertIntoStatement");
            CatalogTable table = isInsert ? catalogTable((TreeNode) get(plan, "table")) : null;
            if (!isOurs(table) || replacesRows(plan) || !table.properties().contains(MERGES_SCHEMA)
                || !"true".equalsIgnoreCase((String) table.properties().apply(MERGES_SCHEMA))) {
                return plan;
            }
            String name = quoted(catalog) + "." + quoted((String) table.identifier().database().get()) + "."
                + quoted(table.identifier().table());
            // Its parser says of the table that it is written.
            TreeNode ours = (TreeNode) get(parsed("INSERT INTO " + name + " SELECT 1"), "table");
            LogicalPlan named = (LogicalPlan) with(plan, "table", ours);
            return analyzer.execute(write(named, ours, true, Boolean.TRUE.equals(get(plan, "overwrite"))));
        }
    }

    /** Asks Python who writes an INSERT, before Spark turns it into a command; in a transaction, checks its reads. */
    public final class Take extends OfWrites {
        public TreeNode apply(TreeNode tree) {
            LogicalPlan plan = (LogicalPlan) tree;
            if (plan.analyzed() || isOff()) {
                return plan;
            }
            if (hasStaged()) {
                guard(plan, new HashSet());
            }
            return each(readsSnapshot() ? checked(plan) : plan);
        }

        LogicalPlan each(LogicalPlan plan) {
            LogicalPlan result = super.each(plan);
            return isSeveralWrites(plan) && group(plan, result) ? plan : result;
        }

        LogicalPlan replaced(LogicalPlan plan) {
            String kind = kind(plan);
            if (kind.equals("OverwritePartitionsDynamic")) {
                return dynamic(plan);
            }
            return kind.equals("InsertIntoStatement") ? insert(plan) : plan;
        }
    }

    /** Lets the files of all session tables be checked when the query has them; not of earlier DataFrames. */
    private LogicalPlan checked(LogicalPlan plan) {
        if (kind(plan).equals("LogicalRelation")) {  // Spark caches it: an earlier analysis may have marked it.
            CatalogTable table = catalogTable(plan);
            LogicalPlan checked = table == null || table.identifier().database().isEmpty() || isStaged(table.identifier())
                ? null : SnapshotFiles.checked(plan, python, catalog, transaction().replace("?", ""));
            return checked == null ? plan : checked;
        }
        if (plan.analyzed()) {
            return plan;
        }
        return (LogicalPlan) plan.mapChildren(new scala.runtime.AbstractFunction1() {
            public Object apply(Object child) {
                return checked((LogicalPlan) child);
            }
        });
    }

    /** Handles several writes with one outcome; returns whether they are left to Spark. */
    private boolean group(LogicalPlan before, LogicalPlan union) {
        int ours = 0;
        List children = children(union);
        for (Iterator all = children.iterator(); all.hasNext();) {
            ours += isOurs((LogicalPlan) all.next()) ? 1 : 0;
        }
        if (ours == 0 || children.size() < 2) {
            return false;
        }
        remember(before);
        Map facts = facts("group", "Union");
        facts.put("mixed", Boolean.valueOf(ours < children.size()));
        facts.put("script", Boolean.valueOf(isInScript()));
        return ask(facts) != null;
    }

    private boolean isOurs(LogicalPlan write) {
        if (kind(write).equals("InsertIntoStatement")) {
            return taken((LogicalPlan) get(write, "query"), false) != null;
        }
        Object table = has(write, "table") ? get(write, "table") : null;
        return table instanceof DataSourceV2Relation && catalogOf((DataSourceV2Relation) table) != null;
    }

    private String catalogOf(DataSourceV2Relation relation) {
        String name = relation.catalog().isDefined() ? ((CatalogPlugin) relation.catalog().get()).name() : null;
        return name != null && catalogs.contains(name) ? name : null;
    }

    private LogicalPlan insert(LogicalPlan plan) {
        CatalogTable table = catalogTable((TreeNode) get(plan, "table"));
        if (!isOurs(table) || replacesRows(plan)) {
            return plan;
        }
        Map facts = facts("session_insert", kind((Object) get(plan, "table")));
        facts.put("overwrite", get(plan, "overwrite"));
        facts.put("if_not_exists", get(plan, "ifPartitionNotExists"));
        facts.put("partition", specification(plan));
        Table ours = table(facts, table);
        if (ours == null) {
            return plan;
        }
        remember(plan);
        LogicalPlan query = (LogicalPlan) get(plan, "query");
        LogicalPlan marked = new Project(query.output(), query);
        marked.setTagValue(TAKEN, new Object[] {ours, get(plan, "overwrite")});
        LogicalPlan result = (LogicalPlan) with(with(plan, "query", marked), "ifPartitionNotExists", Boolean.FALSE);
        if (kind((Object) get(plan, "table")).equals("LogicalRelation")) {
            // Spark would refuse to overwrite a table that it reads; here the former rows stay until the publish.
            result = (LogicalPlan) with(result, "overwrite", Boolean.FALSE);
        }
        return result;
    }

    private boolean isOurs(CatalogTable table) {
        if (table == null || catalog == null || table.identifier().table().startsWith(STAGING)) {
            return false;
        }
        String provider = table.provider().isDefined() ? (String) table.provider().get() : "hive";
        return providers.contains(provider.toLowerCase(Locale.ROOT)) || provider.indexOf('.') > 0;
    }

    /** The table to write in place of a session table; null if Python leaves the write to Spark. */
    private Table table(Map facts, CatalogTable table) {
        putName(facts, table);
        facts.put("provider", table.provider().isDefined() ? table.provider().get() : "hive");
        facts.put("partition_columns", listed(table.partitionColumnNames()));
        facts.put("extension", state().conf().getConfString(EXTENSION, "builtin"));
        return ask(facts) == null ? null : new InsertTarget(python, catalog, table);
    }

    /** Spark passes no dynamic overwrite to a V1 write: it runs as an append that states the replaced scope. */
    private LogicalPlan dynamic(LogicalPlan plan) {
        Object table = get(plan, "table");
        if (!(table instanceof DataSourceV2Relation) || catalogOf((DataSourceV2Relation) table) == null) {
            return plan;
        }
        boolean isPartitioned = false;
        Object[] transforms = ((DataSourceV2Relation) table).table().partitioning();
        for (int index = 0; index < transforms.length; index++) {
            isPartitioned |= !transforms[index].toString().startsWith("cluster_by");
        }
        return append("byPosition", plan, (LogicalPlan) get(plan, "query"), scope(new HashMap(), isPartitioned));
    }

    /** Replaces the command that Spark has created from an INSERT with twophase's write. */
    public final class Exchange extends OfWrites {
        LogicalPlan replaced(LogicalPlan plan) {
            boolean isHive = kind(plan).equals("InsertIntoHiveTable");
            if (!isHive && !kind(plan).equals("InsertIntoHadoopFsRelationCommand")) {
                return plan;
            }
            LogicalPlan query = (LogicalPlan) get(plan, "query");
            Object[] taken = taken(query, true);
            if (taken == null) {
                taken = appended(plan, isHive);
            }
            if (taken == null) {
                return plan;
            }
            String scope = Boolean.TRUE.equals(taken[1]) ? isHive ? scopeOfHive(plan) : scopeOfFiles(plan) : null;
            CatalogTable table = (CatalogTable) (isHive ? get(plan, "table") : ((Option) get(plan, "catalogTable")).get());
            String database = (String) table.identifier().database().get();
            Identifier name = Identifier.of(new String[] {database}, table.identifier().table());
            CatalogPlugin plugin = state().catalogManager().catalog(catalog);
            DataSourceV2Relation relation =
                DataSourceV2Relation.create((Table) taken[0], Option.apply(plugin), Option.apply(name));
            return append("byPosition", relation, isHive ? withStaticPartitions(plan, query, table) : query, scope);
        }
    }

    /** The rows with the static partition's values, which Spark hands to its command for SerDe tables beside them. */
    private static LogicalPlan withStaticPartitions(LogicalPlan command, LogicalPlan query, CatalogTable table) {
        if (query.output().size() == table.schema().size()) {
            return query;
        }
        return new Project(
            DataSourceAnalysis.convertStaticPartitions(query.output(), (scala.collection.immutable.Map) get(command, "partition"),
                DataTypeUtils.toAttributes(table.schema()), table.partitionSchema()),
            query);
    }

    /** The mark on the rows of an INSERT; Spark may have put a Project for a static partition on top of them. */
    private static Object[] taken(LogicalPlan query, boolean consumed) {
        Option found = query.getTagValue(TAKEN);
        if (found.isDefined()) {
            if (consumed) {
                query.unsetTagValue(TAKEN);  // The same rows go through twophase's own commands later.
            }
            return (Object[]) found.get();
        }
        return query instanceof Project ? taken((LogicalPlan) query.children().apply(0), consumed) : null;
    }

    /** A saveAsTable that appends: Spark makes the command without an INSERT. */
    private Object[] appended(LogicalPlan plan, boolean isHive) {
        boolean appends = isHive ? Boolean.FALSE.equals(get(plan, "overwrite")) : get(plan, "mode") == SaveMode.Append;
        Option found = isHive ? Option.apply(get(plan, "table")) : (Option) get(plan, "catalogTable");
        if (!appends || found.isEmpty() || !isOurs((CatalogTable) found.get())) {
            return null;
        }
        Map facts = facts("session_insert", kind(plan));
        facts.put("overwrite", Boolean.FALSE);
        facts.put("if_not_exists", Boolean.FALSE);
        facts.put("partition", new ArrayList());
        Table ours = table(facts, (CatalogTable) found.get());
        return ours == null ? null : new Object[] {ours, Boolean.FALSE};
    }

    // -- transactions -------------------------------------------------------------------------------------------------

    /** Refuses to read the former rows of a staged table, by a relation that Names has not seen. */
    private void guard(LogicalPlan plan, Set seen) {
        if (!seen.add(plan)) {
            return;
        }
        String kind = kind(plan);
        CatalogTable table = kind.equals("LogicalRelation") || kind.equals("HiveTableRelation") ? catalogTable(plan) : null;
        if (table != null && isStaged(table.identifier())) {
            Map facts = facts("stale", kind);
            putName(facts, table);
            ask(facts);
        }
        for (Iterator all = children(plan).iterator(); all.hasNext();) {
            guard((LogicalPlan) all.next(), seen);
        }
        for (Iterator all = listed(plan.subqueriesAll()).iterator(); all.hasNext();) {
            guard((LogicalPlan) all.next(), seen);
        }
    }

    private String transaction() {
        return context.getLocalProperty(TRANSACTION);
    }

    private Set stagedNow() {
        String transaction = staged.isEmpty() ? null : transaction();
        return transaction == null ? null : (Set) staged.get(transaction.replace("?", ""));
    }

    private boolean hasStaged() {
        return stagedNow() != null;
    }

    private boolean mayBeStaged(String name) {
        Set names = stagedNow();
        for (Iterator all = (names == null ? Collections.EMPTY_SET : names).iterator(); all.hasNext();) {
            if (((String) all.next()).endsWith("\0" + name.toLowerCase(Locale.ROOT))) {
                return true;
            }
        }
        return false;
    }

    private boolean isStaged(TableIdentifier name) {
        Set names = stagedNow();
        return names != null && name.database().isDefined()
            && names.contains((name.database().get() + "\0" + name.table()).toLowerCase(Locale.ROOT));
    }

    /** Records that a transaction has staged a table of the session catalog. */
    public void stage(String transaction, String database, String name) {
        staged.putIfAbsent(transaction, ConcurrentHashMap.newKeySet());
        ((Set) staged.get(transaction)).add((database + "\0" + name).toLowerCase(Locale.ROOT));
    }

    /** Records that a transaction no longer stages a table: it was rolled back to a savepoint. */
    public void unstage(String transaction, String database, String name) {
        Set names = (Set) staged.get(transaction);
        if (names != null) {
            names.remove((database + "\0" + name).toLowerCase(Locale.ROOT));
        }
    }

    /** Records a transaction of a block: Python is asked for each table, and, if it reads one snapshot, for its files. */
    public void pin(String transaction, boolean readsSnapshot) {
        pinned.add(transaction);
        if (readsSnapshot) {
            snapshots.add(transaction);
        }
    }

    private boolean isPinned() {
        return isIn(pinned);
    }

    private boolean readsSnapshot() {
        return catalog != null && isIn(snapshots);
    }

    private boolean isIn(Set transactions) {
        String transaction = transactions.isEmpty() ? null : transaction();
        return transaction != null && transactions.contains(transaction.replace("?", ""));
    }

    /** Forgets a transaction that has ended. */
    public void end(String transaction) {
        staged.remove(transaction);
        pinned.remove(transaction);
        snapshots.remove(transaction);
    }

    /** Whether Spark may analyse a query by its experimental resolver, without the rules of extensions. */
    public boolean isSinglePass() {
        return Boolean.parseBoolean(state().conf().getConfString(SINGLE_PASS + "enabled", "false"))
            || Boolean.parseBoolean(state().conf().getConfString(SINGLE_PASS + "enabledTentatively", "false"));
    }

    /** Remembers a statement that Spark may refuse or run itself: no part of a script, as others ran before it. */
    private void remember(LogicalPlan plan) {
        if (!isInScript()) {
            REFUSABLE.set(new Object[] {session, plan});
        }
    }

    private static boolean isInScript() {
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

    // -- Python -------------------------------------------------------------------------------------------------------

    private boolean isOff() {
        return context.getLocalProperty(OFF) != null;
    }

    /** Lets Spark itself analyse, but not run, the last routed statement of this thread, if any. */
    public boolean analyzeRouted() {
        Object[] routed = (Object[]) REFUSABLE.get();
        REFUSABLE.remove();
        if (routed == null || routed[0] != session) {
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
    private void place(Map facts, List parts) {
        facts.put("parts", parts);
        if (parts == null || parts.isEmpty()) {
            return;
        }
        facts.put("current_catalog", currentCatalog());
        facts.put("current_namespace", state().catalogManager().currentNamespace());
        facts.put("current_database", state().catalog().getCurrentDatabase());
        facts.put("is_catalog", Boolean.valueOf(
            parts.size() > 1 && state().catalogManager().isCatalogRegistered((String) parts.get(0))));
        facts.put("is_temporary_view", Boolean.valueOf(
            parts.size() == 1 && state().catalog().getTempView((String) parts.get(0)).isDefined()));
    }

    /** The current catalog; none if Spark cannot load it, which Spark itself will report. */
    private String currentCatalog() {
        try {
            return state().catalogManager().currentCatalog().name();
        } catch (RuntimeException error) {
            return "";
        }
    }

    private static Map facts(String question, String node) {
        Map facts = new HashMap();
        facts.put("question", question);
        facts.put("node", node);
        return facts;
    }

    private Object ask(Map facts) {
        return python.apply(json(facts), null);
    }

    private Map answer(Map facts) {
        Object answer = ask(facts);
        try {
            return answer == null ? null : (Map) JSON.readValue((String) answer, Map.class);
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private SessionState state() {
        return session.sessionState();
    }

    // -- installation -------------------------------------------------------------------------------------------------

    /** Adds the rules after those of other extensions; Take before Spark's own that turn statements into commands. */
    private void install(boolean readsPathsByName) throws Exception {
        List before = rules("hintResolutionRules");
        before.add(added(new Names()));
        put("hintResolutionRules", before);
        if (readsPathsByName) {
            List relations = rules("extendedResolutionRules");
            relations.add(added(new PathReads.ByName()));
            put("extendedResolutionRules", relations);
        }
        List after = rules("postHocResolutionRules");
        after.add(place(after, "PreprocessTableInsertion"), added(new Bring()));
        after.add(place(after, "DataSourceAnalysis"), added(new Take()));
        after.add(added(new Exchange()));
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
            Routing routing = new Routing(python, session, new HashSet(catalogs), catalog, new HashSet(providers));
            routing.install(readsPathsByName);
            return routing;
        }
    }
}
