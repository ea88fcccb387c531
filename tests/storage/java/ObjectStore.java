package twophasetests;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * A bucket with the semantics of S3A: objects by key, no directories, objects appear as a whole, and a rename copies and
 * deletes each object. Objects are local files; their names have a mark, as an object "a" may exist beside "a/b".
 */
public final class ObjectStore extends FileSystem {
    private static final String OBJECT = "%o";
    private static final String BELOW = "%d";
    private URI uri;
    private File bucket;
    private Path working;

    public void initialize(URI name, Configuration conf) throws IOException {
        super.initialize(name, conf);
        setConf(conf);
        uri = URI.create(name.getScheme() + "://" + name.getAuthority());
        bucket = new File(conf.get("fs.objs.root"), name.getAuthority());
        working = new Path(uri.toString() + "/");
    }

    public String getScheme() {
        return "objs";
    }

    public URI getUri() {
        return uri;
    }

    public Path getWorkingDirectory() {
        return working;
    }

    public void setWorkingDirectory(Path path) {
        working = path;
    }

    // -- objects ------------------------------------------------------------------------------------------------------

    private String key(Path path) {
        String text = makeQualified(path).toUri().getPath();
        return text.startsWith("/") ? text.substring(1) : text;
    }

    private File file(String key) {
        String[] parts = key.split("/", -1);
        File found = bucket;
        for (int i = 0; i < parts.length - 1; i++) {
            found = new File(found, parts[i] + BELOW);
        }
        return new File(found, parts[parts.length - 1] + OBJECT);
    }

    /** All objects whose keys begin so, by the rest of their keys; the prefix is empty or ends with a slash. */
    private TreeMap below(String prefix) {
        TreeMap found = new TreeMap();
        collect(prefix.isEmpty() ? bucket : file(prefix).getParentFile(), "", found);
        return found;
    }

    private static void collect(File directory, String above, TreeMap found) {
        File[] all = directory.listFiles();
        for (int i = 0; all != null && i < all.length; i++) {
            String name = all[i].getName();
            String plain = above + name.substring(0, name.length() - 2);
            if (name.endsWith(OBJECT)) {
                found.put(plain, all[i]);
            } else if (name.endsWith(BELOW)) {
                collect(all[i], plain + "/", found);
            }
        }
    }

    private static String prefix(String key) {
        return key.isEmpty() || key.endsWith("/") ? key : key + "/";
    }

    private void store(String key, byte[] data) throws IOException {
        File target = file(key);
        target.getParentFile().mkdirs();
        File part = new File(target.getParentFile(), UUID.randomUUID().toString());
        Files.write(part.toPath(), data);
        Files.move(part.toPath(), target.toPath(), StandardCopyOption.ATOMIC_MOVE);
    }

    // -- what Hadoop asks -----------------------------------------------------------------------------------------------

    public FileStatus getFileStatus(Path path) throws IOException {
        String key = key(path);
        File found = file(key);
        if (!key.isEmpty() && found.isFile()) {
            return status(found, makeQualified(path));
        }
        if (key.isEmpty() || !below(prefix(key)).isEmpty()) {
            return new FileStatus(0L, true, 1, 0L, 0L, makeQualified(path));
        }
        throw new FileNotFoundException(path.toString());
    }

    private static FileStatus status(File found, Path path) {
        return new FileStatus(found.length(), false, 1, 1L << 20, found.lastModified(), path);
    }

    public FileStatus[] listStatus(Path path) throws IOException {
        FileStatus itself = getFileStatus(path);
        if (!itself.isDirectory()) {
            return new FileStatus[] {itself};
        }
        TreeMap found = new TreeMap();
        TreeMap all = below(prefix(key(path)));
        for (Iterator each = all.keySet().iterator(); each.hasNext();) {
            String name = (String) each.next();
            int slash = name.indexOf('/');
            if (name.isEmpty()) {
                continue; // Its own marker.
            }
            String first = slash < 0 ? name : name.substring(0, slash);
            Path child = new Path(makeQualified(path), first);
            found.put(first + (slash < 0 ? "" : "/"), slash < 0
                ? status((File) all.get(name), child) : new FileStatus(0L, true, 1, 0L, 0L, child));
        }
        return (FileStatus[]) found.values().toArray(new FileStatus[0]);
    }

