"""Database engines for the timeline: durable, and safe for many processes."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from twophase import placing
from twophase.errors import TimelineError
from twophase.liveness import steady_clock
from twophase.redaction import is_secret, logger

_log = logger("twophase")

_BUSY_MILLISECONDS = 30_000
#: Drivers that take the parameters of libpq.
_LIBPQ = ("psycopg", "psycopg2", "psycopg2cffi")
#: Well below a lease of the usual length. Milliseconds; all others are seconds.
_PATIENCE = {
    "connect_timeout": 10,
    "tcp_user_timeout": 20_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}
_WAIT_FOR_DISK = (
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)
_PORTS = {"postgresql": 5432}


def create(url: str, *, create: bool = True, password: str | None = None) -> sa.Engine:
    """An engine for a timeline's URL.

    Raises
    ------
    TimelineError
        The URL is wrong, its driver is not installed, or it names nothing durable.
    """
    place = _with_password(parsed(url), password)
    if place.get_backend_name() != "sqlite":
        return _server(place)
    _check_file(place, create)
    engine = _engine(place, connect_args={"timeout": _BUSY_MILLISECONDS / 1000, "check_same_thread": False})
    sa.event.listen(engine, "connect", _configure_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _with_password(url: URL, password: str | None) -> URL:
    if password is None:
        return url
    if url.get_backend_name() == "sqlite":
        raise TimelineError("A password is given for the timeline, which is a file.", hint="Leave it out.")
    if url.password is not None or "password" in url.query:
        raise TimelineError(
            f"The password of the timeline {shown(url)} is given twice.", hint="Leave it out of the URL."
        )
    return url.set(password=password)


def parsed(url: str) -> URL:
    """A timeline's URL.

    Raises
    ------
    TimelineError
        It cannot be read.
    """
    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # ValueError: a port that is no number
        # The text may hold a password: it is not repeated.
        raise TimelineError(
            "The timeline's URL cannot be read.",
            hint="Write it as SQLAlchemy does: sqlite:////directory/timeline.db or postgresql+psycopg://user@host/db",
        ) from None


def _server(url: URL) -> sa.Engine:
    """Where the driver lets us, nothing hangs for longer than half a minute on a server that has gone silently."""
    arguments: dict[str, Any] = {}
    if url.get_backend_name() == "postgresql" and url.get_driver_name() in _LIBPQ:
        arguments = {name: value for name, value in _PATIENCE.items() if name not in url.query}
    # Whoever has waited for a lock must see what was committed meanwhile, whatever the server's default is.
    engine = _engine(url, pool_pre_ping=True, isolation_level="READ COMMITTED", connect_args=arguments)
    if url.get_backend_name() == "postgresql":
        sa.event.listen(engine, "begin", _begin_postgresql)
    return engine


def _begin_postgresql(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    if options.get("twophase_durable", True) and not options.get("twophase_read_only"):
        # A server or a role may have switched it off; what is stronger than "on" stays.
        connection.exec_driver_sql(_WAIT_FOR_DISK)


def _engine(url: URL, **options: Any) -> sa.Engine:
    try:
        # Statement parameters hold whole documents: they stay out of error messages.
        return sa.create_engine(url, hide_parameters=True, **options)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise TimelineError(
            f"The timeline's database {url.drivername} needs a driver that is not installed: {error}",
            hint="Install it with pip, for instance: pip install 'psycopg[binary]'",
        ) from error


def _check_file(url: URL, create: bool) -> None:
    file = url.database
    if not file or ":memory:" in file or url.query.get("mode") == "memory" or url.query.get("vfs") == "memdb":
        raise TimelineError(
            "A timeline in memory would forget its transactions with the process.",
            hint="Name a file: sqlite:////directory/timeline.db",
        )
    if url.query.get("uri") in ("true", "1"):
        return  # SQLite's own URI: it says more than a place.
    if create:
        placing.make_file(Path(file))
    elif not Path(file).exists():
        raise TimelineError(
            f"There is no timeline at {file}: nothing was ever recorded there.",
            hint="Give the right place with --timeline, or spark.twophase.timeline.",
        )
    placing.check_access(Path(file))
    if kind := placing.network_file_system(Path(file)):
        _log.warning(
            "The timeline %s lies on a network file system (%s). Where processes of two machines use it, their "
            "transactions do not exclude each other, and it may be damaged: give them a PostgreSQL instead.", file, kind
        )  # fmt: skip


def _configure_sqlite(connection: sqlite3.Connection, _: Any) -> None:
    connection.isolation_level = None  # BEGIN is ours, see below.
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
    _switch_to_wal(connection)


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """The switch needs the file for itself, and SQLite does not wait for that by its own."""
    deadline = time.monotonic() + _BUSY_MILLISECONDS / 1000
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise TimelineError(f"SQLite cannot keep its write-ahead log there (it answers: journal mode {mode})")


def _begin_sqlite(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    # FULL: what is recorded survives a power failure, in WAL mode, too. NORMAL: it survives a killed process, but in a
    # power failure only if a FULL one followed; never out of order.
    connection.exec_driver_sql(f"PRAGMA synchronous = {'FULL' if options.get('twophase_durable', True) else 'NORMAL'}")
    read_only = options.get("twophase_read_only")
    # IMMEDIATE: a transaction that reads before it writes would else fail instead of wait.
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def shown(url: URL) -> str:
    """A URL for messages: without its password, wherever that stands, and without other secrets in its query."""
    query = {key: "***" if is_secret(key, str(value)) else value for key, value in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)


def holds_secret(url: str) -> bool:
    """Whether a URL holds a password, or anything else that is not to be shown."""
    return parsed(url).render_as_string(hide_password=False) != shown(parsed(url))


def release(engine: sa.Engine, pid: int) -> None:
    """Close the connections of an engine, if they are this process's: in a forked child they are its parent's."""
    engine.dispose(close=os.getpid() == pid)


def same_database(one: URL, other: URL) -> bool:
    """Whether two URLs name one database, seen by one user in the same way; however that user proves who it is."""
    return _place(one) == _place(other)


def _place(url: URL) -> tuple[object, ...]:
    backend = url.get_backend_name()
    if backend == "sqlite":
        return backend, Path(url.database or "").resolve()
    return backend, url.username, url.host, url.port or _PORTS.get(backend), url.database, url.query


def now(connection: sa.Connection) -> float:
    """Seconds since the epoch by the clock that all users of this timeline share."""
    if connection.dialect.name == "postgresql":
        return float(connection.scalar(sa.text("SELECT extract(epoch FROM clock_timestamp())")))
    return time.time()


def steady_now(connection: sa.Connection) -> float | None:
    """Seconds of a clock that is never set; None where the users of this timeline are on machines of their own."""
    return steady_clock() if connection.dialect.name == "sqlite" else None


def is_transient(error: BaseException) -> bool:
    """Whether the same request may work a moment later."""
    if not isinstance(error, DBAPIError):
        return False
    if isinstance(error, sa.exc.IntegrityError):
        return True  # Two inserted the same key; the loser sees the winner's row at the next attempt.
    text = str(error.orig).lower()
    return error.connection_invalidated or "locked" in text or "deadlock" in text or "serialize" in text


def reason(error: BaseException) -> str:
    """What a database said, in one line."""
    origin = error.orig if isinstance(error, DBAPIError) and error.orig else error
    text = str(origin).strip() or type(error).__name__
    line = text.splitlines()[0].rstrip(".")
    if "not a database" in line or "malformed" in line:
        return f"the file is damaged or no SQLite database ({line})"
    if isinstance(error, SQLAlchemyError) and "no such column" in line:
        return f"its tables are not those of a twophase timeline ({line})"
    return line
