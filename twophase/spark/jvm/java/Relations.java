package twophase;

import java.lang.reflect.Field;
import org.apache.spark.sql.catalyst.QualifiedTableName;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.SessionCatalog;
import org.apache.spark.sql.catalyst.catalog.UnresolvedCatalogRelation;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.FindDataSourceTable;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.InMemoryFileIndex;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/** Moves cached relations of a table on to its current files. */
public final class Relations {
    private static final String SIZES = "spark.sql.statistics.size.autoUpdate.enabled";

    /**
     * Resolves a table of a session again, and lets the session keep its old relation, with the files of the new one.
     *
     * @param name the table's full name, for Spark's parser
     * @return as lead
     */
    public boolean move(SparkSession session, Object old, String database, String table, String name) throws Exception {
        SessionCatalog catalog = session.sessionState().catalog();
        TableIdentifier identifier = new TableIdentifier(table, Option.apply(database));
        catalog.refreshTable(identifier);
        CatalogTable now = catalog.getTableMetadata(identifier);
        if (now.provider().isDefined() && !"hive".equalsIgnoreCase((String) now.provider().get())) {
            // What Spark's analyser does with it, without an analysis of a query.
            UnresolvedCatalogRelation found = new UnresolvedCatalogRelation(now, CaseInsensitiveStringMap.empty(), false);
            new FindDataSourceTable(session).apply(found);
        } else {
            session.table(name);
        }
        return lead(old, kept(session, database, table));
    }

    /**
     * Gives the relation of an old plan the files of a new one, and the new plan the old relation.
     *
     * @return whether both read files of one format and the same columns; otherwise nothing was changed
     */
    public boolean lead(Object old, Object now) throws Exception {
        if (!(old instanceof LogicalRelation && now instanceof LogicalRelation)) {
            return false;
        }
        Object before = ((LogicalRelation) old).relation();
        Object after = ((LogicalRelation) now).relation();
        if (!(before instanceof HadoopFsRelation && after instanceof HadoopFsRelation)) {
            return false;
        }
        HadoopFsRelation kept = (HadoopFsRelation) before;
        HadoopFsRelation found = (HadoopFsRelation) after;
        if (kept.fileFormat().getClass() != found.fileFormat().getClass() || !kept.schema().equals(found.schema())) {
            return false;
        }
        set(HadoopFsRelation.class, "location", kept, found.location());
        set(HadoopFsRelation.class, "options", kept, found.options());
        set(LogicalRelation.class, "relation", now, kept);
        return true;
    }

    /**
     * Does all that an INSERT changes for a session, in one call: lists the files of its relation of a table again.
     *
     * @return false if there is more to do, or another thing; then nothing was done
     */
    public boolean follow(SparkSession session, String database, String name, Tables.Found now) {
        boolean sizes = Boolean.parseBoolean(session.sessionState().conf().getConfString(SIZES, "false"));
        return !sizes && keepsOnly(session, database, name) && refresh(kept(session, database, name), now.table());
    }

    /** Whether a session has a relation of a table, and no query of the application is cached. */
    public boolean keepsOnly(SparkSession session, String database, String name) {
        return kept(session, database, name) != null && session.sharedState().cacheManager().isEmpty();
    }

    private static Object kept(SparkSession session, String database, String name) {
        return session.sessionState().catalog().getCachedTable(new QualifiedTableName("spark_catalog", database, name));
    }

    /**
     * Lists the files of a relation again if its table has not changed.
     *
     * @return whether it is unchanged; otherwise nothing was done
     */
    public boolean refresh(Object old, CatalogTable now) {
        if (!(old instanceof LogicalRelation && ((LogicalRelation) old).relation() instanceof HadoopFsRelation)) {
            return false;
        }
        Option before = ((LogicalRelation) old).catalogTable();
        if (before.isEmpty() || !isSame((CatalogTable) before.get(), now)) {
            return false;
        }
        FileIndex files = ((HadoopFsRelation) ((LogicalRelation) old).relation()).location();
        if (files instanceof InMemoryFileIndex && !now.partitionColumnNames().isEmpty()) {
            return false; // It has the locations of the partitions as they were.
        }
        files.refresh();
        return true;
    }

    /** Whether a table is unchanged; its name is ignored, as it may have a catalog in one and none in the other. */
    private static boolean isSame(CatalogTable one, CatalogTable other) {
        for (int index = 0; index < one.productArity(); index++) {
            boolean isName = one.productElementName(index).equals("identifier");
            if (!isName && !one.productElement(index).equals(other.productElement(index))) {
                return false;
            }
        }
        return one.stats().isEmpty();
    }

    private static void set(Class kind, String name, Object instance, Object value) throws Exception {
        Field field = kind.getDeclaredField(name);
        field.setAccessible(true);
        field.set(instance, value);
    }
}
