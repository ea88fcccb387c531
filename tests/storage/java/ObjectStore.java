package twophasetests;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.time.Instant;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.AbstractMap;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Iterator;
import java.util.List;
import java.util.TreeMap;
import javax.xml.parsers.DocumentBuilderFactory;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Abortable;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;
import org.w3c.dom.Element;
import org.w3c.dom.NodeList;

/**
 * Buckets of a server with the API of S3, with the semantics of S3A: objects by key, put as a whole; directories are
 * where keys begin with their names, or empty objects whose keys end with a slash; a rename copies and deletes each
 * object; listings and bulk deletes have pages.
 */
public final class ObjectStore extends FileSystem {
    /** Only shows who asks: the server checks no signature. */
    private static final String SIGNED = "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request, "
        + "SignedHeaders=host, Signature=0";
    private static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private URI uri;
    private String bucket;
    private String endpoint;
    private Path working;
    private int page;
    private int retries;

    public void initialize(URI name, Configuration conf) throws IOException {
        super.initialize(name, conf);
        setConf(conf);
        uri = URI.create(name.getScheme() + "://" + name.getAuthority());
        bucket = name.getAuthority();
        endpoint = conf.get("fs.objects.endpoint");
        page = conf.getInt("fs.objects.page", 3);
        retries = conf.getInt("fs.objects.bucket." + bucket + ".retries", 3);
        working = new Path(uri.toString() + "/");
    }

    public String getScheme() {
        return uri.getScheme();
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

    // -- requests -----------------------------------------------------------------------------------------------------

    /** Sends a request, again if the server is overloaded or its answer is lost; returns an answer, 404 included. */
    private HttpResponse send(String method, String key, String query, String source, byte[] body) throws IOException {
        for (int attempt = 1;; attempt++) {
            HttpResponse found = null;
            try {
                found = sendOnce(method, key, query, source, body, attempt);
            } catch (IOException lost) {
                if (attempt > retries) {
                    throw lost;
                }
                continue;
            }
            int status = found.statusCode();
            if (status < 300 || status == 404) {
                return found;
            }
            if (status == 403) {
                throw new AccessDeniedException(key, null, method + " " + key + query + ": " + text(found));
            }
            if (status < 500 || attempt > retries) {
                throw new IOException(method + " " + key + query + ": " + status + " " + text(found));
            }
        }
    }

    private HttpResponse sendOnce(String method, String key, String query, String source, byte[] body, int attempt)
            throws IOException {
        HttpRequest.Builder request = HttpRequest.newBuilder(
            URI.create(endpoint + "/" + bucket + "/" + encoded(key) + query));
        request.method(method, HttpRequest.BodyPublishers.ofByteArray(body == null ? new byte[0] : body));
        request.header("Authorization", SIGNED);
        request.header("x-attempt", String.valueOf(attempt));
        if (source != null) {
            request.header("x-amz-copy-source", "/" + bucket + "/" + encoded(source));
        }
        try {
            return CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofByteArray());
        } catch (InterruptedException end) {
            throw new InterruptedIOException(method + " " + key);
        }
    }

    private static String text(HttpResponse found) {
        return new String((byte[]) found.body(), StandardCharsets.UTF_8);
    }

    /** Percent-encodes all but slashes and what needs it nowhere. */
    private static String encoded(String key) {
        StringBuilder found = new StringBuilder();
        byte[] bytes = key.getBytes(StandardCharsets.UTF_8);
        for (int i = 0; i < bytes.length; i++) {
            char one = (char) (bytes[i] & 0xff);
            boolean plain = one < 128 && (Character.isLetterOrDigit(one) || "-._~/".indexOf(one) >= 0);
            found.append(plain ? String.valueOf(one) : "%" + String.format("%02X", new Object[] {Integer.valueOf(one)}));
        }
        return found.toString();
    }

    private static String escaped(String text) {
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;");
    }

