"""Locks of the tables that a RENAME TABLE of MariaDB or MySQL takes away, without a gap for other programs.

While rows are compared, all tables are locked for READ, so that others still read them. Then each of the first ones is
locked for WRITE, by a connection of its own: no other statement has any lock of it now, also no ALTER TABLE that only
waits to complete, and what was compared holds. A connection that has locked tables cannot rename any in MariaDB. So
another one does, and each table is given up when a RENAME waits for it, which goes before all that wait to read, write
or alter. One lock of all tables would not do: RENAME asks for one after the other, and a writer would get the later
ones. As a server has a limit of connections, those of the first tables lock the next ones when they are free.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from twophase.catalogs.jdbc.mysql import MySQL
from twophase.errors import CatalogError
from twophase.model import ObjectPath

READ, WRITE = "READ", "WRITE"

#: Number of tables that are locked for WRITE before the RENAME; further ones are when it comes to them.
MOST = 32
#: The server ends a connection that has done nothing for so many seconds after the lock timeout, and so gives up its
#: locks: a machine that is lost does not close its connections, and other programs would wait for hours.
IDLE = 600
_LONGEST_IDLE = 31_536_000
#: How often all connections are used while the rows of tables are compared.
_KEEP_SECONDS = 60

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
_MISSING = 1146

#: The lock of a table for which nothing waits.
_GRANTED: Future[None] = Future()
_GRANTED.set_result(None)


@contextmanager
def held(
    database: MySQL, engine: sa.Engine, tables: Mapping[ObjectPath, str], where: str
) -> Iterator[TableLocks | None]:
    """Block other writers of tables, but no readers; None if the role lacks the privilege to lock tables.

    Parameters
    ----------
    database : MySQL
    engine : sqlalchemy.Engine
    tables : mapping
        How to lock each in the end: ``WRITE``, or ``READ``, which also lets others alter it.
    where : str
        Name of the server for error messages.

    Raises
    ------
    CatalogError
        The server grants too few connections.
    """
    # In the order in which RENAME asks for them.
    names = sorted(tables, key=_order)
    with ExitStack() as stack:
        probe = stack.enter_context(_probe(database, engine))
        first = _connection(database, engine, stack)
        try:
            _lock(database, first, dict.fromkeys(names, READ))
        except DBAPIError as error:
            if _code(error) not in _DENIED:
                raise
            yield None
            return
        _unlock(database, first)
        connections = [first, *_more(database, engine, stack, _most(len(names)) - 1)]
        groups = _groups(names, len(connections), where)
        threads = stack.enter_context(ThreadPoolExecutor(len(connections)))
        locks = TableLocks(database, threads, probe, connections, groups, tables)
        locks.take_together()
        yield locks


class TableLocks:
    """Tables that are locked for a RENAME of another connection.

    Parameters
    ----------
    database : MySQL
    threads : Executor
        Where connections wait for locks.
    probe : sqlalchemy.Connection
        A connection that waits for no lock.
    connections : sequence of sqlalchemy.Connection
        One for each group, and one for each table of the first group, at least.
    groups : sequence of sequence of ObjectPath
        Tables in the order in which RENAME asks for them.
    kinds : mapping
        How to lock each table in place of its group.

    Attributes
    ----------
    overtaken : ObjectPath or None
        The table that another statement would have defined anew before a RENAME, which was interrupted.
    """

    overtaken: ObjectPath | None = None

    def __init__(
        self,
        database: MySQL,
        threads: Executor,
        probe: sa.Connection,
        connections: Sequence[sa.Connection],
        groups: Sequence[Sequence[ObjectPath]],
        kinds: Mapping[ObjectPath, str],
    ) -> None:
        self._database = database
        self._threads = threads
        self._probe = probe
        self._groups = list(zip(connections, groups, strict=False))
        self._free = list(connections[len(groups) :])
        self._kinds = kinds
        self._alone: dict[sa.Connection, tuple[ObjectPath, Future[None]]] = {}
        #: What the RENAME takes without a lock of ours that keeps readers out: it may have to wait for them.
        self._open: list[ObjectPath] = []
        self._kept = time.monotonic()

    def take_together(self) -> None:
        """Lock all tables for READ, each group by one connection.

        A table of the first group for which that is enough is locked alone right away: a READ lock is granted after all
        that wait to write, so that it could not be handed over.
        """
        holder, first = self._groups[0]
        for table in first:
            if self._kinds[table] == READ:
                connection = self._free.pop()
                _lock(self._database, connection, {table: READ})
                self._alone[connection] = table, _GRANTED
        self._groups[0] = holder, (left := [table for table in first if self._kinds[table] == WRITE])
        if left:
            _lock(self._database, holder, dict.fromkeys(left, READ))
        for connection, group in self._groups[1:]:
            _lock(self._database, connection, {table: self._together(connection, table) for table in group})

    def _together(self, connection: sa.Connection, table: ObjectPath) -> str:
        """The lock, for now, of a table whose rows are not compared again once it is locked alone.

        Beside a READ lock, rows for a table without transactions wait where they would come before the RENAME.
        """
        return self._kinds[table] if self._database.writable_reason(connection, table) else READ

    def keep(self) -> None:
        """Use all connections that hold locks: the server ends one that does nothing for long, and so gives up its own.

        Raises
        ------
        sqlalchemy.exc.DBAPIError
            It has done so.
        """
        for connection in self._holders():
            self._database.run(connection, "DO 0")
        self._kept = time.monotonic()

    def keep_meanwhile(self) -> None:
        """Do :meth:`keep`, if the last time is long ago."""
        if time.monotonic() > self._kept + _KEEP_SECONDS:
            self.keep()

    def take_alone(self) -> None:
        """Lock each of the first tables by a connection of its own, with no other session in between."""
        self._hand_over(*self._groups.pop(0))
        for _, lock in self._alone.values():
            lock.result()

    def connection_of(self, table: ObjectPath) -> sa.Connection:
        """The connection that locks a table, which alone can read it."""
        found = [connection for connection, (own, _) in self._alone.items() if own == table]
        return found[0] if found else next(holder for holder, tables in self._groups if table in tables)

    def is_awaited(self, table: ObjectPath) -> bool:
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
    def given_to(self, waiting: sa.Connection, others: Sequence[ObjectPath] = ()) -> Iterator[None]:
        """Give up each lock as soon as a RENAME of this connection waits for it.

        While it waits for readers of another table, a statement that begins to wait for a locked one would come before
        it. Then the RENAME is interrupted.

        Parameters
        ----------
        waiting : sqlalchemy.Connection
        others : sequence of ObjectPath
            Tables that the RENAME takes away, too, and that are not locked.

        Raises
        ------
        sqlalchemy.exc.DBAPIError
            The server has given up locks: rows may have got in between.
        """
        self.keep()
        self._open += others
        over = threading.Event()
        giver = threading.Thread(target=self._give, args=(waiting, over), daemon=True)
        giver.start()
        try:
            yield
        finally:
            over.set()
            giver.join()

    def _give(self, waiting: sa.Connection, over: threading.Event) -> None:
        with suppress(SQLAlchemyError):
            while (self._alone or self._groups) and not over.wait(_LOOK_SECONDS):
                if not self._all_wait([waiting]) or not (left := self._left()):
                    continue
                is_before = self._waits_before(left[0])
                # RENAME asks for one table after the other, so that another statement waits for a later one.
                found = next(filter(self.is_awaited, left if is_before else left[1:]), None)
                if found is None and not is_before:
                    self._give_first(left[0])
                elif found and (self._waits_before(left[0]) if is_before else self.is_awaited(left[0])):
                    self.overtaken = found
                    self._database.run(self._probe, f"KILL QUERY {_number(waiting)}")
                    break
        # Without a connection to look, the RENAME would wait in vain.
        for connection in self._holders():
            _unlock(self._database, connection)

    def _left(self) -> list[ObjectPath]:
        """The tables that are locked now, in the order in which RENAME asks for them."""
        alone = [self._alone[connection][0] for connection in self._held_alone()]
        return sorted([*alone, *(table for _, group in self._groups for table in group)], key=_order)

    def _waits_before(self, locked: ObjectPath) -> bool:
        """Whether the RENAME does not ask for this table yet, as it waits for readers of one before it."""
        asked_for = [table for table, lock in self._alone.values() if not lock.done()]
        for table in [table for table in (*self._open, *asked_for) if _order(table) < _order(locked)]:
            if not self._is_there(table):
                self._open = [one for one in self._open if one != table]  # It has got that one.
            elif self.is_awaited(table):
                return True
        return False

    def _is_there(self, table: ObjectPath) -> bool:
        """Whether no connection has the table for itself alone yet: SHOW goes before all that wait for it."""
        try:
            self._database.run(self._probe, f"SHOW CREATE TABLE {self._database.name(table)}")
        except DBAPIError as error:
            if _code(error) in (_TIMED_OUT, _MISSING):
                return False
            raise
        return True

    def _held_alone(self) -> list[sa.Connection]:
        return [connection for connection, (_, lock) in self._alone.items() if lock.done()]

    def _holders(self) -> list[sa.Connection]:
        return [*self._held_alone(), *(holder for holder, _ in self._groups)]

    def _give_first(self, table: ObjectPath) -> None:
        """Give up the lock of a table, the first one that is left, if the RENAME waits for it."""
        if not self.is_awaited(table):
            return
        holder = self.connection_of(table)
        if holder in self._alone:
            _unlock(self._database, holder)
            del self._alone[holder]
            self._open += [table] if self._kinds[table] == READ else []
            self._free.append(holder)
        else:
            # A lock that was not granted before the RENAME got there is of no use any more; its connection is needed.
            self._give_up_waiting()
            holder, (_, *others) = self._groups.pop(0)  # The first one goes to the RENAME directly.
            self._hand_over(holder, others)

    def _give_up_waiting(self) -> None:
        for connection, (_, lock) in self._alone.items():
            self._database.run(self._probe, f"KILL QUERY {_number(connection)}")
            wait([lock])
            self._free.append(connection)
        self._alone.clear()

    def _hand_over(self, holder: sa.Connection, tables: Sequence[ObjectPath]) -> None:
        """Take the locks of tables after a connection that locks them together, with no other writer in between."""
        taking = {self._free.pop(): table for table in tables}
        for connection, table in taking.items():
            kinds = {table: self._kinds[table]}
            self._alone[connection] = table, self._threads.submit(_lock, self._database, connection, kinds)
        try:
            while (left := [c for c in taking if not self._alone[c][1].done()]) and not self._all_wait(left):
                time.sleep(_LOOK_SECONDS)
            self._database.run(holder, "DO 0")  # Else another writer was in between.
        finally:  # Else all would wait for these locks until they time out, and others for all.
            _unlock(self._database, holder)
            self._free.append(holder)

    def _all_wait(self, connections: Sequence[sa.Connection]) -> bool:
        numbers = [str(_number(connection)) for connection in connections]
        found = self._probe.scalar(sa.text(_WAITING.format(numbers=", ".join(numbers))))
        return bool(found == len(numbers))


def _most(number: int) -> int:
    """Number of connections that lock so many tables, at most ``MOST`` of them alone before the RENAME."""
    first = min(number, MOST)
    return first + 1 + math.ceil((number - first) / (first + 2))


def _groups(names: Sequence[ObjectPath], connections: int, where: str) -> list[Sequence[ObjectPath]]:
    """Tables that are locked together until they are locked one by one: the first ones before the RENAME.

    Each of the first group needs a connection, beside one for each group. Of a later group one more can be locked, by
    the connection of the first group, and the first table goes to the RENAME directly.
    """
    for first in range(min(len(names), MOST, connections - 1), 0, -1):
        rest, size = names[first:], first + 2
        if len(rest) <= (connections - first - 1) * size:
            return [names[:first], *(rest[at : at + size] for at in range(0, len(rest), size))]
    least = min(first + 1 + math.ceil((len(names) - first) / (first + 2)) for first in range(1, len(names) + 1))
    raise CatalogError(
        f"{len(names)} tables of {where} cannot be replaced together: so that no row of other programs is lost, that "
        f"takes {least + 2} connections, and the server grants {connections + 2}. Nothing was published.",
        hint="Raise max_connections, or the role's MAX_USER_CONNECTIONS; write fewer tables in one block; or set "
        "external_writes = ignore if no other program writes these tables.",
    )


def _connection(database: MySQL, engine: sa.Engine, stack: ExitStack) -> sa.Connection:
    connection = stack.enter_context(engine.connect())
    stack.callback(_unlock, database, connection)
    return connection


def _more(database: MySQL, engine: sa.Engine, stack: ExitStack, number: int) -> Iterator[sa.Connection]:
    """Open so many further connections, or as many as the server grants."""
    for _ in range(number):
        try:
            yield _connection(database, engine, stack)
        except DBAPIError as error:
            if _code(error) not in _NO_MORE:
                raise
            return


@contextmanager
def _probe(database: MySQL, engine: sa.Engine) -> Iterator[sa.Connection]:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.detach()  # It stays as it is now, and is of no use to others.
        least = 0 if database.is_mariadb(connection) else 1
        database.run(connection, f"SET SESSION lock_wait_timeout = {least}")
        yield connection


def _lock(database: MySQL, connection: sa.Connection, tables: Mapping[ObjectPath, str]) -> None:
    parts = (f"{database.name(table)} {kind}" for table, kind in tables.items())
    seconds = min(IDLE + database.settings.lock_timeout, _LONGEST_IDLE)
    database.run(connection, f"SET SESSION wait_timeout = {seconds}")
    database.run(connection, f"LOCK TABLES {', '.join(parts)}")


def _unlock(database: MySQL, connection: sa.Connection) -> None:
    with suppress(SQLAlchemyError):  # A lost connection holds no lock.
        database.run(connection, "UNLOCK TABLES")
        database.run(connection, "SET SESSION wait_timeout = DEFAULT")


def _order(table: ObjectPath) -> tuple[bytes, bytes]:
    return table.database.encode(), table.name.encode()


def _number(connection: sa.Connection) -> int:
    """The server's number of a connection."""
    driver: Any = connection.connection.driver_connection
    return int(driver.thread_id())


def _code(error: DBAPIError) -> int | None:
    return getattr(error.orig, "args", (None,))[0]
