package twophasetests;

import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;

/** Local files with the semantics of HDFS: directories, atomic renames that replace nothing, and no links. */
public final class HdfsLike extends RawLocalFileSystem {
    private static final URI NAME = URI.create("hdfslike:///");

    public URI getUri() {
        return NAME;
    }

    public String getScheme() {
        return "hdfslike";
    }

    public boolean rename(Path path, Path target) throws IOException {
        if (pathToFile(target).isFile()) {
            return false;
        }
        return super.rename(path, target);
    }

    public boolean supportsSymlinks() {
        return false;
    }
}