    private static Element parsed(HttpResponse found) throws IOException {
        try {
            return DocumentBuilderFactory.newInstance().newDocumentBuilder()
                .parse(new ByteArrayInputStream((byte[]) found.body())).getDocumentElement();
        } catch (Exception wrong) {
            throw new IOException(wrong);
        }
    }

    private static String text(Element element, String name) {
        NodeList found = element.getElementsByTagName(name);
        return found.getLength() == 0 ? null : found.item(0).getTextContent();
    }

    // -- objects ------------------------------------------------------------------------------------------------------

    private String key(Path path) {
        String text = makeQualified(path).toUri().getPath();
        return text.startsWith("/") ? text.substring(1) : text;
    }

    private static String prefix(String key) {
        return key.isEmpty() || key.endsWith("/") ? key : key + "/";
    }

    /** Bytes and time of an object, or null. */
    private long[] head(String key) throws IOException {
        HttpResponse found = send("HEAD", key, "", null, null);
        if (found.statusCode() == 404) {
            return null;
        }
        String modified = (String) found.headers().firstValue("last-modified").get();
        long time = ZonedDateTime.parse(modified, DateTimeFormatter.RFC_1123_DATE_TIME).toInstant().toEpochMilli();
        return new long[] {Long.parseLong((String) found.headers().firstValue("content-length").get()), time};
    }

    private void put(String key, byte[] data) throws IOException {
        send("PUT", key, "", null, data);
    }

    private void remove(String key) throws IOException {
        send("DELETE", key, "", null, null);
    }

    private void copy(String key, String target) throws IOException {
        if (send("PUT", target, "", key, null).statusCode() == 404) {
            throw new FileNotFoundException(key);
        }
    }

    /** Returns the keys that the server refuses to remove, each with its reason. */
    private List removeAll(List keys) throws IOException {
        List refused = new ArrayList();
        for (int start = 0; start < keys.size(); start += page) {
            StringBuilder body = new StringBuilder("<Delete><Quiet>true</Quiet>");
            Iterator each = keys.subList(start, Math.min(start + page, keys.size())).iterator();
            while (each.hasNext()) {
                body.append("<Object><Key>").append(escaped((String) each.next())).append("</Key></Object>");
            }
            byte[] data = body.append("</Delete>").toString().getBytes(StandardCharsets.UTF_8);
            NodeList errors = parsed(send("POST", "", "?delete", null, data)).getElementsByTagName("Error");
            for (int i = 0; i < errors.getLength(); i++) {
                Element error = (Element) errors.item(i);
                refused.add(new AbstractMap.SimpleImmutableEntry(text(error, "Key"), text(error, "Message")));
            }
        }
        return refused;
    }

    /**
     * Objects whose keys begin so, by the rest of their keys: their bytes and times.
     *
     * @param flat whether all are found; otherwise what is deeper is found as directories, of no bytes
     * @param most how many are enough
     */
    private TreeMap below(String prefix, boolean flat, int most) throws IOException {
        TreeMap found = new TreeMap();
        String token = null;
        do {
            String query = "?list-type=2&prefix=" + encoded(prefix).replace("/", "%2F")
                + "&max-keys=" + Math.min(page, most) + (flat ? "" : "&delimiter=%2F")
                + (token == null ? "" : "&continuation-token=" + encoded(token).replace("/", "%2F"));
            HttpResponse answer = send("GET", "", query, null, null);
            if (answer.statusCode() == 404) {
                throw new FileNotFoundException("There is no bucket " + bucket);
            }
            Element listed = parsed(answer);
            NodeList objects = listed.getElementsByTagName("Contents");
            for (int i = 0; i < objects.getLength(); i++) {
                Element one = (Element) objects.item(i);
                long time = Instant.parse(text(one, "LastModified")).toEpochMilli();
                found.put(text(one, "Key").substring(prefix.length()),
                    new long[] {Long.parseLong(text(one, "Size")), time});
            }
            NodeList directories = listed.getElementsByTagName("CommonPrefixes");
            for (int i = 0; i < directories.getLength(); i++) {
                found.put(text((Element) directories.item(i), "Prefix").substring(prefix.length()), null);
            }
            token = "true".equals(text(listed, "IsTruncated")) ? text(listed, "NextContinuationToken") : null;
        } while (token != null && found.size() < most);
        return found;
    }

