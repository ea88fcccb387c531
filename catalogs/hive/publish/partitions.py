"""Switch partitions: one metastore call gives all changed partitions of a table their new locations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

from twophase.catalog.reading import ReadSource
from twophase.catalogs.files import is_below, join, parent, same
from twophase.catalogs.hive import hard_links, layout
from twophase.catalogs.hive.definitions import is_redacted
from twophase.catalogs.hive.layout import MANIFEST_FILE, PUBLISHED_FILE, SUPERSEDED_FILE
from twophase.catalogs.hive.partition_plan import ADD, REMOVE, SWITCH, Change, Key, Plan, by_key, published, unexpected
from twophase.catalogs.hive.publish.partition_changes import PartitionChanges
from twophase.catalogs.hive.publish.publisher import Publisher
from twophase.catalogs.hive.replaced import Partitions, Replaced
from twophase.catalogs.hive.stamps import StampChangedError
from twophase.catalogs.hive.state import INSERT, REPLACE
from twophase.catalogs.hive.store import partitions_of
from twophase.catalogs.hive.tables import EXTERNAL, MANAGED, HivePartition, HiveTable
from twophase.catalogs.hive.target import Target
from twophase.catalogs.hive.write import TableWrite
from twophase.model import Level, Purpose


class SwitchPartitions(Publisher):
    """INSERT into a partitioned table, and REPLACE of one if the columns stay the same.

    Missing partitions are added before the publish, without rows, so that the publish is a single
    ``alter_partitions``; if all are new, it is a single ``add_partitions``.
    """

    changes_table: ClassVar[bool] = True
    #: Whether this object has published and completed the write.
    _is_complete = False
    #: The plan, once it was read or written.
    _plan: Plan | None = None

    def __init__(self, write: TableWrite) -> None:
        super().__init__(write, Target(write, new_roots=True))
        self._changes = PartitionChanges(write, self.staging, self.target)

    @property
    def renames_files(self) -> bool:
        return not self.files.kind(self.state.version).hard_links  # Into its partition, each file once.

    @property
    def defines(self) -> bool:
        return False  # The table keeps its definition, with other properties.

    @property
    def _root(self) -> str:
        """The table's new directory after an INSERT whose partitions leave directories in the previous one."""
        return layout.root_of(self.state.version)

    @property
    def plan(self) -> Plan | None:
        """The changes that the publish makes, as this step of the protocol has found them; None before prepare."""
        return self._plan or self._read()

    def _read(self) -> Plan | None:
        """Read the plan at the start of a step: since the last one, another process may have removed it."""
        self._plan = Plan.load(self.files, self.state.version)
        return self._plan

    @property
    def existing_plan(self) -> Plan:
        """Same as :attr:`plan`, but it must exist."""
        return self.required(self.plan)

    # -- preparing -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self.staging.place_listed()
        table = self.target.check_unchanged()
        plan = self._plan = self._still_valid(table) or self._changes.plan(table)
        if not plan.only_adds:
            self._add_empty(table, plan)
        if self.state.effect == REPLACE and is_redacted(self.state.definition):
            # The hidden table keeps the secrets for recovery, as the document must not hold them.
            name = self.write.hidden.name("table")
            self.write.hidden.make("table", self.write.table(name=name, kind=EXTERNAL))
        self.write.update(can_undo=self.state.effect != REPLACE and not plan.loses)
        self.write.reach(*self._reached())

    def _still_valid(self, table: HiveTable) -> Plan | None:
        """The plan of an earlier prepare; discard it if others have published since: new rows are added to theirs."""
        plan = self._read()
        if plan is None or not self._is_stale(table, plan):
            return plan
        if self.state.purpose is not Purpose.INSERT_INTO or self.state.base_version is not None:
            raise self.write.conflict("another writer changed its partitions meanwhile")
        with self.write.step("link"):
            hard_links.take_links_out(self.files, self.state.version)
            self.files.remove_file(join(self.state.version, MANIFEST_FILE))
        return None

    def _is_stale(self, table: HiveTable, plan: Plan) -> bool:
        if unexpected(plan, self.target.locations(table, plan.keys), self.state.empty_of):
            return True
        return not all(hard_links.is_marked(self.files, directory, mark) for directory, mark in plan.marks.items())

    def reservation_scope(self) -> frozenset[str] | None:
        columns = self.state.partition_columns
        return self.target.written_partitions(lambda: {*self.staging.partitions(columns), *self._changes.of_base()})

    @property
    def _replaces_all(self) -> bool:
        """Whether all partitions of the table are replaced."""
        scope = self.state.overwrite
        return self.state.purpose is not Purpose.INSERT_INTO and (scope is None or scope.is_whole_table)

    def replaced_state(self) -> Replaced:
        replaces, old = self.state.effect == REPLACE, self.state.old
        held = self.target.held_by(
            {change.key: change.old for change in self.existing_plan.changes}, is_all=self._replaces_all
        )
        definition = old.definition if replaces or self.state.brings else None
        return Partitions(self.target.directory, old.stamp, held, replaces, definition)

    def _reached(self) -> tuple[Level, str | None]:
        """The level of this publish, and the reason if it is not the highest."""
        plan, store, state = self.existing_plan, self.metastore, self.state
        width = store.added_in_one_step if plan.only_adds else store.altered_in_one_step
        if len(plan.changes) > width:
            return (
                Level.REVERSIBLE,
                f"This metastore switches {width} partition(s) in one step; {len(plan.changes)} change.",
            )
        old, new = state.old.definition, state.definition
        if state.effect == REPLACE and (old.properties, old.comment) != (new.properties, new.comment):
            return Level.REVERSIBLE, (
                "The rows change in one step; the table's new properties and comment follow in a second metastore call."
            )
        return Level.ATOMIC, None

    def _add_empty(self, table: HiveTable, plan: Plan) -> None:
        """Create the empty directory if a partition needs it, and add the missing partitions without rows."""
        with self.write.step("add_empty"):
            if not plan.of(ADD, REMOVE):
                return
            self.staging.stamp(self.state.empty)
            for change in plan.of(ADD, REMOVE):
                self.files.make_directory(self.state.empty_of(change.key))
            now = self.target.locations(table, [change.key for change in plan.of(ADD)])
            missing = {change.key: self.state.empty_of(change.key) for change in plan.of(ADD) if change.key not in now}
            self.metastore.add_partitions(table, partitions_of(table, missing))

    # -- publishing ----------------------------------------------------------------------------------------------

    def publish(self) -> None:
        plan, table = self.required(self._read()), self.write.current()
        if table is None:
            raise self.write.conflict("it was dropped meanwhile")
        listed = self.target.registered(table, plan.keys)
        now = {key: part.location for key, part in listed.items()}
        if not (published(plan, now) or (not plan.of(SWITCH, ADD) and self.is_marked())):
            self.target.require_unchanged(table)
            self._check_partitions(plan, now)
            self.check_staged()
            with self.write.step("publish"), self.write.calls.calling():
                self._switch(table, plan, listed)
        if not plan.changes:
            self.staging.mark_published()
        is_moved = self._complete(table, plan)
        self._is_complete = True
        self.write.announce(seen=None if is_moved else table)

    def _check_partitions(self, plan: Plan, now: Mapping[Key, str]) -> None:
        if changed := unexpected(plan, now, self.state.empty_of):
            raise self.write.conflict(f"another writer changed its partition {'/'.join(changed[0])} meanwhile")
        if not plan.only_adds and (written := self._written_to_new(plan)):
            raise self.write.conflict(f"{written[0]} was written to a new partition of it meanwhile, outside twophase")
        self.target.check_replaced(str(change.old) for change in plan.of(SWITCH, REMOVE))
        for directory, mark in plan.marks.items():
            if not hard_links.is_marked(self.files, directory, mark):
                raise self.write.conflict(f"files were written to {directory} meanwhile, past the metastore")

    def _written_to_new(self, plan: Plan) -> list[str]:
        """Files that other writers put into partitions which this transaction has added without rows."""
        written = self.staging.written_by_others() if plan.of(ADD) else []
        earlier = (str(c.old) for c in plan.of(SWITCH, REMOVE) if c.old and self._changes.is_from_earlier(c.old))
        return [*written, *(name for place in earlier for name in self.staging.files_in(place))]

    def _switch(self, table: HiveTable, plan: Plan, listed: Mapping[Key, HivePartition]) -> None:
        """Make the publish call."""
        if plan.only_adds:
            self.metastore.add_partitions(table, _partitions(table, plan.changes))
        else:
            self.metastore.alter_partitions(table, [self._switched(listed[c.key], c) for c in plan.changes])

    def _switched(self, now: HivePartition, change: Change) -> HivePartition:
        """The partition after the publish: new for a replaced table; an insert keeps its other attributes."""
        if self.state.effect == REPLACE:
            return replace(now, location=change.new, as_table=True, files=change.files, extra=None)
        as_table = self.state.purpose is not Purpose.INSERT_INTO
        return replace(now, location=change.new, as_table=as_table, files=change.files)

    def _pending(self, plan: Plan, now: Mapping[Key, str]) -> list[Change]:
        """Changes still to be made if the metastore cannot make all of them in one step."""
        return [change for change in plan.changes if self._is_pending(change, now.get(change.key))]

    def _is_pending(self, change: Change, location: str | None) -> bool:
        if location is None:
            return change.action != REMOVE
        # Any other location was set by another writer.
        return not same(location, change.new) and same(location, change.old or self.state.empty_of(change.key))

    def _roll_forward(self, table: HiveTable, plan: Plan) -> None:
        now = self.target.locations(table, plan.keys)
        pending = self._pending(plan, now)
        if not pending:
            return
        with self.write.step("publish"):
            there = [change for change in pending if change.key in now]
            self.metastore.alter_partitions(table, _partitions(table, there))
            self.metastore.add_partitions(table, _partitions(table, [c for c in pending if c.key not in now]))

    def is_published(self) -> bool:
        plan, table = self._read(), self.write.current()
        if self.is_marked():
            return True
        return plan is not None and table is not None and published(plan, self.target.locations(table, plan.keys))

    def is_marked(self) -> bool:
        # Another writer may have replaced all of it since.
        if super().is_marked():
            return True
        plan = self.plan
        return plan is not None and any(
            self.files.exists(join(change.new, SUPERSEDED_FILE)) for change in plan.of(SWITCH, ADD)
        )

    # -- afterwards ----------------------------------------------------------------------------------------------

    def _complete(self, table: HiveTable, plan: Plan) -> bool:
        """Forward-only steps: drop empty partitions; give a replaced table its new location and properties.

        Returns whether the table's own entry has changed.
        """
        # Once it was complete, a partition that is missing was removed by another writer.
        if len(plan.changes) > self.metastore.altered_in_one_step and not self._was_complete():
            self._roll_forward(table, plan)
        if gone := plan.of(REMOVE):
            if len(gone) == len(plan.changes):
                self.staging.mark_published()  # Nothing in the metastore will show it.
            with self.write.step("drop_partitions"):
                self.metastore.drop_partitions(table, _partitions(table, self._without_rows(table, gone)))
        # At another location it is ours already, or another writer has replaced it since.
        if self.state.effect == REPLACE and same(table.location, self.state.old.location):
            with self.write.step("redefine"):
                wanted, version = self.write.table(), self.state.version
                changed = replace(table, location=version, properties=wanted.properties, comment=wanted.comment)
                self.metastore.alter_table(changed)
                return True
        return self.state.effect == INSERT and self._leave_root(table, plan)

    def _was_complete(self) -> bool:
        return self.files.exists(join(self.state.version, PUBLISHED_FILE))

    def _leave_root(self, seen: HiveTable, plan: Plan) -> bool:
        """Give a table an empty root if its directory is a version of ours that partitions have left.

        Returns whether there is a new root.

        The old files stay for readers in flight, and ``ADD PARTITION`` or ``MSCK REPAIR`` of any engine would find
        these rows again. A table at its default location keeps that location: sessions without twophase write there,
        and a rename moves it (see :meth:`twophase.Catalog.partitions_sought`).
        """
        old = str(seen.location)
        if seen.kind != MANAGED or not layout.is_version_place(old):
            return False
        if not any(change.old and is_below(change.old, old) for change in plan.of(SWITCH, REMOVE)):
            return False
        table = self.write.current()  # Loaded only here: most inserts do not need it.
        if table is None or not same(table.location, old):
            return True  # moved by another process
        with self.write.step("root"), contextlib.suppress(StampChangedError):  # another writer replaced the table: fine
            self.staging.stamp(self._root)
            self.files.persist(self._root, documents=[layout.STAMP_FILE])
            # The metastore no longer shows that this version was published.
            if layout.read_stamp(self.files, old) is not None:
                layout.mark_published(self.files, old, self.state.transaction_id)
            self.metastore.place_table(replace(table, location=self._root), instead_of=table.expected_stamp)
        return True

    def finish(self) -> None:
        plan = self.plan
        table = None if plan is None or self._is_complete else self.write.current()
        if plan is not None and table is not None and self.target.is_partitioned_alike(table):
            self._complete(table, plan)
        self.staging.mark_published()
        super().finish()

    def supersede(self) -> None:
        plan = self.plan
        if plan is None or self.state.before is None:
            return
        is_all = self._replaces_all and self.state.before.kind == MANAGED  # Others keep their directory.
        self.superseded.mark_partitions(plan.replaced, is_all=is_all)
        if self.state.effect == REPLACE:
            self.superseded.mark_table()
        self.staging.remove_empty()

    def undo(self) -> None:
        table = self.write.current()
        plan = self._read()
        if table is not None and table.partitioned and plan is not None:
            with self.write.step("drop_partitions"):
                self.metastore.drop_partitions(table, _partitions(table, self._without_rows(table, plan.of(ADD))))
        super().undo()

    def _without_rows(self, table: HiveTable, changes: list[Change]) -> list[Change]:
        """Those of some partitions that are in the empty directory now, and to which no other writer has added rows."""
        now = self.target.locations(table, [change.key for change in changes])
        there = [change for change in changes if same(now.get(change.key), self.state.empty_of(change.key))]
        written = self.staging.written_by_others() if there else ()
        kept = {parent(join(self.state.empty, name)) for name in written}
        return [change for change in there if self.state.empty_of(change.key) not in kept]

    def compensate(self) -> bool:
        plan, table = self._read(), self.write.current()
        if plan is None or table is None or self.state.effect == REPLACE:
            return False
        if not self.target.is_partitioned_alike(table):
            return False
        listed = self.target.registered(table, plan.keys)
        now = {key: part.location for key, part in listed.items()}
        if plan.loses or any(not same(now.get(change.key), change.new) for change in plan.of(SWITCH, ADD)):
            return False
        if any(change.key in now and not same(now[change.key], change.new) for change in plan.of(REMOVE)):
            return False  # Another writer has added it again.
        if any(change.old is None or not self.files.exists(change.old) for change in plan.of(SWITCH, REMOVE)):
            return False
        with self.write.step("restore"):
            self._restore(table, plan, listed)
            self.files.remove_file(join(self.state.version, PUBLISHED_FILE))
        self.write.announce()
        return True

    def _restore(self, table: HiveTable, plan: Plan, listed: Mapping[Key, HivePartition]) -> None:
        missing = {c.key: c.old for c in plan.of(REMOVE) if c.key not in listed and c.old}
        self.metastore.add_partitions(table, partitions_of(table, missing))
        back = {c.key: c.old for c in plan.of(SWITCH, REMOVE) if c.old and c.key not in missing}
        # New partitions lose their rows in the same call as the others.
        added = {c.key: self.state.empty_of(c.key) for c in plan.of(ADD)}
        self.staging.stamp(self.state.empty)
        for place in added.values():
            self.files.make_directory(place)
        wanted = [replace(listed[key], location=place) for key, place in {**back, **added}.items() if key in listed]
        self.metastore.alter_partitions(table, wanted)
        if plan.only_adds:  # Otherwise they existed before the publish, without rows; the abort drops them.
            self.metastore.drop_partitions(table, partitions_of(table, added))
        self.superseded.unmark_partitions(plan.replaced)
        self._restore_root(table)

    def _restore_root(self, table: HiveTable) -> None:
        if self.state.before is None or not same(table.location, self._root):
            return
        with contextlib.suppress(StampChangedError):  # another writer has replaced the table and its root
            old = replace(table, location=self.state.before.location)
            self.metastore.place_table(old, instead_of=table.expected_stamp)
            if layout.owned_by(self.files, self._root, self.state.transaction_id):
                self.files.remove_tree(self._root)

    # -- reading inside the transaction --------------------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        table, plan = self.write.current(), self.plan
        if table is None or plan is None:
            return None
        found = {key: part.location for key, part in by_key(table, self.metastore.list_partitions(table)).items()}
        for change in plan.changes:
            found[change.key] = change.new
        gone = {change.key for change in plan.of(REMOVE)}
        return self.staging.overlay({key: location for key, location in found.items() if key not in gone})


def _partitions(table: HiveTable, changes: Iterable[Change]) -> list[HivePartition]:
    found = {change.key: change for change in changes}
    places, files = ({key: getattr(one, of) for key, one in found.items()} for of in ("new", "files"))
    return partitions_of(table, places, files)
