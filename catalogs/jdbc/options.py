"""The options of a JDBC catalog, checked when the catalog is created; secrets among them are never shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from twophase.config import settings
from twophase.config.schema_conflicts import DESCRIPTION, SchemaConflicts, strategy_of
from twophase.config.settings import Count, Text, lower, nearest, option, secret
from twophase.redaction import redact
from twophase.schema import SchemaConflictResolutionStrategy

#: Options of one table, from ``OPTIONS (...)`` or a ``DataFrameWriter``.
TABLE_OPTIONS = ("column_types",)
#: Options of Spark's own JDBC writer that have no effect here: how it sends rows, and what it makes new tables of.
IDLE_WRITE_OPTIONS = (
    *("batchsize", "createtablecolumntypes", "createtableoptions", "fetchsize", "isolationlevel", "numpartitions"),
    *("querytimeout", "truncate"),
)

#: The driver, by SQLAlchemy's name, that this catalog requires for each dialect.
DRIVERS: Mapping[str, str] = {
    "postgresql": "psycopg",
    "mysql": "pymysql",
    "mariadb": "pymysql",
    "sqlite": "pysqlite",
}
PREFIX = "__twophase_"
_PREFIX_WORD = re.compile(r"[a-z_][a-z0-9_]{0,23}")
#: ``name TYPE``; the name is bare or in double quotes or backticks; a type contains no quote and no semicolon.
_COLUMN_TYPE = re.compile(
    r"""\s*(?:"([^"]+)"|`([^`]+)`|(\w+))\s+"""
    r"""([A-Za-z][A-Za-z0-9_ ]*(?:\(\s*\d+(?:\s*,\s*\d+)?\s*\))?[A-Za-z ]*(?:\[\])?)\s*"""
)
_SECRETS = ("password", "passwd", "secret", "token", "sslkey")


def read_column_types(text: str) -> dict[str, str]:
    """Parse column types such as ``name VARCHAR(80), "other one" JSONB``.

    Raises
    ------
    ValueError
        The text has another form.
    """
    found: dict[str, str] = {}
    rest = text
    while rest.strip():
        match = _COLUMN_TYPE.match(rest)
        if match is None or (match.end() < len(rest) and rest[match.end()] != ","):
            raise ValueError(f"cannot be read from {rest.strip()!r} on.", "Write: name VARCHAR(80), payload JSONB")
        found[match[1] or match[2] or match[3]] = match[4].strip()
        rest = rest[match.end() + 1 :]
    return found


def _prefix(text: str) -> str:
    if not _PREFIX_WORD.fullmatch(text or PREFIX):
        hint = "Use at most 24 lower-case letters, digits and underscores, and begin with no digit."
        raise ValueError(f"is {text!r}.", hint)
    return text or PREFIX


