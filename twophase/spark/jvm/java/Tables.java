package twophase;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalog;
import scala.Option;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.collection.mutable.Buffer;
import scala.jdk.javaapi.CollectionConverters;

/** Reads a table of a metastore in one call: exceptions, or single fields, would cost dozens of calls. */
public class Tables {
    private final ExternalCatalog catalog;
    private final ObjectMapper mapper;
    private final ObjectMapper partitions;

    /** The mapper of tables leaves out most of their fields. */
    public Tables(ExternalCatalog catalog, ObjectMapper tables, ObjectMapper partitions) {
        this.catalog = catalog;
        this.mapper = tables;
        this.partitions = partitions;
    }

    /** The JSON of those of some tables that exist, given by a list of names; a database that does not exist has none. */
    public String named(String database, String names) throws Exception {
        List wanted = (List) mapper.readValue(names, List.class);
        Seq found;
        try {
            found = catalog.getTablesByName(database, ((Buffer) CollectionConverters.asScala(wanted)).toList());
        } catch (Exception error) {
            if (catalog.databaseExists(database)) {
                throw error;
            }
            return "[]";
        }
        return mapper.writeValueAsString(found);
    }

    /**
     * A table; null if it does not exist, or its database; TRUE if it is still as found before, of which all is known.
     *
     * @param asAnalyzed whether what the analysis of this thread's statement has loaded is current
     */
    public final Object find(String database, String name, Found before, boolean asAnalyzed) throws Exception {
        CatalogTable loaded = asAnalyzed ? LoadedTable.named(database, name) : null;
        if (loaded != null && before != null && LoadedTable.isSame(loaded, before.table)) {
            return Boolean.TRUE;
        }
        // Partitions are found faster by a table as the metastore has it.
        return loaded != null && loaded.partitionColumnNames().isEmpty() ? new Found(this, loaded) : load(database, name, before);
    }

    protected Object load(String database, String name, Found before) throws Exception {
        // As a list: for a single one that does not exist, Spark calls a Hive metastore more than once.
        List names = Collections.singletonList(name);
        Seq found;
        try {
            found = catalog.getTablesByName(database, ((Buffer) CollectionConverters.asScala(names)).toList());
        } catch (Exception error) {
            if (catalog.databaseExists(database) && catalog.tableExists(database, name)) {
                throw error;
            }
            return null;
        }
        return found.isEmpty() ? null : new Found(this, (CatalogTable) found.head()).unlessAs(before);
    }

    /** Those of some partitions of a table that exist now, each given by its values. */
    public List partitions(Found found, List specifications) throws Exception {
        List result = new ArrayList();
        for (Iterator each = specifications.iterator(); each.hasNext();) {
            Option partition = partition(found, (Map) each.next());
            if (partition.isDefined()) {
                result.add(partition.get());
            }
        }
        return result;
    }

    public Option partition(Found found, Map values) throws Exception {
        return catalog.getPartitionOption(found.database(), found.table().identifier().table(), values);
    }

    public static class Found {
        private final Tables tables;
        private final CatalogTable table;

        public Found(Tables tables, CatalogTable table) {
            this.tables = tables;
            this.table = table;
        }

        public CatalogTable table() {
            return table;
        }

        /** This; TRUE if the table is as it was found before. */
        public Object unlessAs(Found before) {
            return before != null && table.equals(before.table) ? (Object) Boolean.TRUE : this;
        }

        public String database() {
            return (String) table.identifier().database().get();
        }

        public String json() {
            ObjectNode facts = (ObjectNode) tables.mapper.valueToTree(table);
            facts.put("schema", table.schema().json());
            facts.put("stats", table.stats().isDefined());
            return facts.toString();
        }

        /** The JSON of those of some partitions that exist now, each given by its values. */
        public String partitions(String specifications) throws Exception {
            List wanted = new ArrayList();
            for (Iterator each = tables.partitions.readTree(specifications).iterator(); each.hasNext();) {
                wanted.add(tables.partitions.treeToValue((JsonNode) each.next(), Map.class));
            }
            return tables.partitions.writeValueAsString(tables.partitions(this, wanted));
        }
    }
}
