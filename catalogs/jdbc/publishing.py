"""The one step, and what comes after it; what is asked here is answered by the transaction's own stamp.

PostgreSQL and SQLite take DDL into a transaction: the swap, the row that says it, and the end of the ledger are one.
MariaDB and MySQL commit at each DDL statement; there one ``RENAME TABLE`` moves the old tables aside, the new ones in,
and each ledger to the name that says that it happened. Rows of an insert are one transaction there, too.

A publish holds a lock while it runs. Whoever asks for the outcome takes the same lock first, and so waits for a commit
that is still on its way; where that takes too long the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

import sqlalchemy as sa

from twophase.catalogs.jdbc import errors, stepwise
from twophase.catalogs.jdbc.database import Table
from twophase.catalogs.jdbc.mysql import MySQL
from twophase.catalogs.jdbc.store import Place, Store
from twophase.errors import CatalogError
from twophase.failpoints import step
from twophase.model import ObjectPath

if TYPE_CHECKING:
    from twophase.catalogs.jdbc.participant import JdbcParticipant


def group_key(member: JdbcParticipant) -> str | None:
    """Members with the same key can be published in one step."""
    store = member.store
    database = store.database
    with suppress(CatalogError):  # A database that does not answer cannot publish either.
        store.learn(member.home, member.path)
    group = database.group(member.home)
    if group is None:
        return None
    where = f"{store.settings.display_url} {group}"
    return where if database.ddl_in_transaction else f"{where} {'rename' if member.swaps else 'rows'}"


@contextmanager
def exclusive(
    store: Store, home: str, keys: Sequence[str], *, path: object = None, transaction_id: str | None = None
) -> Iterator[sa.Connection]:
    """A database transaction that no other publish or question about these participants runs beside."""
    store.learn(home, path)
    with (
        errors.speaking(store.settings, path=path, transaction_id=transaction_id),
        store.database.exclusive(store.engine(home), home, sorted(keys)) as connection,
    ):
        yield connection


def publish(store: Store, members: Sequence[JdbcParticipant]) -> None:
    """Publish one or several participants of one database in one step. Idempotent."""
    first = members[0]
    keys = [member.place.key for member in members]
    with exclusive(store, first.home, keys, path=first.path, transaction_id=first.transaction_id) as connection:
        store.database.make_durable(connection)
        first.check_identity(connection)
        waiting = [member for member in members if not _is_published(connection, member)]
        for member in waiting:
            member.check_staged(connection)
            if stepwise.is_under_way(store, connection, member.place):
                continue
            store.database.lock_target(connection, member.target, member.effect)
            renamed = first.swaps and isinstance(store.database, MySQL)
            member.check_target(connection, last=not renamed)
        if waiting and first.swaps and isinstance(store.database, MySQL):
            _rename(store.database, connection, waiting)
            return
        if waiting and first.swaps and not store.database.ddl_in_transaction:
            stepwise.swap(first)
            return
        for member in waiting:
            member.apply(connection)
            if store.database.ddl_in_transaction:
                for table in (member.place.staging, member.place.ledger):
                    store.database.drop(connection, table)
        # In one order, and last: others that publish into one of these tables wait for it from here on.
        for member in sorted(waiting, key=lambda member: store.target_key(member.path)):
            store.record_published(connection, member.home, member.key, member.path)


def _rename(database: MySQL, connection: sa.Connection, members: Sequence[JdbcParticipant]) -> None:
    pairs: list[tuple[Table, Table]] = []
    for member in members:
        place = member.place
        if member.effect == "replace":
            pairs.append((member.target, place.aside))
        pairs += [(place.staging, member.target), (place.ledger, place.done)]
    watched = [member for member in members if member.is_watched]
    if not watched:
        database.rename_all(connection, pairs)
        return
    with database.held(members[0].store.engine(members[0].home), [m.target for m in watched]) as held:
        for member in watched:
            member.check_content(held or connection, lock=held is None)
        with database.given_to(connection, held) if held else nullcontext():
            database.rename_all(connection, pairs)


def traces(member: JdbcParticipant) -> bool | None:
    """Whether the publish happened, after one that may still be on its way; None where nothing tells of it at all."""
    store = member.store
    if not store.database_exists(member.home):
        return None
    with exclusive(
        store, member.home, [member.place.key], path=member.path, transaction_id=member.transaction_id
    ) as connection:
        member.check_identity(connection)
        if _is_published(connection, member):
            return True
        there = store.there(connection, member.place)
        if {member.place.staging.name, member.place.ledger.name} & there:
            return False
        known = store.published(member.home).name in there
        return False if known and store.was_aborted(connection, member.home, member.key) else None


def _is_published(connection: sa.Connection, member: JdbcParticipant) -> bool:
    return _known(member.store, connection, member.place, member.key)


def _known(store: Store, connection: sa.Connection, place: Place, key: str) -> bool:
    home = place.ledger.database
    there = store.there(connection, place)
    if place.done.name in there or stepwise.is_published(store, connection, place, there):
        return True
    return store.published(home).name in there and store.was_published(connection, home, key)


def remove_staged(store: Store, place: Place, transaction_id: str, key: str, *, prepared: bool = False) -> None:
    """Remove the staging table and its ledger, where the ledger's stamp is this transaction's. Idempotent.

    Of what was prepared a row tells that it is gone: whoever finds nothing at all would not know what that means.
    """
    database, home = store.database, place.ledger.database
    if not store.database_exists(home):
        return
    with exclusive(store, home, [place.key], transaction_id=transaction_id) as connection:
        there = store.there(connection, place)
        if place.ledger.name not in there or _known(store, connection, place, key):
            return
        stamp = store.stamp(connection, place.ledger)
        if stamp is None and stepwise.is_half_made(store, connection, place):
            database.drop(connection, place.ledger)
        if stamp is None or stamp["transaction_id"] != transaction_id:
            return
        if not database.ddl_in_transaction and not database.comments_in_ddl:
            stepwise.undo(store, place, Table(*stamp["path"]))
        database.stop_writers(connection, place.label)
        if prepared:
            store.record_aborted(connection, home, key)
        with step("jdbc.drop_staging"):
            database.drop(connection, place.staging)
        with step("jdbc.drop_ledger"):
            database.drop(connection, place.ledger)


def tidy(store: Store, place: Place, key: str, path: ObjectPath) -> None:
    """After a publish: what is not needed any more goes, its name among the published ones first. Idempotent."""
    database, home = store.database, place.ledger.database
    with exclusive(store, home, [place.key], path=path) as connection:
        there = store.there(connection, place)
        if place.done.name in there:
            with step("jdbc.record"):
                _record(store, connection, home, key, path)
            with step("jdbc.drop_aside"):
                database.drop(connection, place.aside)
            with step("jdbc.drop_done"):
                database.drop(connection, place.done)
        elif place.ledger.name in there:  # Rows were inserted out of the staging table, or it took the name by itself.
            if stepwise.is_published(store, connection, place, there):
                stepwise.record(store, place, key, path)
            with step("jdbc.drop_aside"):
                database.drop(connection, place.aside)
            with step("jdbc.drop_staging"):
                database.drop(connection, place.staging)
            with step("jdbc.drop_ledger"):
                database.drop(connection, place.ledger)


def _record(store: Store, connection: sa.Connection, home: str, key: str, path: ObjectPath) -> None:
    if not store.was_published(connection, home, key):
        # It is durable before anything is dropped: DDL commits what came before it.
        store.record_published(connection, home, key, path)


def tidy_published(store: Store, place: Place, key: str, path: ObjectPath) -> None:
    """:func:`tidy`, where it really was published."""
    with exclusive(store, place.ledger.database, [place.key], path=path) as connection:
        published = _known(store, connection, place, key)
    if published:
        tidy(store, place, key, path)


def publish_step() -> AbstractContextManager[None]:
    """The failpoint around the one step."""
    return step("jdbc.publish")
