package twophase;

import static twophase.Nodes.*;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;

/** What Spark passes to the interfaces of a catalog, each object in one call: single fields would cost several. */
public final class Passed {
    public String name(Identifier identifier) {
        Map facts = new HashMap();
        facts.put("namespace", Arrays.asList(identifier.namespace()));
        facts.put("name", identifier.name());
        return json(facts);
    }

    public String write(LogicalWriteInfo info) {
        Map facts = new HashMap();
        facts.put("options", info.options().asCaseSensitiveMap());
        facts.put("schema", info.schema().json());
        return json(facts);
    }
}
