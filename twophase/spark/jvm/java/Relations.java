package twophase;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.URI;
import java.util.Arrays;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.QualifiedTableName;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.SessionCatalog;
import org.apache.spark.sql.catalyst.catalog.UnresolvedCatalogRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.util.CharVarcharUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.CacheManager;
import org.apache.spark.sql.execution.CachedData;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.FindDataSourceTable;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.InMemoryFileIndex;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/** Moves cached relations of a table on to its current files. */
public final class Relations {
    /** Paths that Spark takes for patterns. */
    private static final String PATTERN = ".*[{}\\[\\]*?\\\\].*";
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
        if (isOfDataSource(now)) {
            resolve(session, now);
        } else {
            session.table(name);
        }
        return lead(old, kept(session, database, table));
    }

    private static boolean isOfDataSource(CatalogTable table) {
        return table.provider().isDefined() && !"hive".equalsIgnoreCase((String) table.provider().get());
    }

    /** Does what Spark's analyser does with a table, without an analysis of a query. */
    private static void resolve(SparkSession session, CatalogTable table) {
        new FindDataSourceTable(session).apply(new UnresolvedCatalogRelation(table, CaseInsensitiveStringMap.empty(), false));
    }

    /** Same as {@link #move}, to a state of the table that is known. */
    private boolean moveTo(CatalogTable now, SparkSession session, Object old, String database, String table) throws Exception {
        if (!isOfDataSource(now) || CharVarcharUtils.hasCharVarchar(now.schema())) {
            return false;  // Spark's session catalog has strings in place of CHAR and VARCHAR.
        }
        SessionCatalog catalog = session.sessionState().catalog();
        catalog.refreshTable(new TableIdentifier(table, Option.apply(database)));
        Method name = SessionCatalog.class.getDeclaredMethod("attachCatalogName", new Class[] {CatalogTable.class});
        name.setAccessible(true);
        CatalogTable named = (CatalogTable) name.invoke(catalog, new Object[] {now});
        Path root = new Path((URI) now.storage().locationUri().get());
        if (differsInPlace(old, now) && !root.toString().matches(PATTERN)) {
            place((LogicalRelation) old, root.getFileSystem(session.sessionState().newHadoopConf()).makeQualified(root));
            LogicalPlan moved = (LogicalPlan) Nodes.with((LogicalRelation) old, "catalogTable", Option.apply(named));
            catalog.cacheTable(key(database, table), moved);
            return true;
        }
        resolve(session, named);
        return lead(old, kept(session, database, table));
    }

    /** Whether nothing of a table has changed that its relation depends on, but for its directory. */
    private static boolean differsInPlace(Object old, CatalogTable now) {
        if (!(old instanceof LogicalRelation) || ((LogicalRelation) old).catalogTable().isEmpty()) {
            return false;
        }
        Object relation = ((LogicalRelation) old).relation();
        CatalogTable before = (CatalogTable) ((LogicalRelation) old).catalogTable().get();
        return relation instanceof HadoopFsRelation && ((HadoopFsRelation) relation).location() instanceof InMemoryFileIndex
            && now.partitionColumnNames().isEmpty() && before.provider().equals(now.provider())
            && before.schema().equals(now.schema()) && before.bucketSpec().equals(now.bucketSpec())
            && before.storage().properties().equals(now.storage().properties());
    }

    private static void place(LogicalRelation old, Path root) throws Exception {
        HadoopFsRelation relation = (HadoopFsRelation) old.relation();
        Seq roots = (Seq) Nodes.seq(Arrays.asList(new Object[] {root}));
        set(HadoopFsRelation.class, "options", relation, relation.options().updated("path", root.toString()));
        set(HadoopFsRelation.class, "location", relation, LazyFileIndex.of(relation, roots));
    }

    /**
     * Gives the relation of an old plan the files of a new one, and the new plan the old relation.
     *
     * @return whether both read files of one format and the same columns; otherwise nothing was changed
     */
    public boolean lead(Object old, Object now) throws Exception {
        if (!share(old, now)) {
            return false;
        }
        set(LogicalRelation.class, "relation", now, ((LogicalRelation) old).relation());
        return true;
    }

    /**
     * Gives the relations of a table in cached queries, from before Spark resolved it again, the files of the current one.
     *
     * @param now the session's relation of the table
     */
    public void leadCached(SparkSession session, Object now) throws Exception {
        Field entries = CacheManager.class.getDeclaredField("cachedData");
        entries.setAccessible(true);
        Iterator cached = ((scala.collection.Seq) entries.get(session.sharedState().cacheManager())).iterator();
        while (cached.hasNext()) {
            LogicalPlan plan = ((CachedData) cached.next()).plan();
            shareIn(plan, (LogicalRelation) now);
            for (Iterator subqueries = plan.subqueriesAll().iterator(); subqueries.hasNext();) {
                shareIn((LogicalPlan) subqueries.next(), (LogicalRelation) now);
            }
        }
    }

    private static void shareIn(LogicalPlan plan, LogicalRelation now) throws Exception {
        for (Iterator leaves = plan.collectLeaves().iterator(); leaves.hasNext();) {
            Object leaf = leaves.next();
            if (leaf instanceof LogicalRelation && isOfSameTable((LogicalRelation) leaf, now)) {
                share(leaf, now);
            }
        }
    }

    private static boolean isOfSameTable(LogicalRelation one, LogicalRelation other) {
        if (one.catalogTable().isEmpty() || other.catalogTable().isEmpty()) {
            return false;
        }
        TableIdentifier name = ((CatalogTable) one.catalogTable().get()).identifier();
        TableIdentifier wanted = ((CatalogTable) other.catalogTable().get()).identifier();
        return name.table().equals(wanted.table()) && name.database().equals(wanted.database());
    }

    /** Gives one relation the files of another one, if both read files of one format and the same columns. */
    private static boolean share(Object old, Object now) throws Exception {
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
        return true;
    }

    /**
     * Does all that an INSERT changes for a session, in one call: its relation of a table reads the files that there are
     * now, or those of a new version.
     *
     * @return false if there is more to do, or another thing
     */
    public boolean follow(SparkSession session, String database, String name, Tables.Found now) throws Exception {
        boolean sizes = Boolean.parseBoolean(session.sessionState().conf().getConfString(SIZES, "false"));
        if (sizes || !keepsOnly(session, database, name)) {
            return false;
        }
        Object old = kept(session, database, name);
        return refresh(old, now.table()) || moveTo(now.table(), session, old, database, name);
    }

    /** Whether a session has a relation of a table, and no query of the application is cached. */
    public boolean keepsOnly(SparkSession session, String database, String name) {
        return kept(session, database, name) != null && session.sharedState().cacheManager().isEmpty();
    }

    private static Object kept(SparkSession session, String database, String name) {
        return session.sessionState().catalog().getCachedTable(key(database, name));
    }

    private static QualifiedTableName key(String database, String name) {
        return new QualifiedTableName("spark_catalog", database, name);
    }

    /**
     * Lets the files of a relation be listed again, at the next read, if its table has not changed.
     *
     * @return whether it is unchanged; otherwise nothing was done
     */
    public boolean refresh(Object old, CatalogTable now) throws Exception {
        if (!(old instanceof LogicalRelation && ((LogicalRelation) old).relation() instanceof HadoopFsRelation)) {
            return false;
        }
        Option before = ((LogicalRelation) old).catalogTable();
        if (before.isEmpty() || now.stats().isDefined() || !LoadedTable.isSame((CatalogTable) before.get(), now)) {
            return false;
        }
        HadoopFsRelation relation = (HadoopFsRelation) ((LogicalRelation) old).relation();
        FileIndex files = relation.location();
        if (files instanceof InMemoryFileIndex && !now.partitionColumnNames().isEmpty()) {
            return false; // It has the locations of the partitions as they were.
        }
        if (files.getClass() == InMemoryFileIndex.class) {
            set(HadoopFsRelation.class, "location", relation, LazyFileIndex.of(relation, files.rootPaths()));
        }
        relation.location().refresh();
        return true;
    }

    private static void set(Class kind, String name, Object instance, Object value) throws Exception {
        Field field = kind.getDeclaredField(name);
        field.setAccessible(true);
        field.set(instance, value);
    }
}
