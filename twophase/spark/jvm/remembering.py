"""Answers of Python objects that Spark asks for many times over, remembered in the JVM.

Each question of Spark to a Python object crosses Py4J and back, which takes a tenth of a millisecond, and the analyser
asks a catalog for its name or a table for its capabilities dozens of times in one statement. What never changes, or not
in a quarter of a second, is therefore answered by a few lines of Java in front of the Python object. Janino, the
compiler of Spark's own code generation, makes a class of them, so that no jar is needed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from twophase.spark.jvm.bridge import private_name

if TYPE_CHECKING:
    from twophase.spark.jvm.bridge import Jvm

#: How long an answer lasts that never changes; and what is not asked at all, for nobody wants to know.
ALWAYS, NEVER_ASKED = 0, -1

#: By method of an object, how long its answer lasts in milliseconds; of what is not named, each call goes to Python.
Lasting = Mapping[str, int]

_CLASS = "twophase.Remembering"
_SOURCE = """
package twophase;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

public final class Remembering implements InvocationHandler {
    private final InvocationHandler python;
    private final Map lasting;
    private final Map lastingOfAnswers;
    private final Map always = new ConcurrentHashMap();
    private final Map aWhile = new ConcurrentHashMap();

    private Remembering(InvocationHandler python, Map lasting, Map lastingOfAnswers) {
        this.python = python;
        this.lasting = lasting;
        this.lastingOfAnswers = lastingOfAnswers;
    }

    public Object invoke(Object self, Method method, Object[] arguments) throws Throwable {
        String name = method.getName();
        if (name.equals("equals") && arguments[0] == self) {
            return Boolean.TRUE;
        }
        Number lasts = (Number) lasting.get(name);
        if (lasts == null) {
            aWhile.clear();  // It may change something.
            return answer(self, method, arguments);
        }
        return lasts.longValue() < 0 ? null : remembered(lasts.longValue() * 1000000L, self, method, arguments);
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
        return lastingOfAnswers == null ? answer : over(answer, lastingOfAnswers, null);
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

    private static Object over(Object object, Map lasting, Map lastingOfAnswers) {
        if (object == null || !Proxy.isProxyClass(object.getClass())) {
            return object;
        }
        InvocationHandler handler = Proxy.getInvocationHandler(object);
        if (handler instanceof Remembering) {
            return object;
        }
        Class kind = object.getClass();
        return Proxy.newProxyInstance(
            kind.getClassLoader(), kind.getInterfaces(), new Remembering(handler, lasting, lastingOfAnswers));
    }

    public static final class Maker {
        public Object make(Object object, Map lasting, Map lastingOfAnswers) {
            return over(object, lasting, lastingOfAnswers);
        }
    }
}
"""

_lock = threading.Lock()
_makers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def remembering(jvm: Jvm, proxy: Any, lasting: Lasting, of_answers: Lasting | None = None) -> Any:
    """A Java object that asks a Python one, and remembers some answers.

    Parameters
    ----------
    jvm : Jvm
    proxy : object
        A Python object with Java interfaces.
    lasting : mapping of str to int
        By method, how long its answer lasts in milliseconds; :data:`ALWAYS` or :data:`NEVER_ASKED`. An answer that
        lasts some time is forgotten when anything else is asked, too, as that may change it.
    of_answers : mapping of str to int, optional
        The same for the Python objects that it answers with.

    Raises
    ------
    ConfigurationError
        Spark has no Janino.
    """
    maker = _maker(jvm)
    return maker.make(proxy, _known(jvm, lasting), None if of_answers is None else _known(jvm, of_answers))


def _known(jvm: Jvm, lasting: Lasting) -> Any:
    return jvm.from_json("java.util.HashMap", dict(lasting))


def _maker(jvm: Jvm) -> Any:
    """What makes such objects: compiled once for each JVM."""
    with _lock:
        if jvm.gateway not in _makers:
            with private_name("Janino compiler", jvm.spark):
                compiler = jvm.kind("org.codehaus.janino.SimpleCompiler")()
                compiler.cook(_SOURCE)
                kind = compiler.getClassLoader().loadClass(f"{_CLASS}$Maker")
                _makers[jvm.gateway] = kind.getDeclaredConstructors()[0].newInstance(jvm.array("java.lang.Object"))
        return _makers[jvm.gateway]
