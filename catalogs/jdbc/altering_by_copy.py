"""ALTER TABLE as a statement of a transaction in MariaDB and MySQL, where an ALTER TABLE commits by itself.

The server copies the table under a hidden name, and alters the copy: so whatever it refuses, also for the sake of the
rows, is refused by the statement. The publish gives the copy the table's name, in the one ``RENAME TABLE`` of all
tables that the transaction creates or replaces. Until then the transaction reads the copy.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from twophase.catalog import TableChange
from twophase.catalogs.jdbc import altering, staged_changes
from twophase.catalogs.jdbc.database import Database
from twophase.catalogs.jdbc.member import ALTER_COPY, REPLACE, Member, document_of
from twophase.catalogs.jdbc.planning import watched
from twophase.catalogs.jdbc.preserving import preserver
from twophase.catalogs.jdbc.store import TAKEN_OVER, Store
from twophase.errors import AtomicityNotSupportedError
from twophase.failpoints import Failpoint, step
from twophase.model import ObjectPath, Purpose, TableDefinition, WriteContext
from twophase.redaction import redact

ALTER = Failpoint("jdbc.alter_copy")

#: The next value of an AUTO_INCREMENT, which every row changes.
_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")
_COUNTED = "SELECT AUTO_INCREMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = :schema AND TABLE_NAME = :name"


def plan(
    store: Store,
    path: ObjectPath,
    seen: Mapping[str, Any],
    changes: Sequence[TableChange],
    context: WriteContext,
    since: float,
) -> dict[str, Any]:
    """Return the document of a participant that publishes an altered copy of a table.

    Parameters
    ----------
    store : Store
    path : ObjectPath
    seen : mapping
        The state of the table, from :meth:`.Store.seen`, or as an earlier statement of the transaction has seen it.
    changes : sequence of TableChange
    context : WriteContext
    since : float
        When the statement began.

    Raises
    ------
    AtomicityNotSupportedError
        A copy would not have all of the table.
    """
    base = context.base
    with store.begin(path.database, path=path, read_only=True) as connection:
        if reason := store.database.writable_reason(connection, path):
            raise _refused(path, context.transaction_id, reason)
        _check_kept(store.database, connection, path, context.transaction_id)
        facts = {
            "seen": watched(store, connection, path, REPLACE, seen),
            "shown": base["shown"] if base else _digest(_shown(store.database, connection, path)),
        }
        # Until the copy is altered.
        definition = staged_changes.without_secrets(store.definition(connection, path))
    earlier = base["statements"] if base else []
    return {
        **document_of(path, Purpose.ALTER_TABLE, ALTER_COPY, context, since),
        **facts,
        "definition": definition.to_document(),
        "statements": [*earlier, [staged_changes.to_document(change) for change in changes]],
    }


def _refused(path: ObjectPath, transaction_id: str, why: str) -> AtomicityNotSupportedError:
    return AtomicityNotSupportedError(
        f"{path} cannot be altered in transaction {transaction_id}, which would publish an altered copy of it: {why}. "
        "Nothing was changed.",
        path=path,
        transaction_id=transaction_id,
        hint="Alter it before or after the transaction.",
    )


def _check_kept(database: Database, connection: sa.Connection, path: ObjectPath, transaction_id: str) -> None:
    lost = preserver(connection, database, path, path, frozenset()).dependents()
    if lost:
        raise _refused(path, transaction_id, f"{', '.join(lost)} would be lost")


def _shown(database: Database, connection: sa.Connection, table: ObjectPath) -> str:
    """The definition of a table, whatever its name."""
    text = str(database.run(connection, f"SHOW CREATE TABLE {database.name(table)}").one()[1])
    return _COUNTER.sub("", text.partition("\n")[2])


def _digest(text: str) -> str:
    """The digest of a definition for a document: its comment may hold secrets."""
    return hashlib.sha256(text.encode()).hexdigest()


def _lines(text: str) -> list[str]:
    return [line.strip().removesuffix(",") for line in text.splitlines()]


# -- staging -----------------------------------------------------------------------------------------------------------


def is_made(member: Member, connection: sa.Connection) -> bool:
    """Return whether the altered copy is complete."""
    return TAKEN_OVER in member.store.written(connection, member.place)


def make(member: Member) -> TableDefinition:
    """Copy the table with its rows, alter the copy, and return the definition of it.

    Raises
    ------
    WriteConflictError
        Another program has changed the rows since the statement began.
    CatalogError, SchemaError
        A change is not possible.
    """
    store, staging = member.store, member.place.staging
    database = store.database
    with member.begin_transaction() as connection:
        database.drop(connection, staging)  # Of an attempt that was cut off.
        database.run(connection, f"CREATE TABLE {database.name(staging)} LIKE {database.name(member.path)}")
        _check_copied(member, connection, staging)
    with member.begin_transaction(snapshot=True) as connection:
        _copy_rows(member, connection)
    with step(ALTER), member.begin_transaction() as connection:
        _keep_counter(member, connection)
        for changes in staged_changes.statements_of(member.document):
            altering.apply(database, connection, member.path, changes, staging)
        definition = store.definition(connection, staging)
    with member.begin_transaction() as connection:
        ledger = store.ledger_table(member.place.ledger)
        connection.execute(sa.insert(ledger).values(part=TAKEN_OVER, row_count=0))
    return staged_changes.without_secrets(definition)


def _check_copied(member: Member, connection: sa.Connection, staging: ObjectPath) -> None:
    database = member.store.database
    made, shown = _lines(_shown(database, connection, staging)), _shown(database, connection, member.path)
    _check_same(member, shown)
    if lost := [line for line in _lines(shown) if line not in made]:
        raise _refused(member.path, member.transaction_id, redact(f"{'; '.join(lost)} would be lost"))


def _copy_rows(member: Member, connection: sa.Connection) -> None:
    database = member.store.database
    for table in member.watched:
        member.check_content(connection, table, lock=True)  # So that no other writer comes between this and the copy.
    names = ", ".join(database.quote(c.name) for c in database.columns(connection, member.path) if not c.generated)
    database.run(
        connection,
        f"INSERT INTO {database.name(member.place.staging)} ({names}) SELECT {names} FROM {database.name(member.path)}",
    )


def _keep_counter(member: Member, connection: sa.Connection) -> None:
    target, database = member.path, member.store.database
    found = connection.scalar(sa.text(_COUNTED), {"schema": target.database, "name": target.name})
    if found is not None:
        database.run(connection, f"ALTER TABLE {database.name(member.place.staging)} AUTO_INCREMENT = {int(found)}")


# -- publishing --------------------------------------------------------------------------------------------------------


def check_unchanged(member: Member, connection: sa.Connection) -> None:
    """Refuse to publish the copy of a table that another session has altered since.

    Raises
    ------
    WriteConflictError
    """
    database, target = member.store.database, member.path
    found = preserver(connection, database, target, target, frozenset()).dependents()
    if found:
        raise member.conflict(f"meanwhile it was given what its altered copy would not have: {', '.join(found)}")
    _check_same(member, _shown(database, connection, target))


def _check_same(member: Member, shown: str) -> None:
    if _digest(shown) != member.document["shown"]:
        raise member.conflict("another session has altered it meanwhile")
