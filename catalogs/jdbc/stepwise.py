"""A publish in steps, for databases that commit each DDL statement and have no way to rename several tables at once.

The old table moves aside, and the staging table takes the name. A row in the ledger says before that it may: from then
on, whether the staging table is still there says whether the publish happened. What was done of it can be undone, but a
reader may find no table in between: that is level 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import sqlalchemy as sa

from twophase.catalogs.jdbc.database import Table
from twophase.catalogs.jdbc.store import PUBLISHING, Place, Store
from twophase.failpoints import declare, step
from twophase.model import ObjectPath

if TYPE_CHECKING:
    from twophase.catalogs.jdbc.participant import JdbcParticipant

declare("jdbc.mark", "jdbc.move_aside", "jdbc.move_in", "jdbc.record", "jdbc.move_back", "jdbc.unmark")


def swap(member: JdbcParticipant) -> None:
    """Publish a new table. Can be repeated, wherever it ended before."""
    store, place = member.store, member.place
    database, home = store.database, place.ledger.database
    with step("jdbc.mark"), store.begin(home, path=member.path) as connection:
        if PUBLISHING not in store.written(connection, place):
            connection.execute(sa.insert(store.ledger_table(place.ledger)).values(part=PUBLISHING, row_count=0))
    with store.begin(home, path=member.path, read_only=True) as connection:
        moved = is_under_way(store, connection, place)
    if member.effect == "replace" and not moved:
        with step("jdbc.move_aside"), store.begin(home, path=member.path) as connection:
            database.rename(connection, member.target, place.aside)
    with step("jdbc.move_in"), store.begin(home, path=member.path) as connection:
        database.rename(connection, place.staging, member.target)
    record(store, place, member.key, member.path)


def is_published(store: Store, connection: sa.Connection, place: Place, there: Iterable[str]) -> bool:
    """Whether the staging table of a publish in steps has taken its name."""
    names = set(there)
    if place.ledger.name not in names or place.staging.name in names or store.database.ddl_in_transaction:
        return False
    return not store.database.comments_in_ddl and PUBLISHING in store.written(connection, place)


def is_under_way(store: Store, connection: sa.Connection, place: Place) -> bool:
    """Whether a publish in steps has moved the old table aside."""
    if store.database.ddl_in_transaction or store.database.comments_in_ddl:
        return False
    return place.aside.name in store.there(connection, place)


def is_half_made(store: Store, connection: sa.Connection, place: Place) -> bool:
    """Whether a ledger has not got its stamp yet, where that is a step of its own; its name is this transaction's."""
    if store.database.ddl_in_transaction or store.database.comments_in_ddl:
        return False
    return connection.execute(sa.select(store.ledger_table(place.ledger))).first() is None


def record(store: Store, place: Place, key: str, path: ObjectPath) -> None:
    """Say that it happened, durably, before anything is dropped. Idempotent."""
    home = place.ledger.database
    with step("jdbc.record"), store.begin(home, path=path) as connection:
        if not store.was_published(connection, home, key):
            store.record_published(connection, home, key, path)


def undo(store: Store, place: Place, target: Table) -> None:
    """Put the old table back under its name; the staging table is still there. Idempotent."""
    database, home = store.database, place.ledger.database
    with store.begin(home) as connection:
        if PUBLISHING not in store.written(connection, place):
            return
        aside = place.aside.name in store.there(connection, place)
        free = database.table_kind(connection, target) is None
    if aside and free:
        with step("jdbc.move_back"), store.begin(home) as connection:
            database.rename(connection, place.aside, target)
    # Before the staging table goes: without both of them it would look like published.
    with step("jdbc.unmark"), store.begin(home) as connection:
        ledger = store.ledger_table(place.ledger)
        connection.execute(sa.delete(ledger).where(ledger.c.part == PUBLISHING))
