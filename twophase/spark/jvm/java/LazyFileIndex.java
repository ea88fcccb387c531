package twophase;

import java.lang.reflect.Field;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.datasources.FileStatusCache;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.InMemoryFileIndex;
import org.apache.spark.sql.execution.datasources.PartitionSpec;
import org.apache.spark.sql.execution.datasources.PartitioningAwareFileIndex;
import scala.Option;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.collection.mutable.LinkedHashMap;

/**
 * Spark's index of the files of a table, which lists them when they are next read, and not when it is refreshed.
 *
 * Spark's own lists all files of a table after each INSERT into it.
 */
public final class LazyFileIndex extends InMemoryFileIndex {
    private final AtomicLong refreshes = new AtomicLong(1);
    private volatile long listed;

    private LazyFileIndex(HadoopFsRelation relation, Seq roots, Map options, Option schema) {
        super(relation.sparkSession(), roots, options, schema, new Unlisted(), Option.apply(null), Option.apply(null));
    }

    /** The index of an unpartitioned table in a directory, in place of one that Spark has made of the table. */
    public static LazyFileIndex of(HadoopFsRelation relation, Seq roots) throws Exception {
        Object files = relation.location();
        return new LazyFileIndex(relation, roots, (Map) get("parameters", files), (Option) get("userSpecifiedSchema", files));
    }

    private static Object get(String name, Object instance) throws Exception {
        Field field = PartitioningAwareFileIndex.class.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(instance);
    }

    public void refresh() {
        refreshes.incrementAndGet();
    }

    private void list() {
        if (listed == refreshes.get()) {
            return;
        }
        synchronized (this) {
            long wanted = refreshes.get();  // Before the listing: a later refresh asks for another one.
            if (listed != wanted) {
                super.refresh();
                listed = wanted;
            }
        }
    }

    public LinkedHashMap leafFiles() {
        list();
        return super.leafFiles();
    }

    public Map leafDirToChildrenFiles() {
        list();
        return super.leafDirToChildrenFiles();
    }

    public PartitionSpec partitionSpec() {
        list();
        return super.partitionSpec();
    }

    /** Knows of no file until the first refresh, so that nothing is listed for a new index. */
    public static final class Unlisted extends FileStatusCache {
        private boolean isNew = true;

        public Option getLeafFiles(Path root) {
            return Option.apply(isNew ? new FileStatus[0] : null);
        }

        public void putLeafFiles(Path path, FileStatus[] leafFiles) {
            // Each listing is a new one.
        }

        public void invalidateAll() {
            isNew = false;
        }
    }
}
