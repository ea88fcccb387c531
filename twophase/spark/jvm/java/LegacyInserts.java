package twophase;

import static twophase.Nodes.*;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreeNodeTag;
import org.apache.spark.sql.catalyst.util.CharVarcharUtils;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation$;
import org.apache.spark.sql.execution.datasources.PreprocessTableInsertion$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Option;

/**
 * Under the store assignment policy LEGACY, puts the rows of an INSERT into a session table in order as Spark does for
 * such tables: under their names in our catalog it would refuse the policy.
 */
public final class LegacyInserts extends WriteRule {
    private static final TreeNodeTag ORDERED = new TreeNodeTag("twophase.ordered");

    public LegacyInserts(SessionRule other) {
        super(other);
    }

    protected LogicalPlan replaced(LogicalPlan plan) {
        if (!kind(plan).equals("InsertIntoStatement") || plan.getTagValue(ORDERED).isDefined()) {
            return plan;
        }
        Object table = get(plan, "table");
        boolean isResolved = table instanceof DataSourceV2Relation && ((LogicalPlan) get(plan, "query")).resolved();
        if (!isResolved || !isLegacy() || !isOurs((DataSourceV2Relation) table)) {
            return plan;
        }
        LogicalPlan known = (LogicalPlan) with(plan, "table", files((DataSourceV2Relation) table));
        Object query = get(PreprocessTableInsertion$.MODULE$.apply(known), "query");
        TreeNode result = with(with(plan, "query", query), "userSpecifiedCols", seq(new ArrayList()));
        result = with(with(result, "byName", Boolean.FALSE), "table", checked((DataSourceV2Relation) table));
        ((LogicalPlan) result).setTagValue(ORDERED, Boolean.TRUE);
        return (LogicalPlan) result;
    }

    private boolean isLegacy() {
        return String.valueOf(state().conf().storeAssignmentPolicy()).equals("LEGACY");
    }

    private boolean isOurs(DataSourceV2Relation table) {
        boolean isNamed = table.catalog().isDefined() && ((CatalogPlugin) table.catalog().get()).name().equals(catalog);
        return isNamed && !table.skipSchemaResolution();
    }

    /** The table without the lengths of its columns, which the rows are checked for: Spark would compare these types. */
    private static TreeNode checked(DataSourceV2Relation table) {
        List output = listed(table.output());
        for (int index = 0; index < output.size(); index++) {
            output.set(index, CharVarcharUtils.cleanAttrMetadata((AttributeReference) output.get(index)));
        }
        return with(table, "output", seq(output));
    }

    /** A relation of Spark's own with the columns of a table. */
    private LogicalPlan files(DataSourceV2Relation table) {
        Set partitions = new HashSet();
        Transform[] transforms = table.table().partitioning();
        for (int index = 0; index < transforms.length; index++) {
            if (transforms[index].name().equals("identity")) {
                partitions.add(transforms[index].references()[0].fieldNames()[0]);
            }
        }
        List data = new ArrayList();
        List by = new ArrayList();
        StructField[] fields = table.schema().fields();
        for (int index = 0; index < fields.length; index++) {
            (partitions.contains(fields[index].name()) ? by : data).add(fields[index]);
        }
        HadoopFsRelation files = new HadoopFsRelation(
            null, struct(by), struct(data), Option.empty(), null, (scala.collection.immutable.Map) map(new HashMap()), session);
        return LogicalRelation$.MODULE$.apply(files, false);
    }

    private static StructType struct(List fields) {
        return new StructType((StructField[]) fields.toArray(new StructField[0]));
    }
}
