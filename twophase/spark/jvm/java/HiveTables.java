package twophase;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Method;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalog;
import org.apache.spark.sql.hive.HiveExternalCatalog;
import org.apache.spark.sql.hive.client.HiveClient;
import org.apache.spark.sql.hive.client.RawHiveTable;
import scala.Option;
import scala.collection.immutable.Map;

/**
 * Reads tables and partitions of a Hive metastore, each by one call of the metastore.
 *
 * Spark's own catalog reads a table that may be missing as a list, which costs the metastore three times as much, and
 * the table of a partition twice more. Here Spark's client reads, and its catalog translates what was read.
 */
public final class HiveTables extends Tables {
    private final HiveExternalCatalog below;
    private final HiveClient client;
    private final Method restoreTable = method("restoreTableMetadata", 1);
    private final Method restorePartition = method("restorePartitionMetadata", 2);

    public HiveTables(ExternalCatalog catalog, ObjectMapper tables, ObjectMapper partitions, HiveExternalCatalog below) {
        super(catalog, tables, partitions);
        this.below = below;
        this.client = below.client();
    }

    public Tables.Found find(String database, String name) throws Exception {
        Option found;
        CatalogTable table;
        try {
            found = client.getRawHiveTableOption(database, name);
            if (found.isEmpty()) {
                return null;
            }
            table = (CatalogTable) restored(restoreTable, new Object[] {((RawHiveTable) found.get()).toCatalogTable()});
        } catch (Exception error) {
            return super.find(database, name);  // It raises Spark's own error.
        }
        return new InHive(this, table, (RawHiveTable) found.get());
    }

    public Option partition(Tables.Found found, Map values) throws Exception {
        Option partition;
        try {
            partition = client.getPartitionOption(((InHive) found).stored, values);
            if (partition.isEmpty()) {
                return partition;
            }
            return Option.apply(restored(restorePartition, new Object[] {partition.get(), found.table()}));
        } catch (Exception error) {
            return super.partition(found, values);
        }
    }

    private Object restored(Method method, Object[] arguments) throws Exception {
        return method.invoke(below, arguments);
    }

    private static Method method(String name, int parameters) {
        Method[] all = HiveExternalCatalog.class.getDeclaredMethods();
        for (int index = 0; index < all.length; index++) {
            if (all[index].getName().endsWith(name) && all[index].getParameterCount() == parameters) {
                all[index].setAccessible(true);
                return all[index];
            }
        }
        throw new IllegalStateException(name);
    }

    public static final class InHive extends Tables.Found {
        private final RawHiveTable stored;

        InHive(Tables tables, CatalogTable table, RawHiveTable stored) {
            super(tables, table);
            this.stored = stored;
        }
    }
}
