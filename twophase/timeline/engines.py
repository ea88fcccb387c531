"""Database engines for the timeline: durable, and safe for many processes."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from twophase.errors import TimelineError
from twophase.redaction import is_secret, logger, redact
from twophase.timeline import sqlite_files
from twophase.timeline.owners import steady_clock

_log = logger("twophase")

#: How long processes of one machine wait for each other, unless the URL of an SQLite file has a ``timeout``.
_BUSY_SECONDS = 30.0
#: SQLite counts milliseconds in 32 bits, and would not wait at all for more.
_LONGEST_SECONDS = 2_000_000.0
#: Drivers that accept the parameters of libpq.
_LIBPQ = ("psycopg", "psycopg2", "psycopg2cffi")
#: Timeouts, well below a lease of the usual length: ``tcp_user_timeout`` in milliseconds, all others in seconds.
_PATIENCE = {
    "connect_timeout": 10,
    "tcp_user_timeout": 20_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}
#: What a transaction sets that writes to PostgreSQL, unless the server, a role or the URL has a limit of its own: how
#: long it waits for the locks of others, and after which silence the server ends it, if its driver is gone or asleep:
#: all others wait for its locks. No limit ends a statement half-way.
_LIMITS = f"""
SELECT set_config(name, value, true) FROM (VALUES
    ('lock_timeout', '{_BUSY_SECONDS:.0f}s'), ('idle_in_transaction_session_timeout', '60s'), ('statement_timeout', '0')
) AS limits (name, value) WHERE name = 'statement_timeout' OR current_setting(name) = '0'
"""
_WAIT_FOR_DISK = (
    " UNION ALL SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)
_PORTS = {"postgresql": 5432}
#: Key of a connection's last setting of ``PRAGMA synchronous``.
_SYNCHRONOUS = "twophase synchronous"


def create(url: str, *, create: bool = True, password: str | None = None) -> sa.Engine:
    """Create an engine for a timeline's URL.

    Raises
    ------
    TimelineError
        The URL is invalid, its driver is not installed, or the database is not durable.
    """
    place = _with_password(parsed(url), password)
    if place.get_backend_name() != "sqlite":
        return _server(place)
    _check_file(place, create)
    seconds = longest_wait(place)
    engine = _engine(place, connect_args={"timeout": seconds, "check_same_thread": False})
    sa.event.listen(engine, "connect", lambda connection, _: _configure_sqlite(connection, seconds))
    return engine


def longest_wait(url: URL) -> float:
    """Return how many seconds a request waits for those of other processes, before it fails as if they never ended.

    Raises
    ------
    TimelineError
        The ``timeout`` in the URL of an SQLite file is not a number of seconds that SQLite can wait.
    """
    if url.get_backend_name() == "postgresql":
        return _BUSY_SECONDS
    if url.get_backend_name() != "sqlite":
        return math.inf  # The server says so.
    with contextlib.suppress(ValueError):
        seconds = float(str(url.query.get("timeout", _BUSY_SECONDS)))
        if 0 <= seconds <= _LONGEST_SECONDS:
            return seconds
    raise TimelineError(
        f"The timeout of the timeline {shown(url)} is not a number of seconds from 0 to {_LONGEST_SECONDS:.0f}.",
        hint="Write seconds: ?timeout=30",
    )


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
    """Parse a timeline's URL.

    Raises
    ------
    TimelineError
        It is invalid.
    """
    try:
        return _with_driver(make_url(url))
    except (ArgumentError, ValueError):  # ValueError: the port is not a number
        # The text may contain a password: it is not repeated.
        raise TimelineError(
            "The timeline's URL cannot be read.",
            hint="Write it as SQLAlchemy does: sqlite:////directory/timeline.db or postgresql+psycopg://user@host/db",
        ) from None


def _with_driver(url: URL) -> URL:
    """The URL of a PostgreSQL timeline with the driver that comes with twophase, if it names none."""
    is_any = url.drivername in ("postgres", "postgresql")
    return url.set(drivername="postgresql+psycopg") if is_any else url


def _server(url: URL) -> sa.Engine:
    """Create an engine that, if the driver supports it, gives up on an unresponsive server after half a minute."""
    # After waiting for a lock, a statement must see what was committed in the meantime, whatever the server's default.
    return _engine(url, pool_pre_ping=True, isolation_level="READ COMMITTED", connect_args=patience(url))


def patience(url: URL) -> dict[str, Any]:
    """Return the timeouts with which a driver gives up on an unresponsive server, unless the URL has others.

    Returns
    -------
    dict
        Arguments of the driver's ``connect``; none for a driver that has no such.
    """
    if url.get_backend_name() != "postgresql" or url.get_driver_name() not in _LIBPQ:
        return {}
    return {name: value for name, value in _PATIENCE.items() if name not in url.query}


def make_safe(engine: sa.Engine) -> None:
    """Have the commits of PostgreSQL survive a power failure, whatever its server or a role of it is set to.

    No transaction waits for ever, nor lets others wait for ever.

    Parameters
    ----------
    engine : sqlalchemy.Engine
        Its transactions with the execution option ``twophase_read_only`` are left as they are.
    """
    if engine.dialect.name == "postgresql":
        sa.event.listen(engine, "begin", _begin_writing)


def _begin_writing(connection: sa.Connection) -> None:
    if not connection.get_execution_options().get("twophase_read_only"):
        begin(connection, durable=True, read_only=False)


def begin(connection: sa.Connection, *, durable: bool, read_only: bool) -> None:
    """Begin a transaction of a timeline; not by events of its engine, which would cost time in every statement.

    Parameters
    ----------
    connection : sqlalchemy.Connection
        Inside ``connection.begin()``.
    durable : bool
        Whether the commit waits for the disk.
    read_only : bool
    """
    if connection.dialect.name == "sqlite":
        _begin_sqlite(connection, durable=durable, read_only=read_only)
    elif connection.dialect.name == "postgresql" and not read_only:
        # A server or a role may have turned it off; settings stronger than "on" are kept.
        connection.exec_driver_sql(_LIMITS + (_WAIT_FOR_DISK if durable else ""))


def _engine(url: URL, **options: Any) -> sa.Engine:
    try:
        # Statement parameters contain entire documents: keep them out of error messages.
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
        return  # SQLite's own URI: it contains more than a path.
    if create:
        sqlite_files.make_file(Path(file))
    elif not Path(file).exists():
        raise TimelineError(
            f"There is no timeline at {file}.",
            hint="Give the right place with --timeline, or spark.twophase.timeline, and see that it is mounted.",
        )
    sqlite_files.check_access(Path(file))
    if kind := sqlite_files.network_file_system(Path(file)):
        _log.warning(
            "The timeline %s is on a network file system (%s). Where processes of two machines use it, their "
            "transactions do not exclude each other, and it may be damaged: give them a PostgreSQL instead.", file, kind
        )  # fmt: skip


def _configure_sqlite(connection: sqlite3.Connection, seconds: float) -> None:
    connection.isolation_level = None  # BEGIN is issued explicitly, see below.
    connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")
    _switch_to_wal(connection, seconds)


def _switch_to_wal(connection: sqlite3.Connection, seconds: float) -> None:
    """Switch to WAL mode, which needs exclusive access to the file; SQLite does not wait for that by itself."""
    deadline = time.monotonic() + seconds
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


def _begin_sqlite(connection: sa.Connection, *, durable: bool, read_only: bool) -> None:
    # FULL: a record survives a power failure, also in WAL mode. NORMAL: it survives a killed process, but a power
    # failure only if a FULL one followed; never out of order.
    wanted, known = "FULL" if durable else "NORMAL", connection.info
    if known.get(_SYNCHRONOUS) != wanted and not read_only:
        connection.exec_driver_sql(f"PRAGMA synchronous = {wanted}")
        known[_SYNCHRONOUS] = wanted
    # IMMEDIATE: otherwise a transaction that reads before it writes would fail instead of waiting.
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def shown(url: URL) -> str:
    """Return a URL for messages: without its password, wherever it is, and without other secrets in its query."""
    query = {key: "***" if is_secret(key, str(value)) else value for key, value in url.query.items()}
    return redact(url.set(query=query).render_as_string(hide_password=True))  # It takes an unescaped @ for the host's.


def holds_secret(url: str) -> bool:
    """Return whether a URL contains a password, or anything else that must not be shown."""
    return parsed(url).render_as_string(hide_password=False) != shown(parsed(url))


def release(engine: sa.Engine, pid: int) -> None:
    """Close the connections of an engine, if they belong to this process: in a forked child they are the parent's."""
    engine.dispose(close=os.getpid() == pid)


