"""Reads of one state of a table: that which it had when a transaction began.

A database has no earlier states to read, unless a transaction of its own was open then (see
:mod:`~twophase.catalogs.jdbc.exported_snapshots`). So the present state is read, as long as it is the one of then: each
part compares the version of the table with the pinned one in its own database transaction, before and after its query.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from twophase.catalog.reading import ReadSource
from twophase.catalog.snapshots import Change
from twophase.catalogs.jdbc import publishing
from twophase.catalogs.jdbc.database import Table
from twophase.catalogs.jdbc.member import Member
from twophase.catalogs.jdbc.reading import Guard, JdbcReader
from twophase.catalogs.jdbc.store import Store
from twophase.errors import SnapshotTooOldError, TableNotExistError
from twophase.model import ObjectPath
from twophase.transactions import failures


@dataclass(frozen=True)
class Version:
    """The version of a table or view.

    Attributes
    ----------
    facts : list
        Columns, the database's identifier of the table, and the last publish by twophase.
    content : list or None
        See :meth:`.Database.content_of_small`; None if the option ``external_writes`` is ``ignore``.
    """

    facts: list[Any]
    content: list[Any] | None

    @classmethod
    def of(cls, store: Store, connection: sa.Connection, path: ObjectPath) -> Version:
        """The version that a database transaction sees."""
        table = Table(path.database, path.name)
        watched = store.settings.external_writes == "conflict"
        content = store.database.content_of_small(connection, table) if watched else None
        return cls(_facts(store, connection, path), content)

    def __str__(self) -> str:
        return json.dumps([self.facts, self.content])


def _facts(store: Store, connection: sa.Connection, path: ObjectPath) -> list[Any]:
    table = Table(path.database, path.name)
    return [
        [[column.name, column.type] for column in store.database.columns(connection, table)],
        store.database.generation(connection, table),
        store.version(connection, store.home(path.database), path),
    ]


@dataclass(frozen=True)
class Pinned(Guard):
    """Each part reads the pinned version, or is refused.

    Attributes
    ----------
    facts, content : list
        As in :class:`Version`; content that is None, or only counted, is not compared.
    """

    facts: list[Any]
    content: list[Any] | None = None

    @classmethod
    def seen(cls, seen: Mapping[str, Any]) -> Pinned:
        """The version that a statement has seen of its target, from :meth:`.Store.seen`."""
        return cls([seen["columns"], seen["generation"], seen["version"]])

    @contextmanager
    def watching(self, store: Store, connection: sa.Connection, table: Table) -> Iterator[None]:
        path = ObjectPath.of(table.database, table.name)
        try:
            store.database.keep_for_reading(connection, table)
            self._check(store, connection, path)
            self._check_content(store, connection, path)
            yield
        except sa.exc.DBAPIError as error:
            self._require(store, path, not store.database.is_replaced(error))
            raise
        self._check(store, connection, path)

    def _check(self, store: Store, connection: sa.Connection, path: ObjectPath) -> None:
        self._require(store, path, _facts(store, connection, path) == self.facts)

    def _check_content(self, store: Store, connection: sa.Connection, path: ObjectPath) -> None:
        if self.content and self.content[0] is not None:
            # In the same snapshot of the database as the query.
            table = Table(path.database, path.name)
            self._require(store, path, store.database.content(connection, table) == self.content)

    @staticmethod
    def _require(store: Store, path: ObjectPath, is_unchanged: bool) -> None:
        if not is_unchanged:
            raise too_old(store, path, "another writer has changed it since")


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
        if store.database.table_kind(connection, Table(path.database, path.name)) is None:
            raise no_table(store, path, changes, version)
        # The record of one that is completed may have been removed.
        reached = [c for c in changes if c.number is not None or is_published(store, connection, path, c)]
        refuse_reached(store, path, reached, version)
        now = Version.of(store, connection, path)
        if version is not None and str(now) != version:
            raise too_old(store, path, "another writer has changed it since")
        return source_of(store, connection, path, Pinned(now.facts, now.content), str(now))


def no_table(
    store: Store, path: ObjectPath, changes: Sequence[Change], version: str | None
) -> TableNotExistError | SnapshotTooOldError:
    """The error for a table that is not there."""
    if version is None and (not changes or any(map(_creates, changes))):
        return TableNotExistError(f"Table {path} does not exist in catalog {store.settings.catalog}.", path=path)
    return too_old(store, path, "it was dropped since")


def refuse_reached(store: Store, path: ObjectPath, reached: Sequence[Change], version: str | None) -> None:
    """Refuse a table that some changes have reached."""
    for change in reached:
        if version is None and _creates(change):
            raise no_table(store, path, reached, version)
        raise too_old(store, path, f"transaction {change.transaction_id} has published to it")


def is_published(store: Store, connection: sa.Connection, path: ObjectPath, change: Change) -> bool:
    """Whether a change is published, as far as a database transaction sees it; True if that is unknown."""
    if not isinstance(change.before, dict):
        return True
    place = store.place_of(store.home(path.database), change.before["place"])
    return publishing.is_recorded(store, connection, place, change.before["participant"])


def source_of(store: Store, connection: sa.Connection, path: ObjectPath, guard: Guard, version: str) -> ReadSource:
    """The source of a table that is read under a guard."""
    table = Table(path.database, path.name)
    columns = store.database.columns(connection, table)
    reader = JdbcReader(store, [table], columns, {table: guard})
    return ReadSource("batches", definition=store.definition(connection, path), reader=reader, version=version)
