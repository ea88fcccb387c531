package twophase;

import static twophase.Nodes.*;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.function.BiFunction;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.datasources.CatalogFileIndex;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.InMemoryFileIndex;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * Spark's own relations of session tables, in a transaction that reads one snapshot.
 *
 * Each time when a query has the files of such a relation, Python is asked whether they are those of the snapshot.
 */
public final class SnapshotFiles {
    /** The property of a table with the transaction that has published it: as in {@code catalogs/hive/metastore.py}. */
    private static final String STAMP = "twophase.transaction";

    private SnapshotFiles() {}

    /** A relation of which the files are checked, named as a table of a twophase catalog; null if it is of no use. */
    public static LogicalPlan checked(LogicalPlan relation, BiFunction python, String catalog, String transaction) {
        CatalogTable table = catalogTable(relation);
        Object source = get(relation, "relation");
        if (table == null || relation.isStreaming() || !(source instanceof HadoopFsRelation)) {
            return null;
        }
        HadoopFsRelation files = (HadoopFsRelation) source;
        FileIndex index = files.location();
        Check check = new Check(python, transaction, table);
        FileIndex checked;
        if (index.getClass() == CatalogFileIndex.class) {
            checked = new Partitions(files, (CatalogFileIndex) index, check);
        } else if (index instanceof InMemoryFileIndex) {
            checked = new Listed(index, check);
        } else {
            return null;
        }
        Object copy = new HadoopFsRelation(checked, files.partitionSchema(), files.dataSchema(), files.bucketSpec(),
            files.fileFormat(), files.options(), files.sparkSession());
        // Spark drops cached queries by this name.
        TableIdentifier name = new TableIdentifier(
            table.identifier().table(), table.identifier().database(), Option.apply(catalog));
        return (LogicalPlan) with(with(relation, "relation", copy), "catalogTable", Option.apply(named(table, name)));
    }

    /** The transaction that checks the files of an index; null if none does. */
    public static String transaction(FileIndex index) {
        return index instanceof Listed ? ((Listed) index).check.transaction
            : index instanceof Partitions ? ((Partitions) index).check.transaction : null;
    }

    /** The index as it was before its files were checked. */
    public static FileIndex unchecked(FileIndex index) {
        return index instanceof Listed ? ((Listed) index).files
            : index;
    }

    private static CatalogTable named(CatalogTable table, TableIdentifier name) {
        Object[] fields = new Object[table.productArity()];
        for (int index = 0; index < fields.length; index++) {
            fields[index] = table.productElementName(index).equals("identifier") ? name : table.productElement(index);
        }
        try {
            return (CatalogTable) CatalogTable.class.getConstructors()[0].newInstance(fields);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    /** Asks for what is to be read instead of a table's files. */
    public static final class Check {
        private final BiFunction python;
        private final String transaction;
        private final TableIdentifier table;
        private final String location;
        private final String stamp;
        private final String[] columns;

        Check(BiFunction python, String transaction, CatalogTable table) {
            this.python = python;
            this.transaction = transaction;
            this.table = table.identifier();
            this.location = text(table.storage().locationUri());
            this.stamp = text(table.properties().get(STAMP));
            this.columns = table.schema().fieldNames();
        }

        /** The index of other files; null if those that are at hand are right. */
        InMemoryFileIndex former(boolean isListedNow) {
            Map facts = new HashMap();
            facts.put("question", "listed");
            facts.put("transaction", transaction);
            facts.put("parts", Arrays.asList(new Object[] {table.database().get(), table.table()}));
            facts.put("now", Boolean.valueOf(isListedNow));
            facts.put("location", location);
            facts.put("stamp", stamp);
            facts.put("columns", Arrays.asList((Object[]) columns));
            return (InMemoryFileIndex) python.apply(json(facts), null);
        }

        public boolean equals(Object other) {
            return other instanceof Check && ((Check) other).transaction.equals(transaction)
                && ((Check) other).table.equals(table) && Objects.equals(((Check) other).location, location);
        }

        public int hashCode() {
            return transaction.hashCode() + table.hashCode();
        }
    }

    /** The files that Spark has listed when it has first read a table, or since then. */
    public static final class Listed implements FileIndex {
        private final FileIndex files;
        private final Check check;

        Listed(FileIndex files, Check check) {
            this.files = files;
            this.check = check;
        }

        public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
            Seq found = files.listFiles(partitionFilters, dataFilters);
            FileIndex former = check.former(false);
            return former == null ? found : former.listFiles(partitionFilters, dataFilters);
        }

        public String[] inputFiles() {
            String[] found = files.inputFiles();
            FileIndex former = check.former(false);
            return former == null ? found : former.inputFiles();
        }

        public Seq rootPaths() {
            return files.rootPaths();
        }

        public void refresh() {
            files.refresh();
        }

        public long sizeInBytes() {
            return files.sizeInBytes();
        }

        public StructType partitionSchema() {
            return files.partitionSchema();
        }

        public Option metadataOpsTimeNs() {
            return files.metadataOpsTimeNs();
        }

        public String toString() {
            return files.toString();
        }

        public boolean equals(Object other) {
            return other instanceof Listed && ((Listed) other).check.equals(check) && ((Listed) other).files.equals(files);
        }

        public int hashCode() {
            return check.hashCode();
        }
    }

    /** The partitions of a table, which Spark looks up and lists when a query is planned or runs. */
    public static final class Partitions extends CatalogFileIndex {
        private final CatalogFileIndex files;
        private final Check check;

        Partitions(HadoopFsRelation relation, CatalogFileIndex files, Check check) {
            super(relation.sparkSession(), files.table(), files.sizeInBytes());
            this.files = files;
            this.check = check;
        }

        public InMemoryFileIndex filterPartitions(Seq filters) {
            try {
                return super.filterPartitions(filters);
            } finally {  // Also after an error: it may have been replaced by a table with other partitions.
                InMemoryFileIndex former = check.former(true);
                if (former != null) {
                    return former;
                }
            }
        }

        /** Former files are of all partitions: they are pruned here, as Spark has taken the filters off its plan. */
        public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
            return filterPartitions(partitionFilters).listFiles(partitionFilters, dataFilters);
        }

        public void refresh() {
            super.refresh();
            files.refresh();
        }

        public boolean equals(Object other) {
            return other instanceof Partitions && ((Partitions) other).check.equals(check)
                && ((Partitions) other).files.equals(files);
        }

        public int hashCode() {
            return check.hashCode();
        }
    }
}
