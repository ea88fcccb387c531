package twophase;

import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.function.BiFunction;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.V1Write;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.sources.InsertableRelation;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The target of an INSERT whose analysis Spark has finished: its rows are cast and in order.
 *
 * Python receives them when the statement runs; this table calls it for nothing else.
 */
public final class InsertTarget implements SupportsWrite {
    private final BiFunction python;
    private final String name;
    private final CatalogTable table;
    private final LoadedTable loaded;

    public InsertTarget(BiFunction python, String catalog, CatalogTable table, LoadedTable loaded) {
        this.python = python;
        this.name = catalog + "." + table.identifier().database().get() + "." + table.identifier().table();
        this.table = table;
        this.loaded = loaded;
    }

    public String name() {
        return name;
    }

    public String toString() {
        return name;
    }

    public StructType schema() {
        return table.schema();
    }

    public Set capabilities() {
        return EnumSet.of(TableCapability.V1_BATCH_WRITE, TableCapability.ACCEPT_ANY_SCHEMA);
    }

    public WriteBuilder newWriteBuilder(final LogicalWriteInfo info) {
        return new WriteBuilder() {
            public Write build() {
                return new Insertion(info.schema(), info.options().asCaseSensitiveMap());
            }
        };
    }

    private final class Insertion implements V1Write, InsertableRelation {
        private final StructType rows;
        private final Map options;

        Insertion(StructType rows, Map options) {
            this.rows = rows;
            this.options = options;
        }

        public InsertableRelation toInsertableRelation() {
            return this;
        }

        public String description() {
            return "twophase";
        }

        public void insert(Dataset data, boolean overwrite) {
            Map facts = new HashMap();
            facts.put("question", "rows");
            Nodes.putName(facts, table);
            facts.put("rows", rows.json());
            facts.put("schema", data.schema().json());  // As it is analysed: the optimiser may change names.
            facts.put("options", options);
            facts.put("columns", Arrays.asList(table.schema().fieldNames()));
            facts.put("partitions", table.partitionSchema().json());
            facts.put("table_options", CollectionConverters.asJava(table.storage().properties()));
            LoadedTable.set(loaded);
            try {
                python.apply(Nodes.json(facts), data);
            } finally {
                LoadedTable.set(null);
            }
        }
    }
}
