"""Base class of the participant: its facts, and the checks before and inside the publish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from twophase.catalog import TwoPhaseCatalogTable
from twophase.catalogs.jdbc import bringing, defaults, schema_conflicts
from twophase.catalogs.jdbc.database import DROPPER, OWNER
from twophase.catalogs.jdbc.store import Place, Store, StoreCatalog
from twophase.errors import WriteConflictError
from twophase.model import WAITING, Level, ObjectPath, Purpose, TableDefinition, WriteContext
from twophase.transactions import failures
from twophase.transactions.failures import of_another_store

CREATE, REPLACE, APPEND, OVERWRITE = "create", "replace", "append", "overwrite"
DROP, ALTER = "drop", "alter"
#: An altered copy takes the table's name.
ALTER_COPY = "alter_copy"
#: Of a renamed table: its new name, and its former one.
RENAME, LEAVE = "rename", "leave"
#: What the documents of a renamed table say of it, whatever its further names and rows.
OF_THE_RENAMED = ("from", "pinned", "read", "arrow")
#: Effects without rows: nothing but the ledger is staged, unless rows follow a RENAME.
WITHOUT_ROWS = (DROP, ALTER, RENAME, LEAVE)


def document_of(path: ObjectPath, purpose: Purpose, effect: str, context: WriteContext, since: float) -> dict[str, Any]:
    """The document of a participant without rows."""
    return {
        **context.document(path, purpose),
        "since": since,
        "effect": effect,
        "autocommit": context.autocommit,
        "takes_over": None,
        "columns": [],
        "level": Level.ATOMIC.value,
    }


class Member(TwoPhaseCatalogTable):
    """The facts of a participant, its target and its hidden tables, and the checks before they are published."""

    #: The columns that get the staged values, by their names when the statement began; None: those of the same names.
    places: Mapping[str, str] | None = None

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        catalog = self.catalog
        assert isinstance(catalog, StoreCatalog)
        return catalog.store

    @property
    def former(self) -> ObjectPath:
        """The table that gets the new name, where it is renamed."""
        return ObjectPath.from_document(self.document["from"])

    @property
    def source(self) -> ObjectPath:
        """The table that rows are added to, by the name that it has before the publish."""
        return self.former if self.effect == RENAME else self.path

    @cached_property
    def place(self) -> Place:
        """The hidden tables."""
        return self.store.place(self.path, self.transaction_id, int(self.document["ordinal"]))

    @property
    def home(self) -> str:
        """The database of the hidden tables."""
        return self.store.home(self.path.database)

    @property
    def key(self) -> str:
        """The key under which the participant's publish is recorded."""
        return f"{self.transaction_id}/{self.document['ordinal']}"

    @property
    def effect(self) -> str:
        """The change of the table: one of the constants above, such as ``create``."""
        return str(self.document["effect"])

    @property
    def swaps(self) -> bool:
        """Whether the target itself becomes another table, or none, instead of getting other rows."""
        return self.effect in (CREATE, REPLACE, DROP, ALTER_COPY)

    @property
    def changes_names(self) -> bool:
        """Whether its publish gives tables other names: MariaDB and MySQL do that in one ``RENAME TABLE``."""
        return self.swaps or self.effect in (RENAME, LEAVE)

    @property
    def has_rows(self) -> bool:
        """Whether rows are staged."""
        return self.effect not in WITHOUT_ROWS or bool(self.document.get("rows"))

    @property
    def is_left(self) -> bool:
        """Whether the table that had the name is there, and gets another one by its transaction."""
        return self.document["seen"] is not None and (self.effect == LEAVE or bool(self.document.get("left")))

    @property
    def preserves(self) -> bool:
        """Whether what belongs to a replaced table is carried over: not if its transaction has dropped it before."""
        return self.effect == REPLACE and not self.document.get("anew")

    @property
    def drops(self) -> bool:
        """Whether the old table goes with all that belongs to it, by a DROP TABLE of its transaction."""
        return self.effect == DROP or bool(self.document.get("anew"))

    @property
    def empties_the_renamed(self) -> bool:
        """Whether the transaction removes the rows of a table that it has renamed, or drops it by its new name."""
        return "emptied" in self.document

    @property
    def drops_the_renamed(self) -> bool:
        """Whether the transaction drops a table by a name that only it gives to the table."""
        return self.effect == DROP and self.empties_the_renamed

    @property
    def shares_appends(self) -> bool:
        return self.effect == APPEND

    @property
    def rights(self) -> Sequence[str]:
        """The rights on the target, as it is before the publish, that the publish takes."""
        if self.document["seen"] is None:
            return ()
        if self.effect in (REPLACE, DROP):
            return (DROPPER,)
        if self.effect not in (APPEND, OVERWRITE) or self.brought.names or "note" in self.document:
            return (OWNER,)
        return ("INSERT", "DELETE") if self.effect == OVERWRITE else ("INSERT",)

    @property
    def dropped(self) -> ObjectPath | None:
        """The table that a DROP TABLE of its transaction takes away, by its present name; None if there is none."""
        if self.drops_the_renamed:
            return self.former
        return self.path if self.drops and self.document["seen"] is not None else None

    @property
    def definition(self) -> TableDefinition:
        """The table after the publish, without its options."""
        return TableDefinition.from_document(self.document["definition"])

    @cached_property
    def brought(self) -> pa.Schema:
        """The columns that the rows bring to the table; none as a rule."""
        return bringing.brought(self.document)

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are written."""
        return [str(name) for name in self.document["columns"]]

    def begin_transaction(self, **facts: Any) -> Any:
        """A database transaction in the database of the hidden tables."""
        return self.store.begin(self.home, path=self.path, transaction_id=self.transaction_id, **facts)

    # -- checks --------------------------------------------------------------------------------------------------

    def check_staged(self, connection: sa.Connection) -> None:
        """Refuse to publish if an abort or ``clean`` has removed the staged rows.

        Raises
        ------
        TransactionAborted
            The staging table is gone.
        """
        there = self.store.there(connection, self.place)
        needed = {self.place.ledger.name, *((self.place.staging.name,) if self.has_rows else ())}
        if not needed <= there:
            raise failures.staging_gone(self.path, self.transaction_id)

    def check_target(self, connection: sa.Connection, *, last: bool = False) -> None:
        """Refuse to publish if the target is no longer in the state that the statement saw.

        Parameters
        ----------
        connection : sqlalchemy.Connection
        last : bool
            Whether the publish follows in the same database transaction. Earlier checks of an autocommit statement do
            not read rows.

        Raises
        ------
        WriteConflictError
        """
        self.check_table(connection)
        if self.empties_the_renamed:
            self._check_emptied(connection)
        if last or not self.document.get("autocommit"):
            for table in self.watched:
                self.check_content(connection, table, lock=last)

    def check_table(self, connection: sa.Connection) -> None:
        """:meth:`check_target` without the rows.

        Raises
        ------
        WriteConflictError
        """
        now = self.store.seen(connection, self.path)
        before: Mapping[str, Any] | None = self.document["seen"]
        if before is None:
            if now is not None:
                raise self.conflict("another writer created it meanwhile")
            return
        if now is None:
            raise self.conflict("it was dropped meanwhile")
        same = now["generation"] == before["generation"]
        renumbered = same and "numbers" in before and now.get("numbers") != before["numbers"]
        if renumbered or now["columns"] != before["columns"] or self.brought.names:
            self.places = self._places(connection, before, is_same_table=same)
        if self.effect != APPEND and (_state(now) != _state(before, now)):
            raise self.conflict("another writer published it meanwhile")
        if self.effect == OVERWRITE and (why := self.store.database.overwrite_reason(connection, self.path)):
            raise self.conflict(f"meanwhile {why}")

    def _places(self, connection: sa.Connection, before: Mapping[str, Any], *, is_same_table: bool) -> dict[str, str]:
        """The columns that get the staged values, of a table whose columns have changed meanwhile.

        Raises
        ------
        ConcurrentSchemaEvolutionError
        """
        columns = self.store.database.columns(connection, self.path)
        is_changed = [[column.name, column.type] for column in columns] != before["columns"]
        is_followed = self.effect == APPEND or (is_same_table and "numbers" in before)
        # The table itself becomes another one, or none, as it was seen: no rows are placed in its columns.
        if self.effect not in (APPEND, OVERWRITE) or (is_changed and not is_followed):
            raise failures.columns_changed(self.path, self.transaction_id)
        return schema_conflicts.places_of_values(
            self.store.settings.strategy,
            self.path,
            self.transaction_id,
            staged=self.definition.schema,
            seen=before,
            columns=columns,
            is_same_table=is_same_table,
            brought=self.brought,
        )

    @property
    def watched(self) -> Mapping[ObjectPath, Any]:
        """The content, as seen, of tables of which changes that other programs make to the rows are a conflict."""
        if self.effect == APPEND:
            return {}
        found = {self.path: (self.document["seen"] or {}).get("content")}
        if self.empties_the_renamed:
            found[self.former] = self.document["emptied"].get("content")
        return {table: content for table, content in found.items() if content is not None}

    def check_content(self, connection: sa.Connection, table: ObjectPath, *, lock: bool = False) -> None:
        """Refuse to publish if another program has committed a change to the rows of a watched table.

        Raises
        ------
        WriteConflictError
        """
        if self.store.database.content(connection, table, lock=lock) != self.watched[table]:
            raise self.conflict("another program changed its rows meanwhile")

    def _check_emptied(self, connection: sa.Connection) -> None:
        """Refuse to publish if the renamed table, whose rows go, is not there, or its rows must not be removed."""
        database = self.store.database
        if database.table_kind(connection, self.former) is None:
            raise self.conflict(f"{self.former} was dropped meanwhile")
        if self.has_rows and (why := database.overwrite_reason(connection, self.former)):
            raise self.conflict(f"meanwhile {why}")

    def conflict(self, why: str) -> WriteConflictError:
        """The error for a conflict with another writer."""
        return failures.changed_meanwhile(self.path, self.transaction_id, why)

    def check_identity(self, connection: sa.Connection | None = None) -> None:
        """Refuse to continue if the rows were staged in another database than the one at the catalog's URL.

        Raises
        ------
        ConfigurationError
        """
        theirs = self.document.get("store")
        if theirs is None:
            return
        if connection is None:
            if not self.store.database_exists(self.home):
                return
            with self.begin_transaction(read_only=True) as connection:
                ours = self.store.identity(connection, self.home)
        else:
            ours = self.store.identity(connection, self.home)
        if ours not in (None, theirs):
            raise of_another_store(
                self,
                theirs=theirs,
                ours=str(ours),
                where=f"{self.home} of {self.store.settings.display_url}",
                options="url",
            )

    # -- rows ----------------------------------------------------------------------------------------------------

    def copy_rows(self, connection: sa.Connection, source: ObjectPath, target: ObjectPath) -> None:
        """Append the rows of one table to another, naming each column."""
        database = self.store.database
        known = {column.name for column in database.columns(connection, target) if not column.generated}
        places = self.places if target == self.path and self.places is not None else {}
        into = {name: places.get(name) if places else name for name in (*self.columns, WAITING)}
        names = {name: place for name, place in into.items() if place in known and place is not None}
        waits = self.may_wait and target == self.path and defaults.any_waits(database, connection, source)
        insert = defaults.insert if waits else defaults.copy
        insert(database, connection, source, target, names)

    @property
    def may_wait(self) -> bool:
        """Whether staged rows may list columns that wait for a value computed by the database."""
        return bool(self.document.get("computed"))


def _state(seen: Mapping[str, Any], now: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
    """The facts that a publish changes. An earlier release stored the version as a list."""
    old = now is not None and isinstance(seen["version"], list)
    return seen["generation"], now["version"] if old and now else seen["version"]
