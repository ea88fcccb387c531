package twophasetests;

import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.spark.internal.io.FileNameSpec;
import org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * A commit protocol like that of S3A's magic committer: tasks write below a directory of the job, beside no
 * {@code _temporary}, and their files appear in their places when the job ends.
 */
public final class MagicProtocol extends SQLHadoopMapReduceCommitProtocol {
    private static final String COUNT = "twophasetests.magic.jobs";
    private final String place;

    public MagicProtocol(String jobId, String path, boolean dynamicPartitionOverwrite) {
        super(jobId, path, dynamicPartitionOverwrite);
        place = path;
    }

    private Path hidden() {
        return new Path(place, "__magic_job");
    }

    public String newTaskTempFile(TaskAttemptContext task, Option directory, FileNameSpec spec) {
        String name = getFilename(task, spec);
        return new Path(hidden(), directory.isDefined() ? directory.get() + "/" + name : name).toString();
    }

    public void commitJob(JobContext job, Seq messages) {
        super.commitJob(job, messages);
        try {
            FileSystem files = hidden().getFileSystem(job.getConfiguration());
            if (files.exists(hidden())) {
                String top = files.makeQualified(hidden()).toUri().getPath();
                RemoteIterator each = files.listFiles(hidden(), true);
                while (each.hasNext()) {
                    Path file = ((LocatedFileStatus) each.next()).getPath();
                    Path target = new Path(place, file.toUri().getPath().substring(top.length() + 1));
                    files.mkdirs(target.getParent());
                    if (!files.rename(file, target)) {
                        throw new IOException(file + " was not renamed.");
                    }
                }
                files.delete(hidden(), true);
            }
        } catch (IOException failed) {
            throw new UncheckedIOException(failed);
        }
        System.setProperty(COUNT, String.valueOf(Integer.getInteger(COUNT, 0).intValue() + 1));
    }

    public void abortJob(JobContext job) {
        super.abortJob(job);
        try {
            hidden().getFileSystem(job.getConfiguration()).delete(hidden(), true);
        } catch (IOException failed) {
            throw new UncheckedIOException(failed);
        }
    }
}
