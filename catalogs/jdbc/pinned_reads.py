"""Reads of one state of a table: that which it had when a transaction began.

A database has no earlier states to read, unless a transaction of its own was open then (see
:mod:`~twophase.catalogs.jdbc.exported_snapshots`). So the present state is read, as long as it is the one of then: each
part compares the version of the table with the pinned one in its own database transaction, before and after its query.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from twophase.catalog.reading import ReadSource
from twophase.catalog.snapshots import Change
from twophase.catalogs.jdbc import definitions, publishing
from twophase.catalogs.jdbc.database import Column
from twophase.catalogs.jdbc.member import Member
from twophase.catalogs.jdbc.reading import Guard, JdbcReader
from twophase.catalogs.jdbc.store import Store
from twophase.errors import SnapshotTooOldError, TableNotExistError
from twophase.model import ObjectPath, TableDefinition
from twophase.transactions import failures


@dataclass(frozen=True)
class Version(Guard):
    """The version of a table or view; as a guard, each part reads this version, or is refused.

    Attributes
    ----------
    facts : list
        Columns, the database's identifier of the table, and the last publish by twophase.
    content : list or None
        See :meth:`.Database.content_of_small`; None if the option ``external_writes`` is ``ignore``. Content that is
        None, or only counted, is not compared.
    """

    facts: list[Any]
    content: list[Any] | None = None

    @classmethod
    def of(cls, store: Store, connection: sa.Connection, path: ObjectPath) -> Version:
        """The version that a database transaction sees."""
        watched = store.settings.external_writes == "conflict"
        content = store.database.content_of_small(connection, path) if watched else None
        return cls(_facts(store, connection, path), content)

    @classmethod
    def seen(cls, seen: Mapping[str, Any]) -> Version:
        """The version that a statement has seen of its target, from :meth:`.Store.seen`."""
        return cls([seen["columns"], seen["generation"], seen["version"]])

    def __str__(self) -> str:
        return json.dumps([self.facts, self.content])

    @contextmanager
    def watching(self, store: Store, connection: sa.Connection, path: ObjectPath) -> Iterator[None]:
        try:
            store.database.keep_for_reading(connection, path)
            self._check(store, connection, path)
            if self.content and self.content[0] is not None:
                # In the same snapshot of the database as the query.
                require(store, path, store.database.content(connection, path) == self.content)
            yield
        except sa.exc.DBAPIError as error:
            require(store, path, not store.database.is_replaced(error))
            raise
        self._check(store, connection, path)

    def _check(self, store: Store, connection: sa.Connection, path: ObjectPath) -> None:
        require(store, path, _facts(store, connection, path) == self.facts)


def _facts(store: Store, connection: sa.Connection, path: ObjectPath) -> list[Any]:
    return [
        [[column.name, column.type] for column in store.database.columns(connection, path)],
        store.database.generation(connection, path),
        store.version(connection, store.home(path.database), path),
    ]


def require(
    store: Store, path: ObjectPath, is_unchanged: bool, why: str = "another writer has changed it since"
) -> None:
    """Refuse a table whose state of then is gone.

    Raises
    ------
    SnapshotTooOldError
    """
    if not is_unchanged:
        raise too_old(store, path, why)


def too_old(store: Store, path: ObjectPath, why: str) -> SnapshotTooOldError:
    """The error for a table whose state of then is gone."""
    return failures.snapshot_too_old(f"{store.settings.catalog}.{path}", why)


def replaced_state(member: Member) -> dict[str, Any]:
    """The document that a publish records of the state that it replaces, and where the publish itself is recorded."""
    return {"exists": member.document["seen"] is not None, "place": member.place.key, "participant": member.key}


def _creates(change: Change) -> bool:
    return isinstance(change.before, dict) and change.before.get("exists") is False


def source_before(store: Store, path: ObjectPath, changes: Sequence[Change], version: str | None) -> ReadSource:
    """Return the source of a table's present state, if it is the one before some changes and has the version.

    Raises
    ------
    TableNotExistError
        One of the changes has created it.
    SnapshotTooOldError
        The table has changed.
    """
    if not store.database_exists(path.database):
        raise no_table(store, path, changes, version)
    with store.begin(path.database, path=path, read_only=True, snapshot=True) as connection:
        if store.database.table_kind(connection, path) is None:
            raise no_table(store, path, changes, version)
        # The record of one that is completed may have been removed.
        reached = [c for c in changes if c.number is not None or is_visible(store, connection, path, c)]
        refuse_reached(store, path, reached, version)
        now = Version.of(store, connection, path)
        require(store, path, version in (None, str(now)))
        return source_of(store, connection, path, now, str(now))


def no_table(
    store: Store, path: ObjectPath, changes: Sequence[Change], version: str | None
) -> TableNotExistError | SnapshotTooOldError:
    """The error for a table that is not there."""
    if version is None and (not changes or any(map(_creates, changes))):
        return TableNotExistError.of(path, store.settings.catalog)
    return too_old(store, path, "it was dropped since")


def refuse_reached(store: Store, path: ObjectPath, reached: Sequence[Change], version: str | None) -> None:
    """Refuse a table that some changes have reached."""
    for change in reached:
        if version is None and _creates(change):
            raise no_table(store, path, reached, version)
        raise too_old(store, path, f"transaction {change.transaction_id} has published to it")


def is_visible(store: Store, connection: sa.Connection, path: ObjectPath, change: Change) -> bool:
    """Whether a change is published, as far as a database transaction sees it; True if that is unknown."""
    if not isinstance(change.before, dict):
        return True
    place = store.place_of(store.home(path.database), change.before["place"])
    return publishing.is_recorded(store, connection, place, change.before["participant"])


def columns_read(columns: Sequence[Column]) -> dict[str, Any]:
    """The facts of a document from which :func:`source_as_planned` has the columns of a table."""
    kinds = pa.schema([(column.name, column.arrow) for column in columns])
    return {"read": [[c.name, c.type] for c in columns], "arrow": TableDefinition(kinds).to_document()}


def source_as_planned(
    member: Member, table: ObjectPath, pinned: Mapping[str, Any] | None, source: Callable[[str], str] | None = None
) -> ReadSource:
    """The source of a table whose definition its transaction changes, with the columns of when that was planned.

    In a snapshot the table is ``pinned`` to the state that was seen: rows that others have added since are not read.
    """
    kinds = TableDefinition.from_document(member.document["arrow"]).schema
    columns = [Column(name, text, kinds.field(name).type) for name, text in member.document["read"]]
    guards = {} if pinned is None else {table: Version.seen(pinned)}
    reader = JdbcReader(member.store, [table], columns, guards, source=source)
    return ReadSource("batches", definition=definitions.as_read(member.definition), reader=reader)


def source_of(store: Store, connection: sa.Connection, path: ObjectPath, guard: Guard, version: str) -> ReadSource:
    """The source of a table that is read under a guard."""
    reader = JdbcReader(store, [path], store.database.columns(connection, path), {path: guard})
    return ReadSource("batches", definition=store.definition(connection, path), reader=reader, version=version)
