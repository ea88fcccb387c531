package twophase;

import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.connector.expressions.LiteralValue;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import scala.Option;

/**
 * Values of partition columns as Spark writes them into directory names.
 *
 * A value itself never reaches Python, which supports neither all of Spark's types nor all its time zones.
 */
public final class PartitionValues {
    /** The value of a v2 literal; null for NULL. */
    public String of(LiteralValue literal, String zone) {
        return written(new Literal(literal.value(), literal.dataType()), zone);
    }

    /** A text that a PARTITION clause has, converted to a type, which is given as JSON; null for NULL. */
    public String converted(String text, String type, String zone) {
        Expression literal = Literal.create(text, DataTypes.StringType);
        return written(new Cast(literal, DataType.fromJson(type), Option.apply(zone)), zone);
    }

    private static String written(Expression value, String zone) {
        Object found = new Cast(value, DataTypes.StringType, Option.apply(zone)).eval(null);
        return found == null ? null : found.toString();
    }
}
