package twophase;

import java.util.Collections;
import java.util.Iterator;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.TableIdentifier;

/** What the transactions of a session have staged, and which of them are blocks. */
public final class StagedTables {
    private static final String TRANSACTION = "twophase.transaction";

    private final SparkContext context;
    /** The staged tables of the session catalog, by transaction of the session. */
    private final Map staged = new ConcurrentHashMap();
    /** The transactions of blocks, and those of them that read one snapshot. */
    private final Set pinned = ConcurrentHashMap.newKeySet();
    private final Set snapshots = ConcurrentHashMap.newKeySet();

    public StagedTables(SparkContext context) {
        this.context = context;
    }

    public String transaction() {
        return context.getLocalProperty(TRANSACTION);
    }

    private Set stagedNow() {
        String transaction = staged.isEmpty() ? null : transaction();
        return transaction == null ? null : (Set) staged.get(transaction.replace("?", ""));
    }

    public boolean hasStaged() {
        return stagedNow() != null;
    }

    public boolean mayBeStaged(String name) {
        Set names = stagedNow();
        for (Iterator all = (names == null ? Collections.EMPTY_SET : names).iterator(); all.hasNext();) {
            if (((String) all.next()).endsWith("\0" + name.toLowerCase(Locale.ROOT))) {
                return true;
            }
        }
        return false;
    }

    public boolean isStaged(TableIdentifier name) {
        Set names = stagedNow();
        return names != null && name.database().isDefined()
            && names.contains((name.database().get() + "\0" + name.table()).toLowerCase(Locale.ROOT));
    }

    /** Records that a transaction has staged a table of the session catalog. */
    public void stage(String transaction, String database, String name) {
        staged.putIfAbsent(transaction, ConcurrentHashMap.newKeySet());
        ((Set) staged.get(transaction)).add((database + "\0" + name).toLowerCase(Locale.ROOT));
    }

    /** Records that a transaction no longer stages a table: it was rolled back to a savepoint. */
    public void unstage(String transaction, String database, String name) {
        Set names = (Set) staged.get(transaction);
        if (names != null) {
            names.remove((database + "\0" + name).toLowerCase(Locale.ROOT));
        }
    }

    /** Records a transaction of a block: Python is asked for each table, and, if it reads one snapshot, for its files. */
    public void pin(String transaction, boolean readsSnapshot) {
        pinned.add(transaction);
        if (readsSnapshot) {
            snapshots.add(transaction);
        }
    }

    public boolean isPinned() {
        return isIn(pinned);
    }

    public boolean readsSnapshot() {
        return isIn(snapshots);
    }

    private boolean isIn(Set transactions) {
        String transaction = transactions.isEmpty() ? null : transaction();
        return transaction != null && transactions.contains(transaction.replace("?", ""));
    }

    /** Forgets a transaction that has ended. */
    public void end(String transaction) {
        staged.remove(transaction);
        pinned.remove(transaction);
        snapshots.remove(transaction);
    }
}
