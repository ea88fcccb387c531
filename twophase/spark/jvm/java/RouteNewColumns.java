package twophase;

import static twophase.Nodes.*;

import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;

/** Writes a table by its name in our catalog if it says that its rows may bring columns, before Spark counts them. */
public final class RouteNewColumns extends WriteRule {
    private static final String MERGES_SCHEMA = "twophase.merge_schema";

    private final RouteNames names;

    public RouteNewColumns(RouteNames names) {
        super(names);
        this.names = names;
    }

    protected LogicalPlan replaced(LogicalPlan plan) {
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
        return state().analyzer().execute(names.write(named, ours, true, Boolean.TRUE.equals(get(plan, "overwrite"))));
    }

    private static String quoted(String name) {
        return "`" + name.replace("`", "``") + "`";
    }
}
