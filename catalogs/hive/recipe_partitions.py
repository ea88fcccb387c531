"""Recipe ``pointer`` for partitioned tables that exist: one call gives all changed partitions their new locations."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from twophase.catalogs.files import is_below, join, parent, same
from twophase.catalogs.hive import layout, linking
from twophase.catalogs.hive.definitions import is_redacted
from twophase.catalogs.hive.layout import MANIFEST_FILE, PUBLISHED_FILE, RETIRED_FILE
from twophase.catalogs.hive.metastore import (
    EXTERNAL,
    MANAGED,
    HivePartition,
    HiveTable,
    StampChangedError,
)
from twophase.catalogs.hive.participant import INSERT, REPLACE
from twophase.catalogs.hive.partitions import ADD, REMOVE, SWITCH, Change, Key, Plan, by_key, published, unexpected
from twophase.catalogs.hive.recipe_pointer import PointerParticipant
from twophase.errors import CatalogError
from twophase.failpoints import declare
from twophase.model import Level, Outcome, Purpose
from twophase.reading import ReadSource

declare(*(f"hive.pointer.{name}" for name in ("manifest", "add_empty", "drop_partitions", "redefine", "root", "mark")))


class PointerPartitions(PointerParticipant):
    """INSERT into a partitioned table, and REPLACE by one of the same columns.

    Partitions that are missing are added before the publish, without rows, so that the publish is a single
    ``alter_partitions``; where all are new it is a single ``add_partitions``.
    """

    changes_table: ClassVar[bool] = True

    @property
    def defines(self) -> bool:
        return False  # The table keeps its own, with other properties.

    @property
    def root(self) -> str:
        """The table's own directory after an INSERT that leaves directories behind in the one before."""
        return layout.root_of(self.version)

    def empty_of(self, key: Key) -> str:
        """A directory without rows for one partition: what others write to it is read as rows of no other one."""
        columns = tuple(self.stored_definition.partition_columns)
        return join(self.empty, layout.partition_name(key, columns))

    def is_unmoved(self, now: HiveTable) -> bool:
        # Another INSERT may have given the table a new root, whose rows lie in its partitions.
        return super().is_unmoved(now) or (self.effect == INSERT and layout.is_root(str(now.location)))

    # -- preparing -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        table = self.check_unchanged()
        self._look_again(table)
        if self.plan is None:
            columns = table.partition_columns
            based, new = self._base_changes(), self._new_partitions(columns)
            listed = self.within_reach(table, new)
            listed |= self.registered(table, [key for key in based if key not in listed])
            self._plan(table, new, based, listed)
            self._check_kept(table, self.existing_plan, listed)
        plan = self.existing_plan
        if not plan.only_adds:
            self._add_empty(table, plan)
        if self.effect == REPLACE and is_redacted(self.stored_definition):
            # A recovery that gives the table its properties finds those there that the document must not hold.
            name = self.hidden("table")
            self.make_hidden(name, self.target(name=name, kind=EXTERNAL))
        self.say_whether_undone(self.effect != REPLACE and not plan.loses)
        self.set_level(*self.reached())

    def _look_again(self, table: HiveTable) -> None:
        """Give up the plan of an earlier prepare, where others have published since: new rows go on top of theirs."""
        plan = self.plan
        if plan is None or not self._is_stale(table, plan):
            return
        if self.purpose is not Purpose.INSERT_INTO or self.document["base"] is not None:
            raise self.conflict("another writer changed its partitions meanwhile")
        with self.step("link"):
            linking.take_links_out(self.files, self.version)
            self.files.remove_file(join(self.version, MANIFEST_FILE))

    def _is_stale(self, table: HiveTable, plan: Plan) -> bool:
        if unexpected(plan, self.locations(table, plan.keys), self.empty_of):
            return True
        return not all(linking.is_marked(self.files, directory, mark) for directory, mark in plan.marks.items())

    @property
    def shares_appends(self) -> bool:
        return False  # An append that came in between would not be among the files that got one more name.

    def reservation_scope(self) -> frozenset[str] | None:
        return self.written_partitions(self._base_changes())

    def reached(self) -> tuple[Level, str | None]:
        """The level of this publish, and why it is not 3."""
        plan, store = self.existing_plan, self.metastore
        width = store.added_in_one_step if plan.only_adds else store.altered_in_one_step
        if len(plan.changes) > width:
            return (
                Level.UNDONE,
                f"This metastore switches {width} partition(s) in one step; {len(plan.changes)} change.",
            )
        same_facts = self.before_definition.properties == self.stored_definition.properties
        if self.effect == REPLACE and (
            not same_facts or self.before_definition.comment != self.stored_definition.comment
        ):
            return Level.UNDONE, (
                "The rows change in one step; the table's new properties and comment follow in a second metastore call."
            )
        return Level.ATOMIC, None

    @property
    def plan(self) -> Plan | None:
        """What the publish does; None before prepare."""
        return Plan.load(self.files, self.version)

    @property
    def existing_plan(self) -> Plan:
        plan = self.plan
        if plan is None:
            raise CatalogError(
                f"The manifest of {self.path} is missing in {self.version}.", transaction_id=self.transaction_id
            )
        return plan

    def _plan(
        self,
        table: HiveTable,
        new: Mapping[Key, str],
        based: Mapping[Key, Change],
        listed: Mapping[Key, HivePartition],
    ) -> None:
        registered = {key: part.location for key, part in listed.items()}
        present = {**registered, **{c.key: c.new for c in based.values() if c.action != REMOVE}}
        for key in (c.key for c in based.values() if c.action == REMOVE):
            present.pop(key, None)
        changes = [self._change(key, join(self.version, name), registered) for key, name in sorted(new.items())]
        marks: dict[str, Any] = {}
        joined = {key: name for key, name in new.items() if not self._replaces(key)}
        if self.purpose is Purpose.INSERT_INTO or joined:
            marks = self._take_over(joined, present)
        changes += self._removed(table, new, present, registered)
        changes += self._carried(based, changes, registered)
        with self.step("manifest"):
            lost = self._own_formats(table, changes, listed)
            Plan(tuple(changes), marks, loses=lost).save(self.files, self.version)

    def _check_kept(self, table: HiveTable, plan: Plan, listed: Mapping[Key, HivePartition]) -> None:
        """Refuse what this publish would lose: a LOCATION that the user gave meanwhile, a format of its own."""
        if self.effect != INSERT:
            return
        columns, root, places = table.partition_columns, str(table.location), self.hive.places(self.path)
        for change in plan.of(SWITCH, REMOVE):
            if not places.is_partitions(str(change.old), change.key, columns, root):
                raise self.conflict(f"its partition {'/'.join(change.key)} was given a LOCATION meanwhile")
        touched = {c.key: listed[c.key] for c in plan.of(SWITCH) if not self._replaces(c.key)}
        self.refuse_own_formats(table, touched)

    def _own_formats(self, table: HiveTable, changes: list[Change], listed: Mapping[Key, HivePartition]) -> bool:
        """Whether an overwrite ends a format that a partition has for itself: no compensation brings it back."""
        if self.purpose is Purpose.INSERT_INTO:
            return False
        old = [listed[change.key] for change in changes if change.key in listed]
        return any(self.metastore.has_own_format(table, part) for part in old)

    def _change(self, key: Key, location: str, registered: Mapping[Key, str]) -> Change:
        old = registered.get(key)
        return Change(key, ADD if old is None else SWITCH, old, location)

    def _new_partitions(self, columns: tuple[str, ...]) -> dict[Key, str]:
        """Partitions with new rows, and a partition that was named in full: it is replaced even by no rows."""
        new = self.new_keys(columns)
        key = self.named_partition
        if key is not None and key not in new:
            new[key] = layout.partition_name(key, columns)
            self.files.make_directory(join(self.version, new[key]))
        return new

    def _take_over(self, new: Mapping[Key, str], present: Mapping[Key, str]) -> dict[str, Any]:
        """INSERT INTO: old files of the partitions that get new rows belong to their new version too."""
        marks = {}
        with self.step("link"):
            if any(key in present for key in new):
                linking.note_own_rows(self.files, self.version)
            for key, name in new.items():
                if key in present:
                    target = join(self.version, name)
                    marks[present[key]] = self.files.fingerprint(present[key])
                    linking.link_tree(self.files, present[key], target, linking.keep_all, self.transaction_id)
        return marks

    def _removed(
        self, table: HiveTable, new: Mapping[Key, str], present: Mapping[Key, str], registered: Mapping[Key, str]
    ) -> list[Change]:
        """Partitions that an overwrite leaves without rows."""
        if self.purpose is Purpose.INSERT_INTO:
            return []
        gone = [key for key in sorted(present) if key not in new and self._in_scope(table, key)]
        return [Change(key, REMOVE, registered[key], self.empty_of(key)) for key in gone if key in registered]

    def _replaces(self, key: Key) -> bool:
        """Whether new rows of a partition replace those that it has.

        The rows of an overwrite by a condition may be of partitions that it does not name.
        """
        if self.purpose is Purpose.INSERT_INTO or self.scope is None:
            return self.purpose is not Purpose.INSERT_INTO
        columns = tuple(self.stored_definition.partition_columns)
        return linking.in_scope(self.scope, key, columns, replaced=True)

    def _in_scope(self, table: HiveTable, key: Key) -> bool:
        if self.scope is None:
            return True
        return linking.in_scope(self.scope, key, table.partition_columns, replaced=False)

    def _base_changes(self) -> dict[Key, Change]:
        """What the earlier statement of the same transaction staged."""
        base = self.document.get("base")
        plan = None if base is None else Plan.load(self.files, base)
        return {} if plan is None else {change.key: change for change in plan.changes}

    def _carried(
        self, based: Mapping[Key, Change], changes: list[Change], registered: Mapping[Key, str]
    ) -> list[Change]:
        """Changes of the earlier statement that this one does not touch: its files get one more name here."""
        done = {change.key for change in changes}
        carried = []
        columns = self.stored_definition.partition_columns
        for key, change in sorted(based.items()):
            if key in done or (change.action == ADD and self.purpose is not Purpose.INSERT_INTO and self._gone(key)):
                continue
            location = self.empty_of(key)
            if change.action != REMOVE:
                location = join(self.version, layout.partition_name(key, tuple(columns)))
                self.files.make_directory(location)
                linking.link_tree(self.files, change.new, location, linking.keep_all, self.transaction_id)
            place = registered.get(key)
            if change.action == ADD and place is not None and self._is_from_base(place):
                change = replace(change, action=SWITCH, old=place)  # The earlier statement has registered it.
            carried.append(replace(change, new=location))
        return carried

    def _is_from_base(self, location: str) -> bool:
        """Whether the earlier statement of the same transaction registered a partition there, without rows."""
        base = self.document.get("base")
        return base is not None and is_below(location, layout.empty_beside(base))

    def _gone(self, key: Key) -> bool:
        """Whether this overwrite removes a partition that only the earlier statement made."""
        scope = self.scope
        return scope is None or linking.in_scope(
            scope, key, tuple(self.stored_definition.partition_columns), replaced=False
        )

    def _add_empty(self, table: HiveTable, plan: Plan) -> None:
        """Register what is missing, without rows, and the directory that stands for no rows."""
        with self.step("add_empty"):
            layout.write_stamp(self.files, self.empty, self.stamp_facts())
            for change in plan.of(ADD, REMOVE):
                self.files.make_directory(self.empty_of(change.key))
            now = self.locations(table, [change.key for change in plan.of(ADD)])
            missing = {change.key: self.empty_of(change.key) for change in plan.of(ADD) if change.key not in now}
            self.metastore.add_partitions(table, self.hive.partitions_of(table, missing))

    # -- publishing ----------------------------------------------------------------------------------------------

    def locations(self, table: HiveTable, keys: Collection[Key]) -> dict[Key, str]:
        """Where the metastore has some partitions now."""
        return {key: part.location for key, part in self.registered(table, keys).items()}

    def commit(self) -> None:
        plan, table = self.existing_plan, self.current()
        if table is None:
            raise self.conflict("it was dropped meanwhile")
        listed = self.registered(table, plan.keys)
        now = {key: part.location for key, part in listed.items()}
        if not published(plan, now):
            self.check_unchanged()
            self._check_partitions(plan, now)
            self.check_staged()
            with self.step("publish"), self.calling():
                self._switch(table, plan, listed)
        if not plan.changes:
            self.mark_published()
        self.complete(table, plan)
        self.tell()

    def _check_partitions(self, plan: Plan, now: Mapping[Key, str]) -> None:
        if changed := unexpected(plan, now, self.empty_of):
            raise self.conflict(f"another writer changed its partition {'/'.join(changed[0])} meanwhile")
        if not plan.only_adds and (written := self._written_to_new(plan)):
            raise self.conflict(f"{written[0]} was written to a new partition of it meanwhile, past twophase")
        # What the earlier statement registered without rows is younger than its stamp, and looked at above.
        replaced = (str(change.old) for change in plan.of(SWITCH, REMOVE))
        self.check_replaced(place for place in replaced if not self._is_from_base(place))
        for directory, mark in plan.marks.items():
            if not linking.is_marked(self.files, directory, mark):
                raise self.conflict(f"files were written to {directory} meanwhile, past the metastore")

    def _written_to_new(self, plan: Plan) -> list[str]:
        """Files that others wrote to the partitions which this transaction has registered without rows."""
        base = self.document.get("base")
        written = self.written_past_us() if plan.of(ADD) else []
        is_based = any(self._is_from_base(change.old) for change in plan.of(SWITCH) if change.old)
        return [*written, *(self.files_in(layout.empty_beside(base)) if base and is_based else ())]

    def _switch(self, table: HiveTable, plan: Plan, listed: Mapping[Key, HivePartition]) -> None:
        """The publish."""
        if plan.only_adds:
            self.metastore.add_partitions(table, self._partitions(table, plan.changes))
        else:
            self.metastore.alter_partitions(table, [self._switched(listed[c.key], c) for c in plan.changes])

    def _switched(self, now: HivePartition, change: Change) -> HivePartition:
        """A partition after the publish: a replaced table's is a new one, an inserted one keeps what it is."""
        if self.effect == REPLACE:
            return replace(now, location=change.new, as_table=True, extra=None)
        return replace(now, location=change.new, as_table=self.purpose is not Purpose.INSERT_INTO)

    def _pending(self, plan: Plan, now: Mapping[Key, str]) -> list[Change]:
        """Changes still to be made where the metastore cannot make all of them in one step."""
        return [change for change in plan.changes if self._is_pending(change, now.get(change.key))]

    def _is_pending(self, change: Change, location: str | None) -> bool:
        if location is None:
            return change.action != REMOVE
        # Anything else is another writer's.
        return not same(location, change.new) and same(location, change.old or self.empty_of(change.key))

    def _roll_forward(self, table: HiveTable, plan: Plan) -> None:
        now = self.locations(table, plan.keys)
        pending = self._pending(plan, now)
        if not pending:
            return
        with self.step("publish"):
            there = [change for change in pending if change.key in now]
            self.metastore.alter_partitions(table, self._partitions(table, there))
            self.metastore.add_partitions(table, self._partitions(table, [c for c in pending if c.key not in now]))

    def _partitions(self, table: HiveTable, changes: Iterable[Change]) -> list[HivePartition]:
        return self.hive.partitions_of(table, {change.key: change.new for change in changes})

    def outcome(self) -> Outcome:
        try:
            plan, table = self.plan, self.current()
            if self._was_published():
                return Outcome.PUBLISHED
            if plan is None or table is None or not published(plan, self.locations(table, plan.keys)):
                return Outcome.NOT_PUBLISHED
        except Exception:  # an unreachable store is no answer
            return Outcome.UNKNOWN
        return Outcome.PUBLISHED

    def _was_published(self) -> bool:
        """Published, and all of it replaced since by another writer."""
        if self.files.exists(join(self.version, PUBLISHED_FILE)) or self.files.exists(join(self.version, RETIRED_FILE)):
            return True
        plan = self.plan
        return plan is not None and any(
            self.files.exists(join(change.new, RETIRED_FILE)) for change in plan.of(SWITCH, ADD)
        )

    # -- afterwards ----------------------------------------------------------------------------------------------

    def complete(self, table: HiveTable, plan: Plan) -> None:
        """Forward-only steps: partitions without rows go; a replaced table gets its new root and properties."""
        if len(plan.changes) > self.metastore.altered_in_one_step:
            self._roll_forward(table, plan)
        if gone := plan.of(REMOVE):
            with self.step("drop_partitions"):
                now = self.locations(table, [change.key for change in gone])
                ours = [change for change in gone if same(now.get(change.key), change.new)]
                self.metastore.drop_partitions(table, self._partitions(table, ours))
        if self.effect == REPLACE and not same(table.location, self.version):
            with self.step("redefine"):
                wanted = self.target(kind=MANAGED)
                changed = replace(table, location=self.version, properties=wanted.properties, comment=wanted.comment)
                self.metastore.alter_table(changed)
        elif self.effect == INSERT:
            self._leave_root(table, plan)

    def _leave_root(self, seen: HiveTable, plan: Plan) -> None:
        """Give a table that lives in a version of ours a root without rows, where partitions have left the one it had.

        What they left stays for readers in flight, and ``ADD PARTITION`` and ``MSCK REPAIR`` of any engine would find
        the rows again. A table at its default location keeps that: sessions that are not attached write there, and a
        rename moves it (see :meth:`twophase.Catalog.partitions_sought`).
        """
        old = str(seen.location)
        if seen.kind != MANAGED or not layout.is_version_place(old):
            return
        if not any(change.old and is_below(change.old, old) for change in plan.of(SWITCH, REMOVE)):
            return
        table = self.current()  # As it is now: most inserts need not ask.
        if table is None or not same(table.location, old):
            return
        with self.step("root"), contextlib.suppress(StampChangedError):  # somebody has replaced the table: as good
            layout.write_stamp(self.files, self.root, self.stamp_facts())
            self.files.persist(self.root)
            # Whether the version was published, its place in the metastore tells no longer.
            if layout.read_stamp(self.files, old) is not None:
                layout.mark_published(self.files, old, self.transaction_id)
            self.metastore.place_table(replace(table, location=self.root), instead_of=table.stored_stamp)

    def finish(self) -> None:
        plan, table = self.plan, self.current()
        if plan is not None and table is not None:
            self.complete(table, plan)
        self.mark_published()
        super().finish()

    def retire(self) -> None:
        plan = self.plan
        if plan is None or self.before is None:
            return
        self.retire_partitions({c.key: c.old for c in plan.of(SWITCH, REMOVE) if c.old is not None})
        if self.effect == REPLACE and not same(self.before["location"], self.version):
            self.retire_table(self.before["location"])
        self.remove_empty()

    def undo(self) -> None:
        table = self.current()
        plan = self.plan
        if table is not None and table.partitioned and plan is not None:
            with self.step("drop_partitions"):
                now = self.locations(table, [change.key for change in plan.of(ADD)])
                added = [change for change in plan.of(ADD) if same(now.get(change.key), self.empty_of(change.key))]
                kept = {parent(join(self.empty, name)) for name in self.written_past_us()} if added else set()
                ours = [change for change in added if self.empty_of(change.key) not in kept]
                self.metastore.drop_partitions(table, self._partitions(table, ours))
        super().undo()

    def compensate(self) -> bool:
        plan, table = self.plan, self.current()
        if plan is None or table is None or self.effect == REPLACE:
            return False
        listed = self.registered(table, plan.keys)
        now = {key: part.location for key, part in listed.items()}
        if plan.loses or any(not same(now.get(change.key), change.new) for change in plan.of(SWITCH, ADD)):
            return False
        if any(change.old is None or not self.files.exists(change.old) for change in plan.of(SWITCH, REMOVE)):
            return False
        with self.step("restore"):
            self._restore(table, plan, listed)
            self.files.remove_file(join(self.version, PUBLISHED_FILE))
        self.tell()
        return True

    def _restore(self, table: HiveTable, plan: Plan, listed: Mapping[Key, HivePartition]) -> None:
        missing = {c.key: c.old for c in plan.of(REMOVE) if c.key not in listed and c.old}
        self.metastore.add_partitions(table, self.hive.partitions_of(table, missing))
        back = {c.key: c.old for c in plan.of(SWITCH, REMOVE) if c.old and c.key not in missing}
        # New partitions lose their rows together with the others.
        added = {c.key: self.empty_of(c.key) for c in plan.of(ADD)}
        layout.write_stamp(self.files, self.empty, self.stamp_facts())
        for place in added.values():
            self.files.make_directory(place)
        wanted = [replace(listed[key], location=place) for key, place in {**back, **added}.items() if key in listed]
        self.metastore.alter_partitions(table, wanted)
        if plan.only_adds:  # Else they were there before the publish, without rows, and go with the abort.
            self.metastore.drop_partitions(table, self.hive.partitions_of(table, added))
        for change in plan.of(SWITCH, REMOVE):
            if change.old:
                layout.unretire(self.files, change.old, self.transaction_id)
        self._restore_root(table)

    def _restore_root(self, table: HiveTable) -> None:
        if self.before is None or not same(table.location, self.root):
            return
        with contextlib.suppress(StampChangedError):  # somebody has replaced the table, root and all
            old = replace(table, location=str(self.before["location"]))
            self.metastore.place_table(old, instead_of=table.stored_stamp)
            if layout.owned_by(self.files, self.root, self.transaction_id):
                self.files.remove_tree(self.root)

    # -- reading inside the transaction --------------------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        table, plan = self.current(), self.plan
        if table is None or plan is None:
            return None
        found = {key: part.location for key, part in by_key(table, self.metastore.list_partitions(table)).items()}
        for change in plan.changes:
            found[change.key] = change.new
        gone = {change.key for change in plan.of(REMOVE)}
        return self.overlay({key: location for key, location in found.items() if key not in gone})
