"""Partitions and formats of session tables, to the JVM and back in one text: a part of :mod:`twophase.spark.jvm`.

Field by field, each of them would cost some dozen calls over Py4J. Spark's own Jackson with its Scala module turns the
case classes into JSON and back, whatever fields a version of Spark has.
"""

from __future__ import annotations

import json
import re
import string
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

from twophase.spark.jvm import Jvm, private_name

_PARTITION = "org.apache.spark.sql.catalyst.catalog.CatalogTablePartition"
_STORAGE = "org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat"
_MAP = "scala.collection.immutable.Map"
#: Scheme and authority, which are never escaped.
_HEAD = re.compile(r"^(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://[^/]*)?")
#: What stands for itself in the path of a ``java.net.URI``: of ASCII these, of the rest all but controls and spaces.
_LEGAL = frozenset(string.ascii_letters + string.digits + "_-!.~'()*:@&=+$,;/")
_NEVER = ("Cc", "Zs", "Zl", "Zp")


class PartitionTexts:
    """Reads and makes what Spark's catalog takes for partitions.

    Parameters
    ----------
    jvm : Jvm
    """

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    def facts(self, partitions: Any) -> list[dict[str, Any]]:
        """Each field of each ``CatalogTablePartition`` of a Scala ``Seq``."""
        found: list[dict[str, Any]] = self._read(partitions)
        return found

    def storage(self, storage: Any) -> dict[str, Any]:
        """Each field of a ``CatalogStorageFormat``."""
        found: dict[str, Any] = self._read(storage)
        return found

    def make_storage(self, facts: Mapping[str, Any]) -> Any:
        """A ``CatalogStorageFormat``: ``locationUri`` as :func:`uri_of` has it; what is not said is not set."""
        return self._make_one(_STORAGE, {"compressed": False, **facts})

    def map(self, entries: Mapping[str, str]) -> Any:
        """A Scala ``Map``."""
        return self._make_one(_MAP, entries)

    def partitions(self, facts: Iterable[Mapping[str, Any]]) -> Any:
        """A Scala ``Seq`` of ``CatalogTablePartition``."""
        return self._make(_PARTITION, facts)

    def specs(self, specs: Iterable[Mapping[str, str]]) -> Any:
        """A Scala ``Seq`` of partition values, each a ``Map`` from column to text."""
        return self._make(_MAP, specs)

    def _read(self, value: Any) -> Any:
        with private_name("fields of CatalogTablePartition", self._jvm.spark):
            return json.loads(self._mapper().writeValueAsString(value))

    def _make(self, class_name: str, facts: Iterable[Mapping[str, Any]]) -> Any:
        with private_name("fields of CatalogTablePartition", self._jvm.spark):
            made = self._mapper().readValue(json.dumps([dict(fact) for fact in facts]), self._list_of(class_name))
        return self._jvm.static("org.apache.spark.api.python.PythonUtils", "toSeq")(made)

    def _make_one(self, class_name: str, facts: Mapping[str, Any]) -> Any:
        kind = self._jvm.once(("class", class_name), lambda: self._class(class_name))
        with private_name(f"fields of {class_name.rpartition('.')[2]}", self._jvm.spark):
            return self._mapper().readValue(json.dumps(dict(facts)), kind)

    def _class(self, name: str) -> Any:
        return self._jvm.static("java.lang.Class", "forName")(name)

    def _list_of(self, class_name: str) -> Any:
        def make() -> Any:
            types = self._mapper().getTypeFactory()
            return types.constructCollectionType(self._class("java.util.ArrayList"), self._class(class_name))

        return self._jvm.once(("list", class_name), make)

    def _mapper(self) -> Any:
        return self._jvm.once(("ObjectMapper with Scala",), self._new_mapper)

    def _new_mapper(self) -> Any:
        mapper = self._jvm.kind("com.fasterxml.jackson.databind.ObjectMapper")()
        mapper.registerModule(self._jvm.kind("com.fasterxml.jackson.module.scala.DefaultScalaModule")())
        return mapper


def path_of(uri: str) -> str:
    """The Hadoop path string of a URI's text."""
    head = _HEAD.match(uri)
    assert head is not None
    return head.group() + unquote(uri[head.end() :])


def uri_of(path: str) -> str:
    """The text of a Hadoop path's URI, escaped as ``java.net.URI`` does: Spark compares the texts."""
    head = _HEAD.match(path)
    assert head is not None
    return head.group() + "".join(map(_escaped, path[head.end() :]))


def _escaped(letter: str) -> str:
    if letter in _LEGAL or (letter >= "\x80" and unicodedata.category(letter) not in _NEVER):
        return letter
    return quote(letter, safe="")


__all__ = ["PartitionTexts", "path_of", "uri_of"]
