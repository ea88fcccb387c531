package twophase;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.util.function.BiConsumer;
import org.apache.spark.sql.catalyst.catalog.AlterTableEvent;
import org.apache.spark.sql.catalyst.catalog.AlterTablePreEvent;
import org.apache.spark.sql.catalyst.catalog.DropTableEvent;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalog;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogEvent;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogEventListener;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogWithListener;
import org.apache.spark.sql.catalyst.catalog.RenameTableEvent;

/** Reports drops, renames and changes of the columns of tables outside twophase; all other events of the catalog stay in the JVM. */
public final class TableChanges implements ExternalCatalogEventListener {
    private static final ThreadLocal OWN = new ThreadLocal();
    private volatile BiConsumer python;

    public void tell(BiConsumer listener) {
        python = listener;
    }

    public void onEvent(ExternalCatalogEvent event) {
        if (OWN.get() != null || !isReported(event)) {
            return;
        }
        try {
            python.accept(event, Long.valueOf(Thread.currentThread().getId()));
        } finally {
            Thread.interrupted();  // Spark would swallow it, too, and remove the listener for it.
        }
    }

    /** Whether a thread is altering a table: of a change that fails Spark reports only that it was to be made. */
    public boolean isAltering(long thread) {
        ThreadInfo found = ManagementFactory.getThreadMXBean().getThreadInfo(thread, Integer.MAX_VALUE);
        StackTraceElement[] frames = found == null ? new StackTraceElement[0] : found.getStackTrace();
        for (int i = 0; i < frames.length; i++) {
            if (frames[i].getClassName().equals(ExternalCatalogWithListener.class.getName())
                    && frames[i].getMethodName().startsWith("alterTable")) {
                return true;
            }
        }
        return false;
    }

    private static boolean isReported(ExternalCatalogEvent event) {
        if (event instanceof AlterTablePreEvent) {
            return isOfColumns(((AlterTablePreEvent) event).kind());
        }
        if (event instanceof AlterTableEvent) {
            return isOfColumns(((AlterTableEvent) event).kind());
        }
        return event instanceof DropTableEvent || event instanceof RenameTableEvent;
    }

    private static boolean isOfColumns(String kind) {
        return kind.equals("schema") || kind.equals("dataSchema");
    }

    /** Drops and renames by twophase, which are not reported: an event arrives in the thread that makes the change. */
    public static final class Own {
        public void drop(ExternalCatalog catalog, String database, String name) {
            OWN.set(Boolean.TRUE);
            try {
                catalog.dropTable(database, name, true, false);
            } finally {
                OWN.remove();
            }
        }

        public void rename(ExternalCatalog catalog, String database, String name, String newName) {
            OWN.set(Boolean.TRUE);
            try {
                catalog.renameTable(database, name, newName);
            } finally {
                OWN.remove();
            }
        }
    }
}
