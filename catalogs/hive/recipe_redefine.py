"""REPLACE where a partitioned table is on one side and the columns change: no metastore has one call for it."""

from __future__ import annotations

from dataclasses import replace

from twophase.catalogs.files import is_below, same
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.metastore import EXTERNAL, MANAGED, HivePartition, HiveTable
from twophase.catalogs.hive.name_swap import NameSwap
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.catalogs.hive.recipe_pointer import PointerCreateHidden, PointerSwitch
from twophase.failpoints import declare
from twophase.model import Level
from twophase.reading import ReadSource

declare(*(f"hive.pointer.{name}" for name in ("name_aside", "add_partitions", "switch_partitions", "track")))


class PointerUntrack(PointerSwitch):
    """Other data columns (and partition columns, where the metastore can), in a format that Spark reads by directory.

    The publish is one ``alter_table``: new columns, new location, and partitions no longer taken from the metastore
    but from the directory: wholly new for Spark. Then, forward only, the metastore's list of partitions is renewed
    and the table tracked again.
    """

    def prepare(self) -> None:
        self.check_unchanged()
        self.inherit()
        name = self.hidden("table")
        with self.step("register"):
            self.make_hidden(name, replace(self.target(name=name, kind=EXTERNAL), tracked=False))
        self.say_whether_undone(False)
        if self.metastore.changes_partition_columns:
            self.set_level(Level.ATOMIC)
            return
        self.set_level(
            Level.UNDONE,
            "For Spark this is one step. Hive and Trino take the partitions from the metastore, where they are renewed "
            "after the columns.",
        )

    def commit(self) -> None:
        super().commit()
        self.complete()

    def replacement(self) -> HiveTable:
        return replace(self.target(kind=MANAGED), tracked=False)

    def complete(self) -> None:
        table = self.current()
        if table is None or not self.is_ours(table) or (table.partition_columns and table.tracked):
            return
        super().complete()
        tracked = replace(table, tracked=True)
        listed = self.metastore.list_partitions(tracked)
        self._retire_outside([part for part in listed if not self._is_of_ours(part)])
        if self._keeps_partition_columns(table):
            self._switch_partitions(tracked, listed)
        else:
            self._renew_partitions(tracked, listed)
        if not table.partition_columns:
            return
        with self.step("track"):
            self.metastore.alter_table(tracked)
        self.tell()

    def retire(self) -> None:
        super().retire()
        self.remove_empty()

    def _keeps_partition_columns(self, table: HiveTable) -> bool:
        """Also in their case where the catalog tells it apart: it knows a partition by the very names."""
        if not self.metastore.changes_partition_columns:
            return bool(table.partition_columns)
        return tuple(self.before_definition.partition_columns) == tuple(table.partition_columns)

    def _is_of_ours(self, part: HivePartition) -> bool:
        return is_below(part.location, self.version) or same(part.location, self.empty)

    def _switch_partitions(self, table: HiveTable, listed: list[HivePartition]) -> None:
        """Renew the metastore's list in one call.

        A reader that looked at the table before the publish may list the partitions only now. It must find all old
        rows or all new ones, and never a part of them, as where partitions are dropped one by one.
        """
        old = {layout.partition_key(dict(part.values), table.partition_columns): part for part in listed}
        wanted = self._staged_partitions(table)
        missing = self.hive.partitions_of(table, {key: self.empty for key in wanted if key not in old})
        gone = {key: part for key, part in old.items() if key not in wanted}
        if missing or gone:
            layout.write_stamp(self.files, self.empty, self.stamp_facts())
        with self.step("add_partitions"):
            self.metastore.add_partitions(table, missing)
        places = {**wanted, **dict.fromkeys(gone, self.empty)}
        others = {key: place for key, place in places.items() if key not in old or not same(old[key].location, place)}
        with self.step("switch_partitions"):
            left = [replace(gone[key], location=place, extra=None) for key, place in others.items() if key in gone]
            held = self.hive.partitions_of(table, {key: place for key, place in others.items() if key not in gone})
            self.metastore.alter_partitions(table, [*held, *left])
        with self.step("drop_partitions"):
            # Another recovery may have gone ahead of this one, and a writer after it.
            now = self.metastore.list_partitions(table) if gone else []
            self.metastore.drop_partitions(table, [part for part in now if same(part.location, self.empty)])

    def _renew_partitions(self, table: HiveTable, listed: list[HivePartition]) -> None:
        """Other partition columns, which only a catalog in memory takes: no call changes partitions into these."""
        old = [part for part in listed if not is_below(part.location, self.version)]
        with self.step("drop_partitions"):
            self.metastore.drop_partitions(table, old)
        if not table.partition_columns:
            return
        there = {layout.partition_key(dict(p.values), table.partition_columns) for p in listed if p not in old}
        wanted = {key: place for key, place in self._staged_partitions(table).items() if key not in there}
        with self.step("add_partitions"):
            self.metastore.add_partitions(table, self.hive.partitions_of(table, wanted))

    def _retire_outside(self, old: list[HivePartition]) -> None:
        """Partitions that the mark of the old table's own directory does not cover."""
        assert self.before is not None
        root, columns = self.before["location"], tuple(self.before_definition.partition_columns)
        outside = [part for part in old if not is_below(part.location, root)]
        self.retire_partitions({layout.partition_key(dict(p.values), columns): p.location for p in outside})

    def compensate(self) -> bool:
        return False

    def read_source(self) -> ReadSource | None:
        return HiveParticipant.read_source(self)


class PointerSwap(NameSwap, PointerCreateHidden):
    """Other partition columns: the new table is made in full under a hidden name, then the names change hands.

    Two metastore calls. Between them the name is free; recovery puts the old table back.
    """

    def begin(self) -> None:
        HiveParticipant.begin(self)

    def prepare(self) -> None:
        self.check_unchanged()
        self.inherit()
        with self.step("register"):
            self.register()
        self.set_level(
            Level.UNDONE,
            "No metastore call changes the columns together with the partitions here: the old and the new table change "
            "names in two calls, and a reader between them finds no table.",
        )

    def commit(self) -> None:
        now = self.current()
        if self.is_ours(now):
            return
        self.check_staged()
        if now is not None:
            self.check_unchanged()
            self.check_inherited()
            self.check_replaced(self.replaced(now))
        self.swap_names(now, MANAGED)
        self.tell()

    def undo(self) -> None:
        self.put_name_back()
        super().undo()

    def retire(self) -> None:
        aside = self.unneeded_aside()
        if aside is not None:
            self._retire_partitions(aside)
            self.forget_aside()
        super().retire()

    def _retire_partitions(self, aside: HiveTable) -> None:
        if self.before is None or not aside.partitioned:
            return
        listed = self.metastore.list_partitions(aside)
        outside = [part for part in listed if not is_below(part.location, str(aside.location))]
        columns = aside.partition_columns
        self.retire_partitions({layout.partition_key(dict(p.values), columns): p.location for p in outside})


__all__ = ["PointerSwap", "PointerUntrack"]
