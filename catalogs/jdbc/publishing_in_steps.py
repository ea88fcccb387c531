"""Non-transactional publish, for databases that commit each DDL statement and cannot rename several tables atomically.

The old table is renamed to its backup, then the staging table is renamed to the target. Before that, a row in the
ledger marks the start: from then on, the publish has happened if the staging table is gone. A partial publish can be
undone, but a reader may find no table in between: the level is ``REVERSIBLE``.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from twophase.catalogs.jdbc.member import Member
from twophase.catalogs.jdbc.store import PUBLISHING, Place, Store
from twophase.failpoints import Failpoint, step
from twophase.model import ObjectPath

MARK = Failpoint("jdbc.mark")
BACK_UP = Failpoint("jdbc.back_up")
MOVE_IN = Failpoint("jdbc.move_in")
RECORD = Failpoint("jdbc.record")
MOVE_BACK = Failpoint("jdbc.move_back")
UNMARK = Failpoint("jdbc.unmark")


def swap(member: Member) -> None:
    """Publish a new table. Idempotent: it resumes from the step at which an earlier attempt stopped."""
    store, place = member.store, member.place
    database, home = store.database, place.ledger.database
    with step(MARK), store.begin(home, path=member.path) as connection:
        if PUBLISHING not in store.written(connection, place):
            connection.execute(sa.insert(store.ledger_table(place.ledger)).values(part=PUBLISHING, row_count=0))
    with store.begin(home, path=member.path, read_only=True) as connection:
        moved = is_under_way(store, connection, place)
    if member.effect == "replace" and not moved:
        with step(BACK_UP), store.begin(home, path=member.path) as connection:
            database.rename(connection, member.path, place.backup)
    with step(MOVE_IN), store.begin(home, path=member.path) as connection:
        database.rename(connection, place.staging, member.path)
    record(store, place, member.key, member.path)


def has_moved_in(store: Store, connection: sa.Connection, place: Place, there: Iterable[str]) -> bool:
    """Whether a publish in steps has renamed the staging table to the target."""
    names = set(there)
    if place.ledger.name not in names or place.staging.name in names or store.database.ddl_in_transaction:
        return False
    return not store.database.comments_in_ddl and PUBLISHING in store.written(connection, place)


def is_under_way(store: Store, connection: sa.Connection, place: Place) -> bool:
    """Whether a publish in steps has renamed the old table to its backup."""
    if store.database.ddl_in_transaction or store.database.comments_in_ddl:
        return False
    return place.backup.name in store.there(connection, place)


def is_half_made(store: Store, connection: sa.Connection, place: Place) -> bool:
    """Whether a ledger still lacks its stamp, which some databases write separately; its name identifies the owner."""
    if store.database.ddl_in_transaction or store.database.comments_in_ddl:
        return False
    return connection.execute(sa.select(store.ledger_table(place.ledger))).first() is None


def record(store: Store, place: Place, key: str, path: ObjectPath) -> None:
    """Record the publish durably, before anything is dropped. Idempotent."""
    home = place.ledger.database
    with step(RECORD), store.begin(home, path=path) as connection:
        store.record_published_once(connection, home, key, path)


def undo(store: Store, place: Place, target: ObjectPath) -> None:
    """Rename the backup to the target again; the staging table still exists. Idempotent."""
    database, home = store.database, place.ledger.database
    with store.begin(home) as connection:
        if PUBLISHING not in store.written(connection, place):
            return
        moved = place.backup.name in store.there(connection, place)
        free = database.table_kind(connection, target) is None
    if moved and free:
        with step(MOVE_BACK), store.begin(home) as connection:
            database.rename(connection, place.backup, target)
    # Before the staging table is dropped: the mark without a staging table would mean that it was published.
    with step(UNMARK), store.begin(home) as connection:
        ledger = store.ledger_table(place.ledger)
        connection.execute(sa.delete(ledger).where(ledger.c.part == PUBLISHING))
