package twophase;

import static twophase.Nodes.*;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Method;
import java.net.URI;
import java.net.URISyntaxException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.spark.internal.io.FileCommitProtocol;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.DataSource;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.execution.datasources.FileFormatWriter;
import org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol;
import org.apache.spark.sql.execution.datasources.v2.FileDataSourceV2;
import org.apache.spark.sql.execution.streaming.ManifestFileCommitProtocol;
import org.apache.spark.sql.internal.SQLConf;
import scala.Function2;
import scala.Option;
import scala.Product;
import scala.runtime.AbstractFunction0;
import scala.runtime.BoxedUnit;

/**
 * Writes files that no committer renames.
 *
 * Each attempt of a task writes files with names of its own, and reports them to the driver; those of the attempts
 * that count are returned, and the others belong to no table.
 */
public final class TaskFiles {
    private static final String FACTORY = "mapreduce.outputcommitter.factory.";
    private static final String OF_S3A = "fs.s3a.committer.name";
    private static final String OF_PARQUET = "org.apache.parquet.hadoop.ParquetOutputCommitter";

    /**
     * Writes rows to a directory.
     *
     * @return the JSON of the name below the directory and of the bytes of each file; null if nothing was written, as
     *     the session has a committer of its own
     */
    public String write(SparkSession session, Dataset rows, String provider, String directory, List partitionColumns,
            scala.collection.immutable.Map options) throws Exception {
        Configuration conf = session.sessionState().newHadoopConfWithOptions(options);
        Path top = new Path(directory);
        FileSystem files = top.getFileSystem(conf);
        FileFormat format = format(provider, session.sessionState().conf());
        if (format == null || !isHadoopsOwn(session.sessionState().conf(), conf, files)) {
            return null;
        }
        LogicalPlan query = rows.queryExecution().analyzed();
        Committer committer = new Committer(files.makeQualified(top).toString());
        Dataset.ofRows(session, new InsertIntoHadoopFsRelationCommand(
            files.makeQualified(top), none(), false,
            (scala.collection.immutable.Seq) seq(attributes(query, partitionColumns, session.sessionState().conf().resolver())),
            Option.empty(), format, options, query, SaveMode.Append, Option.empty(), Option.empty(),
            (scala.collection.immutable.Seq) seq(Arrays.asList(rows.columns())), committer));
        if (committer.committed == null) {
            throw new IllegalStateException("Spark has written to " + directory + " by another committer.");
        }
        return new ObjectMapper().writeValueAsString(committer.committed);
    }

    private static scala.collection.immutable.Map none() {
        return (scala.collection.immutable.Map) map(new HashMap());
    }

    /** Whether a session's files are committed by Hadoop's own committer, which renames each of them twice. */
    private static boolean isHadoopsOwn(SQLConf sql, Configuration conf, FileSystem files) {
        String factory = conf.get(FACTORY + "class", conf.get(FACTORY + "scheme." + files.getUri().getScheme(), ""));
        // The factory of S3A, a default of Hadoop's, makes Hadoop's own unless one of S3A's is named, by the job first.
        String named = conf.getTrimmed(OF_S3A, files.getConf().getTrimmed(OF_S3A, ""));
        boolean isOfS3a = factory.endsWith(".S3ACommitterFactory")
            && Arrays.asList(new Object[] {"", "file"}).contains(named);
        return sql.fileCommitProtocolClass().equals(SQLHadoopMapReduceCommitProtocol.class.getName())
            && conf.get("spark.sql.sources.outputCommitterClass") == null
            && conf.get("spark.sql.parquet.output.committer.class", OF_PARQUET).equals(OF_PARQUET)
            && (factory.isEmpty() || factory.endsWith(".FileOutputCommitterFactory") || isOfS3a);
    }

    private static FileFormat format(String provider, SQLConf conf) throws Exception {
        Object source = DataSource.lookupDataSource(provider, conf).getDeclaredConstructor(new Class[0]).newInstance(new Object[0]);
        if (source instanceof FileDataSourceV2) {
            source = ((FileDataSourceV2) source).fallbackFileFormat().getDeclaredConstructor(new Class[0]).newInstance(new Object[0]);
        }
        return source instanceof FileFormat ? (FileFormat) source : null;
    }

    private static List attributes(LogicalPlan query, List names, Function2 resolver) {
        List found = new ArrayList();
        for (Iterator wanted = names.iterator(); wanted.hasNext();) {
            found.add(attribute(query, (String) wanted.next(), resolver));
        }
        return found;
    }

