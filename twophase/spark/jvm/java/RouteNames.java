package twophase;

import static twophase.Nodes.*;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BiFunction;
import org.apache.spark.sql.catalyst.analysis.AnalysisContext;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.GlobalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.QualifiedColType;
import org.apache.spark.sql.catalyst.plans.logical.SerdeInfo;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreeNodeTag;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/** Renames the targets of statements, and inside a transaction their sources, to names in a twophase catalog. */
public final class RouteNames extends SessionRule {
    private static final String LOGICAL = "org.apache.spark.sql.catalyst.plans.logical.";
    private static final String HINTS = "twophase.hints";
    private static final String BRINGS = "\"brings_columns\": true";
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
    /** Commands that are reported to Python outside transactions, too. */
    private static final List COMMANDS = Arrays.asList(new Object[] {"SetCatalogAndNamespace", "CreateNamespace", "AddPartitions",
        "RenamePartitions", "RecoverPartitions", "RepairTable", "DropPartitions", "TruncateTable", "TruncatePartition", "LoadData"});
    /** A node that was routed. */
    private static final TreeNodeTag ROUTED = new TreeNodeTag("twophase.routed");

    public RouteNames(BiFunction python, SparkSession session, StagedTables tables, Set catalogs, String catalog, Set providers) {
        super(python, session, tables, catalogs, catalog, providers);
    }

