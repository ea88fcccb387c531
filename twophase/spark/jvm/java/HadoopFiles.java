package twophase;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FileUtil;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;

/** The file systems of a session's Hadoop configuration; whatever the number of files, one call from Python. */
public final class HadoopFiles {
    private static final int CHUNK = 1 << 16;
    /** Entries that a store lists by one request, and how many single looks take as long. */
    private static final int PAGE = 1000;
    private static final int LOOKS = 4;
    private static final String PROVIDERS = "hadoop.security.credential.provider.path";
    private final Configuration conf;

    public HadoopFiles(Configuration conf) {
        this.conf = conf;
    }

    /**
     * Returns the JSON of settings by name, given by the JSON of their names: by its name Py4J's log hides a secret.
     *
     * @param secret whether they may be stored in a credential provider
     * @param providers paths of credential providers that are asked before those of all file systems; or null
     */
    public String settings(String names, boolean secret, String providers) throws Exception {
        Configuration from = conf;
        if (providers != null) {
            String others = conf.getTrimmed(PROVIDERS, "");
            from = new Configuration(conf);
            from.set(PROVIDERS, others.isEmpty() ? providers : providers + "," + others);
        }
        Map found = new HashMap();
        Iterator each = ((List) new ObjectMapper().readValue(names, List.class)).iterator();
        while (each.hasNext()) {
            String name = (String) each.next();
            char[] hidden = secret ? from.getPassword(name) : null;
            found.put(name, secret ? (hidden == null ? null : new String(hidden)) : conf.getTrimmed(name));
        }
        return new ObjectMapper().writeValueAsString(found);
    }

    private FileSystem of(Path path) throws IOException {
        return path.getFileSystem(conf);
    }

    /** Returns the JSON of [is a file, bytes, modification time], or null if it does not exist. */
    public String status(String location) throws Exception {
        Path path = new Path(location);
        FileStatus found = statusOf(of(path), path);
        return found == null ? null : new ObjectMapper().writeValueAsString(facts(found).subList(1, 4));
    }

    private static FileStatus statusOf(FileSystem files, Path path) throws IOException {
        try {
            return files.getFileStatus(path);
        } catch (FileNotFoundException missing) {
            return null;
        }
    }

    private static List facts(FileStatus found) {
        boolean isFile = !found.isDirectory();
        return new ArrayList(Arrays.asList(new Object[] {
            found.getPath().getName(), Boolean.valueOf(isFile), Long.valueOf(isFile ? found.getLen() : 0L),
            Long.valueOf(found.getModificationTime())}));
    }

    /**
     * Returns the JSON of a list of [name, is a file, bytes, modification time].
     *
     * @param flat whether the store lists all files below a directory without looking into each directory
     */
    public String list(String location, boolean recursive, boolean flat) throws Exception {
        Path path = new Path(location);
        FileSystem files = of(path);
        List found = new ArrayList();
        try {
            if (recursive && flat) {
                listAll(files, path, found);
            } else {
                walk(files, path, "", recursive, found);
            }
        } catch (FileNotFoundException missing) {
            if (statusOf(files, path) != null) {
                throw missing;
            }
            found = new ArrayList();
        }
        return new ObjectMapper().writeValueAsString(found);
    }

    private static void walk(FileSystem files, Path directory, String above, boolean recursive, List found)
            throws IOException {
        RemoteIterator each = files.listStatusIterator(directory);
        while (each.hasNext()) {
            FileStatus entry = (FileStatus) each.next();
            if (entry.getPath().equals(files.makeQualified(directory)) && !entry.isDirectory()) {
                return; // A file lists itself.
            }
            List facts = facts(entry);
            facts.set(0, above + facts.get(0));
            found.add(facts);
            if (recursive && entry.isDirectory()) {
                try {
                    walk(files, entry.getPath(), facts.get(0) + "/", recursive, found);
                } catch (FileNotFoundException gone) {
                    found.remove(facts); // Another process removes it now.
                }
            }
        }
    }

