package twophase;

import static twophase.Nodes.*;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.ExperimentalMethods;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.FileSourceStrategy;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructField;
import scala.Function1;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractPartialFunction;

/**
 * Lets filters on renamed columns skip row groups of files that have these columns under former names.
 *
 * Spark applies the filters of a scan to each file by name, and leaves out those on columns that the file does not have.
 * So a scan gets its filters under the former names, too, which the table has noted: no file has one column under two
 * names, and no former name is that of another column. They choose row groups only: the plan above filters the rows.
 * A table that another program has made of the rows of such a table, or of their files, has its notes too, of whatever
 * format it is. They mean nothing there.
 */
public final class FormerNames extends SparkStrategy {
    private static final String FIELD_ID = "parquet.field.id";
    private static final String USED = "twophase.used";
    private static final String MARK = "twophase.field_ids";
    private static final String READS_BY_IDS = "spark.sql.parquet.fieldId.read.enabled";
    /** The copies of one filter; one that would need more gets none. */
    private static final int MOST = 16;
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Adds this to the strategies of a session. */
    public void install(ExperimentalMethods methods) {
        List all = listed(methods.extraStrategies());
        all.add(this);
        methods.extraStrategies_$eq((Seq) seq(all));
    }

    /** Removes it. */
    public void uninstall(ExperimentalMethods methods) {
        List all = listed(methods.extraStrategies());
        all.remove(this);
        methods.extraStrategies_$eq((Seq) seq(all));
    }

    public Seq apply(LogicalPlan plan) {
        Map former = former(plan);
        List result = new ArrayList();
        if (!former.isEmpty()) {
            for (Iterator all = listed(FileSourceStrategy.apply(plan)).iterator(); all.hasNext();) {
                result.add(filtered((SparkPlan) all.next(), former));
            }
        }
        return (Seq) seq(result);
    }

    /** The former names of the columns of a filtered scan, by their id in the plan. */
    private static Map former(LogicalPlan plan) {
        Map result = new HashMap();
        LogicalPlan below = plan;
        boolean isFiltered = false;
        while (kind(below).equals("Project") || kind(below).equals("Filter")) {
            isFiltered |= kind(below).equals("Filter");
            below = (LogicalPlan) children(below).get(0);
        }
        Object relation = isFiltered && kind(below).equals("LogicalRelation") ? get(below, "relation") : null;
        if (!(relation instanceof HadoopFsRelation) || !isMarked(catalogTable(below))) {
            return result;
        }
        StructField[] fields = ((HadoopFsRelation) relation).dataSchema().fields();
        Map names = isReadByIds(fields) ? names(fields[0].metadata().getString(USED), fields) : result;
        for (Iterator all = listed(below.output()).iterator(); !names.isEmpty() && all.hasNext();) {
            Attribute column = (Attribute) all.next();
            if (column.metadata().contains(FIELD_ID)) {
                List found = (List) names.get(Long.valueOf(column.metadata().getLong(FIELD_ID)));
                if (found != null) {
                    result.put(column.exprId(), found);
                }
            }
        }
        return result;
    }

    /** Whether twophase has given its ids to a table. */
    private static boolean isMarked(CatalogTable table) {
        return table != null && table.provider().isDefined() && "parquet".equalsIgnoreCase((String) table.provider().get())
            && table.properties().get(MARK).isDefined()
            && "true".equalsIgnoreCase((String) table.properties().get(MARK).get());
    }

    private static boolean isReadByIds(StructField[] fields) {
        if (fields.length == 0 || !fields[0].metadata().contains(USED)) {
            return false;
        }
        for (int index = 0; index < fields.length; index++) {
            if (!fields[index].metadata().contains(FIELD_ID)) {
                return false;
            }
        }
        return SQLConf.get().getConfString(READS_BY_IDS, "false").equalsIgnoreCase("true");
    }

    /** By the id of a top-level column, the names that files may have for it, and for no other. */
    private static Map names(String used, StructField[] fields) {
        Map owners = new HashMap();
        for (int index = 0; index < fields.length; index++) {
            claim(owners, fields[index].name(), Long.valueOf(fields[index].metadata().getLong(FIELD_ID)));
        }
        try {
            for (Iterator all = ((List) JSON.readValue(used, List.class)).iterator(); all.hasNext();) {
                List entry = (List) all.next();
                List path = (List) entry.get(0);
                Number id = (Number) entry.get(1);
                if (path.size() == 1) {
                    claim(owners, (String) path.get(0), id == null ? null : Long.valueOf(id.longValue()));
                }
            }
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
        Map result = new HashMap();
        for (Iterator all = owners.entrySet().iterator(); all.hasNext();) {
            Map.Entry owner = (Map.Entry) all.next();
            if (owner.getValue() != null) {
                if (!result.containsKey(owner.getValue())) {
                    result.put(owner.getValue(), new ArrayList());
                }
                ((List) result.get(owner.getValue())).add(owner.getKey());
            }
        }
        return result;
    }

    /** Notes whose name this is; null if it is that of several columns. */
    private static void claim(Map owners, String name, Long id) {
        String key = name.toLowerCase(Locale.ROOT);
        boolean isTaken = owners.containsKey(key) && !(id != null && id.equals(owners.get(key)));
        owners.put(key, isTaken ? null : id);
    }

    private static SparkPlan filtered(SparkPlan plan, Map former) {
        if (kind((Object) plan).equals("FileSourceScanExec")) {
            List filters = listed(get(plan, "dataFilters"));
            List more = new ArrayList(filters);
            for (Iterator all = filters.iterator(); all.hasNext();) {
                more.addAll(copies((Expression) all.next(), former));
            }
            return (SparkPlan) with(plan, "dataFilters", seq(more));
        }
        List below = new ArrayList();
        for (Iterator all = listed(plan.children()).iterator(); all.hasNext();) {
            below.add(filtered((SparkPlan) all.next(), former));
        }
        return (SparkPlan) plan.withNewChildren((Seq) seq(below));
    }

    /** A filter under each combination of former names. */
    private static List copies(Expression filter, Map former) {
        List found = new ArrayList();
        found.add(filter);
        for (Iterator all = listed(filter.references().toSeq()).iterator(); all.hasNext();) {
            Attribute column = (Attribute) all.next();
            List names = (List) former.get(column.exprId());
            List more = new ArrayList(found);
            for (int index = 0; names != null && index < names.size(); index++) {
                String name = (String) names.get(index);
                for (int copy = 0; !name.equalsIgnoreCase(column.name()) && copy < found.size(); copy++) {
                    more.add(((Expression) found.get(copy)).transform(new Renaming(column, name)));
                }
            }
            found = more;
            if (found.size() > MOST) {
                return new ArrayList();
            }
        }
        return found.subList(1, found.size());
    }

    /** One column under another name. */
    private static final class Renaming extends AbstractPartialFunction {
        private final Attribute column;
        private final String name;

        Renaming(Attribute column, String name) {
            this.column = column;
            this.name = name;
        }

        public boolean isDefinedAt(Object node) {
            return node instanceof Attribute && ((Attribute) node).exprId().equals(column.exprId());
        }

        public Object applyOrElse(Object node, Function1 otherwise) {
            return isDefinedAt(node) ? ((Attribute) node).withName(name) : otherwise.apply(node);
        }
    }
}
