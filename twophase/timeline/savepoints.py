"""Named savepoints: which tables a savepoint keeps, in which state, and until when."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import sqlalchemy as sa

from twophase.errors import ConfigurationError, TransactionAborted
from twophase.model import ObjectPath
from twophase.timeline.tables import path_text, savepoint_tables, savepoints

#: The last time at which one may expire, in seconds since the epoch: timestamps end with 9999, in any time zone.
LAST = 253_370_764_800.0


class SavepointState(Enum):
    """The state of a savepoint; it can be read and restored only while it is ``READY``."""

    CREATING = "creating"
    READY = "ready"
    DROPPING = "dropping"


@dataclass(frozen=True)
class KeptTable:
    """A table of a savepoint.

    Attributes
    ----------
    catalog : str
        The catalog's name in the session.
    path : ObjectPath
    document : mapping
        What the catalog needs to find the kept state.
    """

    catalog: str
    path: ObjectPath
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The table with its catalog."""
        return f"{self.catalog}.{self.path}"


@dataclass(frozen=True)
class SavepointRecord:
    """A named savepoint on the timeline.

    Attributes
    ----------
    id : str
        Names what the stores keep for it.
    name : str
        Unique on the timeline.
    transaction_id : str
        The transaction that creates it.
    user : str
    databases : tuple of (str, str)
        Catalog and name of the databases that it contains as a whole.
    tables : tuple of KeptTable
        All of its tables, those of these databases included.
    keep_seconds : float or None
        How long it is kept; None: until it is dropped.
    state : SavepointState
    created, expires : float or None
        Seconds since the epoch, by the clock of the timeline.
    number : int or None
        The last commit number in it.
    """

    id: str
    name: str
    transaction_id: str
    user: str = ""
    databases: tuple[tuple[str, str], ...] = ()
    tables: tuple[KeptTable, ...] = ()
    keep_seconds: float | None = None
    state: SavepointState = SavepointState.CREATING
    created: float | None = None
    expires: float | None = None
    number: int | None = None

    def is_expired(self, now: float) -> bool:
        """Return whether its time is over."""
        return self.expires is not None and self.expires <= now

    def is_usable(self, now: float) -> bool:
        """Return whether it can be read and restored."""
        return self.state is SavepointState.READY and not self.is_expired(now)

    def to_document(self) -> dict[str, Any]:
        """Convert it to a document for JSON output."""
        return {
            "name": self.name,
            "state": self.state.value,
            "created": self.created,
            "expires": self.expires,
            "user": self.user,
            "number": self.number,
            "databases": [f"{catalog}.{database}" for catalog, database in self.databases],
            "tables": [table.name for table in self.tables],
        }


def add(connection: sa.Connection, record: SavepointRecord, now: float) -> SavepointRecord:
    """Insert a savepoint that is being created.

    Raises
    ------
    ConfigurationError
        There is one of this name.
    """
    expires = None if record.keep_seconds is None else now + record.keep_seconds
    row = {
        "id": record.id,
        "name": record.name,
        "state": record.state.value,
        "transaction_id": record.transaction_id,
        "user": record.user[:255],
        "created": now,
        "expires": expires,
        "databases": json.dumps([list(database) for database in record.databases], ensure_ascii=False),
    }
    if connection.scalar(sa.select(savepoints.c.id).where(savepoints.c.name == record.name)) is not None:
        raise taken(record.name)
    try:
        connection.execute(savepoints.insert().values(row))
    except sa.exc.IntegrityError:
        raise taken(record.name) from None
    if rows := [_table_row(record.id, ordinal, table) for ordinal, table in enumerate(record.tables)]:
        connection.execute(savepoint_tables.insert(), rows)
    return replace(record, created=now, expires=expires)


def _table_row(savepoint_id: str, ordinal: int, table: KeptTable) -> dict[str, Any]:
    return {
        "savepoint_id": savepoint_id,
        "ordinal": ordinal,
        "catalog": table.catalog,
        "path": path_text(table.path),
        "document": json.dumps(table.document, ensure_ascii=False),
    }


def taken(name: str) -> ConfigurationError:
    """Return the error for a name that is taken."""
    return ConfigurationError(
        f"There is a savepoint {name} already; nothing was changed.",
        hint=f"Give it another name, or drop the other one first: DROP SAVEPOINT {name}",
    )


def complete(connection: sa.Connection, savepoint_id: str, documents: Iterable[Mapping[str, Any]], number: int) -> None:
    """Record that all tables of a savepoint are kept, with their final documents.

    Raises
    ------
    TransactionAborted
        It has been removed meanwhile.
    """
    c = savepoints.c
    is_ours = (c.id == savepoint_id) & (c.state != SavepointState.DROPPING.value)
    ready = savepoints.update().where(is_ours).values(state=SavepointState.READY.value, number=number)
    if connection.execute(ready).rowcount != 1:
        raise TransactionAborted("The savepoint was removed by another process while it was created.")
    t = savepoint_tables.c
    for ordinal, document in enumerate(documents):
        one = (t.savepoint_id == savepoint_id) & (t.ordinal == ordinal)
        stored = json.dumps(document, ensure_ascii=False)
        connection.execute(savepoint_tables.update().where(one).values(document=stored))


def load(connection: sa.Connection, name: str | None = None) -> list[SavepointRecord]:
    """Load savepoints with their tables, the newest first; only that of a name, if there is one."""
    wanted = sa.true() if name is None else savepoints.c.name == name
    rows = connection.execute(sa.select(savepoints).where(wanted).order_by(savepoints.c.created.desc())).mappings()
    tables = _tables(connection, wanted)
    return [
        SavepointRecord(
            id=row["id"],
            name=row["name"],
            transaction_id=row["transaction_id"],
            user=row["user"],
            databases=tuple((catalog, database) for catalog, database in json.loads(row["databases"])),
            tables=tuple(tables[row["id"]]),
            keep_seconds=None if row["expires"] is None else row["expires"] - row["created"],
            state=SavepointState(row["state"]),
            created=row["created"],
            expires=row["expires"],
            number=row["number"],
        )
        for row in rows.all()
    ]


def _tables(connection: sa.Connection, wanted: sa.ColumnElement[bool]) -> dict[str, list[KeptTable]]:
    """The tables of the savepoints that fulfil a condition, by the savepoint's id: one query for all of them."""
    t = savepoint_tables.c
    query = sa.select(t.savepoint_id, t.catalog, t.path, t.document).order_by(t.ordinal)
    found: dict[str, list[KeptTable]] = defaultdict(list)
    for row in connection.execute(query.join(savepoints, savepoints.c.id == t.savepoint_id).where(wanted)):
        path = ObjectPath.from_document(json.loads(row.path))
        found[row.savepoint_id].append(KeptTable(row.catalog, path, json.loads(row.document)))
    return found


def drop(connection: sa.Connection, savepoint_id: str) -> None:
    """Record that a savepoint is being removed. Idempotent."""
    dropping = savepoints.update().where(savepoints.c.id == savepoint_id)
    connection.execute(dropping.values(state=SavepointState.DROPPING.value))


def forget(connection: sa.Connection, savepoint_id: str) -> None:
    """Delete a savepoint with its tables. Idempotent."""
    connection.execute(savepoint_tables.delete().where(savepoint_tables.c.savepoint_id == savepoint_id))
    connection.execute(savepoints.delete().where(savepoints.c.id == savepoint_id))
