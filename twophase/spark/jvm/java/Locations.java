package twophase;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

/** The locations of partitions in the metastore's own client, whose classes may have a class loader of their own. */
public final class Locations {
    public List of(List partitions) throws Exception {
        List found = new ArrayList();
        for (Iterator each = partitions.iterator(); each.hasNext();) {
            Object storage = asked(each.next(), "getSd");
            Object location = storage == null ? null : asked(storage, "getLocation");
            if (location != null) {
                found.add(location);
            }
        }
        return found;
    }

    private static Object asked(Object instance, String name) throws Exception {
        Method method = instance.getClass().getMethod(name, new Class[0]);
        return method.invoke(instance, new Object[0]);
    }
}
