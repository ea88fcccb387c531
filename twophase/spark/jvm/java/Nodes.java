package twophase;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URLEncoder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.catalyst.AliasIdentifier;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.ParsedStatement;
import org.apache.spark.sql.catalyst.plans.logical.SerdeInfo;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Nodes of Spark's logical plans: their contents, and modified copies of them.
 *
 * Constructor arguments are found by name, so that one source serves all versions of Spark.
 */
public final class Nodes {
    /** Option of an INSERT that runs as an append but states an overwrite. */
    public static final String OVERWRITE = "twophase.overwrite";
    /** Prefix of twophase's own names. */
    public static final String STAGING = "__twophase_";
    /** What changes something, or runs statements, although Spark calls it neither a command nor a statement. */
    public static final List COMMANDS = list("AutoCdcInto", "Call", "CompoundBody", "CreateTable", "InsertIntoDir");
    private static final List CHANGES_ROWS = list("DeleteFromTable", "UpdateTable", "MergeIntoTable");
    private static final ObjectMapper JSON = new ObjectMapper();

    private Nodes() {}

    // -- contents of a node -------------------------------------------------------------------------------------------

    public static boolean isQuery(LogicalPlan plan) {
        return !(plan instanceof Command) && !(plan instanceof ParsedStatement) && !COMMANDS.contains(kind(plan));
    }

    public static boolean isTemporary(LogicalPlan plan) {
        for (Iterator all = Arrays.asList(new Object[] {"isTemp", "isTemporary", "viewType"}).iterator(); all.hasNext();) {
            String name = (String) all.next();
            if (has(plan, name)) {
                String value = String.valueOf(get(plan, name));
                return value.equals("true") || value.contains("Temp");
            }
        }
        return false;
    }

    /** The name that a command refers to. */
    public static LogicalPlan nameBelow(LogicalPlan plan) {
        if (partsName(plan) != null) {
            return plan;
        }
        for (Iterator all = children(plan).iterator(); all.hasNext();) {
            LogicalPlan child = (LogicalPlan) all.next();
            if (partsName(child) != null) {
                return child;
            }
        }
        return null;
    }

    /** The name that a command refers to, as parts; null if it has none. */
    public static List namedBelow(LogicalPlan plan) {
        if (CHANGES_ROWS.contains(kind(plan))) {
            return changedTable(plan);
        }
        LogicalPlan name = nameBelow(plan);
        return name == null ? null : parts(name);
    }

    /** The name of the table whose rows are changed, which may have an alias, or be resolved already. */
    private static List changedTable(LogicalPlan plan) {
        LogicalPlan table = (LogicalPlan) children(plan).iterator().next();
        List resolved = null;
        while (table instanceof SubqueryAlias) {
            AliasIdentifier alias = ((SubqueryAlias) table).identifier();
            if (!alias.qualifier().isEmpty()) {
                resolved = new ArrayList((List) listed(alias.qualifier()));
                resolved.add(alias.name());
            }
            table = ((SubqueryAlias) table).child();
        }
        return partsName(table) == null ? resolved : parts(table);
    }

    /** Whether a plan is a FROM ... INSERT ... INSERT ... */
    public static boolean isSeveralWrites(LogicalPlan plan) {
        return kind(plan).equals("Union") && !children(plan).isEmpty() && !isQuery((LogicalPlan) children(plan).get(0));
    }

    public static boolean replacesRows(LogicalPlan insert) {
        return has(insert, "replaceCriteriaOpt") && ((Option) get(insert, "replaceCriteriaOpt")).isDefined();
    }

    /** Whether it says INSERT WITH SCHEMA EVOLUTION; only some versions of Spark parse it. */
    public static boolean evolvesSchema(LogicalPlan write) {
        return has(write, "withSchemaEvolution") && Boolean.TRUE.equals(get(write, "withSchemaEvolution"));
    }

    public static String kind(Object node) {
        return node.getClass().getSimpleName();
    }

    public static boolean isStaging(List parts) {
        return ((String) parts.get(parts.size() - 1)).startsWith(STAGING);
    }

    public static String partsName(TreeNode node) {
        return has(node, "multipartIdentifier") ? "multipartIdentifier" : has(node, "nameParts") ? "nameParts" : null;
    }

    public static List parts(TreeNode node) {
        return listed(get(node, partsName(node)));
    }

    public static CatalogTable catalogTable(TreeNode relation) {
        String kind = kind((Object) relation);
        if (kind.equals("HiveTableRelation")) {
            return (CatalogTable) get(relation, "tableMeta");
        }
        Option table = kind.equals("LogicalRelation") ? (Option) get(relation, "catalogTable") : Option.empty();
        return table.isDefined() ? (CatalogTable) table.get() : null;
    }

