package twophasetests;

import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.nio.file.CopyOption;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.protocol.DSQuotaExceededException;
import org.apache.hadoop.security.AccessControlException;
import org.apache.hadoop.util.Progressable;

/**
 * Local files with the semantics of HDFS: real directories, renames and creations that replace nothing, in one step, no
 * links, quotas of directories, and directories that this user may not change.
 */
public final class HdfsLike extends RawLocalFileSystem {
    private static final URI NAME = URI.create("hdfslike:///");
    /** HDFS has one namespace, with one lock. */
    private static final Object NAMESPACE = new Object();
    /** The most bytes below a directory, by its path: negative if nothing in it may be changed. */
    private static final Map LIMITS = new ConcurrentHashMap();

    /** Limits the bytes below a directory; with a negative number nobody may change it, with null there is no limit. */
    public static void limit(String directory, Long bytes) {
        if (bytes == null) {
            LIMITS.remove(directory);
        } else {
            LIMITS.put(directory, bytes);
        }
    }

    public URI getUri() {
        return NAME;
    }

    public String getScheme() {
        return "hdfslike";
    }

    public boolean supportsSymlinks() {
        return false;
    }

    // -- limits -------------------------------------------------------------------------------------------------------

    /** Returns the limited directory that a path is in, or null. */
    private String limitedAbove(Path path) {
        String text = pathToFile(path).getPath();
        for (Iterator each = LIMITS.keySet().iterator(); each.hasNext();) {
            String directory = (String) each.next();
            if (text.startsWith(directory + "/")) {
                return directory;
            }
        }
        return null;
    }

    private void mayChange(Path path) throws IOException {
        String directory = limitedAbove(path);
        if (directory != null && ((Long) LIMITS.get(directory)).longValue() < 0) {
            throw new AccessControlException(
                "Permission denied: user=tester, access=WRITE, inode=\"" + directory + "\":hdfs:hdfs:drwxr-xr-x");
        }
    }

    private static long used(File below) {
        File[] all = below.listFiles();
        long found = below.isFile() ? below.length() : 0L;
        for (int i = 0; all != null && i < all.length; i++) {
            found += used(all[i]);
        }
        return found;
    }

    private FSDataOutputStream limited(Path path, FSDataOutputStream out) throws IOException {
        String directory = limitedAbove(path);
        return directory == null ? out : new FSDataOutputStream(new Limited(directory, out), null);
    }

    // -- changes ------------------------------------------------------------------------------------------------------

    private void mayCreate(Path path, boolean overwrite) throws IOException {
        mayChange(path);
        if (!overwrite && pathToFile(path).exists()) {
            throw new FileAlreadyExistsException(path.toString());
        }
    }

    public FSDataOutputStream create(Path path, boolean overwrite, int size, short copies, long block,
            Progressable progress) throws IOException {
        synchronized (NAMESPACE) {
            mayCreate(path, overwrite);
            return limited(path, super.create(path, overwrite, size, copies, block, progress));
        }
    }

    public FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite, int size, short copies,
            long block, Progressable progress) throws IOException {
        synchronized (NAMESPACE) {
            mayCreate(path, overwrite);
            return limited(path, super.create(path, permission, overwrite, size, copies, block, progress));
        }
    }

    public boolean mkdirs(Path path) throws IOException {
        if (!pathToFile(path).isDirectory()) {
            mayChange(path);
        }
        return super.mkdirs(path);
    }

    public boolean mkdirs(Path path, FsPermission permission) throws IOException {
        if (!pathToFile(path).isDirectory()) {
            mayChange(path);
        }
        return super.mkdirs(path, permission);
    }

    public boolean delete(Path path, boolean recursive) throws IOException {
        synchronized (NAMESPACE) {
            if (pathToFile(path).exists()) {
                mayChange(path);
            }
            return super.delete(path, recursive);
        }
    }

    public boolean rename(Path path, Path target) throws IOException {
        synchronized (NAMESPACE) {
            File to = pathToFile(target);
            if (to.isDirectory()) {
                to = new File(to, path.getName());
            }
            if (to.exists() || !pathToFile(path).exists() || !to.getParentFile().isDirectory()) {
                return false;
            }
            move(path, target, to);
            return true;
        }
    }

    /** Renames or fails, as the namenode does: never into an existing directory. */
    public void rename(Path path, Path target, Options.Rename[] options) throws IOException {
        boolean replaces = false;
        for (int i = 0; i < options.length; i++) {
            replaces = replaces || options[i] == Options.Rename.OVERWRITE;
        }
        synchronized (NAMESPACE) {
            File to = pathToFile(target);
            if (!pathToFile(path).exists()) {
                throw new FileNotFoundException("rename source " + path + " not found.");
            }
            if (to.exists() && !(replaces && to.isFile())) {
                throw new FileAlreadyExistsException("rename destination " + target + " already exists");
            }
            if (!to.getParentFile().isDirectory()) {
                throw new FileNotFoundException("rename destination parent " + target.getParent() + " not found.");
            }
            move(path, target, to);
        }
    }

    private void move(Path path, Path target, File to) throws IOException {
        mayChange(path);
        mayChange(target);
        Files.move(pathToFile(path).toPath(), to.toPath(), new CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
    }

    /** A file in a directory with a quota. */
    private static final class Limited extends OutputStream {
        private final String directory;
        private final OutputStream out;

        Limited(String directory, OutputStream out) {
            this.directory = directory;
            this.out = out;
        }

        public void write(int one) throws IOException {
            write(new byte[] {(byte) one}, 0, 1);
        }

        public void write(byte[] data, int start, int length) throws IOException {
            Long most = (Long) LIMITS.get(directory);
            long before = used(new File(directory));
            if (most != null && before + length > most.longValue()) {
                throw new DSQuotaExceededException(most.longValue(), before + length);
            }
            out.write(data, start, length);
            out.flush();
        }

        public void flush() throws IOException {
            out.flush();
        }

        public void close() throws IOException {
            out.close();
        }
    }
}
