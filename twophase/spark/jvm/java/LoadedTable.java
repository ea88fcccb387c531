package twophase;

import java.util.Iterator;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.analysis.AnalysisContext;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.UnresolvedCatalogRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import scala.jdk.javaapi.CollectionConverters;

/** A table as Spark's analysis of a statement has loaded it: the statement need not ask the metastore again. */
public final class LoadedTable {
    /** Several writes of one statement run one after the other: to a later one, what the analysis has loaded is old. */
    private static final long LONGEST = 1000000000L;
    /** In the metadata of a column that is a string in place of CHAR or VARCHAR. */
    private static final String CHAR = "__CHAR_VARCHAR_TYPE_STRING";
    /** That of the statement which this thread runs. */
    private static final ThreadLocal CURRENT = new ThreadLocal();

    private final CatalogTable table;
    private final long time = System.nanoTime();

    private LoadedTable(CatalogTable table) {
        this.table = table;
    }

    /**
     * That of the analysis which this thread is in, of which a relation may be older; null if it has loaded no such table,
     * or one with CHAR or VARCHAR, which are strings then.
     */
    public static LoadedTable of(CatalogTable relation) {
        Iterator loaded = CollectionConverters.asJava(AnalysisContext.get().relationCache()).values().iterator();
        while (loaded.hasNext()) {
            LogicalPlan plan = (LogicalPlan) loaded.next();
            while (plan instanceof SubqueryAlias) {
                plan = ((SubqueryAlias) plan).child();
            }
            if (plan instanceof UnresolvedCatalogRelation) {
                CatalogTable table = ((UnresolvedCatalogRelation) plan).tableMeta();
                if (isNamedAlike(table, relation) && !table.schema().json().contains(CHAR)) {
                    return new LoadedTable(table);
                }
            }
        }
        return null;
    }

    /** Sets, or with null forgets, the table of the statement which this thread runs. */
    public static void set(LoadedTable loaded) {
        CURRENT.set(loaded);
    }

    /** A table that the statement which this thread runs has just loaded; null if it has not. */
    public static CatalogTable named(String database, String name) {
        LoadedTable loaded = (LoadedTable) CURRENT.get();
        if (loaded == null || System.nanoTime() - loaded.time > LONGEST) {
            return null;
        }
        TableIdentifier identifier = loaded.table.identifier();
        return identifier.table().equals(name) && identifier.database().get().equals(database) ? loaded.table : null;
    }

    /** Whether a table is unchanged. */
    public static boolean isSame(CatalogTable one, CatalogTable other) {
        for (int index = 0; index < one.productArity(); index++) {
            boolean isName = one.productElementName(index).equals("identifier");
            if (!isName && !one.productElement(index).equals(other.productElement(index))) {
                return false;
            }
        }
        return isNamedAlike(one, other);
    }

    /** Whether two tables have one name, which may have a catalog in one and none in the other. */
    private static boolean isNamedAlike(CatalogTable one, CatalogTable other) {
        return one.identifier().table().equals(other.identifier().table())
            && one.identifier().database().equals(other.identifier().database());
    }
}
