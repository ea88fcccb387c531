package twophase;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;

/**
 * Changes a table in the form of the metastore's own client, whose classes may have a class loader of their own. From
 * Python each field would cost a call.
 */
public final class StoredTables {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String TYPES = "org.apache.hadoop.hive.serde2.typeinfo.TypeInfoUtils";
    private static final String WITH_OPTIONS = "alter_table_with_environmentContext";
    private static final List DEFINED = Arrays.asList(new Object[] {
        "setSd", "setParameters", "setPartitionKeys", "setCreateTime", "setOwner"});
    private static final Class[] NONE = new Class[0];

    /**
     * Changes a table that is still as it was read, by one call of a metastore whose client has calls with options.
     *
     * @param isAsRead a test of the table
     * @param wanted the location, the key of Spark's copy of it, changes of parameters and the prefix of others that are
     *     removed, the parameter that the metastore then sets, and the options of the call, of which one needs a parameter
     * @return the table as it is then; null if nothing was changed
     */
    public Object point(Object store, Class client, String database, String name, Predicate isAsRead, String wanted)
            throws Exception {
        JsonNode facts = JSON.readTree(wanted);
        Method read = client.getMethod("getTable", new Class[] {String.class, String.class});
        Object table = read.invoke(store, new Object[] {database, name});
        Method change = withOptions(client);
        if (change == null || !isAsRead.test(table)) {
            return null;
        }
        place(table, facts.get("location").asText(), facts.get("copy").asText());
        note(table, facts.get("noted").toString(), facts.get("prefix").asText());
        boolean isSized = without(table, facts.get("set_by_store").asText(), facts.get("size").asText());
        String options = facts.get(isSized ? "options" : "options_without_size").toString();
        change.invoke(store, new Object[] {database, name, table, context(change.getParameterTypes()[3], options)});
        return table;
    }

    private static Method withOptions(Class client) {
        Method[] all = client.getMethods();
        for (int index = 0; index < all.length; index++) {
            if (all[index].getName().equals(WITH_OPTIONS) && all[index].getParameterCount() == 4) {
                return all[index];
            }
        }
        return null;
    }

    /** Sets the location of a table, also where Spark stores its own copy of it. */
    public void place(Object table, String location, String copy) throws Exception {
        Object storage = asked(table, "getSd");
        set(storage, "setLocation", location);
        Map settings = (Map) asked(asked(storage, "getSerdeInfo"), "getParameters");
        if (settings.get(copy) != null) {
            settings.put(copy, location);
        }
    }

    /** Makes a table external; or managed, with Hive's location as Spark's copy of it: a drop then finds the files. */
    public void become(Object table, String kind, String copy) throws Exception {
        set(table, "setTableType", kind + "_TABLE");
        Map noted = (Map) asked(table, "getParameters");
        if (kind.equals("EXTERNAL")) {
            noted.put("EXTERNAL", "TRUE");
            return;
        }
        noted.remove("EXTERNAL");
        Object storage = asked(table, "getSd");
        Object path = ((Map) asked(asked(storage, "getSerdeInfo"), "getParameters")).get(copy);
        if (path != null) {
            set(storage, "setLocation", (String) path);
        }
    }

    /** Gives a table everything that a template defines. */
    public void define(Object table, Object template) throws Exception {
        Method[] all = table.getClass().getMethods();
        for (int index = 0; index < all.length; index++) {
            String name = all[index].getName();
            if (DEFINED.contains(name) && all[index].getParameterCount() == 1) {
                all[index].invoke(table, new Object[] {asked(template, "get" + name.substring(3))});
            }
        }
    }

    /** Changes the parameters of a table: some, and all with a prefix (if given), are removed before others are set. */
    public void note(Object table, String changes, String prefix) throws Exception {
        Map noted = (Map) asked(table, "getParameters");
        for (Iterator each = noted.keySet().iterator(); prefix != null && each.hasNext();) {
            if (((String) each.next()).startsWith(prefix)) {
                each.remove();
            }
        }
        JsonNode wanted = JSON.readTree(changes);
        for (Iterator each = wanted.fields(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            JsonNode value = (JsonNode) entry.getValue();
            if (value.isNull()) {
                noted.remove(entry.getKey());
            } else {
                noted.put(entry.getKey(), value.asText());
            }
        }
    }

    /** Removes a parameter that the metastore then sets; returns whether there is another one. */
    public boolean without(Object table, String removed, String other) throws Exception {
        Map noted = (Map) asked(table, "getParameters");
        noted.remove(removed);
        return noted.containsKey(other);
    }

    /**
     * Partitions in the form of the metastore's client, without a parameter that it then sets.
     *
     * @param convert Spark's method for one partition and its table, as Hive's own client has it
     */
    public List partitions(Method convert, Object table, List partitions, String removed) throws Exception {
        Object owner = convert.getParameterTypes()[1].getConstructor(new Class[] {table.getClass()}).newInstance(
            new Object[] {table});
        List found = new ArrayList();
        for (Iterator each = partitions.iterator(); each.hasNext();) {
            Object stored = asked(convert.invoke(null, new Object[] {each.next(), owner}), "getTPartition");
            ((Map) asked(stored, "getParameters")).remove(removed);
            found.add(stored);
        }
        return found;
    }

    /** Whether Hive has the types of all columns: a metastore fails at each later change of a table with others. */
    public boolean knows(List columns) throws Exception {
        for (Iterator each = columns.iterator(); each.hasNext();) {
            Object column = each.next();
            Class types = Class.forName(TYPES, true, column.getClass().getClassLoader());
            Method parse = types.getMethod("getTypeInfoFromTypeString", new Class[] {String.class});
            try {
                parse.invoke(null, new Object[] {asked(column, "getType")});
            } catch (InvocationTargetException unknown) {
                return false;
            }
        }
        return true;
    }

    /** The options of a call, an instance of the metastore's own class. */
    public Object context(Class kind, String options) throws Exception {
        Object context = kind.getConstructor(NONE).newInstance(new Object[0]);
        Class[] texts = new Class[] {String.class, String.class};
        for (Iterator each = JSON.readTree(options).fields(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            Object[] pair = new Object[] {entry.getKey(), ((JsonNode) entry.getValue()).asText()};
            kind.getMethod("putToProperties", texts).invoke(context, pair);
        }
        return context;
    }

    private static Object asked(Object instance, String name) throws Exception {
        return instance.getClass().getMethod(name, NONE).invoke(instance, new Object[0]);
    }

    private static void set(Object instance, String name, String value) throws Exception {
        instance.getClass().getMethod(name, new Class[] {String.class}).invoke(instance, new Object[] {value});
    }
}
