package twophase;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.util.function.BiConsumer;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.catalog.AlterTableEvent;
import org.apache.spark.sql.catalyst.catalog.AlterTablePreEvent;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.CreateTableEvent;
import org.apache.spark.sql.catalyst.catalog.CreateTablePreEvent;
import org.apache.spark.sql.catalyst.catalog.DatabaseEvent;
import org.apache.spark.sql.catalyst.catalog.DropDatabaseEvent;
import org.apache.spark.sql.catalyst.catalog.DropDatabasePreEvent;
import org.apache.spark.sql.catalyst.catalog.DropTableEvent;
import org.apache.spark.sql.catalyst.catalog.DropTablePreEvent;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalog;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogEvent;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogEventListener;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogWithListener;
import org.apache.spark.sql.catalyst.catalog.RenameTableEvent;
import org.apache.spark.sql.catalyst.catalog.RenameTablePreEvent;
import org.apache.spark.sql.catalyst.catalog.TableEvent;

/**
 * Reports what creates, drops and renames tables outside twophase, or changes their columns, before and after it; all other
 * events of the catalog stay in the JVM.
 */
public final class TableChanges implements ExternalCatalogEventListener {
    private static final ThreadLocal OWN = new ThreadLocal();
    private volatile BiConsumer python;
    private volatile ExternalCatalog catalog;

    public void tell(BiConsumer listener, ExternalCatalog of) {
        catalog = of;
        python = listener;
    }

    /** Whether there is a table that is no view; also if that is unknown, as while the metastore does not answer. */
    public boolean isTable(String database, String name) {
        try {
            return !catalog.getTable(database, name).tableType().name().equals("VIEW");
        } catch (Exception error) {
            return !(error instanceof NoSuchTableException);
        }
    }

    public void onEvent(ExternalCatalogEvent event) {
        if (OWN.get() != null || !isReported(event)) {
            return;
        }
        try {
            python.accept(described(event), Long.valueOf(Thread.currentThread().getId()));
        } finally {
            Thread.interrupted();  // Spark would swallow it, too, and remove the listener for it.
        }
    }

    /** Whether a thread is making a change: of one that fails Spark reports only that it was to be made. */
    public boolean isChanging(long thread) {
        ThreadInfo found = ManagementFactory.getThreadMXBean().getThreadInfo(thread, Integer.MAX_VALUE);
        StackTraceElement[] frames = found == null ? new StackTraceElement[0] : found.getStackTrace();
        for (int i = 0; i < frames.length; i++) {
            if (frames[i].getClassName().equals(ExternalCatalogWithListener.class.getName())
                    && isChange(frames[i].getMethodName())) {
                return true;
            }
        }
        return false;
    }

    private static boolean isChange(String method) {
        return method.startsWith("alterTable") || method.equals("createTable") || method.equals("dropTable")
                || method.equals("renameTable") || method.equals("dropDatabase");
    }

    /** The event's kind and names, by lines: each one that Python asked for would be a call. */
    private static String described(ExternalCatalogEvent event) {
        String found = event.getClass().getSimpleName() + "\n" + ((DatabaseEvent) event).database();
        if (event instanceof TableEvent) {
            found += "\n" + ((TableEvent) event).name();
        }
        if (event instanceof RenameTablePreEvent) {
            found += "\n" + ((RenameTablePreEvent) event).newName();
        }
        return event instanceof RenameTableEvent ? found + "\n" + ((RenameTableEvent) event).newName() : found;
    }

    private static boolean isReported(ExternalCatalogEvent event) {
        if (event instanceof AlterTablePreEvent) {
            return isOfColumns(((AlterTablePreEvent) event).kind());
        }
        if (event instanceof AlterTableEvent) {
            return isOfColumns(((AlterTableEvent) event).kind());
        }
        return event instanceof CreateTablePreEvent || event instanceof CreateTableEvent
                || event instanceof DropTablePreEvent || event instanceof DropTableEvent
                || event instanceof RenameTablePreEvent || event instanceof RenameTableEvent
                || event instanceof DropDatabasePreEvent || event instanceof DropDatabaseEvent;
    }

    private static boolean isOfColumns(String kind) {
        return kind.equals("schema") || kind.equals("dataSchema");
    }

    /** Changes by twophase, which are not reported: an event arrives in the thread that makes the change. */
    public static final class Own {
        public void create(ExternalCatalog catalog, CatalogTable table) {
            OWN.set(Boolean.TRUE);
            try {
                catalog.createTable(table, false);
            } finally {
                OWN.remove();
            }
        }

        public void dropDatabase(ExternalCatalog catalog, String database, boolean cascade) {
            OWN.set(Boolean.TRUE);
            try {
                catalog.dropDatabase(database, true, cascade);
            } finally {
                OWN.remove();
            }
        }

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
