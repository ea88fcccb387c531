package twophase;

import org.apache.spark.sql.catalyst.catalog.AlterTableEvent;
import org.apache.spark.sql.catalyst.catalog.AlterTablePreEvent;
import org.apache.spark.sql.catalyst.catalog.DropTableEvent;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalog;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogEvent;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogEventListener;
import org.apache.spark.sql.catalyst.catalog.RenameTableEvent;

/** Reports drops, renames and changes of the columns of tables outside twophase; all other events of the catalog stay in the JVM. */
public final class TableChanges implements ExternalCatalogEventListener {
    private static final ThreadLocal OWN = new ThreadLocal();
    private volatile ExternalCatalogEventListener python;

    public void tell(ExternalCatalogEventListener listener) {
        python = listener;
    }

    public void onEvent(ExternalCatalogEvent event) {
        if (OWN.get() != null || !isReported(event)) {
            return;
        }
        try {
            python.onEvent(event);
        } finally {
            Thread.interrupted();  // Spark would swallow it, too, and remove the listener for it.
        }
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