    public RemoteIterator listFiles(Path path, boolean recursive) throws IOException {
        if (!recursive) {
            return super.listFiles(path, false);
        }
        FileStatus itself = getFileStatus(path);
        List found = new ArrayList();
        if (!itself.isDirectory()) {
            found.add(new LocatedFileStatus(itself, null));
        } else {
            TreeMap all = below(prefix(key(path)));
            for (Iterator each = all.keySet().iterator(); each.hasNext();) {
                String name = (String) each.next();
                if (!name.isEmpty() && !name.endsWith("/")) {
                    Path child = new Path(makeQualified(path), name);
                    found.add(new LocatedFileStatus(status((File) all.get(name), child), null));
                }
            }
        }
        return new Listed(found.iterator());
    }

    public FSDataInputStream open(Path path, int size) throws IOException {
        File found = file(key(path));
        if (!found.isFile()) {
            throw new FileNotFoundException(path.toString());
        }
        RawLocalFileSystem local = new RawLocalFileSystem();
        local.initialize(URI.create("file:///"), getConf());
        return local.open(new Path("file", null, found.getPath()), size);
    }

    public FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite, int size, short copies,
            long block, Progressable progress) throws IOException {
        if (!overwrite && file(key(path)).isFile()) {
            throw new FileAlreadyExistsException(path.toString());
        }
        return new FSDataOutputStream(new Put(this, key(path)), null);
    }

    public FSDataOutputStream append(Path path, int size, Progressable progress) throws IOException {
        throw new UnsupportedOperationException("An object cannot be appended to.");
    }

    public boolean mkdirs(Path path, FsPermission permission) throws IOException {
        String key = key(path);
        for (String above = key; !above.isEmpty(); above = above.substring(0, Math.max(0, above.lastIndexOf('/')))) {
            if (file(above).isFile()) {
                throw new FileAlreadyExistsException(above);
            }
        }
        if (!key.isEmpty() && below(prefix(key)).isEmpty()) {
            store(prefix(key), new byte[0]);
        }
        return true;
    }

    /** Copies and deletes each object, one after the other. */
    public boolean rename(Path path, Path target) throws IOException {
        FileStatus source = getFileStatus(path);
        String from = key(path);
        String to = key(target);
        try {
            if (getFileStatus(target).isDirectory()) {
                to = prefix(to) + path.getName();
            } else {
                return false;
            }
        } catch (FileNotFoundException free) {
            to = key(target);
        }
        if (!source.isDirectory()) {
            moveOne(file(from), to);
            return true;
        }
        TreeMap all = below(prefix(from));
        for (Iterator each = all.keySet().iterator(); each.hasNext();) {
            String name = (String) each.next();
            moveOne((File) all.get(name), prefix(to) + name);
        }
        return true;
    }

    private void moveOne(File source, String to) throws IOException {
        store(to, Files.readAllBytes(source.toPath()));
        Files.delete(source.toPath());
    }

    public boolean delete(Path path, boolean recursive) throws IOException {
        String key = key(path);
        File found = file(key);
        if (!key.isEmpty() && found.isFile()) {
            return found.delete();
        }
        TreeMap all = below(prefix(key));
        if (!recursive && (all.size() > 1 || (all.size() == 1 && !all.containsKey("")))) {
            throw new IOException(path + " is not empty.");
        }
        for (Iterator each = all.values().iterator(); each.hasNext();) {
            ((File) each.next()).delete();
        }
        return !all.isEmpty();
    }

    /** An upload: the object is there when the stream is closed. */
    private static final class Put extends ByteArrayOutputStream {
        private final ObjectStore store;
        private final String key;
        private boolean closed = false;

        Put(ObjectStore store, String key) {
            this.store = store;
            this.key = key;
        }

        public void close() throws IOException {
            if (!closed) {
                closed = true;
                store.store(key, toByteArray());
            }
        }
    }

    private static final class Listed implements RemoteIterator {
        private final Iterator found;

        Listed(Iterator found) {
            this.found = found;
        }

        public boolean hasNext() {
            return found.hasNext();
        }

        public Object next() {
            return found.next();
        }
    }
}