    private boolean isDirectory(String key) throws IOException {
        return key.isEmpty() || !below(prefix(key), true, 1).isEmpty();
    }

    /** A directory does not end with what was in it. */
    private void keepParent(String key) throws IOException {
        String parent = key.substring(0, Math.max(0, key.lastIndexOf('/')));
        if (!parent.isEmpty() && !isDirectory(parent)) {
            put(prefix(parent), new byte[0]);
        }
    }

    // -- what Hadoop asks -----------------------------------------------------------------------------------------------

    public FileStatus getFileStatus(Path path) throws IOException {
        String key = key(path);
        long[] found = key.isEmpty() ? null : head(key);
        if (found != null) {
            return status(found, makeQualified(path));
        }
        if (isDirectory(key)) {
            return status(null, makeQualified(path));
        }
        throw new FileNotFoundException(path.toString());
    }

    private static FileStatus status(long[] found, Path path) {
        if (found == null) {
            return new FileStatus(0L, true, 1, 0L, 0L, path);
        }
        return new FileStatus(found[0], false, 1, 1L << 20, found[1], path);
    }

    public FileStatus[] listStatus(Path path) throws IOException {
        TreeMap all = below(prefix(key(path)), false, Integer.MAX_VALUE);
        if (all.isEmpty()) {
            FileStatus itself = getFileStatus(path);
            return itself.isDirectory() ? new FileStatus[0] : new FileStatus[] {itself};
        }
        List found = new ArrayList();
        for (Iterator each = all.keySet().iterator(); each.hasNext();) {
            String name = (String) each.next();
            if (!name.isEmpty()) { // Its own marker.
                String plain = name.endsWith("/") ? name.substring(0, name.length() - 1) : name;
                found.add(status((long[]) all.get(name), child(path, plain)));
            }
        }
        return (FileStatus[]) found.toArray(new FileStatus[0]);
    }

    /** By itself the name "a:b" would be of a scheme "a". */
    private Path child(Path path, String name) {
        String above = makeQualified(path).toString();
        return new Path(above.endsWith("/") ? above + name : above + "/" + name);
    }

    public RemoteIterator listFiles(Path path, boolean recursive) throws IOException {
        if (!recursive) {
            return super.listFiles(path, false);
        }
        List found = new ArrayList();
        TreeMap all = below(prefix(key(path)), true, Integer.MAX_VALUE);
        if (all.isEmpty()) {
            found.add(new LocatedFileStatus(getFileStatus(path), new BlockLocation[0]));
        }
        for (Iterator each = all.keySet().iterator(); each.hasNext();) {
            String name = (String) each.next();
            if (!name.isEmpty() && !name.endsWith("/")) {
                found.add(new LocatedFileStatus(
                    status((long[]) all.get(name), child(path, name)), new BlockLocation[0]));
            }
        }
        return new Listed(found.iterator());
    }

    public FSDataInputStream open(Path path, int size) throws IOException {
        HttpResponse found = send("GET", key(path), "", null, null);
        if (found.statusCode() == 404) {
            throw new FileNotFoundException(path.toString());
        }
        return new FSDataInputStream(new Content((byte[]) found.body()));
    }

