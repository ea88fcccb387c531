"""The partitions of tables in the session's metastore."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from twophase.catalogs.hive.metastore import HivePartition, HiveTable, Located, partition_specs
from twophase.spark.jvm.partitions import path_of, uri_of
from twophase.spark.metastore.base import SessionStore

#: SerDes whose files say themselves how they are read.
_SELF_DESCRIBING = ("parquet", "orc", "avro")
#: Parameters of a partition that tell about its files, as Spark and Hive call them.
_PARTITION_STATISTICS = (
    *("spark.sql.statistics.totalSize", "spark.sql.statistics.numRows", "COLUMN_STATS_ACCURATE"),
    *("numFiles", "numRows", "rawDataSize", "totalSize"),
)
#: How many partitions are asked for one by one (a few milliseconds each) and not by a listing of all.
_ONE_BY_ONE = 500


class SessionPartitions(SessionStore):
    """The part of :class:`.SessionMetastore` that deals with partitions."""

    def list_partitions(self, table: HiveTable) -> list[HivePartition]:
        return self._found(table, self._catalog.listPartitions(table.database, table.name, self._none()))

    def get_partitions(self, table: HiveTable, keys: Collection[tuple[str, ...]]) -> list[HivePartition]:
        if len(keys) > _ONE_BY_ONE:
            return super().get_partitions(table, keys)
        specs = [dict(zip(table.partition_columns, key, strict=True)) for key in keys]
        asked = [self._catalog.getPartitionOption(table.database, table.name, self._map(spec)) for spec in specs]
        found = [option.get() for option in asked if option.isDefined()]
        return self._found(table, self._seq(found)) if found else []

    def partitions_within(self, table: HiveTable, values: Mapping[str, str]) -> list[HivePartition]:
        if {column.lower() for column in values} == {column.lower() for column in table.partition_columns}:
            lowered = {column.lower(): value for column, value in values.items()}
            return self.get_partitions(table, [tuple(lowered[column.lower()] for column in table.partition_columns)])
        spec = self._option(self._map(dict(values)))
        return self._found(table, self._catalog.listPartitions(table.database, table.name, spec))

    def _found(self, table: HiveTable, partitions: Any) -> list[HivePartition]:
        columns = {column.lower(): column for column in table.partition_columns}
        return [_partition(facts, columns) for facts in self._texts.facts(partitions)]

    def partition_locations(self, table: Located) -> list[str]:
        if not table.partition_columns:
            return []
        found = self._catalog.listPartitions(table.database, table.name, self._none())
        return [path_of(facts["storage"]["locationUri"]) for facts in self._texts.facts(found)]

    def add_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        if partitions:
            self._catalog.createPartitions(table.database, table.name, self._partitions(table, partitions), False)

    def alter_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        if partitions:
            self._catalog.alterPartitions(table.database, table.name, self._partitions(table, partitions))

    def drop_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        if partitions:
            specs = self._texts.specs(partition_specs(partitions))
            # ignore missing ones, no purge, keep the files
            self._catalog.dropPartitions(table.database, table.name, specs, True, False, True)

    def has_own_format(self, table: HiveTable, partition: HivePartition) -> bool:
        if table.provider != "hive" or partition.extra is None:
            return False  # Spark reads every partition of its own formats as the table says
        own, common = partition.extra["storage"], self._texts.storage(table.extra["spark"].storage())
        if any(own[fact] != common[fact] for fact in ("serde", "inputFormat")):
            return True
        if any(name in str(own["serde"]).lower() for name in _SELF_DESCRIBING):
            return False
        one, other = own["properties"], common["properties"]
        return any(one.get(key) != other.get(key) for key in {*one, *other} - {"serialization.format", "path"})

    def _partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> Any:
        common = {} if all(_keeps_format(p) for p in partitions) else self._storage_of(table)
        return self._texts.partitions(_facts(partition, common) for partition in partitions)

    def _storage_of(self, table: HiveTable) -> dict[str, Any]:
        return self._texts.storage(self._catalog.getTable(table.database, table.name).storage())


def _partition(facts: Mapping[str, Any], columns: Mapping[str, str]) -> HivePartition:
    values = {columns.get(key.lower(), key): value for key, value in facts["spec"].items()}
    return HivePartition(values, path_of(facts["storage"]["locationUri"]), extra=facts)


def _facts(partition: HivePartition, common: Mapping[str, Any]) -> dict[str, Any]:
    """A partition for Spark's catalog, without statistics: those that it had are of other files."""
    found = partition.extra or {"parameters": partition.parameters, "createTime": time.time_ns() // 1_000_000}
    return {
        "spec": dict(partition.values),
        "storage": {
            **(found["storage"] if _keeps_format(partition) else common),
            "locationUri": uri_of(partition.location),
        },
        "parameters": {k: v for k, v in found["parameters"].items() if k not in _PARTITION_STATISTICS},
        "createTime": found["createTime"],
        "lastAccessTime": -1,
        "stats": None,
    }


def _keeps_format(partition: HivePartition) -> bool:
    return partition.extra is not None and not partition.as_table
