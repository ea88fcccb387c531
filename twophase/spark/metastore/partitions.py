"""The partitions of tables in the session's metastore."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from twophase.catalogs.hive.tables import HivePartition, HiveTable, Located, partition_specs
from twophase.errors import TableNotExistError
from twophase.spark.jvm.partitions import normalized, path_of, uri_of
from twophase.spark.metastore.base import SessionStore

#: SerDes whose files describe their own format.
_SELF_DESCRIBING = ("parquet", "orc", "avro")
#: Parameters of a partition with statistics of its files, named by Hive; and all others, named by Spark and Hive.
_FILES = ("numFiles", "totalSize")
_PARTITION_STATISTICS = (
    *("spark.sql.statistics.totalSize", "spark.sql.statistics.numRows", "COLUMN_STATS_ACCURATE"),
    *(*_FILES, "numRows", "rawDataSize"),
)


class SessionPartitions(SessionStore):
    """The part of :class:`.SessionMetastore` for partitions."""

    def list_partitions(self, table: HiveTable) -> list[HivePartition]:
        return self._found(table, self._catalog.listPartitions(table.database, table.name, self._none()))

    def has_partitions(self, table: HiveTable) -> bool:
        if self._hive is None:
            return super().has_partitions(table)
        return self._hive.has_partitions(table.database, table.name)

    def get_partitions(self, table: HiveTable, keys: Collection[tuple[str, ...]]) -> list[HivePartition]:
        if not keys:
            return []
        # A metastore has the names of the columns in lower case.
        names = [column.lower() if self.is_hive else column for column in table.partition_columns]
        known, _ = self._known(table)
        return self._read(table, self._texts.those_of(known, (dict(zip(names, key, strict=True)) for key in keys)))

    def _known(self, table: HiveTable) -> tuple[Any, Mapping[str, Any]]:
        """The holder of a table and its facts, looked up only if it was not read from the metastore under its name."""
        facts = table.extra.get("facts")
        if facts is not None and facts["identifier"]["table"] == table.name:
            return table.extra["found"], facts
        found = self._texts.table(self._catalog, table.database, table.name)
        if found is None:
            raise TableNotExistError(f"Table {table.database}.{table.name} does not exist.")
        return found

    def partitions_within(self, table: HiveTable, values: Mapping[str, str]) -> list[HivePartition]:
        if {column.lower() for column in values} == {column.lower() for column in table.partition_columns}:
            lowered = {column.lower(): value for column, value in values.items()}
            return self.get_partitions(table, [tuple(lowered[column.lower()] for column in table.partition_columns)])
        spec = self._option(self._map(dict(values)))
        return self._found(table, self._catalog.listPartitions(table.database, table.name, spec))

    def _found(self, table: HiveTable, partitions: Any) -> list[HivePartition]:
        return self._read(table, self._texts.facts(partitions))

    def _read(self, table: HiveTable, partitions: Sequence[Mapping[str, Any]]) -> list[HivePartition]:
        columns = {column.lower(): column for column in table.partition_columns}
        return [_partition(facts, columns) for facts in partitions]

    def partition_locations(self, table: Located) -> list[str]:
        if not table.partition_columns:
            return []
        if self._hive is not None:
            return [normalized(path) for path in self._hive.partition_locations(table.database, table.name)]
        found = self._catalog.listPartitions(table.database, table.name, self._none())
        return [path_of(facts["storage"]["locationUri"]) for facts in self._texts.facts(found)]

    def add_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        if partitions:
            facts = self._facts(table, partitions)
            self._catalog.createPartitions(table.database, table.name, self._texts.partitions(facts), False)

    def alter_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        if partitions and not self._place_counted(table, partitions):
            found = self._texts.partitions(self._facts(table, partitions))
            self._catalog.alterPartitions(table.database, table.name, found)

    def _place_counted(self, table: HiveTable, partitions: Sequence[HivePartition]) -> bool:
        """Change partitions without a listing of their files; return whether that was possible."""
        if self._hive is None or any(partition.files is None for partition in partitions):
            return False
        found = self._texts.partition_list(self._facts(table, partitions))
        return self._hive.place_partitions(table.database, table.name, found)

    def drop_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        if partitions:
            specs = self._texts.specs(partition_specs(partitions))
            # ignore missing ones, no purge, keep the files
            self._catalog.dropPartitions(table.database, table.name, specs, True, False, True)

    def has_own_format(self, table: HiveTable, partition: HivePartition) -> bool:
        if table.provider != "hive" or partition.extra is None:
            return False  # Spark reads every partition of its own formats in the table's format
        own, common = partition.extra["storage"], table.extra["facts"]["storage"]
        if any(own[fact] != common[fact] for fact in ("serde", "inputFormat")):
            return True
        if any(name in str(own["serde"]).lower() for name in _SELF_DESCRIBING):
            return False
        one, other = own["properties"], common["properties"]
        return any(one.get(key) != other.get(key) for key in {*one, *other} - {"serialization.format", "path"})

    def _facts(self, table: HiveTable, partitions: Sequence[HivePartition]) -> list[dict[str, Any]]:
        common = {} if all(_keeps_format(p) for p in partitions) else self._known(table)[1]["storage"]
        return [_facts(partition, common, is_hive=self.is_hive) for partition in partitions]


def _partition(facts: Mapping[str, Any], columns: Mapping[str, str]) -> HivePartition:
    values = {columns.get(key.lower(), key): value for key, value in facts["spec"].items()}
    return HivePartition(values, path_of(facts["storage"]["locationUri"]), extra=facts)


def _facts(partition: HivePartition, common: Mapping[str, Any], *, is_hive: bool) -> dict[str, Any]:
    """A partition for Spark's catalog, without its former statistics, which are of other files.

    For a Hive metastore, it has those that a listing would otherwise find, if they are known.
    """
    found = partition.extra or {"parameters": partition.parameters, "createTime": time.time_ns() // 1_000_000}
    parameters = {key: value for key, value in found["parameters"].items() if key not in _PARTITION_STATISTICS}
    if is_hive and partition.files is not None:
        parameters |= zip(_FILES, map(str, partition.files), strict=True)
    return {
        "spec": {key.lower() if is_hive else key: value for key, value in partition.values.items()},
        "storage": {
            **(found["storage"] if _keeps_format(partition) else common),
            "locationUri": uri_of(partition.location),
        },
        "parameters": parameters,
        "createTime": found["createTime"],
        "lastAccessTime": -1,
        "stats": None,
    }


def _keeps_format(partition: HivePartition) -> bool:
    return partition.extra is not None and not partition.as_table