    public FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite, int size, short copies,
            long block, Progressable progress) throws IOException {
        String key = key(path);
        if (isDirectory(key) || (!overwrite && head(key) != null)) {
            throw new FileAlreadyExistsException(path.toString());
        }
        return new FSDataOutputStream(new Put(this, key), null);
    }

    public FSDataOutputStream append(Path path, int size, Progressable progress) throws IOException {
        throw new UnsupportedOperationException("An object cannot be appended to.");
    }

    public boolean mkdirs(Path path, FsPermission permission) throws IOException {
        String key = key(path);
        for (String above = key; !above.isEmpty(); above = above.substring(0, Math.max(0, above.lastIndexOf('/')))) {
            if (isDirectory(above)) {
                break;
            }
            if (head(above) != null) {
                throw new FileAlreadyExistsException(above);
            }
        }
        if (!isDirectory(key)) {
            put(prefix(key), new byte[0]);
        }
        return true;
    }

    /** Copies and deletes each object, one after the other. */
    public boolean rename(Path path, Path target) throws IOException {
        FileStatus source = getFileStatus(path);
        String from = key(path);
        String to = key(target);
        if (isDirectory(to)) {
            to = prefix(to) + path.getName();
        } else if (head(to) != null) {
            return false;
        }
        if (!source.isDirectory()) {
            move(from, to);
        } else {
            for (Iterator each = below(prefix(from), true, Integer.MAX_VALUE).keySet().iterator(); each.hasNext();) {
                String name = (String) each.next();
                move(prefix(from) + name, prefix(to) + name);
            }
        }
        keepParent(from);
        return true;
    }

    private void move(String key, String target) throws IOException {
        copy(key, target);
        remove(key);
    }

    public boolean delete(Path path, boolean recursive) throws IOException {
        String key = key(path);
        if (!key.isEmpty() && head(key) != null) {
            remove(key);
            keepParent(key);
            return true;
        }
        TreeMap all = below(prefix(key), true, Integer.MAX_VALUE);
        if (!recursive && (all.size() > 1 || (all.size() == 1 && !all.containsKey("")))) {
            throw new IOException(path + " is not empty.");
        }
        List keys = new ArrayList();
        for (Iterator each = all.keySet().iterator(); each.hasNext();) {
            keys.add(prefix(key) + each.next());
        }
        List refused = removeAll(keys);
        if (!refused.isEmpty()) {
            throw new AccessDeniedException(key, null, "DELETE: " + refused);
        }
        if (!keys.isEmpty()) {
            keepParent(key);
        }
        return !keys.isEmpty();
    }

    public BulkDelete createBulkDelete(Path path) {
        return new Bulk(this, path);
    }

    private static final class Bulk implements BulkDelete {
        private final ObjectStore store;
        private final Path base;

        Bulk(ObjectStore store, Path base) {
            this.store = store;
            this.base = base;
        }

        public int pageSize() {
            return store.page;
        }

        public Path basePath() {
            return base;
        }

        public List bulkDelete(Collection paths) throws IOException {
            List keys = new ArrayList();
            for (Iterator each = paths.iterator(); each.hasNext();) {
                keys.add(store.key((Path) each.next()));
            }
            return store.removeAll(keys);
        }

        public void close() {
        }
    }

    /** An upload: the object is there when the stream is closed, unless it was aborted. */
    private static final class Put extends ByteArrayOutputStream implements StreamCapabilities, Abortable {
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
                store.put(key, toByteArray());
            }
        }

        public boolean hasCapability(String capability) {
            return capability.equals("fs.capability.outputstream.abortable");
        }

        public Abortable.AbortableResult abort() {
            closed = true;
            return null;
        }
    }

    private static final class Content extends FSInputStream {
        private final byte[] data;
        private int at = 0;

        Content(byte[] data) {
            this.data = data;
        }

        public void seek(long position) throws IOException {
            if (position < 0 || position > data.length) {
                throw new EOFException();
            }
            at = (int) position;
        }

        public long getPos() {
            return at;
        }

        public boolean seekToNewSource(long position) {
            return false;
        }

        public int available() {
            return data.length - at;
        }

        public int read() {
            return at < data.length ? data[at++] & 0xff : -1;
        }

        public int read(byte[] target, int offset, int length) {
            if (at >= data.length) {
                return length == 0 ? 0 : -1;
            }
            int size = Math.min(length, data.length - at);
            System.arraycopy(data, at, target, offset, size);
            at += size;
            return size;
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
