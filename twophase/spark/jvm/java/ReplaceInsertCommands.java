package twophase;

import static twophase.Nodes.*;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.DataSourceAnalysis;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.StructField;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/** Replaces the command that Spark has created from an INSERT with twophase's write, and allows SET NOT NULL. */
public final class ReplaceInsertCommands extends WriteRule {
    public ReplaceInsertCommands(SessionRule other) {
        super(other);
    }

    protected LogicalPlan replaced(LogicalPlan plan) {
        if (kind(plan).equals("AlterColumns")) {
            return withNotNull(plan);
        }
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
        boolean isNew = Boolean.TRUE.equals(taken[2]);
        String scope = Boolean.TRUE.equals(taken[1]) ? isHive ? scopeOfHive(plan, isNew) : scopeOfFiles(plan, isNew) : null;
        CatalogTable table = (CatalogTable) (isHive ? get(plan, "table") : ((Option) get(plan, "catalogTable")).get());
        String database = (String) table.identifier().database().get();
        Identifier name = Identifier.of(new String[] {database}, table.identifier().table());
        CatalogPlugin plugin = state().catalogManager().catalog(catalog);
        DataSourceV2Relation relation =
            DataSourceV2Relation.create((Table) taken[0], Option.apply(plugin), Option.apply(name));
        Map options = isHive ? new HashMap() : beyond((Map) get(plan, "options", Map.class), table);
        return append("byPosition", relation, options, isHive ? withStaticPartitions(plan, query, table) : query, scope);
    }

    /** A SET NOT NULL of our table: its catalog looks for NULL, where Spark refuses every column that may have one. */
    private LogicalPlan withNotNull(LogicalPlan plan) {
        LogicalPlan table = (LogicalPlan) get(plan, "table");
        if (!kind(table).equals("ResolvedTable") || !catalogs.contains(((CatalogPlugin) get(table, "catalog")).name())) {
            return plan;
        }
        List changes = listed(get(plan, "specs"));
        for (int index = 0; index < changes.size(); index++) {
            TreeNode change = (TreeNode) changes.get(index);
            TreeNode column = (TreeNode) get(change, "column");
            if ("false".equals(text(get(change, "newNullability"))) && has(column, "field")) {
                StructField field = (StructField) get(column, "field");
                Object required = new StructField(field.name(), field.dataType(), false, field.metadata());
                changes.set(index, with(change, "column", with(column, "field", required)));
            }
        }
        return (LogicalPlan) with(plan, "specs", seq(changes));
    }

    /** The options of a command that its table does not have: those of the statement. SerDe tables have none of Spark's. */
    private static Map beyond(Map options, CatalogTable table) {
        Map result = new HashMap();
        Set known = new HashSet(Arrays.asList(new Object[] {"path", "partitionoverwritemode"}));
        for (Iterator all = CollectionConverters.asJava(table.storage().properties()).keySet().iterator(); all.hasNext();) {
            known.add(((String) all.next()).toLowerCase(Locale.ROOT));
        }
        for (Iterator all = options.entrySet().iterator(); all.hasNext();) {
            Map.Entry entry = (Map.Entry) all.next();
            String key = ((String) entry.getKey()).toLowerCase(Locale.ROOT);
            if (!known.contains(key) && !key.startsWith("__")) {
                result.put(entry.getKey(), entry.getValue());
            }
        }
        return result;
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
        return ours == null ? null : new Object[] {ours, Boolean.FALSE, Boolean.FALSE};
    }
}
