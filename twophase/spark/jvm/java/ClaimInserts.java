package twophase;

import static twophase.Nodes.*;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;

/** Asks Python who writes an INSERT, before Spark turns it into a command; in a transaction, checks its reads. */
public final class ClaimInserts extends WriteRule {
    public ClaimInserts(SessionRule other) {
        super(other);
    }

    protected LogicalPlan changed(LogicalPlan plan) {
        if (tables.hasStaged()) {
            guard(plan, new HashSet());
        }
        return each(catalog != null && tables.readsSnapshot() ? checked(plan) : plan);
    }

    protected LogicalPlan each(LogicalPlan plan) {
        LogicalPlan result = super.each(plan);
        return isSeveralWrites(plan) && group(plan, result) ? plan : result;
    }

    protected LogicalPlan replaced(LogicalPlan plan) {
        String kind = kind(plan);
        if (kind.equals("OverwritePartitionsDynamic")) {
            return dynamic(plan);
        }
        return kind.equals("InsertIntoStatement") ? insert(plan) : plan;
    }

    /** Lets the files of all session tables be checked when the query has them; not of earlier DataFrames. */
    private LogicalPlan checked(LogicalPlan plan) {
        if (kind(plan).equals("LogicalRelation")) {  // Spark caches it: an earlier analysis may have marked it.
            CatalogTable table = catalogTable(plan);
            LogicalPlan checked = table == null || table.identifier().database().isEmpty() || tables.isStaged(table.identifier())
                ? null : SnapshotFiles.checked(plan, python, catalog, tables.transaction().replace("?", ""));
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
            LogicalPlan write = (LogicalPlan) all.next();
            if (has(write, "table") && kind(get(write, "table")).equals("UnresolvedRelation")) {
                return false;  // Spark says that there is no such table.
            }
            ours += isOurs(write) ? 1 : 0;
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
        LogicalPlan query = (LogicalPlan) get(plan, "query");
        if (!isOurs(table) || replacesRows(plan) || !query.resolved()) {  // Spark says what it does not find.
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
        LogicalPlan marked = new Project(query.output(), query);
        marked.setTagValue(TAKEN, new Object[] {ours, get(plan, "overwrite"), get(plan, "ifPartitionNotExists")});
        LogicalPlan result = (LogicalPlan) with(with(plan, "query", marked), "ifPartitionNotExists", Boolean.FALSE);
        if (kind((Object) get(plan, "table")).equals("LogicalRelation")) {
            // Spark would refuse to overwrite a table that it reads; here the former rows stay until the publish.
            result = (LogicalPlan) with(result, "overwrite", Boolean.FALSE);
        }
        return result;
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
        return append("byPosition", plan, (LogicalPlan) get(plan, "query"), scope(new HashMap(), isPartitioned, false));
    }

    /** Refuses to read the former rows of a staged table, by a relation that RouteNames has not seen. */
    private void guard(LogicalPlan plan, Set seen) {
        if (!seen.add(plan)) {
            return;
        }
        String kind = kind(plan);
        CatalogTable table = kind.equals("LogicalRelation") || kind.equals("HiveTableRelation") ? catalogTable(plan) : null;
        if (table != null && tables.isStaged(table.identifier())) {
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
}
