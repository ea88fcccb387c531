"""Recipe ``pointer`` for whole tables: the publish is one metastore call that points at a fresh version directory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from twophase.catalogs.files import data_files, same
from twophase.catalogs.hive import layout, linking
from twophase.catalogs.hive.definitions import is_redacted, to_table
from twophase.catalogs.hive.metastore import EXTERNAL, MANAGED, STAMP, HiveTable, StampChangedError, fenced
from twophase.catalogs.hive.participant import INSERT, HiveParticipant
from twophase.failpoints import declare
from twophase.model import Level, TableDefinition
from twophase.reading import ReadSource

STEPS = (
    *("stage", "write", "hidden_table", "link", "register", "publish", "own", "restore", "retire", "drop_hidden"),
    *("undo", "withdraw", "fence", "remove_staging"),
)
declare(*(f"hive.pointer.{name}" for name in STEPS))

#: Data files that the metastore may look at while it publishes, which takes a millisecond or two.
FEW_FILES = 100


class PointerParticipant(HiveParticipant):
    """Shared by the participants of this recipe."""

    recipe: ClassVar[str] = "pointer"
    _published_here = False
    #: Whether what was prepared here has not been published yet, by anybody.
    _untried = False


class PointerCreate(PointerParticipant):
    """CREATE of an unpartitioned table: one ``create_table`` with its LOCATION at the version.

    Only in a metastore that ends with the driver. A server may carry a dead driver's call out after a recovery has
    removed what it publishes; a table without rows would be there then.
    """

    def begin(self) -> None:
        # The catalog has just seen that there is no such table.
        self.hive.check_location(self.path, self.home, self.transaction_id)
        super().begin()

    def prepare(self) -> None:
        self.hive.check_free(self.path, self.home, self.transaction_id, self.is_ours)
        self.inherit()
        self.set_level(Level.ATOMIC)

    def commit(self) -> None:
        if self._published_here or (not self._first_try() and self.is_ours(self.current())):
            return
        self.check_staged()
        with self.step("publish"):
            self.metastore.create_table(self.target())
        self._published_here = True  # The session reads no table of this name now; finish() tells it.

    def _first_try(self) -> bool:
        first, self._untried = self._untried, False
        return first

    def finish(self) -> None:
        if not self._published_here:
            self._own()
        super().finish()

    def _own(self) -> None:
        """After a death between the calls that make a managed table."""
        now = self.current()
        if now is not None and self.is_ours(now) and now.kind != MANAGED:
            with self.step("own"):
                self.metastore.make_managed(self.database, self.path.name)

    def compensate(self) -> bool:
        if not self.is_ours(self.current()):
            return False
        with self.step("restore"):
            self.unmake()
        self._published_here = False
        self.tell()
        return True

    def unmake(self) -> None:
        """Take the table back, so that it can be made again."""
        self.metastore.forget_table(self.database, self.path.name)


class PointerCreateHidden(PointerCreate):
    """CREATE of a partitioned table: made under a hidden name with all its partitions, then renamed in one call.

    Also for tables whose options hold secrets: the metastore has them then, and recovery does not need them. And where
    a managed table takes two calls, or several tables are published: the metastore then looks at the definition, and
    at the files, before the decision. And in a metastore that is a server: a dead driver's renaming that is carried out
    late finds nothing any more. One table of a few files saves the hidden one.
    """

    def prepare(self) -> None:
        self.hive.check_free(self.path, self.home, self.transaction_id, self.is_ours)
        self.document["at_once"] = self._untried = self._at_once()
        if not self.document["at_once"]:
            self.inherit()
            with self.step("register"):
                self.register()
        self.set_level(Level.ATOMIC)

    def _at_once(self) -> bool:
        """Whether the publish makes the table, in one call that is the decision and soon done."""
        stored, metastore = self.stored_definition, self.metastore
        if not (self.document["alone"] and metastore.ends_with_driver and metastore.creates_at_once(self.target())):
            return False
        if stored.partition_columns or is_redacted(stored):
            return False
        return len(data_files(self.files.list(self.version))) <= FEW_FILES

    def register(self) -> None:
        """Make the hidden table, and then every partition of it in one more call."""
        name = self.hidden("table")
        table = self.target(name=name, kind=EXTERNAL)
        self.make_hidden(name, table)
        if not table.partitioned:
            return
        partitions = self._staged_partitions(table)
        self.metastore.add_partitions(table, self.hive.partitions_of(table, partitions))

    def commit(self) -> None:
        if self.document.get("at_once"):
            super().commit()
            return
        if self._published_here or self.is_ours(self.current()):
            return
        self.check_staged()
        with self.step("publish"):
            self.metastore.rename_table(self.database, self.hidden("table"), self.path.name, kind=MANAGED)
        self._published_here = True
        if self._made is not None:
            self._made.discard(self.hidden("table"))
        self.tell()

    def unmake(self) -> None:
        if self.document.get("at_once"):
            super().unmake()
            return
        if self._made is not None:
            self._made.add(self.hidden("table"))
        self.metastore.rename_table(self.database, self.path.name, self.hidden("table"), kind=EXTERNAL)

    def read_source(self) -> ReadSource | None:
        plain = not self.stored_definition.partition_columns and not is_redacted(self.stored_definition)
        if plain or not self.metastore.read_by_session:
            return super().read_source()
        return self.overlay({})


class PointerSwitch(PointerParticipant):
    """REPLACE of, and INSERT into, an unpartitioned table: one call moves its pointer to the new version."""

    changes_table: ClassVar[bool] = True
    fences: ClassVar[bool] = True

    def prepare(self) -> None:
        now = self.check_unchanged()
        self.inherit()
        if self.needs_template(now):
            self.make_template()
        else:
            self.document["holds"] = self._holds()
        self.say_whether_undone(self.effect == INSERT or not is_redacted(self.before_definition))
        self.set_level(*self.reached(now))

    def _holds(self) -> list[int]:
        """Files of the version, and their bytes."""
        rows = data_files(self.files.list(self.version))
        return [len(rows), sum(entry.size for entry in rows)]

    def needs_template(self, now: HiveTable) -> bool:
        """Whether more than location and stamp changes: then a hidden table holds the new definition."""
        return self.effect != INSERT

    def make_template(self) -> None:
        name = self.hidden("table")
        with self.step("register"):
            self.make_hidden(name, self.target(name=name, kind=EXTERNAL))

    def reached(self, now: HiveTable) -> tuple[Level, str | None]:
        """The level of this publish, and why it is not 3."""
        if self.effect == INSERT or self.metastore.replace_in_one_step(now, self.hidden("table")):
            return Level.ATOMIC, None
        if not self.metastore.replaces_tables:
            return Level.UNDONE, "The rows change in one statement of SQL; properties and comment follow in others."
        return Level.UNDONE, (
            "The metastore refuses to change column types in one call: for a moment other engines than Spark see the "
            "table without its columns."
        )

    def commit(self) -> None:
        if self.is_ours(self.current()):
            self.complete()
            return
        now = self._ready()
        with self.step("publish"), self.calling():
            try:
                self.switch(now)
            except StampChangedError:
                # Another writer's publish, which this look refuses, or a fence against the call of a third.
                self._switch_fenced()
        self.tell()

    def _switch_fenced(self) -> None:
        try:
            self.switch(self._ready())
        except StampChangedError as error:
            raise self.conflict("another writer published it meanwhile") from error

    def _ready(self) -> HiveTable:
        """The table that is to be switched."""
        now = self.check_unchanged()
        self.check_inherited()
        self.check_replaced(self.replaced(now))
        # Last: a recovery first says that it rolls this back, and then fences the table.
        self.check_staged()
        return now

    def switch(self, now: HiveTable) -> None:
        """The publish."""
        if self.effect == INSERT:
            wanted = replace(now, location=self.version).with_stamp(self.transaction_id)
            files, size = self.document.get("holds") or self._holds()
            self.metastore.point_table(wanted, files, size, instead_of=now.stored_stamp)
        else:
            name = self.hidden("table")
            self.metastore.replace_table(self.replacement(), name, instead_of=now.stored_stamp)

    def finish(self) -> None:
        self.complete()
        super().finish()

    def complete(self) -> None:
        """Forward-only steps after the publish: columns that a crash between two calls left out."""
        if self.effect == INSERT or self.level is Level.ATOMIC:
            return
        name = self.hidden("table")
        if self.is_ours(self.current()) and self.metastore.get_table(self.database, name) is not None:
            with self.step("publish"):
                self.metastore.replace_table(self.replacement(), name)

    def replacement(self) -> HiveTable:
        """What the table becomes."""
        return self.target(kind=MANAGED)

    def compensate(self) -> bool:
        now, before = self.current(), self.before
        if now is None or before is None or not self.is_ours(now) or not self.files.exists(before["location"]):
            return False
        with self.step("restore"):
            if not self.restore(now, before["location"], before["kind"]):
                return False
            layout.unretire(self.files, before["location"], self.transaction_id)
        self.tell()
        return True

    def restore(self, now: HiveTable, location: str, kind: str) -> bool:
        """Point the table back at what it was."""
        old = self.before_definition
        if self.effect == INSERT:
            self.metastore.alter_table(self.restored(replace(now, location=location, kind=kind)))
            return True
        return self.restore_definition(old, location, kind)

    def restored(self, table: HiveTable) -> HiveTable:
        """The table with the stamp that it had before."""
        assert self.before is not None
        properties = {k: v for k, v in table.properties.items() if k != STAMP}
        stamp = self.before["stamp"]
        if stamp is None:
            return replace(table, properties=properties)
        # No call that waits for the old one shall take this for it.
        stored = stamp if self.metastore.ends_with_driver else fenced(stamp)
        return replace(table, properties={**properties, STAMP: stored})

    def restore_definition(self, old: TableDefinition, location: str, kind: str) -> bool:
        if is_redacted(old):
            return False  # its secrets are gone: the definition cannot be written back
        name = self.hidden(layout.BEFORE)  # The new definition keeps its own: it may be published again.
        wanted = to_table(self.path, old, kind=kind, location=location)
        self.make_hidden(name, replace(wanted, name=name, kind=EXTERNAL).with_stamp(self.transaction_id))
        self.metastore.replace_table(wanted, name)
        now = self.current()
        assert now is not None
        self.metastore.alter_table(self.restored(now))
        self.forget_hidden(name)
        return True


class PointerAppend(PointerSwitch):
    """INSERT INTO an unpartitioned table by a new version, in which all files that are there get one more name.

    It rests on whatever others have published until it is prepared for the last time. From then on nobody else's append
    may come: a file that is renamed into the old version would not be in the new one.
    """

    @property
    def shares_appends(self) -> bool:
        return False

    def prepare(self) -> None:
        now = self.check_unchanged()
        if not self._is_based_on(now):
            self._base_on(now)
        self.document["holds"] = self._holds()
        self.say_whether_undone(True)
        self.set_level(Level.ATOMIC)

    def _is_based_on(self, now: HiveTable) -> bool:
        if "inherit_mark" not in self.document or not same(now.location, self.document.get("inherit")):
            return False
        return now.stamp == self._before_now["stamp"] and linking.is_marked(
            self.files, str(now.location), self.document["inherit_mark"]
        )

    @property
    def _before_now(self) -> dict[str, Any]:
        assert self.before is not None
        return dict(self.before)

    def _base_on(self, now: HiveTable) -> None:
        with self.step("link"):
            linking.note_own_rows(self.files, self.version)
            linking.take_links_out(self.files, self.version)
            self.document["inherit"] = str(now.location)
            self.document["inherit_mark"] = self.files.fingerprint(str(now.location))
            if self.document.get("flattens"):
                linking.link_flat(self.files, str(now.location), self.version, self.transaction_id)
            else:
                linking.link_tree(self.files, str(now.location), self.version, linking.keep_all, self.transaction_id)
        # What is compensated goes back to what it was based on, and that is what it retires.
        self.document["before"] = {**self._before_now, "location": now.location, "stamp": now.stamp}

    def _ready(self) -> HiveTable:
        now = super()._ready()
        if now.stamp != self._before_now["stamp"] or not self.is_unmoved(now):
            raise self.conflict("another writer published it meanwhile")
        return now


__all__ = ["PointerAppend", "PointerCreate", "PointerCreateHidden", "PointerParticipant", "PointerSwitch"]