class Settings(settings.Settings):
    """All that a process needs to connect to the database. Sent to the executors, and nowhere else.

    After :func:`read` the ``url`` contains user and password; it is never shown.
    """

    url: str = option("", "SQLAlchemy URL of the database, such as postgresql+psycopg://host/database", repr=False)
    user: Text = option(None, "user name, where the URL holds none")
    password: str | None = secret("password")
    staging_schema: Text = option(None, "schema for staging tables", shown="the target's own")
    staging_prefix: Annotated[str, BeforeValidator(_prefix)] = option(PREFIX, "how names of staging tables begin")
    column_types: Annotated[Mapping[str, str], BeforeValidator(read_column_types)] = option(
        "", "column types of new tables that override the usual ones, such as: name VARCHAR(80), x JSONB"
    )
    batch_rows: Count = option(10_000, "rows in one batch")
    pool_size: Count = option(5, "connections that the driver keeps open")
    connect_timeout: Count = option(10, "seconds to wait for a connection")
    lock_timeout: Count = option(60, "seconds to wait for a lock")
    external_writes: Annotated[Literal["conflict", "ignore"], lower] = option(
        "conflict",
        "conflict: what other programs write while a table is overwritten or replaced refuses that statement; "
        "ignore: it is not looked for",
    )
    schema_conflicts: SchemaConflicts = option("rfc-82", DESCRIPTION)
    promotion: Annotated[Literal["exact", "wide"], lower] = option(
        "exact",
        "changes of type that ALTER TABLE may make: exact (int to long, float to double, more digits), or wide "
        "(whatever keeps each value)",
    )
    read_partitions: Count = option(8, "the most partitions of a read")
    read_partition_rows: Count = option(100_000, "rows from which a read is cut into partitions")

    @property
    def strategy(self) -> SchemaConflictResolutionStrategy:
        """The rules for rows that were staged for other columns than their table has now."""
        return strategy_of(self.schema_conflicts)

    @property
    def parsed(self) -> URL:
        """The URL, parsed by SQLAlchemy."""
        return make_url(self.url)

    @property
    def display_url(self) -> str:
        """The URL for messages: without the password, and without other secrets in its query."""
        url = self.parsed
        shown = {key: "***" if _is_secret(key) else value for key, value in url.query.items()}
        return redact(url.set(query=shown).render_as_string(hide_password=True))  # The host holds what follows an @.

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must not appear in any message."""
        url = self.parsed
        found = [url.password, *(value for key, value in url.query.items() if _is_secret(key))]
        return tuple(str(text) for text in found if text)


def _is_secret(key: str) -> bool:
    return any(word in key.lower() for word in _SECRETS)


def read(catalog: str, options: Mapping[str, str]) -> Settings:
    """Read and check all options of a catalog.

    Raises
    ------
    ConfigurationError
        An option is missing, unknown or has a wrong value; the message suggests the nearest valid one.
    """
    given = Settings.read(options, catalog)
    url = _url(given)
    backend = url.get_backend_name()
    if given.staging_schema and backend not in ("postgresql", "mysql"):
        raise given.wrong(f"{backend} takes no schema for staging tables.", "Use the option staging_prefix.")
    return given.model_copy(update={"url": url.render_as_string(hide_password=False)})


def _url(given: Settings) -> URL:
    if not given.url:
        raise given.wrong(
            "the option url is missing.",
            f"Set spark.sql.catalog.{given.catalog}.url, such as postgresql+psycopg://user@host/database",
        )
    url = _parsed(given)
    url = url.set(drivername=_driver(given, url))
    if given.user:
        url = url.set(username=given.user)
    if given.password is not None:
        url = url.set(password=given.password)
    if url.get_backend_name() in ("sqlite", "duckdb") and (not url.database or url.database == ":memory:"):
        raise given.wrong(
            "a database in memory is not seen by the executors.",
            f"Name a file: {url.get_backend_name()}:////directory/file.db",
        )
    return url


def _parsed(given: Settings) -> URL:
    try:
        # A URL in Spark's spelling is accepted, too.
        return make_url(given.url.removeprefix("jdbc:"))
    except ArgumentError:
        # The text may contain a password, so the message does not repeat it.
        raise given.wrong(
            "the option url cannot be read.", "Write it as SQLAlchemy does: postgresql+psycopg://user@host/database"
        ) from None


def _driver(given: Settings, url: URL) -> str:
    backend, _, driver = url.drivername.partition("+")
    backend = {"postgres": "postgresql"}.get(backend, backend)
    if backend not in DRIVERS:
        return _other_driver(given, url)
    if driver and driver != DRIVERS[backend]:
        raise given.wrong(f"{backend} is reached through {DRIVERS[backend]} here, not through {driver!r}.")
    name = f"{'mysql' if backend == 'mariadb' else backend}+{DRIVERS[backend]}"
    try:
        URL.create(name).get_dialect().import_dbapi()
    except (NoSuchModuleError, ImportError) as error:
        extra = {"mariadb": "mysql"}.get(backend, backend)
        raise given.wrong(
            f"the driver of {backend} is not installed: {error}.", f"Run: pip install 'twophase[{extra}]'"
        ) from error
    return name


def _other_driver(given: Settings, url: URL) -> str:
    """Any other database is supported through its dialect, if that is installed."""
    try:
        url.get_dialect().import_dbapi()
    except NoSuchModuleError:
        backend = url.drivername.partition("+")[0]
        raise given.wrong(
            f"no SQLAlchemy dialect is installed for the database {backend!r}.", nearest(backend, DRIVERS)
        ) from None
    except ImportError as error:
        raise given.wrong(f"the driver of {url.drivername} is not installed: {error}.") from error
    return url.drivername
