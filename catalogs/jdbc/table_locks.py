"""Locks of the tables that a RENAME TABLE of MariaDB or MySQL takes away, without a gap for other programs.

While rows are compared, one connection locks all tables for READ, so that others still read them. Then each is locked
for WRITE, by a connection of its own: no other statement has any lock of it now, also no ALTER TABLE that only waits to
complete, and what was compared holds. A connection that has locked tables cannot rename any in MariaDB. So another one
does, and each table is given up when a RENAME waits for it, which goes before all that wait to read, write or alter.
One lock of all tables would not do: RENAME asks for one after the other, and a writer would get the later ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from twophase.catalogs.jdbc.database import Table
from twophase.catalogs.jdbc.mysql import MySQL

READ, WRITE = "READ", "WRITE"

#: Tables beyond this number share a connection, and are locked for READ: a server has a limit of connections. They are
#: given up together, and what waits for all but the first may come before the RENAME.
MOST = 32
#: The server ends a connection that has done nothing for so many seconds after the lock timeout, and so gives up its
#: locks: a machine that is lost does not close its connections, and other programs would wait for hours.
IDLE = 600
_LONGEST_IDLE = 31_536_000

_WAITING = """
SELECT COUNT(*) FROM information_schema.PROCESSLIST
WHERE STATE = 'Waiting for table metadata lock' AND ID IN ({numbers})
"""
_LOOK_SECONDS = 0.002
#: Error codes: access denied to a database, and to a table.
_DENIED = (1044, 1142)
#: Error codes: the server, or the user, has no connection left.
_NO_MORE = (1040, 1203, 1226)
_TIMED_OUT = 1205


@contextmanager
def held(database: MySQL, engine: sa.Engine, tables: Sequence[Table]) -> Iterator[sa.Connection | None]:
    """A separate connection that blocks other writers of these tables while it is open, but no readers.

    None if the role lacks the privilege to lock tables.
    """
    with engine.connect() as connection:
        try:
            _lock(database, connection, dict.fromkeys(tables, READ))
        except DBAPIError as error:
            if _code(error) not in _DENIED:
                raise
            yield None
            return
        try:
            yield connection
        finally:
            _unlock(database, connection)


class TableLocks:
    """Tables that are locked for a RENAME of another connection.

    Parameters
    ----------
    database : MySQL
    probe : sqlalchemy.Connection
        A connection that waits for no lock.
    locks : mapping
        The tables that each connection locks, with ``READ`` or ``WRITE``.
    """

    def __init__(
        self, database: MySQL, probe: sa.Connection, locks: Mapping[sa.Connection, Mapping[Table, str]]
    ) -> None:
        self._database = database
        self._probe = probe
        self._locks = dict(locks)

    def take_from(self, connection: sa.Connection) -> None:
        """Take the locks after the one of :func:`held`, with nobody in between."""
        with ThreadPoolExecutor(len(self._locks)) as threads:
            taken = {c: threads.submit(_lock, self._database, c, tables) for c, tables in self._locks.items()}
            try:
                while (left := [c for c, lock in taken.items() if not lock.done()]) and not self._all_wait(left):
                    time.sleep(_LOOK_SECONDS)
            finally:  # Else all would wait for these locks until they time out, and others for all.
                _unlock(self._database, connection)
        for lock in taken.values():
            lock.result()

    def connection_of(self, table: Table) -> sa.Connection:
        """The connection that locks a table, which alone can read it."""
        return next(connection for connection, tables in self._locks.items() if table in tables)

    def is_awaited(self, table: Table) -> bool:
        """Whether another statement waits to have the table for itself alone, as RENAME, DROP and TRUNCATE do.

        To prepare a statement takes the only lock that is granted beside ours, but not while such a one waits.
        """
        sql = f"PREPARE twophase_probe FROM {self._database.text(f'SELECT 1 FROM {self._database.name(table)}')}"
        try:
            self._database.run(self._probe, sql)
        except DBAPIError as error:
            if _code(error) == _TIMED_OUT:
                return True
            raise
        return False

    @contextmanager
    def given_to(self, waiting: sa.Connection) -> Iterator[None]:
        """Give up each lock as soon as a RENAME of this connection waits for it."""
        over = threading.Event()
        giver = threading.Thread(target=self._give, args=(waiting, over), daemon=True)
        giver.start()
        try:
            yield
        finally:
            over.set()
            giver.join()

    def _give(self, waiting: sa.Connection, over: threading.Event) -> None:
        left = dict(self._locks)
        with suppress(SQLAlchemyError):
            while left and not over.wait(_LOOK_SECONDS):
                awaited = self._all_wait([waiting]) and [c for c in left if any(map(self.is_awaited, left[c]))]
                for connection in awaited or ():
                    _unlock(self._database, connection)
                    del left[connection]
        for connection in left:  # Without a connection to look, the RENAME would wait in vain.
            _unlock(self._database, connection)

    def _all_wait(self, connections: Sequence[sa.Connection]) -> bool:
        numbers = [str(int(_driver(connection).thread_id())) for connection in connections]
        found = self._probe.scalar(sa.text(_WAITING.format(numbers=", ".join(numbers))))
        return bool(found == len(numbers))


@contextmanager
def alone(
    database: MySQL, engine: sa.Engine, reading: sa.Connection, tables: Mapping[Table, str]
) -> Iterator[TableLocks]:
    """Lock tables in place of the connection of :func:`held`.

    Parameters
    ----------
    database : MySQL
    engine : sqlalchemy.Engine
    reading : sqlalchemy.Connection
        The connection of :func:`held`, which loses its locks.
    tables : mapping
        How to lock each: ``WRITE``, or ``READ``, which also lets others alter it.
    """
    # Much in the order in which RENAME asks for them.
    names = sorted(tables, key=lambda table: (table.database.encode(), table.name.encode()))
    with ExitStack() as stack:
        probe = stack.enter_context(_probe(database, engine))
        connections = _connections(database, engine, stack, min(len(names), MOST + 1))
        apart = len(names) if len(connections) == len(names) else len(connections) - 1
        locks: dict[sa.Connection, Mapping[Table, str]] = {
            connection: {name: tables[name]}
            for connection, name in zip(connections[:apart], names[:apart], strict=True)
        }
        if names[apart:]:
            locks[connections[apart]] = dict.fromkeys(names[apart:], READ)
        found = TableLocks(database, probe, locks)
        found.take_from(reading)
        yield found


def _connections(database: MySQL, engine: sa.Engine, stack: ExitStack, number: int) -> list[sa.Connection]:
    """As many connections as the server grants, at least one."""
    made: list[sa.Connection] = []
    for _ in range(number):
        try:
            connection = stack.enter_context(engine.connect())
        except DBAPIError as error:
            if not made or _code(error) not in _NO_MORE:
                raise
            break
        stack.callback(_unlock, database, connection)
        made.append(connection)
    return made


@contextmanager
def _probe(database: MySQL, engine: sa.Engine) -> Iterator[sa.Connection]:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.detach()  # It stays as it is now, and is of no use to others.
        least = 0 if database.is_mariadb(connection) else 1
        database.run(connection, f"SET SESSION lock_wait_timeout = {least}")
        yield connection


def _lock(database: MySQL, connection: sa.Connection, tables: Mapping[Table, str]) -> None:
    parts = (f"{database.name(table)} {kind}" for table, kind in tables.items())
    seconds = min(IDLE + database.settings.lock_timeout, _LONGEST_IDLE)
    database.run(connection, f"SET SESSION wait_timeout = {seconds}")
    database.run(connection, f"LOCK TABLES {', '.join(parts)}")


def _unlock(database: MySQL, connection: sa.Connection) -> None:
    with suppress(SQLAlchemyError):  # A lost connection holds no lock.
        database.run(connection, "UNLOCK TABLES")
        database.run(connection, "SET SESSION wait_timeout = DEFAULT")


def _driver(connection: sa.Connection) -> Any:
    return connection.connection.driver_connection


def _code(error: DBAPIError) -> int | None:
    code: int | None = getattr(error.orig, "args", (None,))[0]
    return code
