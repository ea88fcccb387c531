"""Conversion of Python values to Java and Scala values, and back.

Arrays and sets are created here; maps and case classes are transferred as JSON, by Spark's own Jackson with its Scala
module: field by field, each would cost several calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from twophase.spark.jvm.gateway import Jvm, private_name


def array(jvm: Jvm, class_name: str, items: Sequence[Any] = ()) -> Any:
    """A Java array of a class given by its full name (``java.lang.String``)."""
    if not items:
        return jvm.once(("empty", class_name), lambda: jvm.gateway.new_array(jvm.kind(class_name), 0))
    array = jvm.gateway.new_array(jvm.kind(class_name), len(items))
    for index, item in enumerate(items):
        array[index] = item
    return array


def strings(jvm: Jvm, items: Sequence[str]) -> Any:
    """A ``String[]``."""
    return array(jvm, "java.lang.String", items)


def string_arrays(jvm: Jvm, rows: Sequence[Sequence[str]]) -> Any:
    """A ``String[][]``."""
    array = jvm.gateway.new_array(jvm.kind("java.lang.String"), len(rows), 1)
    for index, row in enumerate(rows):
        array[index] = strings(jvm, row)
    return array


def java_map(jvm: Jvm, entries: Mapping[str, str]) -> Any:
    """A ``java.util.Map``."""
    return from_json(jvm, "java.util.HashMap", dict(entries))


def entries(jvm: Jvm, java_map: Any) -> dict[str, str]:
    """The texts of a Java or Scala map, in one call whatever its size (an iterator takes several per entry)."""
    return to_json(jvm, java_map)


def to_json(jvm: Jvm, value: Any) -> Any:
    """A case class, a map or a sequence of them, as parsed JSON."""
    with private_name("Jackson's ObjectMapper", jvm.spark):
        text = str(mapper(jvm).writeValueAsString(value))
    return json.loads(text)


def from_json(jvm: Jvm, kind: Any, value: Any) -> Any:
    """A JSON value as an instance of a class.

    Parameters
    ----------
    kind : str or py4j.java_gateway.JavaObject
        The name of a class, or Jackson's own description of one.
    value : object
        Any JSON value.
    """
    if isinstance(kind, str):
        name = kind
        kind = jvm.once(("class", name), lambda: jvm.static("java.lang.Class", "forName")(name))
    text = json.dumps(value)
    with private_name("Jackson's ObjectMapper", jvm.spark):
        return mapper(jvm).readValue(text, kind)


def list_kind(jvm: Jvm, class_name: str) -> Any:
    """The description of a list of a class's instances, for :func:`from_json`."""

    def make() -> Any:
        types, of = mapper(jvm).getTypeFactory(), jvm.static("java.lang.Class", "forName")
        return types.constructCollectionType(of("java.util.ArrayList"), of(class_name))

    return jvm.once(("list", class_name), make)


def mapper(jvm: Jvm) -> Any:
    return jvm.once(("ObjectMapper with Scala",), lambda: new_mapper(jvm))


def new_mapper(jvm: Jvm) -> Any:
    """A Jackson mapper that supports Scala's classes."""
    mapper = jvm.kind("com.fasterxml.jackson.databind.ObjectMapper")()
    mapper.registerModule(jvm.kind("com.fasterxml.jackson.module.scala.DefaultScalaModule")())
    return mapper


def parts(jvm: Jvm, strings: Any) -> tuple[str, ...]:
    """The texts of a ``String[]`` (a namespace); Python's own iteration takes two calls for each one."""
    return tuple(to_json(jvm, strings))


def option(jvm: Jvm, value: Any | None) -> Any:
    """A Scala ``Option``; Python's None is the empty one."""
    if value is None:
        return jvm.once(("scala.None",), lambda: jvm.kind("scala.Option").empty())
    return jvm.static("scala.Option", "apply")(value)


def seq(jvm: Jvm, items: Sequence[Any]) -> Any:
    """A Scala ``Seq``."""
    to_seq = jvm.static("org.apache.spark.api.python.PythonUtils", "toSeq")
    return to_seq(list(items)) if items else jvm.once(("scala.Nil",), lambda: to_seq([]))


def scala_map(jvm: Jvm, entries: Mapping[str, str]) -> Any:
    """An immutable Scala ``Map``."""
    to_map = jvm.static("org.apache.spark.api.python.PythonUtils", "toScalaMap")
    return to_map(dict(entries)) if entries else jvm.once(("scala.Map.empty",), lambda: to_map({}))


def any_tag(jvm: Jvm) -> Any:
    """Scala's ``ClassTag[Any]``: an array of it holds values of all kinds."""
    return jvm.once(("ClassTag.Any",), lambda: jvm.kind("scala.reflect.ClassTag").Any())


def java_set(jvm: Jvm, items: Iterable[Any] = ()) -> Any:
    """A ``java.util.Set``."""
    result = jvm.kind("java.util.HashSet")()
    for item in items:
        result.add(item)
    return result
