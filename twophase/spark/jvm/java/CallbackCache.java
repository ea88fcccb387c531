package twophase;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

public final class CallbackCache implements InvocationHandler {
    private final InvocationHandler python;
    private final Map policy;
    private final Map policyOfAnswers;
    private final Map always = new ConcurrentHashMap();
    private final Map aWhile = new ConcurrentHashMap();

    private CallbackCache(InvocationHandler python, Map policy, Map policyOfAnswers) {
        this.python = python;
        this.policy = policy;
        this.policyOfAnswers = policyOfAnswers;
    }

    public Object invoke(Object self, Method method, Object[] arguments) throws Throwable {
        String name = method.getName();
        if (name.equals("equals") && arguments[0] == self) {
            return Boolean.TRUE;
        }
        Number lasts = (Number) policy.get(name);
        if (lasts == null) {
            aWhile.clear();  // It may change something.
            return answer(self, method, arguments);
        }
        return remembered(lasts.longValue() * 1000000L, self, method, arguments);
    }

    private Object remembered(long lasts, Object self, Method method, Object[] arguments) throws Throwable {
        Map known = lasts == 0 ? always : aWhile;
        Object question = Arrays.asList(new Object[] {method.getName(), listed(arguments)});
        Object[] found = (Object[]) known.get(question);
        if (found == null || (lasts > 0 && System.nanoTime() - ((Long) found[1]).longValue() > lasts)) {
            found = new Object[] {answer(self, method, arguments), Long.valueOf(System.nanoTime())};
            known.put(question, found);
        }
        return found[0];
    }

    private Object answer(Object self, Method method, Object[] arguments) throws Throwable {
        Object answer = python.invoke(self, method, arguments);
        return policyOfAnswers == null ? answer : over(answer, policyOfAnswers, null);
    }

    private static Object listed(Object value) {
        if (!(value instanceof Object[])) {
            return value;
        }
        Object[] listed = (Object[]) value;
        Object[] result = new Object[listed.length];
        for (int index = 0; index < listed.length; index++) {
            result[index] = listed(listed[index]);
        }
        return Arrays.asList(result);
    }

    private static Object over(Object object, Map policy, Map policyOfAnswers) {
        if (object == null || !Proxy.isProxyClass(object.getClass())) {
            return object;
        }
        InvocationHandler handler = Proxy.getInvocationHandler(object);
        if (handler instanceof CallbackCache) {
            return object;
        }
        Class kind = object.getClass();
        return Proxy.newProxyInstance(
            kind.getClassLoader(), kind.getInterfaces(), new CallbackCache(handler, policy, policyOfAnswers));
    }

    public static final class Maker {
        public Object make(Object object, Map policy, Map policyOfAnswers) {
            return over(object, policy, policyOfAnswers);
        }
    }
}
