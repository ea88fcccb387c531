"""Partitions, formats and locations of session tables, transferred to the JVM and back as one text."""

from __future__ import annotations

import json
import re
import string
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from twophase.spark.jvm import values
from twophase.spark.jvm.gateway import Jvm, private_name
from twophase.spark.jvm.java_sources import java_object
from twophase.spark.jvm.metastore import hive_catalog

_TABLE = "org.apache.spark.sql.catalyst.catalog.CatalogTable"
_PARTITION = "org.apache.spark.sql.catalyst.catalog.CatalogTablePartition"
_STORAGE = "org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat"
_MAP = "scala.collection.immutable.Map"
#: The fields read of a table: its schema and statistics may take megabytes.
_FACTS = (
    *("identifier", "tableType", "storage", "provider", "partitionColumnNames", "properties", "bucketSpec", "comment"),
    *("tracksPartitionsInCatalog", "createTime", "collation"),
)
#: Scheme and authority, which are never escaped.
_HEAD = re.compile(r"^(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://[^/]*)?")
#: Unescaped characters in the path of a ``java.net.URI``: these of ASCII, and all others but controls and spaces.
_LEGAL = frozenset(string.ascii_letters + string.digits + "_-!.~'()*:@&=+$,;/")
_NEVER = ("Cc", "Zs", "Zl", "Zp")


class PartitionTexts:
    """Reads and creates the partition objects of Spark's catalog."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    def facts(self, partitions: Any) -> list[dict[str, Any]]:
        """Each field of each ``CatalogTablePartition`` of a Scala ``Seq``."""
        return values.to_json(self._jvm, partitions)

    def table(
        self,
        catalog: Any,
        database: str,
        name: str,
        known: tuple[Any, dict[str, Any]] | None = None,
        *,
        as_analyzed: bool = False,
    ) -> tuple[Any, dict[str, Any]] | None:
        """A table of a session's ``ExternalCatalog``: the holder of the ``CatalogTable``, and its fields.

        Beyond the fields of :meth:`tables`, ``schema`` is the JSON of its columns, and ``stats`` whether it has any.
        If the table is as ``known``, the result of an earlier call, that is returned. The catalog is always asked, but
        with ``as_analyzed`` for what the analysis of the running statement has loaded.
        """
        found = self.reader(catalog).find(database, name, None if known is None else known[0], as_analyzed)
        if found is True:
            return known
        return None if found is None else (found, json.loads(str(found.json())))

    def tables_named(self, catalog: Any, database: str, names: Sequence[str]) -> list[dict[str, Any]]:
        """Those of some tables of a session's ``ExternalCatalog`` that exist, with the fields of :meth:`tables`."""
        return json.loads(str(self.reader(catalog).named(database, json.dumps(list(names)))))

    def reader(self, catalog: Any) -> Any:
        """The ``Tables`` by which those of a session's ``ExternalCatalog`` are read."""
        return self._jvm.once(("tables",), lambda: self._new_reader(catalog))

    def _new_reader(self, catalog: Any) -> Any:
        """The reader of tables: of a Hive metastore, by single calls of its own."""
        mappers = (self._mapper(), values.mapper(self._jvm))
        below = hive_catalog(self._jvm)
        if below is None:
            return java_object(self._jvm, "Tables", catalog, *mappers)
        with private_name("HiveExternalCatalog.restoreTableMetadata", self._jvm.spark):
            return java_object(self._jvm, "HiveTables", catalog, *mappers, below)

    def those_of(self, table: Any, specs: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
        """Each field of those of some partitions of a table that exist; ``table`` is the holder from :meth:`table`."""
        return json.loads(str(table.partitions(json.dumps([dict(spec) for spec in specs]))))

    def tables(self, tables: Any) -> list[dict[str, Any]]:
        """Each ``CatalogTable`` of a Scala ``Seq``, without its columns and statistics."""
        return json.loads(str(self._mapper().writeValueAsString(tables)))

    def _mapper(self) -> Any:
        with private_name("Jackson's ObjectMapper", self._jvm.spark):
            return self._jvm.once(("ObjectMapper of tables",), self._mapper_of_tables)

    def _mapper_of_tables(self) -> Any:
        kind = self._jvm.static("java.lang.Class", "forName")(_TABLE)
        fields = [str(field.getName()) for field in kind.getDeclaredFields()]
        others = values.strings(self._jvm, [field for field in fields if field not in _FACTS])
        ignored = self._jvm.kind("com.fasterxml.jackson.annotation.JsonIgnoreProperties$Value")
        mapper = values.new_mapper(self._jvm)
        mapper.configOverride(kind).setIgnorals(ignored.forIgnoredProperties(others))
        return mapper

    def storage(self, storage: Any) -> dict[str, Any]:
        """Each field of a ``CatalogStorageFormat``."""
        return values.to_json(self._jvm, storage)

    def make_storage(self, facts: Mapping[str, Any]) -> Any:
        """A ``CatalogStorageFormat``: ``locationUri`` as returned by :func:`uri_of`; missing fields are not set."""
        return values.from_json(self._jvm, _STORAGE, {"compressed": False, **facts})

    def map(self, entries: Mapping[str, str]) -> Any:
        """A Scala ``Map``."""
        return values.from_json(self._jvm, _MAP, dict(entries))

    def partitions(self, facts: Iterable[Mapping[str, Any]]) -> Any:
        """A Scala ``Seq`` of ``CatalogTablePartition``."""
        return self._make(_PARTITION, facts)

    def partition_list(self, facts: Iterable[Mapping[str, Any]]) -> Any:
        """A Java ``List`` of ``CatalogTablePartition``."""
        return self._list(_PARTITION, facts)

    def specs(self, specs: Iterable[Mapping[str, str]]) -> Any:
        """A Scala ``Seq`` of partition values, each a ``Map`` from column to text."""
        return self._make(_MAP, specs)

    def _make(self, class_name: str, facts: Iterable[Mapping[str, Any]]) -> Any:
        return self._jvm.static("org.apache.spark.api.python.PythonUtils", "toSeq")(self._list(class_name, facts))

    def _list(self, class_name: str, facts: Iterable[Mapping[str, Any]]) -> Any:
        return values.from_json(self._jvm, values.list_kind(self._jvm, class_name), [dict(fact) for fact in facts])


def path_of(uri: str) -> str:
    """The Hadoop path string of a URI's text: without trailing slashes or those of an empty authority."""
    head, path = _split(uri)
    return _normalized(head, unquote(path))


def normalized(path: str) -> str:
    """A Hadoop path string in the spelling of :func:`path_of`; a metastore stores paths as it receives them."""
    return _normalized(*_split(path))


def _split(text: str) -> tuple[str, str]:
    head = _HEAD.match(text)
    assert head is not None
    return head.group(), text[head.end() :]


def _normalized(head: str, path: str) -> str:
    path = path.replace("//", "/")
    return head.removesuffix("//") + (path.rstrip("/") or path[:1])


def uri_of(path: str) -> str:
    """The text of a Hadoop path's URI, escaped as ``java.net.URI`` does: Spark compares the texts."""
    head, rest = _split(path)
    return head + "".join(map(_escaped, rest))


def _escaped(letter: str) -> str:
    if letter in _LEGAL or (letter >= "\x80" and unicodedata.category(letter) not in _NEVER):
        return letter
    return quote(letter, safe="")


__all__ = ["PartitionTexts", "normalized", "path_of", "uri_of"]
