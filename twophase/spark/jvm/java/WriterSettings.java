package twophase;

import static twophase.Nodes.*;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.classic.DataFrameWriter;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/** The settings that a job has given its DataFrameWriter. */
public final class WriterSettings {
    public String read(DataFrameWriter writer) {
        Map facts = new HashMap();
        facts.put("source", writer.source());
        facts.put("mode", writer.curmode().name());
        facts.put("partition_columns", names(writer.partitioningColumns()));
        facts.put("buckets", writer.numBuckets().isDefined() ? writer.numBuckets().get() : null);
        facts.put("bucket_columns", names(writer.bucketColumnNames()));
        facts.put("sort_columns", names(writer.sortColumnNames()));
        facts.put("clustering_columns", names(writer.clusteringColumns()));
        facts.put("options", CollectionConverters.asJava(writer.extraOptions().originalMap()));
        return json(facts);
    }

    private static Object names(Option columns) {
        return columns.isDefined() ? listed(columns.get()) : null;
    }
}
