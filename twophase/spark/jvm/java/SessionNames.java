package twophase;

import static twophase.Nodes.*;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkThrowable;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.internal.SessionState;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/** What a name means in a session: its context, and the table of the session catalog that it names. */
public final class SessionNames {
    private static final String EXTENSION = "spark.sql.catalog.spark_catalog";
    private static final List NOT_FOUND = list("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DATABASE_NOT_FOUND");

    /** The context in which Spark resolves a name of a number of parts, as JSON. */
    public String context(SessionState state, String first, int parts) {
        Map facts = new HashMap();
        place(state, facts, first, parts);
        return json(facts);
    }

    /** A table or view of the session catalog, as JSON; null if there is none. */
    public String table(SessionState state, String database, String name) throws Exception {
        CatalogTable table;
        try {
            table = state.catalog().getTableMetadata(new TableIdentifier(name, Option.apply(database)));
        } catch (Exception error) {
            if (error instanceof SparkThrowable && NOT_FOUND.contains(((SparkThrowable) error).getCondition())) {
                return null;
            }
            throw error;  // The table's kind remains unknown: nothing may be assumed.
        }
        Map facts = new HashMap();
        facts.put("type", table.tableType().name());
        facts.put("provider", text(table.provider()));
        facts.put("partition_columns", listed(table.partitionColumnNames()));
        facts.put("options", CollectionConverters.asJava(table.storage().properties()));
        facts.put("properties", CollectionConverters.asJava(table.properties()));
        return json(facts);
    }

    /** Adds the context in which Spark resolves a name. */
    public static void place(SessionState state, Map facts, String first, int parts) {
        String current = currentCatalog(state);
        facts.put("current_catalog", current);
        facts.put("current_namespace", current.isEmpty() ? new String[0] : state.catalogManager().currentNamespace());
        facts.put("current_database", state.catalog().getCurrentDatabase());
        facts.put("extension", extension(state));
        facts.put("is_catalog", Boolean.valueOf(
            parts > 1 && state.catalogManager().isCatalogRegistered(first)));
        facts.put("is_temporary_view", Boolean.valueOf(
            parts == 1 && state.catalog().getTempView(first).isDefined()));
    }

    /** What serves the session's own tables. */
    public static String extension(SessionState state) {
        return state.conf().getConfString(EXTENSION, "builtin");
    }

    /** The current catalog; none if Spark cannot load it, which Spark itself will report. */
    public static String currentCatalog(SessionState state) {
        try {
            return state.catalogManager().currentCatalog().name();
        } catch (Exception error) {  // Also a SparkException, which Java calls checked and Scala does not declare.
            return "";
        }
    }
}