    /** Adds the name of a table to the facts about a node. */
    public static void putName(Map facts, CatalogTable table) {
        facts.put("parts", Arrays.asList(new Object[] {table.identifier().database().get(), table.identifier().table()}));
    }

    public static String json(Map facts) {
        try {
            return JSON.writeValueAsString(facts);
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The columns of a PARTITION clause, each with its value, if any. */
    public static List specification(LogicalPlan insert) {
        List result = new ArrayList();
        for (Iterator all = ((Map) get(insert, "partitionSpec", Map.class)).entrySet().iterator(); all.hasNext();) {
            Map.Entry entry = (Map.Entry) all.next();
            Option value = (Option) entry.getValue();
            result.add(Arrays.asList(new Object[] {
                entry.getKey(), Boolean.valueOf(value.isDefined()), value.isDefined() ? value.get() : null}));
        }
        return result;
    }

    /** Options of a target, without Spark's own. */
    public static Map options(TreeNode relation) {
        Map result = new HashMap();
        Map said = ((CaseInsensitiveStringMap) get(relation, "options")).asCaseSensitiveMap();
        for (Iterator all = said.entrySet().iterator(); all.hasNext();) {
            Map.Entry entry = (Map.Entry) all.next();
            if (!((String) entry.getKey()).startsWith("__")) {
                result.put(((String) entry.getKey()).toLowerCase(Locale.ROOT), entry.getValue());
            }
        }
        return result;
    }

    /** A copy of a node, with its origin and tags, in which one constructor argument is replaced, by its name. */
    public static TreeNode with(TreeNode node, String name, Object value) {
        Object[] arguments = new Object[node.productArity()];
        for (int index = 0; index < arguments.length; index++) {
            arguments[index] = node.productElementName(index).equals(name) ? value : node.productElement(index);
        }
        return node.makeCopy(arguments);
    }

    public static boolean has(TreeNode node, String name) {
        for (int index = 0; index < node.productArity(); index++) {
            if (node.productElementName(index).equals(name)) {
                return true;
            }
        }
        return false;
    }

    public static Object get(TreeNode node, String name) {
        for (int index = 0; index < node.productArity(); index++) {
            if (node.productElementName(index).equals(name)) {
                return node.productElement(index);
            }
        }
        throw new IllegalStateException("Spark's " + node.getClass().getName() + " has no " + name);
    }

    public static Object get(TreeNode node, String name, Class kind) {
        return CollectionConverters.asJava((scala.collection.Map) get(node, name));
    }

    public static List children(LogicalPlan plan) {
        return listed(plan.children());
    }

    public static List listed(Object sequence) {
        return new ArrayList(CollectionConverters.asJava((scala.collection.Seq) sequence));
    }

    public static Object seq(List items) {
        return ((scala.collection.mutable.Buffer) CollectionConverters.asScala(items)).toList();
    }

    public static Object map(Map entries) {
        return org.apache.spark.api.python.PythonUtils.toScalaMap(entries);
    }

    public static String text(Object value) {
        Object found = value instanceof Option ? ((Option) value).isDefined() ? ((Option) value).get() : null : value;
        return found == null ? null : String.valueOf(found);
    }

    public static List list(String a, String b, String c) {
        return Arrays.asList(new Object[] {a, b, c});
    }

    public static List list(String a, String b, String c, String d) {
        return Arrays.asList(new Object[] {a, b, c, d});
    }

    public static List list(String a, String b, String c, String d, String e) {
        return Arrays.asList(new Object[] {a, b, c, d, e});
    }

    public static List list(String a, String b, String c, String d, String e, String f) {
        return Arrays.asList(new Object[] {a, b, c, d, e, f});
    }

    public static Method method(Class kind, String name) {
        Method[] all = kind.getMethods();
        for (int index = 0; index < all.length; index++) {
            if (all[index].getName().equals(name)) {
                return all[index];
            }
        }
        throw new IllegalStateException("Spark's " + kind.getName() + " has no " + name);
    }

    /** Calls a method, and lets what it throws through as it is. */
    public static Object invoke(Method method, Object self, Object[] arguments) throws Exception {
        try {
            return method.invoke(self, arguments);
        } catch (InvocationTargetException failed) {
            if (failed.getCause() instanceof Error) {
                throw (Error) failed.getCause();
            }
            throw (Exception) failed.getCause();
        }
    }

    public static Object call(Method method, Object self, Object[] arguments) {
        try {
            return invoke(method, self, arguments);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    // -- replacements of a node ---------------------------------------------------------------------------------------

    /** Columns may be qualified by the table's full name: that in the session catalog. */
    public static LogicalPlan aliased(LogicalPlan relation, List parts) {
        Object qualifier = seq(Arrays.asList(new Object[] {"spark_catalog", parts.get(1)}));
        AliasIdentifier alias = new AliasIdentifier(
            (String) parts.get(parts.size() - 1), (scala.collection.immutable.Seq) qualifier);
        return new SubqueryAlias(alias, relation);
    }

    public static boolean saysNoFormat(SerdeInfo serde) {
        return serde.storedAs().isEmpty() && serde.formatClasses().isEmpty() && serde.serde().isEmpty();
    }

    /** Adds what Spark adds for its own catalog only: a default of STORED AS, options of a DataFrameWriterV2. */
    public static TreeNode routed(TreeNode specification, Map options, Map answer) {
        Map properties = new HashMap();
        List reserved = (List) answer.get("reserved");
        Map said = (Map) get(specification, "properties", Map.class);
        for (Iterator all = said.entrySet().iterator(); all.hasNext();) {
            Map.Entry entry = (Map.Entry) all.next();
            String key = (String) entry.getKey();
            properties.put(reserved.contains(key) ? answer.get("plain") + key : key, entry.getValue());
        }
        for (Iterator all = options.entrySet().iterator(); all.hasNext();) {
            Map.Entry entry = (Map.Entry) all.next();
            String key = (String) entry.getKey();
            if (!key.equalsIgnoreCase("path")) {
                properties.put("option." + key, entry.getValue());
                properties.put(key, entry.getValue());
            }
        }
        TreeNode result = with(specification, "properties", map(properties));
        if (answer.get("stored_as") != null) {
            SerdeInfo serde = (SerdeInfo) ((Option) get(specification, "serde")).get();
            Object stored = new SerdeInfo(Option.apply(answer.get("stored_as")), serde.formatClasses(), serde.serde(), serde.serdeProperties());
            result = with(result, "serde", Option.apply(stored));
        }
        return result;
    }

    /** The creating form of a REPLACE: Spark itself replaces no table of its own catalog. */
    public static LogicalPlan creating(LogicalPlan plan) {
        if (!kind(plan).equals("ReplaceTableAsSelect")) {
            return plan;
        }
        Object[] all = {get(plan, "name"), get(plan, "partitioning"), get(plan, "query"), get(plan, "tableSpec"),
            get(plan, "writeOptions"), Boolean.FALSE, Boolean.FALSE};
        Constructor make = org.apache.spark.sql.catalyst.plans.logical.CreateTableAsSelect.class.getConstructors()[0];
        try {
            return (LogicalPlan) make.newInstance(Arrays.copyOf(all, make.getParameterTypes().length));
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    public static String scopeOfFiles(LogicalPlan command, boolean isNew) {
        // ClaimInserts has turned it into an append.
        TreeNode overwrite = with(command, "mode", SaveMode.Overwrite);
        Method method = method(command.getClass(), "dynamicPartitionOverwrite");
        boolean isDynamic = Boolean.TRUE.equals(call(method, overwrite, new Object[0]));
        return scope((Map) get(command, "staticPartitions", Map.class), isDynamic, isNew);
    }

    /** Tables with a SerDe always replace only the partitions that they write. */
    public static String scopeOfHive(LogicalPlan command, boolean isNew) {
        Map partition = new HashMap();
        boolean isDynamic = false;
        for (Iterator all = ((Map) get(command, "partition", Map.class)).entrySet().iterator(); all.hasNext();) {
            Map.Entry entry = (Map.Entry) all.next();
            Option value = (Option) entry.getValue();
            if (value.isDefined()) {
                partition.put(entry.getKey(), value.get());
            } else {
                isDynamic = true;
            }
        }
        return scope(partition, isDynamic, isNew);
    }

    public static String scope(Map partition, boolean isDynamic, boolean isNew) {
        Map document = new HashMap();
        document.put("static_partition", partition);
        document.put("dynamic", Boolean.valueOf(isDynamic));
        document.put("if_not_exists", Boolean.valueOf(isNew));
        try {
            return URLEncoder.encode(json(document), "UTF-8").replace("+", "%20");
        } catch (java.io.UnsupportedEncodingException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The write as AppendData.byName or byPosition (table, query, options[, withSchemaEvolution]). */
    public static LogicalPlan append(String method, TreeNode write, LogicalPlan query, String scope) {
        return append(method, get(write, "table"), new HashMap((Map) get(write, "writeOptions", Map.class)), query, scope);
    }

    public static LogicalPlan append(String method, Object table, Map options, LogicalPlan query, String scope) {
        if (scope != null) {
            options.put(OVERWRITE, scope);
        }
        Object[] all = {table, query, map(options), Boolean.FALSE};
        Method found = method(org.apache.spark.sql.catalyst.plans.logical.AppendData.class, method);
        return (LogicalPlan) call(found, null, Arrays.copyOf(all, found.getParameterTypes().length));
    }
}
