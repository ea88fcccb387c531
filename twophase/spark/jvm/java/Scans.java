package twophase;

import static twophase.Nodes.*;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.FileStatus;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.PartitioningAwareFileIndex;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import scala.Option;

/** The tables that a DataFrame reads: also in subqueries, and in cached earlier plans. */
public final class Scans {
    /** The JSON of the tables of the session catalog: location and stamp as Spark knows them, and the transaction that checks the files. */
    public String tables(Dataset frame, String stamp) {
        List found = new ArrayList();
        for (Iterator all = ofSession(frame).iterator(); all.hasNext();) {
            LogicalPlan leaf = (LogicalPlan) all.next();
            CatalogTable table = catalogTable(leaf);
            FileIndex index = index(leaf);
            Map facts = new HashMap();
            facts.put("database", text(table.identifier().database()));
            facts.put("name", table.identifier().table());
            facts.put("location", text(table.storage().locationUri()));
            facts.put("stamp", text(table.properties().get(stamp)));
            facts.put("transaction", SnapshotFiles.transaction(index));
            found.add(facts);
        }
        Map result = new HashMap();
        result.put("tables", found);
        return json(result);
    }

    /** The index of the files of one of these tables; null if they are listed only when the plan runs. */
    public FileIndex files(Dataset frame, int place) {
        return SnapshotFiles.unchecked(index((LogicalPlan) ofSession(frame).get(place)));
    }

    /** The tables of other catalogs, as their own {@code Table}s; null if there are none. */
    public List sources(Dataset frame) {
        List found = new ArrayList();
        for (Iterator all = leaves(frame.queryExecution().analyzed()).iterator(); all.hasNext();) {
            Object leaf = all.next();
            if (leaf instanceof DataSourceV2ScanRelation) {
                leaf = ((DataSourceV2ScanRelation) leaf).relation();
            }
            if (leaf instanceof DataSourceV2Relation) {
                found.add(((DataSourceV2Relation) leaf).table());
            }
        }
        return found.isEmpty() ? null : found;
    }

    /** The first file of an index that has no bytes; null if there is none. */
    public String emptyFile(PartitioningAwareFileIndex index) {
        for (Iterator all = listed(index.allFiles()).iterator(); all.hasNext();) {
            FileStatus file = (FileStatus) all.next();
            if (file.getLen() == 0) {
                return file.getPath().toString();
            }
        }
        return null;
    }

    private static List ofSession(Dataset frame) {
        List found = new ArrayList();
        for (Iterator all = leaves(frame.queryExecution().analyzed()).iterator(); all.hasNext();) {
            LogicalPlan leaf = (LogicalPlan) all.next();
            if (catalogTable(leaf) != null) {
                found.add(leaf);
            }
        }
        return found;
    }

    private static FileIndex index(LogicalPlan leaf) {
        Object relation = has(leaf, "relation") ? get(leaf, "relation") : null;
        return relation instanceof HadoopFsRelation ? ((HadoopFsRelation) relation).location() : null;
    }

    private static List leaves(LogicalPlan plan) {
        List found = new ArrayList();
        add(plan, found);
        for (Iterator all = listed(plan.subqueriesAll()).iterator(); all.hasNext();) {
            add((LogicalPlan) all.next(), found);
        }
        return found;
    }

    private static void add(LogicalPlan plan, List found) {
        for (Iterator all = listed(plan.collectLeaves()).iterator(); all.hasNext();) {
            LogicalPlan leaf = (LogicalPlan) all.next();
            if (kind(leaf).equals("InMemoryRelation")) {
                LogicalPlan cached = cached(leaf);
                if (cached != null) {
                    found.addAll(leaves(cached));
                }
            } else {
                found.add(leaf);
            }
        }
    }

    /** The plan whose rows are cached; null in a version that does not store it. */
    private static LogicalPlan cached(LogicalPlan leaf) {
        Object builder = get(leaf, "cacheBuilder");
        Method[] all = builder.getClass().getMethods();
        for (int index = 0; index < all.length; index++) {
            if (all[index].getName().equals("logicalPlan")) {
                return (LogicalPlan) call(all[index], builder, new Object[0]);
            }
        }
        return null;
    }
}
