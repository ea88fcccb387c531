"""The project's few Java sources, in ``java/``: compiled in Spark's JVM at first use.

They are compiled by Janino, the compiler of Spark's own code generation, so that no jar is needed. It supports no
lambdas and no generics. A source is compiled once for each JVM: Py4J caches the methods of a class by its name, and
would call those of another class of that name.
"""

from __future__ import annotations

import threading
from importlib import resources
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from twophase.spark.jvm import values
from twophase.spark.jvm.gateway import private_name

if TYPE_CHECKING:
    from twophase.spark.jvm.gateway import Jvm

_PACKAGE = "twophase"

#: The source that another one depends on.
_BELOW = {
    "Routing": "ReplaceInsertCommands",
    "ReplaceInsertCommands": "ClaimInserts",
    "ClaimInserts": "RouteNewColumns",
    "RouteNewColumns": "LegacyInserts",
    "LegacyInserts": "RouteNames",
    "RouteNames": "WriteRule",
    "WriteRule": "SessionRule",
    "SessionRule": "SessionNames",
    "SessionNames": "StagedTables",
    "StagedTables": "InsertTarget",
    "InsertTarget": "SnapshotFiles",
    "Scans": "SnapshotFiles",
    "SnapshotFiles": "PathReads",
    "PathReads": "Nodes",
    "Nodes": "LoadedTable",
    "Tables": "Nodes",
    "HiveTables": "StoredTables",
    "StoredTables": "Tables",
    "Relations": "LazyFileIndex",
    "LazyFileIndex": "Tables",
    "JobEvents": "Nodes",
    "FormerNames": "Nodes",
    "Passed": "Nodes",
    "TaskFiles": "Nodes",
    "WriterSettings": "Nodes",
}

_lock = threading.RLock()
#: The class loader of each source, by JVM.
_loaders: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def java_class(jvm: Jvm, name: str) -> Any:
    """A twophase class in the JVM.

    Parameters
    ----------
    jvm : Jvm
    name : str
        The name of its source without the extension, followed by ``$`` and the name of a nested class, if any.

    Returns
    -------
    py4j.java_gateway.JavaObject
        A ``java.lang.Class``.

    Raises
    ------
    ConfigurationError
        Spark has no Janino.
    """
    return _loader(jvm, name.partition("$")[0]).loadClass(f"{_PACKAGE}.{name}")


def java_object(jvm: Jvm, name: str, *arguments: Any) -> Any:
    """An instance of a twophase class, created by its only constructor.

    Parameters
    ----------
    jvm : Jvm
    name : str
        As for :func:`java_class`.
    *arguments : object
        Constructor arguments: Java objects, texts and numbers. Python objects that Java must call can be passed by Py4J
        to a method only.

    Raises
    ------
    ConfigurationError
        Spark has no Janino.
    """
    (constructor,) = java_class(jvm, name).getConstructors()
    return constructor.newInstance(values.array(jvm, "java.lang.Object", arguments))


def _loader(jvm: Jvm, source: str) -> Any:
    with _lock:
        loaders = _loaders.setdefault(jvm.gateway, {})
        if source not in loaders:
            loaders[source] = _compiled(jvm, source, _loader(jvm, _BELOW[source]) if source in _BELOW else None)
        return loaders[source]


def _compiled(jvm: Jvm, source: str, below: Any | None) -> Any:
    with private_name("Janino compiler", jvm.spark):
        compiler = jvm.kind("org.codehaus.janino.SimpleCompiler")()
        if below is not None:
            compiler.setParentClassLoader(below)
        compiler.setSourceVersion(8)
        compiler.setTargetVersion(8)  # static methods of interfaces
        compiler.cook(_text(source))
        return compiler.getClassLoader()


def _text(source: str) -> str:
    return resources.files(__package__).joinpath("java", f"{source}.java").read_text(encoding="utf-8")
