"""Plan the changes of a write to the partitions of its table, before :mod:`.partitions` makes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from twophase.catalogs.files import is_below, join
from twophase.catalogs.hive import hard_links, layout
from twophase.catalogs.hive.partition_plan import ADD, REMOVE, SWITCH, Change, Key, Plan
from twophase.catalogs.hive.staging import Staging
from twophase.catalogs.hive.state import INSERT
from twophase.catalogs.hive.tables import HivePartition, HiveTable
from twophase.catalogs.hive.target import Target
from twophase.catalogs.hive.write import TableWrite
from twophase.model import Purpose


class PartitionChanges:
    """Planner of the changes that one write makes to the partitions of its table."""

    def __init__(self, write: TableWrite, staging: Staging, target: Target) -> None:
        self._write = write
        self._files = write.files
        self._staging = staging
        self._target = target

    @property
    def _adds_rows(self) -> bool:
        return self._write.state.purpose is Purpose.INSERT_INTO

    def plan(self, table: HiveTable) -> Plan:
        """Plan all changes, and store the plan beside the files."""
        target = self._target
        based, new = self.of_base(), self._new_partitions(table.partition_columns)
        listed = target.within_reach(table, new)
        target.require_new({key: part for key, part in listed.items() if key not in based})
        listed |= target.registered(table, [key for key in based if key not in listed])
        plan = self._save(table, new, based, listed)
        self._check_kept(table, plan, listed)
        return plan

    def of_base(self) -> dict[Key, Change]:
        """Changes staged by the earlier statement of the same transaction."""
        base = self._write.state.base_version
        plan = None if base is None else Plan.load(self._files, base)
        return {} if plan is None else {change.key: change for change in plan.changes}

    def is_from_earlier(self, location: str) -> bool:
        """Whether an earlier statement of the same transaction added an empty partition at this location."""
        state = self._write.state
        return layout.is_emptied_by(location, state.transaction_id) and not is_below(location, state.empty)

    def _save(
        self,
        table: HiveTable,
        new: Mapping[Key, str],
        based: Mapping[Key, Change],
        listed: Mapping[Key, HivePartition],
    ) -> Plan:
        version = self._write.state.version
        registered = {key: part.location for key, part in listed.items()}
        present = {**registered, **{c.key: c.new for c in based.values() if c.action != REMOVE}}
        for key in (c.key for c in based.values() if c.action == REMOVE):
            present.pop(key, None)
        changes = [_change(key, join(version, name), registered) for key, name in sorted(new.items())]
        marks: dict[str, Any] = {}
        joined = {key: name for key, name in new.items() if not self._replaces(key)}
        if self._adds_rows or joined:
            marks = self._take_over(joined, present)
        changes += self._removed(table, new, present, registered)
        changes = self._counted(changes, new, joined.keys() & present.keys())
        changes += self._carried(based, changes, registered)
        with self._write.step("manifest"):
            lost = self._ends_own_formats(table, changes, listed)
            plan = Plan(tuple(changes), marks, loses=lost)
            plan.save(self._files, version)
        return plan

    def _counted(self, changes: list[Change], new: Mapping[Key, str], joined: Collection[Key]) -> list[Change]:
        """The changes with what is staged for each, but of partitions whose other files are not counted."""
        if self._files.is_local(self._write.state.version):
            return changes  # There a metastore's listing is cheaper than a call without one.
        held = self._staging.partition_files()
        return [c if c.key in joined else replace(c, files=held.get(new.get(c.key, ""), (0, 0))) for c in changes]

    def _check_kept(self, table: HiveTable, plan: Plan, listed: Mapping[Key, HivePartition]) -> None:
        """Refuse a publish that would lose a LOCATION given meanwhile, or a partition's own format."""
        if self._write.state.effect != INSERT:
            return
        columns, root, paths = table.partition_columns, str(table.location), self._write.paths
        for change in plan.of(SWITCH, REMOVE):
            if not paths.is_partitions(str(change.old), change.key, columns, root):
                raise self._write.conflict(f"its partition {'/'.join(change.key)} was given a LOCATION meanwhile")
        touched = {c.key: listed[c.key] for c in plan.of(SWITCH) if not self._replaces(c.key)}
        self._target.refuse_own_formats(table, touched)

    def _ends_own_formats(self, table: HiveTable, changes: list[Change], listed: Mapping[Key, HivePartition]) -> bool:
        """Whether an overwrite replaces a partition's own format, which no compensation can restore."""
        if self._adds_rows:
            return False
        old = [listed[change.key] for change in changes if change.key in listed]
        return any(self._write.metastore.has_own_format(table, part) for part in old)

    def _new_partitions(self, columns: tuple[str, ...]) -> dict[Key, str]:
        """Partitions with new rows, and one that was fully specified, which is replaced even without rows."""
        new = self._staging.partitions(columns)
        key = self._target.named_partition
        if key is not None and key not in new:
            new[key] = layout.partition_name(key, columns)
            self._files.make_directory(join(self._write.state.version, new[key]))
        return new

    def _take_over(self, new: Mapping[Key, str], present: Mapping[Key, str]) -> dict[str, Any]:
        """INSERT INTO: link the old files of partitions that get new rows into their new version."""
        marks, version = {}, self._write.state.version
        with self._write.step("link"):
            if any(key in present for key in new):
                hard_links.note_own_rows(self._files, version)
            for key, name in new.items():
                if key in present:
                    marks[present[key]] = self._files.fingerprint(present[key])
                    self._link(present[key], join(version, name))
        return marks

    def _link(self, source: str, target: str) -> None:
        hard_links.link_tree(self._files, source, target, hard_links.keep_all, self._write.state.transaction_id)

    def _removed(
        self, table: HiveTable, new: Mapping[Key, str], present: Mapping[Key, str], registered: Mapping[Key, str]
    ) -> list[Change]:
        """Partitions that an overwrite leaves without rows."""
        if self._adds_rows:
            return []
        state = self._write.state
        gone = [key for key in sorted(present) if key not in new and self._in_scope(key, table.partition_columns)]
        return [Change(key, REMOVE, registered[key], state.empty_of(key)) for key in gone if key in registered]

    def _replaces(self, key: Key) -> bool:
        """Whether new rows of a partition replace its existing rows.

        An overwrite by a condition may write rows to partitions that the condition does not cover.
        """
        state = self._write.state
        if self._adds_rows or state.overwrite is None:
            return not self._adds_rows
        return hard_links.in_scope(state.overwrite, key, state.partition_columns, replaced=True)

    def _in_scope(self, key: Key, columns: tuple[str, ...]) -> bool:
        """Whether this overwrite removes a partition that gets no new rows."""
        scope = self._write.state.overwrite
        return scope is None or hard_links.in_scope(scope, key, columns, replaced=False)

    def _carried(
        self, based: Mapping[Key, Change], changes: list[Change], registered: Mapping[Key, str]
    ) -> list[Change]:
        """Changes of the earlier statement that this one does not touch; their files are linked here."""
        done = {change.key for change in changes}
        state, carried = self._write.state, []
        for key, change in sorted(based.items()):
            gone = change.action == ADD and not self._adds_rows and self._in_scope(key, state.partition_columns)
            if key in done or gone:
                continue
            location = state.empty_of(key)
            if change.action != REMOVE:
                location = join(state.version, layout.partition_name(key, state.partition_columns))
                self._files.make_directory(location)
                self._link(change.new, location)
            place = registered.get(key)
            if change.action == ADD and place is not None and self.is_from_earlier(place):
                change = replace(change, action=SWITCH, old=place)  # The earlier statement has added it.
            carried.append(replace(change, new=location, files=None))
        return carried


def _change(key: Key, location: str, registered: Mapping[Key, str]) -> Change:
    old = registered.get(key)
    return Change(key, ADD if old is None else SWITCH, old, location)
