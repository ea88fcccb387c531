package twophase;

import static twophase.Nodes.*;

import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.trees.TreeNodeTag;
import org.apache.spark.sql.connector.catalog.Table;
import scala.Option;

/** A rule about each write of a plan, which may be below a WITH, or one of several. */
public abstract class WriteRule extends SessionRule {
    /** On the rows of an INSERT: the table to write, whether it is overwritten, and whether only IF NOT EXISTS. */
    protected static final TreeNodeTag TAKEN = new TreeNodeTag("twophase.taken");

    protected WriteRule(SessionRule other) {
        super(other);
    }

    protected LogicalPlan changed(LogicalPlan plan) {
        return each(plan);
    }

    /** A write, as this rule changes it. */
    protected abstract LogicalPlan replaced(LogicalPlan plan);

    protected LogicalPlan each(LogicalPlan plan) {
        if (!kind(plan).equals("WithCTE") && !isSeveralWrites(plan)) {
            return replaced(plan);
        }
        return (LogicalPlan) plan.mapChildren(new scala.runtime.AbstractFunction1() {
            public Object apply(Object child) {
                return each((LogicalPlan) child);
            }
        });
    }

    protected boolean isOurs(CatalogTable table) {
        if (table == null || catalog == null || table.identifier().table().startsWith(STAGING)) {
            return false;
        }
        String provider = table.provider().isDefined() ? (String) table.provider().get() : "hive";
        return providers.contains(provider.toLowerCase(Locale.ROOT)) || provider.indexOf('.') > 0;
    }

    /** The table to write in place of a session table; null if Python leaves the write to Spark. */
    protected Table table(Map facts, CatalogTable table) {
        putName(facts, table);
        facts.put("provider", table.provider().isDefined() ? table.provider().get() : "hive");
        facts.put("partition_columns", listed(table.partitionColumnNames()));
        facts.put("extension", extension());
        return ask(facts) == null ? null : new InsertTarget(python, catalog, table, LoadedTable.of(table));
    }

    /** The mark on the rows of an INSERT; Spark may have put a Project for a static partition on top of them. */
    protected static Object[] taken(LogicalPlan query, boolean consumed) {
        Option found = query.getTagValue(TAKEN);
        if (found.isDefined()) {
            if (consumed) {
                query.unsetTagValue(TAKEN);  // The same rows go through twophase's own commands later.
            }
            return (Object[]) found.get();
        }
        return query instanceof Project ? taken((LogicalPlan) query.children().apply(0), consumed) : null;
    }
}
