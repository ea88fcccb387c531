"""Publish, outcome lookup and cleanup of participants.

PostgreSQL and SQLite have transactional DDL: the swap, the row that records it, and dropping the ledger are one
transaction. MariaDB and MySQL commit at each DDL statement; there a single ``RENAME TABLE`` renames the old tables to
their backups, moves the new ones in, gives renamed ones their new names, and renames each ledger to the name that
records the publish. The rows of an insert are one transaction there, too.

A publish holds a lock while it runs. An outcome lookup takes the same lock first, and so waits for a commit that is
still in progress; if that takes too long, the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from twophase.catalogs.jdbc import (
    altering_by_copy,
    bringing,
    errors,
    preserving,
    publishing_in_steps,
    staged_changes,
    table_locks,
)
from twophase.catalogs.jdbc.member import (
    ALTER,
    ALTER_COPY,
    APPEND,
    CREATE,
    DROP,
    LEAVE,
    OVERWRITE,
    RENAME,
    REPLACE,
    Member,
)
from twophase.catalogs.jdbc.mysql import MySQL
from twophase.catalogs.jdbc.store import Place, Store
from twophase.errors import CatalogError
from twophase.failpoints import Failpoint, step
from twophase.model import ObjectPath

DROP_STAGING = Failpoint("jdbc.drop_staging")
DROP_LEDGER = Failpoint("jdbc.drop_ledger")
DROP_BACKUP = Failpoint("jdbc.drop_backup")
DROP_DONE = Failpoint("jdbc.drop_done")


def group_key(member: Member) -> str | None:
    """Key for grouping: members with the same key can be published together, atomically."""
    store = member.store
    database = store.database
    with suppress(CatalogError):  # A database that does not answer cannot publish either.
        store.learn(member.home, member.path)
    group = database.group(member.home)
    if group is None:
        return None
    where = f"{store.settings.display_url} {group}"
    return where if database.ddl_in_transaction else f"{where} {'rename' if member.changes_names else 'rows'}"


@contextmanager
def exclusive(
    store: Store, home: str, keys: Sequence[str], *, path: object = None, transaction_id: str | None = None
) -> Iterator[sa.Connection]:
    """A database transaction during which no other publish or outcome lookup of these participants runs."""
    store.learn(home, path)
    with (
        errors.speaking(store.settings, path=path, transaction_id=transaction_id),
        store.database.exclusive(store.engine(home), home, sorted(keys)) as connection,
    ):
        yield connection


def publish(store: Store, members: Sequence[Member]) -> None:
    """Publish one or several participants of one database atomically. Idempotent."""
    first = members[0]
    keys = [member.place.key for member in members]
    renaming = store.database if first.changes_names and isinstance(store.database, MySQL) else None
    if isinstance(store.database, MySQL):  # Of two that replace a table, the second is to see what the first did.
        keys += [store.target_key(member.path) for member in members if member.effect != APPEND]
    with exclusive(store, first.home, keys, path=first.path, transaction_id=first.transaction_id) as connection:
        store.database.begin_publish(connection)
        first.check_identity(connection)
        waiting = [m for m in members if not is_recorded(store, connection, m.place, m.key)]
        for member in waiting:
            with _errors_of(member):
                _lock_and_check(store, connection, member, last=renaming is None)
        if waiting and renaming is not None:
            _rename(renaming, connection, waiting)
            return
        if waiting and first.swaps and not store.database.ddl_in_transaction:
            publishing_in_steps.swap(first)
            return
        _give_names(store, connection, waiting)
        for member in waiting:
            with _errors_of(member):
                _apply(member, connection)
            if store.database.ddl_in_transaction:
                for table in (member.place.staging, member.place.ledger):
                    store.database.drop(connection, table)
        # Last, and in a fixed order: from here on, other publishes into these tables wait for this one.
        for member in sorted(waiting, key=lambda member: store.target_key(member.path)):
            store.record_published(connection, member.home, member.key, member.path)


def _errors_of(member: Member) -> AbstractContextManager[None]:
    """Raise the database's errors as those of this table, and not of the first one that is published with it."""
    return errors.speaking(member.store.settings, path=member.path, transaction_id=member.transaction_id)


def _lock_and_check(store: Store, connection: sa.Connection, member: Member, *, last: bool) -> None:
    member.check_staged(connection)
    if publishing_in_steps.is_under_way(store, connection, member.place):
        return
    # For new columns the lock of an ALTER TABLE: two that first share one would wait for each other.
    alters = member.brought.names or member.effect == ALTER or member.is_left or member.drops
    store.database.lock_target(connection, member.path, REPLACE if alters else member.effect)
    if member.empties_the_renamed:
        store.database.lock_target(connection, member.former, REPLACE)
    member.check_target(connection, last=last)


