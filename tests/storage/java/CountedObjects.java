package twophasetests;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Iterator;
import java.util.List;
import java.util.Queue;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BulkDelete;
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
 * A bucket with the semantics of S3A: objects by key, no directories, objects appear as a whole, and a rename copies
 * each object. Objects are local files; their names have a mark, as an object "a" may exist beside "a/b".
 *
 * Each operation makes the requests that S3A makes for it, and all of them are recorded.
 */
public final class CountedObjects extends FileSystem {
    private static final String OBJECT = "%o";
    private static final String BELOW = "%d";
    private static final int LISTED_AT_ONCE = 1000;
    private static final int DELETED_AT_ONCE = 250;
    /** The requests of this JVM, each as its verb and its key. */
    private static final Queue REQUESTS = new ConcurrentLinkedQueue();
    private URI uri;
    private File bucket;
    private Path working;

    public void initialize(URI name, Configuration conf) throws IOException {
        super.initialize(name, conf);
        setConf(conf);
        uri = URI.create(name.getScheme() + "://" + name.getAuthority());
        bucket = new File(conf.get("fs.counted.root"), name.getAuthority());
        working = new Path(uri.toString() + "/");
    }

    public String getScheme() {
        return "counted";
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

    /** Returns the requests since the last call, a line each. */
    public static String takeRequests() {
        StringBuilder found = new StringBuilder();
        for (Object each = REQUESTS.poll(); each != null; each = REQUESTS.poll()) {
            found.append(each).append('\n');
        }
        return found.toString();
    }

    private static void requested(String verb, String key) {
        REQUESTS.add(verb + " " + key);
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

    private boolean head(String key) {
        requested("HEAD", key);
        return file(key).isFile();
    }

    /** All objects whose keys begin so, by the rest of their keys; the prefix is empty or ends with a slash. */
    private TreeMap below(String prefix) {
        TreeMap found = all(prefix);
        for (int page = 0; page * LISTED_AT_ONCE <= found.size(); page++) {
            requested("LIST", prefix);
        }
        return found;
    }

    private TreeMap all(String prefix) {
        TreeMap found = new TreeMap();
        collect(directory(prefix), "", found, Integer.MAX_VALUE);
        return found;
    }

    /** Whether there are objects whose keys begin so: no more than one is listed. */
    private boolean isDirectory(String prefix) {
        TreeMap found = new TreeMap();
        collect(directory(prefix), "", found, 1);
        requested("LIST", prefix);
        return !found.isEmpty();
    }

    private File directory(String prefix) {
        return prefix.isEmpty() ? bucket : file(prefix).getParentFile();
    }

    private static void collect(File directory, String above, TreeMap found, int most) {
        File[] all = directory.listFiles();
        for (int i = 0; all != null && i < all.length && found.size() < most; i++) {
            String name = all[i].getName();
            String plain = above + name.substring(0, name.length() - 2);
            if (name.endsWith(OBJECT)) {
                found.put(plain, all[i]);
            } else if (name.endsWith(BELOW)) {
                collect(all[i], plain + "/", found, most);
            }
        }
    }

    private static String prefix(String key) {
        return key.isEmpty() || key.endsWith("/") ? key : key + "/";
    }

    private void store(String verb, String key, byte[] data) throws IOException {
        requested(verb, key);
        File target = file(key);
        target.getParentFile().mkdirs();
        File part = new File(target.getParentFile(), UUID.randomUUID().toString());
        Files.write(part.toPath(), data);
        Files.move(part.toPath(), target.toPath(), StandardCopyOption.ATOMIC_MOVE);
    }

    private void deleteAll(String prefix, Collection objects) {
        int number = 0;
        for (Iterator each = objects.iterator(); each.hasNext(); number++) {
            if (number % DELETED_AT_ONCE == 0) {
                requested("DELETE", prefix);
            }
            ((File) each.next()).delete();
        }
    }

    /** Keeps a directory that has lost its last object, as S3A does. */
    private void keepParent(String key) throws IOException {
        String above = key.substring(0, Math.max(0, key.lastIndexOf('/')));
        if (!above.isEmpty() && !isDirectory(prefix(above))) {
            store("PUT", prefix(above), new byte[0]);
        }
    }

    // -- what Hadoop asks -----------------------------------------------------------------------------------------------

    public FileStatus getFileStatus(Path path) throws IOException {
        String key = key(path);
        if (!key.isEmpty() && head(key)) {
            return status(file(key), makeQualified(path));
        }
        if (key.isEmpty() || isDirectory(prefix(key))) {
            return new FileStatus(0L, true, 1, 0L, 0L, makeQualified(path));
        }
        throw new FileNotFoundException(path.toString());
    }

    private static FileStatus status(File found, Path path) {
        return new FileStatus(found.length(), false, 1, 1L << 20, found.lastModified(), path);
    }

    public FileStatus[] listStatus(Path path) throws IOException {
        return listed(path, below(prefix(key(path))));
    }

    /** Asks for a page of entries when it is needed. */
    public RemoteIterator listStatusIterator(Path path) throws IOException {
        return new Pages(prefix(key(path)), Arrays.asList(listed(path, all(prefix(key(path))))).iterator());
    }

    private FileStatus[] listed(Path path, TreeMap all) throws IOException {
        TreeMap found = new TreeMap();
        if (all.isEmpty()) {
            FileStatus itself = getFileStatus(path);
            return itself.isDirectory() ? new FileStatus[0] : new FileStatus[] {itself};
        }
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
        List found = new ArrayList();
        TreeMap all = below(prefix(key(path)));
        FileStatus itself = all.isEmpty() ? getFileStatus(path) : null;
        if (itself != null && !itself.isDirectory()) {
            found.add(new LocatedFileStatus(itself, null));
        }
        for (Iterator each = all.keySet().iterator(); each.hasNext();) {
            String name = (String) each.next();
            if (!name.isEmpty() && !name.endsWith("/")) {
                Path child = new Path(makeQualified(path), name);
                found.add(new LocatedFileStatus(status((File) all.get(name), child), null));
            }
        }
        return new Listed(found.iterator());
    }

    public FSDataInputStream open(Path path, int size) throws IOException {
        File found = file(key(path));
        if (!head(key(path))) {
            throw new FileNotFoundException(path.toString());
        }
        requested("GET", key(path));
        RawLocalFileSystem local = new RawLocalFileSystem();
        local.initialize(URI.create("file:///"), getConf());
        return local.open(new Path("file", null, found.getPath()), size);
    }

    public FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite, int size, short copies,
            long block, Progressable progress) throws IOException {
        if (isDirectory(prefix(key(path))) || (!overwrite && head(key(path)))) {
            throw new FileAlreadyExistsException(path.toString());
        }
        return new FSDataOutputStream(new Put(this, key(path)), null);
    }

    public FSDataOutputStream append(Path path, int size, Progressable progress) throws IOException {
        throw new UnsupportedOperationException("An object cannot be appended to.");
    }

    public boolean mkdirs(Path path, FsPermission permission) throws IOException {
        String key = key(path);
        if (key.isEmpty() || isDirectory(prefix(key))) {
            return true;
        }
        for (String above = key; !above.isEmpty(); above = above.substring(0, Math.max(0, above.lastIndexOf('/')))) {
            if (head(above)) {
                throw new FileAlreadyExistsException(above);
            }
            if (!above.equals(key) && isDirectory(prefix(above))) {
                break;
            }
        }
        store("PUT", prefix(key), new byte[0]);
        return true;
    }

    /** Copies all objects, and then deletes them. */
    public boolean rename(Path path, Path target) throws IOException {
        FileStatus source = getFileStatus(path);
        String from = key(path);
        String to = key(target);
        try {
            if (!getFileStatus(target).isDirectory()) {
                return false;
            }
            to = prefix(to) + path.getName();
        } catch (FileNotFoundException free) {
            isDirectory(prefix(key(target.getParent())));
        }
        TreeMap all = new TreeMap();
        if (source.isDirectory()) {
            all = below(prefix(from));
            from = prefix(from);
            to = prefix(to);
        } else {
            all.put("", file(from));
        }
        for (Iterator each = all.keySet().iterator(); each.hasNext();) {
            String name = (String) each.next();
            store("COPY", to + name, Files.readAllBytes(((File) all.get(name)).toPath()));
        }
        deleteAll(from, all.values());
        keepParent(key(path));
        return true;
    }

    public boolean delete(Path path, boolean recursive) throws IOException {
        FileStatus found;
        try {
            found = getFileStatus(path);
        } catch (FileNotFoundException missing) {
            return false;
        }
        String key = key(path);
        TreeMap all = new TreeMap();
        if (!found.isDirectory()) {
            all.put("", file(key));
        } else {
            all = below(prefix(key));
            if (!recursive && (all.size() > 1 || !all.containsKey(""))) {
                throw new IOException(path + " is not empty.");
            }
        }
        deleteAll(key, all.values());
        keepParent(key);
        return true;
    }

    public BulkDelete createBulkDelete(Path path) {
        return new Deletes(this, makeQualified(path));
    }

    /** Deletes many objects by one request, and no directories. */
    private static final class Deletes implements BulkDelete {
        private final CountedObjects store;
        private final Path base;

        Deletes(CountedObjects store, Path base) {
            this.store = store;
            this.base = base;
        }

        public int pageSize() {
            return DELETED_AT_ONCE;
        }

        public Path basePath() {
            return base;
        }

        public List bulkDelete(Collection paths) {
            List objects = new ArrayList();
            for (Iterator each = paths.iterator(); each.hasNext();) {
                objects.add(store.file(store.key((Path) each.next())));
            }
            store.deleteAll(store.key(base), objects);
            return new ArrayList();
        }

        public void close() {
        }
    }

    /** An upload: the object is there when the stream is closed. */
    private static final class Put extends ByteArrayOutputStream {
        private final CountedObjects store;
        private final String key;
        private boolean closed = false;

        Put(CountedObjects store, String key) {
            this.store = store;
            this.key = key;
        }

        public void close() throws IOException {
            if (!closed) {
                closed = true;
                store.store("PUT", key, toByteArray());
            }
        }
    }

    private static final class Pages extends Listed {
        private final String prefix;
        private int seen = 0;

        Pages(String prefix, Iterator found) {
            super(found);
            this.prefix = prefix;
            requested("LIST", prefix);
        }

        public Object next() {
            if (++seen % LISTED_AT_ONCE == 0) {
                requested("LIST", prefix);
            }
            return super.next();
        }
    }

    private static class Listed implements RemoteIterator {
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
