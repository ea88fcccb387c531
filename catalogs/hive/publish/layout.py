"""Switch the layout: REPLACE with other columns, if the old or the new table is partitioned."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from twophase.catalogs.files import is_below, same
from twophase.catalogs.hive.publish.pointer import SwitchPointer
from twophase.catalogs.hive.publish.publisher import Publisher
from twophase.catalogs.hive.replaced import Replaced
from twophase.catalogs.hive.store import partitions_of
from twophase.catalogs.hive.tables import HivePartition, HiveTable, partition_key
from twophase.catalogs.hive.write import TableWrite
from twophase.model import Level


class SwitchLayout(Publisher):
    """Other data columns (and partition columns, if the metastore can), in a format that Spark reads by directory.

    The publish is one ``alter_table``: new columns, a new location, and partitions found in the directory instead of
    the metastore, so that Spark sees only the new table. Then, forward only, the metastore's list of partitions is
    renewed and the table is tracked again.
    """

    changes_table: ClassVar[bool] = True
    fences: ClassVar[bool] = True

    def __init__(self, write: TableWrite) -> None:
        super().__init__(write)
        self._pointer = SwitchPointer(write, tracked=False)

    def prepare(self) -> None:
        self.target.check_unchanged()
        self.staging.inherit()
        self._pointer.make_template()
        self.write.update(can_undo=False)
        if self.metastore.changes_partition_columns:
            self.write.reach(Level.ATOMIC)
            return
        self.write.reach(
            Level.REVERSIBLE,
            "For Spark this is one step. Hive and Trino take the partitions from the metastore, where they are renewed "
            "after the columns.",
        )

    def replaced_state(self) -> Replaced:
        return self.target.replaced_state(defines=True)

    def publish(self) -> None:
        found = self.write.current()
        if not self.is_ours(found):
            self._pointer.switch(found)
        self._complete()

    def finish(self) -> None:
        self._complete()
        super().finish()

    def supersede(self) -> None:
        super().supersede()
        self.staging.remove_empty()

    def _complete(self) -> None:
        table = self.write.current()
        if table is None or not self.is_ours(table) or (table.partition_columns and table.tracked):
            return
        self._pointer.complete()
        tracked = replace(table, tracked=True)
        listed = self.metastore.list_partitions(tracked)
        before = self.state.old
        gone = [part for part in listed if not self._is_of_ours(part)]
        self.superseded.mark_outside(gone, before.location, tuple(before.definition.partition_columns))
        if self._keeps_partition_columns(table):
            self._switch_partitions(tracked, listed)
        else:
            self._renew_partitions(tracked, listed)
        if not table.partition_columns:
            return
        with self.write.step("track"):
            self.metastore.alter_table(tracked)
        self.write.announce(counted=False)

    def _keeps_partition_columns(self, table: HiveTable) -> bool:
        """Whether the partition columns stay the same, including their case if the catalog is case-sensitive."""
        if not self.metastore.changes_partition_columns:
            return bool(table.partition_columns)
        return tuple(self.state.old.definition.partition_columns) == tuple(table.partition_columns)

    def _is_of_ours(self, part: HivePartition) -> bool:
        return is_below(part.location, self.state.version) or same(part.location, self.state.empty)

    def _switch_partitions(self, table: HiveTable, listed: list[HivePartition]) -> None:
        """Renew the metastore's list of partitions in one call.

        A reader that loaded the table before the publish may list its partitions only now. It must find all old rows
        or all new ones, never a part of them, as it would if partitions were dropped one by one.
        """
        empty = self.state.empty
        old = {partition_key(part.values, table.partition_columns): part for part in listed}
        wanted = self.staging.partition_locations(table)
        missing = partitions_of(table, {key: empty for key in wanted if key not in old})
        gone = {key: part for key, part in old.items() if key not in wanted}
        if missing or gone:
            self.staging.stamp(empty)
        with self.write.step("add_partitions"):
            self.metastore.add_partitions(table, missing)
        places = {**wanted, **dict.fromkeys(gone, empty)}
        others = {key: place for key, place in places.items() if key not in old or not same(old[key].location, place)}
        with self.write.step("switch_partitions"):
            left = [replace(gone[key], location=place, extra=None) for key, place in others.items() if key in gone]
            held = partitions_of(table, {key: place for key, place in others.items() if key not in gone})
            self.metastore.alter_partitions(table, [*held, *left])
        with self.write.step("drop_partitions"):
            # Another recovery may have overtaken this one, and a writer may have followed it.
            now = self.metastore.list_partitions(table) if gone else []
            self.metastore.drop_partitions(table, [part for part in now if same(part.location, empty)])

    def _renew_partitions(self, table: HiveTable, listed: list[HivePartition]) -> None:
        """Drop and add partitions, for other partition columns (in-memory catalog only): no call converts them."""
        old = [part for part in listed if not is_below(part.location, self.state.version)]
        with self.write.step("drop_partitions"):
            self.metastore.drop_partitions(table, old)
        if not table.partition_columns:
            return
        there = {partition_key(p.values, table.partition_columns) for p in listed if p not in old}
        wanted = {key: place for key, place in self.staging.partition_locations(table).items() if key not in there}
        with self.write.step("add_partitions"):
            self.metastore.add_partitions(table, partitions_of(table, wanted))
