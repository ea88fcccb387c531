package twophase;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.function.Predicate;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalog;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils;
import org.apache.spark.sql.hive.HiveExternalCatalog;
import org.apache.spark.sql.hive.client.HiveClient;
import org.apache.spark.sql.hive.client.RawHiveTable;
import scala.Option;
import scala.collection.immutable.Map;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction0;

/**
 * Reads tables and partitions of a Hive metastore, each by one call of the metastore, or many partitions by one.
 *
 * Spark's own catalog reads a table that may be missing as a list, which costs the metastore three times as much, and
 * the table of a partition twice more. Here Spark's client reads, and its catalog translates what was read.
 */
public final class HiveTables extends Tables {
    /** From this number on, partitions are read together; and the most in one call. */
    private static final int FEW = 3;
    private static final int AT_ONCE = 1000;
    private final HiveExternalCatalog below;
    private final HiveClient client;
    private final Method restoreTable = method(HiveExternalCatalog.class, "restoreTableMetadata", 1);
    private final Method restorePartition = method(HiveExternalCatalog.class, "restorePartitionMetadata", 2);
    private final StoredTables changing = new StoredTables();
    private final Method connection;
    private final Method fromHive;
    private final Method convert;

    public HiveTables(ExternalCatalog catalog, ObjectMapper tables, ObjectMapper partitions, HiveExternalCatalog below) {
        super(catalog, tables, partitions);
        this.below = below;
        this.client = below.client();
        this.connection = method(client.getClass(), "msClient", 0);
        this.fromHive = method(client.getClass(), "fromHivePartition", 1);
        this.convert = method(client.getClass(), "convertHiveTableToCatalogTable", 1);
    }

    protected Object load(String database, String name, Tables.Found before) throws Exception {
        try {
            Option found = client.getRawHiveTableOption(database, name);
            if (found.isEmpty()) {
                return null;
            }
            RawHiveTable stored = (RawHiveTable) found.get();
            // Translating it would take a quarter of the time of the call.
            boolean isSame = before instanceof InHive && stored.rawTable().equals(((InHive) before).stored.rawTable());
            return isSame ? (Object) Boolean.TRUE : translated(stored).unlessAs(before);
        } catch (Exception error) {
            return super.load(database, name, before);  // It raises Spark's own error.
        }
    }

    private Tables.Found translated(RawHiveTable stored) throws Exception {
        CatalogTable table = (CatalogTable) restored(restoreTable, new Object[] {stored.toCatalogTable()});
        return new InHive(this, table, stored);
    }

    public List partitions(Tables.Found found, List specifications) throws Exception {
        if (specifications.size() < FEW) {
            return super.partitions(found, specifications);
        }
        try {
            return named((InHive) found, names(found.table(), specifications));
        } catch (Exception error) {
            return super.partitions(found, specifications);
        }
    }

    /** The names of partitions in the metastore. */
    private static List names(CatalogTable table, List specifications) {
        List found = new ArrayList();
        for (Iterator each = specifications.iterator(); each.hasNext();) {
            Map values = (Map) each.next();
            List parts = new ArrayList();
            for (Iterator columns = CollectionConverters.asJava(table.partitionColumnNames()).iterator(); columns.hasNext();) {
                String column = ((String) columns.next()).toLowerCase(Locale.ROOT);
                parts.add(ExternalCatalogUtils.getPartitionPathString(column, (String) values.apply(column)));
            }
            found.add(String.join("/", parts));
        }
        return found;
    }

    private List named(InHive found, List names) throws Exception {
        Object owner = found.stored.rawTable();
        List result = new ArrayList();
        for (int start = 0; start < names.size(); start += AT_ONCE) {
            List some = names.subList(start, Math.min(start + AT_ONCE, names.size()));
            for (Iterator each = stored(found, some).iterator(); each.hasNext();) {
                Object one = each.next();
                Class kind = fromHive.getParameterTypes()[0];
                Object wrapped = kind.getConstructor(new Class[] {owner.getClass(), one.getClass()}).newInstance(
                    new Object[] {owner, one});
                Object partition = fromHive.invoke(null, new Object[] {wrapped});
                result.add(restored(restorePartition, new Object[] {partition, found.table()}));
            }
        }
        return result;
    }

    /** Partitions in the form of the metastore's own client, which is used under the lock of Spark's. */
    private List stored(InHive found, List names) {
        final Object[] wanted = new Object[] {found.database(), found.table().identifier().table(), names};
        final Method connect = connection;
        final HiveClient locked = client;
        return (List) client.withHiveState(new AbstractFunction0() {
            public Object apply() {
                try {
                    Class[] types = new Class[] {String.class, String.class, List.class};
                    Object store = connect.invoke(locked, new Object[0]);
                    return connect.getReturnType().getMethod("getPartitionsByNames", types).invoke(store, wanted);
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }
        });
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

    /**
     * Changes a table that is still as it was found, and asks the metastore for nothing but that.
     *
     * @param wanted what to change, as JSON: see {@link StoredTables#point}
     * @return the table as it is then; null if nothing was changed
     */
    public Tables.Found point(final Tables.Found before, final String wanted) throws Exception {
        final Method connect = connection;
        final HiveClient locked = client;
        final StoredTables tables = changing;
        final Predicate isAsRead = new Predicate() {
            public boolean test(Object stored) {
                return isAs(before, stored);
            }
        };
        // Spark's client would repeat a call that has failed, which may have been carried out.
        Object result = client.withHiveState(new AbstractFunction0() {
            public Object apply() {
                try {
                    return tables.point(connect.invoke(locked, new Object[0]), connect.getReturnType(), before.database(),
                        before.table().identifier().table(), isAsRead, wanted);
                } catch (InvocationTargetException error) {
                    return error.getCause();
                } catch (Exception error) {
                    return error;
                }
            }
        });
        if (result instanceof Exception) {
            throw (Exception) result;
        }
        return result == null ? null : read(result);
    }

    private boolean isAs(Tables.Found before, Object stored) {
        if (before instanceof InHive) {
            return stored.equals(((InHive) before).raw());
        }
        CatalogTable now = read(stored).table();
        return now != null && LoadedTable.isSame(now, before.table());
    }

    /** A table in the form of the metastore's own client, as Spark reads it; without an entry if Spark cannot. */
    private Tables.Found read(Object stored) {
        try {
            Class kind = convert.getParameterTypes()[0];
            Object raw = kind.getConstructor(new Class[] {stored.getClass()}).newInstance(new Object[] {stored});
            Object table = convert.invoke(client, new Object[] {raw});
            return new Tables.Found(this, (CatalogTable) restored(restoreTable, new Object[] {table}));
        } catch (Exception error) {
            return new Tables.Found(this, null);
        }
    }

    private Object restored(Method method, Object[] arguments) throws Exception {
        return method.invoke(below, arguments);
    }

    private static Method method(Class owner, String name, int parameters) {
        Method[] all = owner.getDeclaredMethods();
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

        /** The table in the form of the metastore's own client. */
        Object raw() {
            try {
                Object raw = stored.rawTable();
                return raw.getClass().getMethod("getTTable", new Class[0]).invoke(raw, new Object[0]);
            } catch (ReflectiveOperationException error) {
                throw new IllegalStateException(error);
            }
        }
    }
}