def _give_names(store: Store, connection: sa.Connection, members: Sequence[Member]) -> None:
    """Rename tables, before new ones get the names that they leave."""
    for member in members:
        if member.drops_the_renamed:
            store.database.drop(connection, member.former)
        if member.effect == RENAME and member.drops and member.document["seen"] is not None:
            store.database.drop(connection, member.path)
    for old, new in _renames(store, members):
        store.database.rename(connection, old, new)


def _renames(store: Store, members: Sequence[Member]) -> list[tuple[ObjectPath, ObjectPath]]:
    """Return the renames of tables, as old and new names, in an order in which each new name is free.

    A table that is dropped by its new name gets a hidden one, where it is not dropped before.
    """
    canonical = store.database.canonical
    left = {canonical(m.former): (m.former, m) for m in members if m.effect == RENAME}
    if not store.database.ddl_in_transaction:
        left |= {canonical(m.former): (m.former, m) for m in members if m.drops_the_renamed}
    result = []
    while left:
        free = [key for key, (_, member) in left.items() if canonical(_new_name(member)) not in left]
        if free:
            table, member = left.pop(free[0])
            result.append((table, _new_name(member)))
        else:  # They exchange their names: one makes room, by a name that none but this publish ever sees.
            table, member = left.pop(next(iter(left)))
            hidden = ObjectPath.of(table.database, member.place.backup.name)
            result.append((table, hidden))
            left[canonical(hidden)] = hidden, member
    return result


def _new_name(member: Member) -> ObjectPath:
    return member.place.backup if member.drops_the_renamed else member.path


def _apply(member: Member, connection: sa.Connection) -> None:
    """Apply the statement to the target, inside a database transaction."""
    database, place = member.store.database, member.place
    if member.effect == DROP:
        # Else it was this transaction's own, or has another name now: one that is there now is another.
        if member.document["seen"] is not None and not member.is_left:
            database.drop(connection, member.path)
        return
    if member.effect == ALTER:
        staged_changes.apply(member, connection)
        return
    if member.effect == LEAVE:
        return  # The new name has taken the table away.
    if member.effect == RENAME and not member.has_rows:
        return
    if member.effect == OVERWRITE or member.empties_the_renamed:
        database.delete_all(connection, member.path)
    if not member.swaps:
        if member.brought.names:
            there = [column.name for column in database.columns(connection, member.path)]
            bringing.add(database, connection, member.path, member.brought, there)
        member.copy_rows(connection, place.staging, member.path)
        if "note" in member.document:
            database.set_comment(connection, member.path, member.document["note"])
    elif member.effect == CREATE:
        database.rename(connection, place.staging, member.path)
    elif member.preserves:
        preserving.swap(member, connection, lambda: _exchange(member, connection))
    else:
        _exchange(member, connection)


def _exchange(member: Member, connection: sa.Connection) -> None:
    member.store.database.drop(connection, member.path)
    member.store.database.rename(connection, member.place.staging, member.path)


def _rename(database: MySQL, connection: sa.Connection, members: Sequence[Member]) -> None:
    backed_up = [m for m in members if m.effect in (REPLACE, ALTER_COPY) or m.dropped == m.path]
    pairs = [(m.path, m.place.backup) for m in backed_up]
    pairs += _renames(members[0].store, members)
    pairs += [(m.place.staging, m.path) for m in members if m.effect not in (DROP, LEAVE, RENAME)]
    pairs += [(m.place.ledger, m.place.done) for m in members]
    watched = {table: member for member in members for table in member.watched}
    if not watched:
        _check_alone(connection, members)
        database.rename_all(connection, pairs)
        return
    store, home = members[0].store, members[0].home
    # What belongs to a dropped table goes with it; a WRITE would also lock what its triggers write.
    kinds = {table: table_locks.READ if m.drops else table_locks.WRITE for table, m in watched.items()}
    database.run(connection, "COMMIT")  # What it has read would keep the others from their locks.
    with table_locks.held(database, store.engine(home), kinds, store.settings.display_url) as locks:
        for table, member in watched.items():
            if locks is None:
                member.check_content(connection, table, lock=True)
                member.check_table(connection)  # Nothing had kept others from it since the first look.
            else:
                member.check_content(locks.connection_of(table), table)
                locks.keep_meanwhile()
        if locks is None:
            _check_alone(connection, members)
            database.rename_all(connection, pairs)
            return
        locks.take_alone()
        _check_alone(connection, members)
        for table, member in watched.items():
            member.check_table(connection)
            if locks.is_awaited(table):
                raise member.conflict("another session waits to define it anew")
            # Without transactions rows wait elsewhere, and may have got in between the locks.
            if not member.drops and database.writable_reason(connection, table):
                member.check_content(locks.connection_of(table), table)
        others = [old for old, _ in pairs if old not in watched and not store.is_hidden(old.name)]
        try:
            with locks.given_to(connection, others):
                database.rename_all(connection, pairs)
        except DBAPIError:
            if locks.overtaken is None:
                raise
            raise watched[locks.overtaken].conflict("another session waits to define it anew") from None