    private static Attribute attribute(LogicalPlan query, String name, Function2 resolver) {
        for (Iterator all = listed(query.output()).iterator(); all.hasNext();) {
            Attribute attribute = (Attribute) all.next();
            if (Boolean.TRUE.equals(resolver.apply(attribute.name(), name))) {
                return attribute;
            }
        }
        throw new IllegalArgumentException("The rows have no column " + name + ", by which they are partitioned.");
    }

    /** Spark's own command, with a committer of ours, and by its name, which Spark's UI shows and rules on plans know. */
    public static final class InsertIntoHadoopFsRelationCommand
            extends org.apache.spark.sql.execution.datasources.InsertIntoHadoopFsRelationCommand {
        private final Committer committer;

        public InsertIntoHadoopFsRelationCommand(Path directory, scala.collection.immutable.Map staticPartitions,
                boolean unlessThere, scala.collection.immutable.Seq partitionColumns, Option buckets, FileFormat format,
                scala.collection.immutable.Map options, LogicalPlan query, SaveMode mode, Option table, Option index,
                scala.collection.immutable.Seq columns, Committer committer) {
            super(directory, staticPartitions, unlessThere, partitionColumns, buckets, format, options, query, mode, table,
                index, columns);
            this.committer = committer;
        }

        public scala.collection.immutable.Seq run(SparkSession session, SparkPlan rows) throws Exception {
            Configuration conf = session.sessionState().newHadoopConfWithOptions(options());
            Object[] arguments = new Object[] {
                session, rows, fileFormat(), committer,
                new FileFormatWriter.OutputSpec(outputPath().toString(), none(), outputColumns()),
                conf, partitionColumns(), Option.empty(),
                seq(Arrays.asList(new Object[] {basicWriteJobStatsTracker(conf)})), options(), Integer.valueOf(0), new Nothing()};
            Method write = method(FileFormatWriter.class, "write");
            invoke(write, null, Arrays.copyOf(arguments, write.getParameterCount())); // Spark 4.0 lacks the last.
            return (scala.collection.immutable.Seq) seq(new ArrayList());
        }

        public org.apache.spark.sql.execution.datasources.InsertIntoHadoopFsRelationCommand withNewChildInternal(
                LogicalPlan child) {
            return new InsertIntoHadoopFsRelationCommand(outputPath(), staticPartitions(), ifPartitionNotExists(),
                partitionColumns(), bucketSpec(), fileFormat(), options(), child, mode(), catalogTable(), fileIndex(),
                outputColumnNames(), committer);
        }

        public scala.collection.immutable.Seq otherCopyArgs() {
            return (scala.collection.immutable.Seq) seq(Arrays.asList(new Object[] {committer}));
        }
    }

    private static final class Nothing extends AbstractFunction0 {
        public Object apply() {
            return BoxedUnit.UNIT;
        }
    }

    /** The driver's side of Spark's protocol of streams: the executors, which have no class of ours, get that one. */
    private static final class Committer extends ManifestFileCommitProtocol {
        private final String directory;
        private List committed;

        Committer(String directory) {
            super("", directory);
            this.directory = directory;
        }

        public Object writeReplace() {
            return new ManifestFileCommitProtocol("", directory);
        }

        public void setupJob(JobContext job) {
        }

        public void onTaskCommit(FileCommitProtocol.TaskCommitMessage message) {
        }

        /** Receives one message for each task, of the attempt that counts. */
        public void commitJob(JobContext job, scala.collection.immutable.Seq messages) {
            int start = new Path(directory).toUri().getPath().length() + 1;
            committed = new ArrayList();
            for (Iterator all = listed(messages).iterator(); all.hasNext();) {
                Object files = ((FileCommitProtocol.TaskCommitMessage) all.next()).obj();
                for (Iterator each = listed(files).iterator(); each.hasNext();) {
                    Product file = (Product) each.next(); // (path, bytes, ...), of a class that Spark 4.1 has moved
                    committed.add(Arrays.asList(new Object[] {
                        path((String) file.productElement(0)).substring(start), file.productElement(1)}));
                }
            }
        }

        private static String path(String uri) {
            try {
                return new URI(uri).getPath();
            } catch (URISyntaxException error) {
                throw new IllegalStateException(error);
            }
        }

        /** Leaves all files to the rollback, which removes the directory above. */
        public void abortJob(JobContext job) {
        }
    }
}