    protected LogicalPlan changed(LogicalPlan statement) {
        boolean inside = tables.transaction() != null;
        LogicalPlan plan = CREATES.contains(kind(statement)) ? withName(statement) : statement;
        String kind = kind(plan);
        if (begins(plan, kind)) {
            forget();
        }
        if (inside ? !isQuery(plan) : COMMANDS.contains(kind)) {
            askOfCommand(plan, kind, inside);
        }
        return named(plan, inside, use(kind));
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

    /** A statement that creates a table whose name is an expression, IDENTIFIER(...), with the name that this has. */
    private LogicalPlan withName(LogicalPlan plan) {
        LogicalPlan name = plan.getClass().getName().startsWith(LOGICAL) ? (LogicalPlan) get(plan, "name") : plan;
        if (!kind(name).equals("PlanWithUnresolvedIdentifier")) {
            return plan;
        }
        LogicalPlan found = state().analyzer().execute(name);
        if (!kind(found).equals("ResolvedIdentifier")) {
            return plan;  // Spark says why.
        }
        Identifier identifier = (Identifier) get(found, "identifier");
        List parts = new ArrayList(Arrays.asList((Object[]) identifier.namespace()));
        parts.add(0, ((CatalogPlugin) get(found, "catalog")).name());
        parts.add(identifier.name());
        TreeNode written = (TreeNode) get(parsed("CREATE TABLE t AS SELECT 1"), "name");
        return (LogicalPlan) with(plan, "name", with(written, "nameParts", seq(parts)));
    }

    private void askOfCommand(LogicalPlan plan, String kind, boolean inside) {
        boolean isChange = TRUNCATES.contains(kind) || kind.equals("DropTable") || ALTERS.contains(kind)
            || NAMESPACES.contains(kind);
        if (kind.equals("InsertIntoStatement") || ROW_WRITES.contains(kind) || isCreate(plan, kind, inside)
            || inside && isChange && nameBelow(plan) != null) {
            return;  // It is decided as a write.
        }
        Map facts = facts("command", kind);
        place(facts, namedBelow(plan));
        facts.put("saves", Boolean.valueOf(context.getLocalProperty(HINTS) != null));
        facts.put("temporary", Boolean.valueOf(isTemporary(plan)));
        facts.put("pattern", has(plan, "pattern") ? text(get(plan, "pattern")) : null);
        facts.put("partitions", partitions(plan, kind));
        ask(facts);
    }

    /** The partitions that a command of Spark's own adds, or may add, each as it states it; none if it says of none. */
    private static List partitions(LogicalPlan plan, String kind) {
        List found = new ArrayList();
        if (kind.equals("AddPartitions")) {
            for (Iterator all = listed(get(plan, "parts")).iterator(); all.hasNext();) {
                found.add(get((TreeNode) all.next(), "spec", Map.class));
            }
        } else if (kind.equals("RenamePartitions")) {
            found.add(get((TreeNode) get(plan, "to"), "spec", Map.class));
        } else if (kind.equals("LoadData") && ((Option) get(plan, "partition")).isDefined()) {
            found.add(CollectionConverters.asJava((scala.collection.Map) ((Option) get(plan, "partition")).get()));
        }
        return found;
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
        if (inside && nameBelow(mapped) == null) {
            return mapped;
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
        return TRUNCATES.contains(kind) && (inside || namesOurs(mapped)) ? truncate(mapped, kind) : mapped;
    }

    /** A table that a statement in a transaction reads: the staged version, if any. */
    private LogicalPlan read(LogicalPlan relation, String kind, String use) {
        List parts = parts(relation);
        if (!tables.isPinned() && !tables.mayBeStaged((String) parts.get(parts.size() - 1))) {
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

    /** Whether the rows of a write may bring columns, as it says itself or a method of PySpark has said. */
    private boolean bringsColumns(LogicalPlan write) {
        return evolvesSchema(write) || String.valueOf(context.getLocalProperty(HINTS)).contains(BRINGS);
    }

    /** The target of a write that brings columns: Python is asked for the table by its name only. */
    private TreeNode bringing(TreeNode table) {
        String before = context.getLocalProperty(HINTS);
        context.setLocalProperty(HINTS, "{\"options\": null, " + BRINGS + "}");
        try {
            return loaded(table);
        } finally {
            context.setLocalProperty(HINTS, before);
        }
    }

    /**
     * The target of a write, resolved apart from the tables that its query reads: Spark loads a name once for a statement,
     * so that a subquery, or another INSERT, would read from the table that can only be written.
     */
    private TreeNode loaded(TreeNode table) {
        ((LogicalPlan) table).setTagValue(ROUTED, Boolean.TRUE);
        LogicalPlan found = state().analyzer().execute((LogicalPlan) table);
        found = found instanceof SubqueryAlias ? ((SubqueryAlias) found).child() : found;
        return found instanceof DataSourceV2Relation ? found : table;
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
        if (isInsert && !inside && !bringsColumns(plan) && !(overwrites && namesOurs(parts(table)))) {
            return apart(plan, table);
        }
        return write(plan, table, isInsert, overwrites);
    }

    /** A write whose target is loaded by itself if it is in our catalogs. */
    private LogicalPlan apart(LogicalPlan plan, TreeNode table) {
        return namesOurs(parts(table)) ? (LogicalPlan) with(plan, "table", loaded(table)) : plan;
    }

    /** A write of a table that is not resolved yet, as Python decides it. */
    public LogicalPlan write(LogicalPlan plan, TreeNode table, boolean isInsert, boolean overwrites) {
        String kind = kind(plan);
        Map facts = facts(isInsert ? "insert" : "write", kind);
        place(facts, parts(table));
        facts.put("overwrite", Boolean.valueOf(overwrites));
        facts.put("options", options(table));
        facts.put("brings_columns", Boolean.valueOf(bringsColumns(plan)));
        if (isInsert) {
            facts.put("partition", specification(plan));
            facts.put("if_not_exists", get(plan, "ifPartitionNotExists"));
            facts.put("replaces_rows", Boolean.valueOf(replacesRows(plan)));
        }
        Map answer = answer(facts);
        if (answer == null) {
            return apart(plan, table);
        }
        if (answer.get("writes_nothing") != null) {
            return new GlobalLimit(new Literal(Integer.valueOf(0), org.apache.spark.sql.types.DataTypes.IntegerType), (LogicalPlan) get(plan, "query"));
        }
        LogicalPlan result = plan;
        if (answer.get("if_not_exists") != null) {  // First: Spark accepts it of no INSERT INTO.
            result = (LogicalPlan) with(result, "ifPartitionNotExists", Boolean.FALSE);
        }
        TreeNode renamed = answer.get("parts") == null ? table : with(table, "multipartIdentifier", seq((List) answer.get("parts")));
        String scope = (String) answer.get("scope");
        if (scope != null && isInsert) {
            renamed = overwritten(renamed, scope);
            result = (LogicalPlan) with(result, "overwrite", Boolean.FALSE);
        }
        result = (LogicalPlan) with(result, "table", answer.get("brings_columns") == null ? loaded(renamed) : bringing(renamed));
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

    /**
     * An INSERT of no rows that states an overwrite, in place of a TRUNCATE TABLE [PARTITION]: inside a transaction, and of
     * a session table by its name in our catalog.
     */
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

    private boolean namesOurs(LogicalPlan plan) {
        LogicalPlan name = nameBelow(plan);
        return name != null && namesOurs(parts(name));
    }

    private boolean namesOurs(List parts) {
        if (parts.size() > 1 && catalogs.contains(parts.get(0))) {
            return true;
        }
        return parts.size() < 3 && catalogs.contains(state().catalogManager().currentCatalog().name());
    }
}
