"""Partitions, formats and places of session tables, to the JVM and back in one text."""

from __future__ import annotations

import json
import re
import string
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

from twophase.spark.jvm.bridge import Jvm, private_name

_TABLE = "org.apache.spark.sql.catalyst.catalog.CatalogTable"
_PARTITION = "org.apache.spark.sql.catalyst.catalog.CatalogTablePartition"
_STORAGE = "org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat"
_MAP = "scala.collection.immutable.Map"
#: What is read of many tables at once: of a schema, and of statistics, there may be megabytes.
_FACTS = (
    *("identifier", "tableType", "storage", "provider", "partitionColumnNames", "properties"),
    "tracksPartitionsInCatalog",
)
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
        found: list[dict[str, Any]] = self._jvm.to_json(partitions)
        return found

    def tables(self, tables: Any) -> list[dict[str, Any]]:
        """Where each ``CatalogTable`` of a Scala ``Seq`` lies, without its columns."""
        with private_name("Jackson's ObjectMapper", self._jvm.spark):
            mapper = self._jvm.once(("ObjectMapper of tables",), self._mapper_of_tables)
            found: list[dict[str, Any]] = json.loads(str(mapper.writeValueAsString(tables)))
        return found

    def _mapper_of_tables(self) -> Any:
        kind = self._jvm.static("java.lang.Class", "forName")(_TABLE)
        fields = [str(field.getName()) for field in kind.getDeclaredFields()]
        others = self._jvm.strings([field for field in fields if field not in _FACTS])
        ignored = self._jvm.kind("com.fasterxml.jackson.annotation.JsonIgnoreProperties$Value")
        mapper = self._jvm.new_mapper()
        mapper.configOverride(kind).setIgnorals(ignored.forIgnoredProperties(others))
        return mapper

    def storage(self, storage: Any) -> dict[str, Any]:
        """Each field of a ``CatalogStorageFormat``."""
        found: dict[str, Any] = self._jvm.to_json(storage)
        return found

    def make_storage(self, facts: Mapping[str, Any]) -> Any:
        """A ``CatalogStorageFormat``: ``locationUri`` as :func:`uri_of` has it; what is not said is not set."""
        return self._jvm.from_json(_STORAGE, {"compressed": False, **facts})

    def map(self, entries: Mapping[str, str]) -> Any:
        """A Scala ``Map``."""
        return self._jvm.from_json(_MAP, dict(entries))

    def partitions(self, facts: Iterable[Mapping[str, Any]]) -> Any:
        """A Scala ``Seq`` of ``CatalogTablePartition``."""
        return self._make(_PARTITION, facts)

    def specs(self, specs: Iterable[Mapping[str, str]]) -> Any:
        """A Scala ``Seq`` of partition values, each a ``Map`` from column to text."""
        return self._make(_MAP, specs)

    def _make(self, class_name: str, facts: Iterable[Mapping[str, Any]]) -> Any:
        made = self._jvm.from_json(self._jvm.list_kind(class_name), [dict(fact) for fact in facts])
        return self._jvm.static("org.apache.spark.api.python.PythonUtils", "toSeq")(made)


def path_of(uri: str) -> str:
    """The Hadoop path string of a URI's text: without the slashes of an empty authority, or at the end."""
    head = _HEAD.match(uri)
    assert head is not None
    path = unquote(uri[head.end() :]).replace("//", "/")
    return head.group().removesuffix("//") + (path.rstrip("/") or path[:1])


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