def _check_alone(connection: sa.Connection, members: Sequence[Member]) -> None:
    for member in members:
        if member.effect == ALTER_COPY:
            altering_by_copy.check_unchanged(member, connection)
        elif member.preserves:
            preserving.check_alone(member, connection)
        elif member.dropped is not None:
            preserving.check_unreferred(member, connection, member.dropped)
        elif member.is_left:
            # Not locked: what others write to it from here on goes along with it, or finds no table of that name.
            member.check_table(connection)


def lookup(member: Member) -> bool | None:
    """Whether the publish happened, once any publish in progress has ended; None if nothing of it is recorded."""
    store = member.store
    if not store.database_exists(member.home):
        return None
    with exclusive(
        store, member.home, [member.place.key], path=member.path, transaction_id=member.transaction_id
    ) as connection:
        member.check_identity(connection)
        if is_recorded(store, connection, member.place, member.key):
            return True
        there = store.there(connection, member.place)
        if {member.place.staging.name, member.place.ledger.name} & there:
            return False
        known = store.published(member.home).name in there
        return False if known and store.was_aborted(connection, member.home, member.key) else None


def is_recorded(store: Store, connection: sa.Connection, place: Place, key: str) -> bool:
    """Whether the database shows that a participant was published."""
    home = place.ledger.database
    there = store.there(connection, place)
    if place.done.name in there or publishing_in_steps.has_moved_in(store, connection, place, there):
        return True
    return store.published(home).name in there and store.was_published(connection, home, key)


def remove_staged(store: Store, place: Place, transaction_id: str, key: str, *, prepared: bool = False) -> None:
    """Remove the staging table and its ledger if the ledger's stamp is this transaction's. Idempotent.

    If the participant was prepared, a row records the removal: without it, finding nothing would be ambiguous.
    """
    database, home = store.database, place.ledger.database
    if not store.database_exists(home):
        return
    with exclusive(store, home, [place.key], transaction_id=transaction_id) as connection:
        there = store.there(connection, place)
        if place.ledger.name not in there or is_recorded(store, connection, place, key):
            return
        stamp = store.stamp(connection, place.ledger)
        if stamp is None and publishing_in_steps.is_half_made(store, connection, place):
            database.drop(connection, place.ledger)
        if stamp is None or stamp["transaction_id"] != transaction_id:
            return
        if not database.ddl_in_transaction and not database.comments_in_ddl:
            publishing_in_steps.undo(store, place, ObjectPath.from_document(stamp["path"]))
        database.stop_writers(connection, place.label)
        if prepared:
            store.record_aborted(connection, home, key)
        with step(DROP_STAGING):
            database.drop(connection, place.staging)
        with step(DROP_LEDGER):
            database.drop(connection, place.ledger)


def clean_up(store: Store, place: Place, key: str, path: ObjectPath) -> None:
    """Clean up after a publish; the publish is recorded first. Idempotent."""
    database, home = store.database, place.ledger.database
    with exclusive(store, home, [place.key], path=path) as connection:
        there = store.there(connection, place)
        if place.done.name in there:
            with step(publishing_in_steps.RECORD):
                # Durable before anything is dropped: a DDL statement commits the transaction before it.
                store.record_published_once(connection, home, key, path)
            with step(DROP_BACKUP):
                database.drop(connection, place.backup)
            with step(DROP_DONE):
                database.drop(connection, place.done)
        elif place.ledger.name in there:  # Rows were copied from the staging table, or it was renamed on its own.
            if publishing_in_steps.has_moved_in(store, connection, place, there):
                publishing_in_steps.record(store, place, key, path)
            with step(DROP_BACKUP):
                database.drop(connection, place.backup)
            with step(DROP_STAGING):
                database.drop(connection, place.staging)
            with step(DROP_LEDGER):
                database.drop(connection, place.ledger)


def clean_up_published(store: Store, place: Place, key: str, path: ObjectPath) -> None:
    """:func:`clean_up`, but only if the publish happened."""
    with exclusive(store, place.ledger.database, [place.key], path=path) as connection:
        published = is_recorded(store, connection, place, key)
    if published:
        clean_up(store, place, key, path)