    private static void listAll(FileSystem files, Path directory, List found) throws IOException {
        String top = files.makeQualified(directory).toUri().getPath();
        top = top.endsWith("/") ? top : top + "/";
        Set directories = new HashSet();
        RemoteIterator each = files.listFiles(directory, true);
        while (each.hasNext()) {
            LocatedFileStatus entry = (LocatedFileStatus) each.next();
            String path = entry.getPath().toUri().getPath();
            if (!path.startsWith(top)) {
                return; // A file lists itself.
            }
            String name = path.substring(top.length());
            List facts = facts(entry);
            facts.set(0, name);
            found.add(facts);
            for (int end = name.lastIndexOf('/'); end > 0; end = name.lastIndexOf('/', end - 1)) {
                if (directories.add(name.substring(0, end))) {
                    found.add(Arrays.asList(new Object[] {
                        name.substring(0, end), Boolean.FALSE, Long.valueOf(0L), Long.valueOf(0L)}));
                }
            }
        }
    }

    /**
     * Returns the JSON of those of some names, given by the JSON of all, that are in a directory.
     *
     * It is listed, unless that takes longer than to look at each name: it may hold any number of files.
     */
    public String existing(String location, String names) throws Exception {
        Path path = new Path(location);
        FileSystem files = of(path);
        Set left = new HashSet((List) new ObjectMapper().readValue(names, List.class));
        int most = PAGE * (1 + left.size() / LOOKS);
        List found = new ArrayList();
        try {
            RemoteIterator each = files.listStatusIterator(path);
            for (int seen = 0; !left.isEmpty() && seen < most && each.hasNext(); seen++) {
                FileStatus entry = (FileStatus) each.next();
                if (entry.getPath().getParent().equals(files.makeQualified(path)) && left.remove(entry.getPath().getName())) {
                    found.add(entry.getPath().getName());
                }
            }
            if (!left.isEmpty() && !each.hasNext()) { // The question may cost one more request.
                left.clear();
            }
        } catch (FileNotFoundException missing) {
            if (statusOf(files, path) == null) {
                left.clear();
            }
        }
        for (Iterator each = left.iterator(); each.hasNext();) {
            String name = (String) each.next();
            if (statusOf(files, new Path(location + "/" + name)) != null) {
                found.add(name);
            }
        }
        return new ObjectMapper().writeValueAsString(found);
    }

    /** Returns the content of a file, or null if it does not exist. */
    public byte[] read(String location) throws Exception {
        Path path = new Path(location);
        try {
            InputStream in = of(path).open(path);
            try {
                return in.readAllBytes();
            } finally {
                in.close();
            }
        } catch (FileNotFoundException missing) {
            return null;
        }
    }

    /** Opens a file for reading. */
    public InputStream open(String location) throws Exception {
        Path path = new Path(location);
        return of(path).open(path);
    }

    /** Opens a file for writing; an existing one is replaced. */
    public OutputStream create(String location) throws Exception {
        Path path = new Path(location);
        return of(path).create(path, true);
    }

    /** Returns at most so many bytes; none at the end. Py4J cannot fill an array of Python's. */
    public byte[] next(InputStream in, int most) throws Exception {
        return in.readNBytes(most);
    }

    /**
     * Writes a document so that no reader sees a part of it.
     *
     * @param part a path beside it for a store that shows files while they are written; null for whole objects
     */
    public void write(String location, byte[] data, String part) throws Exception {
        Path path = new Path(location);
        FileSystem files = of(path);
        Path written = part == null ? path : new Path(part);
        FSDataOutputStream out = files.create(written, true);
        boolean isWhole = false;
        try {
            out.write(data);
            if (part != null && out.hasCapability("hsync")) {
                out.hsync();
            }
            isWhole = true;
        } finally {
            // To close an object whose write has failed would publish a part of it.
            if (!isWhole && part == null && out.hasCapability("fs.capability.outputstream.abortable")) {
                out.abort();
            }
            out.close();
        }
        if (part != null) {
            try {
                rename(files, written, path, Options.Rename.OVERWRITE);
            } catch (Exception failed) {
                files.delete(written, false);
                throw failed;
            }
        }
    }

    /** Creates a directory, and those above it. */
    public void makeDirectory(String location) throws Exception {
        Path path = new Path(location);
        if (!of(path).mkdirs(path)) {
            throw new IOException("The directory " + location + " cannot be made.");
        }
    }

    /** Renames a file or directory; refused if the target exists, by a store that can do so in the same step. */
    public void rename(String location, String target) throws Exception {
        Path path = new Path(location);
        rename(of(path), path, new Path(target), Options.Rename.NONE);
    }

