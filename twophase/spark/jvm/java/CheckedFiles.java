package twophase;

import java.util.function.Supplier;
import org.apache.hadoop.fs.FileStatus;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.execution.datasources.CatalogFileIndex;
import org.apache.spark.sql.execution.datasources.FileStatusCache;
import org.apache.spark.sql.execution.datasources.InMemoryFileIndex;
import org.apache.spark.sql.execution.datasources.PartitionSpec;
import org.apache.spark.sql.execution.datasources.PartitioningAwareFileIndex;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.List$;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.collection.mutable.LinkedHashMap;

/** The files of a table, listed when a query runs; only then it is known if they are those to be read. */
public final class CheckedFiles extends PartitioningAwareFileIndex {
    private final CatalogFileIndex table;
    private final StructType columns;
    private Supplier former;
    private String transaction;
    private long bytes;

    public CheckedFiles(SparkSession session, CatalogTable table, StructType columns, Map options, String bytes) {
        super(session, options, Option.empty(), FileStatusCache.getOrCreate(session));
        this.table = new CatalogFileIndex(session, table, Long.parseLong(bytes));
        this.columns = columns;
        this.bytes = Long.parseLong(bytes);
    }

    /** Sets what returns the index of a transaction's files if those just listed are others, and otherwise null. */
    public CheckedFiles otherwise(Supplier former, String transaction) {
        this.former = former;
        this.transaction = transaction;
        return this;
    }

    /** Two scans of one table in one transaction are the same: Spark runs one of them. */
    public boolean equals(Object other) {
        return other instanceof CheckedFiles && ((CheckedFiles) other).transaction.equals(transaction)
            && ((CheckedFiles) other).table.equals(table) && ((CheckedFiles) other).columns.equals(columns);
    }

    public int hashCode() {
        return transaction.hashCode() + table.hashCode();
    }

    private InMemoryFileIndex listed(Seq partitionFilters) {
        try {
            return table.filterPartitions(partitionFilters);
        } finally {  // Also after an error: it may have been replaced by a table with other partitions.
            Object expected = former.get();
            if (expected != null) {
                return (InMemoryFileIndex) expected;
            }
        }
    }

    private static Seq none() {
        return List$.MODULE$.empty();
    }

    public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
        return listed(partitionFilters).listFiles(partitionFilters, dataFilters);
    }

    public PartitionSpec partitionSpec() {
        return new PartitionSpec(columns, none());
    }

    public LinkedHashMap leafFiles() {
        return listed(none()).leafFiles();
    }

    public Map leafDirToChildrenFiles() {
        return listed(none()).leafDirToChildrenFiles();
    }

    public Seq rootPaths() {
        return table.rootPaths();
    }

    /** An estimate: without statistics, of all files of a table without partitions. */
    public long sizeInBytes() {
        if (bytes < 0) {
            bytes = table.filterPartitions(none()).sizeInBytes();
        }
        return bytes;
    }

    public void refresh() {
        // Nothing is kept.
    }
}
