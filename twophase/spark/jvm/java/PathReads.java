package twophase;

import static twophase.Nodes.*;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * Files that are read by their path, not as a table: by the names of their columns, as in a session that is not attached.
 *
 * Spark notes the whole schema of a DataFrame in the files that it writes, with the field ids of the tables that it was
 * read from. Among the columns of several tables, or of several writes, these ids mean nothing.
 */
public final class PathReads {
    private static final String ID = "parquet.field.id";

    private PathReads() {}

    /** Runs before a query's columns are resolved by the relation's own. */
    public static final class ByName extends Rule {
        public TreeNode apply(TreeNode tree) {
            return byName((LogicalPlan) tree);
        }
    }

    private static LogicalPlan byName(LogicalPlan plan) {
        if (plan.analyzed()) {
            return plan;
        }
        if (kind(plan).equals("LogicalRelation")) {
            return relation(plan);
        }
        return (LogicalPlan) plan.mapChildren(new scala.runtime.AbstractFunction1() {
            public Object apply(Object child) {
                return byName((LogicalPlan) child);
            }
        });
    }

    private static LogicalPlan relation(LogicalPlan plan) {
        Object source = get(plan, "relation");
        if (catalogTable(plan) != null || !(source instanceof HadoopFsRelation)) {
            return plan;
        }
        HadoopFsRelation files = (HadoopFsRelation) source;
        StructType named = (StructType) without(files.dataSchema());
        if (named == files.dataSchema()) {
            return plan;
        }
        HadoopFsRelation copy = new HadoopFsRelation(files.location(), files.partitionSchema(), named, files.bucketSpec(),
            files.fileFormat(), files.options(), files.sparkSession());
        return (LogicalPlan) with(with(plan, "relation", copy), "output", DataTypeUtils.toAttributes(copy.schema()));
    }

    /** A type without ids at any level; the same object if it has none. */
    private static DataType without(DataType type) {
        if (type instanceof StructType) {
            StructField[] fields = ((StructType) type).fields();
            StructField[] found = new StructField[fields.length];
            boolean isSame = true;
            for (int index = 0; index < fields.length; index++) {
                found[index] = without(fields[index]);
                isSame &= found[index] == fields[index];
            }
            return isSame ? type : new StructType(found);
        }
        if (type instanceof ArrayType) {
            ArrayType array = (ArrayType) type;
            DataType element = without(array.elementType());
            return element == array.elementType() ? type : new ArrayType(element, array.containsNull());
        }
        if (type instanceof MapType) {
            MapType map = (MapType) type;
            DataType key = without(map.keyType());
            DataType value = without(map.valueType());
            return key == map.keyType() && value == map.valueType() ? type : new MapType(key, value, map.valueContainsNull());
        }
        return type;
    }

    private static StructField without(StructField field) {
        DataType type = without(field.dataType());
        if (type == field.dataType() && !field.metadata().contains(ID)) {
            return field;
        }
        Metadata metadata = new MetadataBuilder().withMetadata(field.metadata()).remove(ID).build();
        return new StructField(field.name(), type, field.nullable(), metadata);
    }
}