    /**
     * Renames a file, or completes a rename that was stopped; no effect if the file does not exist.
     *
     * A store that copies looks at both paths itself, with a request each: they are looked at again only if it refuses.
     *
     * @param copies whether a rename copies, so that a stopped one leaves two files with the same content
     */
    public void place(String location, String target, boolean copies) throws Exception {
        Path path = new Path(location);
        Path to = new Path(target);
        FileSystem files = of(path);
        if (renamed(files, path, to, copies)) {
            return;
        }
        FileStatus found = statusOf(files, path);
        if (found == null) {
            return;
        }
        FileStatus there = statusOf(files, to);
        if (there == null) {
            makeDirectory(to.getParent().toString());
            if (!renamed(files, path, to, copies)) {
                throw new IOException(location + " cannot be renamed to " + target + ".");
            }
        } else if (copies && found.getLen() == there.getLen() && equal(location, target)) {
            files.delete(path, false);
        } else {
            throw new FileAlreadyExistsException(target);
        }
    }

    /** Renames, and returns whether it was done: false if one path, or the directory of the target, is not as needed. */
    private static boolean renamed(FileSystem files, Path path, Path target, boolean copies) throws Exception {
        try {
            if (copies) {
                return files.rename(path, target);
            }
            rename(files, path, target, Options.Rename.NONE);
            return true;
        } catch (FileNotFoundException missing) {
            return false;
        } catch (FileAlreadyExistsException taken) {
            return false;
        }
    }

    /** Calls the rename with options: the other one moves into an existing directory, and is refused in silence. */
    private static void rename(FileSystem files, Path path, Path target, Options.Rename option) throws Exception {
        Class[] kinds = new Class[] {Path.class, Path.class, Options.Rename[].class};
        Method method = null;
        for (Class kind = files.getClass(); method == null; kind = kind.getSuperclass()) {
            try {
                method = kind.getDeclaredMethod("rename", kinds);
            } catch (NoSuchMethodException inherited) {
                continue; // FileSystem itself has it.
            }
        }
        method.setAccessible(true);
        try {
            method.invoke(files, new Object[] {path, target, new Options.Rename[] {option}});
        } catch (InvocationTargetException failed) {
            if (failed.getCause() instanceof Error) {
                throw (Error) failed.getCause();
            }
            throw (Exception) failed.getCause();
        }
    }

    /** Copies a file within its file system, or to another one. */
    public void copy(String location, String target) throws Exception {
        Path path = new Path(location);
        Path to = new Path(target);
        if (!FileUtil.copy(of(path), path, of(to), to, false, true, conf)) {
            throw new IOException(location + " cannot be copied to " + target + ".");
        }
    }

    /** Returns whether two files have the same content. */
    public boolean equal(String location, String other) throws Exception {
        InputStream one = open(location);
        try {
            InputStream two = open(other);
            try {
                while (true) {
                    byte[] first = one.readNBytes(CHUNK);
                    if (!Arrays.equals(first, two.readNBytes(CHUNK))) {
                        return false;
                    }
                    if (first.length == 0) {
                        return true;
                    }
                }
            } finally {
                two.close();
            }
        } finally {
            one.close();
        }
    }

    /** Removes a file, or an empty directory; returns whether it is gone. */
    public boolean removeOne(String location) throws Exception {
        Path path = new Path(location);
        FileSystem files = of(path);
        return files.delete(path, false) || statusOf(files, path) == null;
    }

    /** Removes files of a directory, given by the JSON of their names; those that do not exist are skipped. */
    public void removeFiles(String location, String names) throws Exception {
        Path top = new Path(location);
        List wanted = (List) new ObjectMapper().readValue(names, List.class);
        BulkDelete bulk = of(top).createBulkDelete(top);
        try {
            int size = bulk.pageSize();
            for (int start = 0; start < wanted.size(); start += size) {
                List page = new ArrayList();
                Iterator each = wanted.subList(start, Math.min(start + size, wanted.size())).iterator();
                while (each.hasNext()) {
                    page.add(new Path(location + "/" + each.next())); // By itself "a:b" would be of a scheme "a".
                }
                List failed = bulk.bulkDelete(page);
                if (!failed.isEmpty()) {
                    throw new IOException("Not removed: " + failed);
                }
            }
        } finally {
            bulk.close();
        }
    }

    /** Removes a directory with everything in it. */
    public void removeTree(String location) throws Exception {
        Path path = new Path(location);
        FileSystem files = of(path);
        if (!files.delete(path, true) && statusOf(files, path) != null) {
            throw new IOException(location + " cannot be removed.");
        }
    }
}
