package twophase;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.catalog.CatalogTablePartition;
import org.apache.spark.sql.execution.datasources.FileStatusCache;
import org.apache.spark.sql.execution.datasources.PartitionPath;
import org.apache.spark.sql.execution.datasources.PartitionSpec;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.collection.mutable.Buffer;
import scala.jdk.javaapi.CollectionConverters;

/** Files that were listed already: Spark's index of them finds each one here, and lists no directory. */
public final class ListedFiles extends FileStatusCache {
    private final List roots = new ArrayList();
    private final Map files = new HashMap();

    /** Takes the JSON of a list of [location, bytes, modification time]. */
    public ListedFiles(String listed) throws Exception {
        List all = (List) new ObjectMapper().readValue(listed, List.class);
        for (Iterator each = all.iterator(); each.hasNext();) {
            List facts = (List) each.next();
            Path path = new Path((String) facts.get(0));
            long bytes = ((Number) facts.get(1)).longValue();
            long modified = ((Number) facts.get(2)).longValue();
            FileStatus status = new FileStatus(bytes, false, 1, 0L, modified, path);
            roots.add(path);
            files.put(path, new FileStatus[] {status});
        }
    }

    /** The paths of all files. */
    public Seq roots() {
        return sequence(roots);
    }

    /** The partitions by which the index groups the files, and the JSON of the list of their directories. */
    public PartitionSpec partitions(Seq partitions, String directories, StructType columns, String zone)
            throws Exception {
        List found = new ArrayList();
        Iterator directory = ((List) new ObjectMapper().readValue(directories, List.class)).iterator();
        for (Iterator each = CollectionConverters.asJava(partitions).iterator(); each.hasNext();) {
            InternalRow values = ((CatalogTablePartition) each.next()).toRow(columns, zone);
            found.add(new PartitionPath(values, new Path((String) directory.next())));
        }
        return new PartitionSpec(columns, sequence(found));
    }

    private static Seq sequence(List items) {
        return ((Buffer) CollectionConverters.asScala(items)).toList();
    }

    public Option getLeafFiles(Path path) {
        return Option.apply(files.get(path));
    }

    public void putLeafFiles(Path path, FileStatus[] leafFiles) {
        // All are known.
    }

    public void invalidateAll() {
        // They stay as they were listed.
    }
}