def same_database(one: URL, other: URL) -> bool:
    """Return whether two URLs name the same database, user and settings; credentials may differ."""
    return _place(one) == _place(other)


def _place(url: URL) -> tuple[object, ...]:
    backend = url.get_backend_name()
    if backend == "sqlite":
        return backend, Path(url.database or "").resolve()
    return backend, url.username, url.host, url.port or _PORTS.get(backend), url.database, url.query


def now(connection: sa.Connection) -> float:
    """Return the seconds since the epoch, by the clock that all users of this timeline share."""
    if connection.dialect.name == "postgresql":
        return float(connection.scalar(sa.text("SELECT extract(epoch FROM clock_timestamp())")))
    return time.time()


def steady_now(connection: sa.Connection) -> float | None:
    """Return the seconds of a clock that is never set; None if the users of this timeline are on different machines."""
    return steady_clock() if connection.dialect.name == "sqlite" else None


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed if it is retried."""
    if not isinstance(error, DBAPIError):
        return False
    if isinstance(error, sa.exc.IntegrityError):
        return True  # Two inserted the same key; the loser sees the winner's row on the next attempt.
    text = str(error.orig).lower()
    return error.connection_invalidated or is_locked(error) or "deadlock" in text or "serialize" in text


def is_locked(error: BaseException) -> bool:
    """Return whether others hold what a request needs, and have not ended."""
    if not isinstance(error, DBAPIError):
        return False
    text = str(error.orig).lower()
    return "locked" in text or "lock timeout" in text


def reason(error: BaseException) -> str:
    """Return the database's error message, in one line."""
    origin = error.orig if isinstance(error, DBAPIError) and error.orig else error
    text = str(origin).strip() or type(error).__name__
    line = text.splitlines()[0].rstrip(".")
    if is_locked(error):
        return f"another process keeps it locked ({line})"
    if "not a database" in line or "malformed" in line:
        return f"the file is damaged or no SQLite database ({line})"
    if isinstance(error, SQLAlchemyError) and "no such column" in line:
        return f"its tables are not those of a twophase timeline ({line})"
    return line
