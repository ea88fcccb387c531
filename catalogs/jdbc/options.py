"""The options of a JDBC catalog, read and checked when it is made; and the secrets among them, never shown."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from twophase.errors import ConfigurationError

KNOWN: Mapping[str, str] = {
    "url": "SQLAlchemy URL of the database, such as postgresql+psycopg://host/database",
    "user": "user name, where the URL holds none",
    "password": "password; better in the environment or in a file",
    "password_env": "name of the environment variable that holds the password",
    "password_file": "file that holds the password",
    "staging_schema": "schema for staging tables (default: the target's own)",
    "staging_prefix": "how names of staging tables begin (default: __twophase_)",
    "column_types": "column types of new tables that override the usual ones, such as: name VARCHAR(80), x JSONB",
    "batch_rows": "rows in one batch, 10000 by default",
    "pool_size": "connections that the driver keeps open, 5 by default",
    "connect_timeout": "seconds to wait for a connection, 10 by default",
    "lock_timeout": "seconds to wait for a lock, 60 by default",
    "external_writes": "conflict (default): what other programs write while a table is overwritten or replaced refuses "
    "that statement; ignore: it is not looked for",
    "read_partitions": "the most partitions of a read, 8 by default",
    "read_partition_rows": "rows from which a read is cut into partitions, 100000 by default",
}
#: Options of one table, in ``OPTIONS (...)`` or of a ``DataFrameWriter``.
TABLE_OPTIONS = ("column_types",)

#: SQLAlchemy's names of the drivers that this catalog is held to, by dialect.
DRIVERS: Mapping[str, str] = {
    "postgresql": "psycopg",
    "mysql": "pymysql",
    "mariadb": "pymysql",
    "sqlite": "pysqlite",
}
PREFIX = "__twophase_"
_PREFIX_WORD = re.compile(r"[a-z_][a-z0-9_]{0,23}")
#: ``name TYPE``, the name bare or in double quotes or backticks; a type holds no quote and no semicolon.
_COLUMN_TYPE = re.compile(
    r"""\s*(?:"([^"]+)"|`([^`]+)`|(\w+))\s+"""
    r"""([A-Za-z][A-Za-z0-9_ ]*(?:\(\s*\d+(?:\s*,\s*\d+)?\s*\))?[A-Za-z ]*(?:\[\])?)\s*"""
)
_SECRETS = ("password", "passwd", "secret", "token", "sslkey")


@dataclass(frozen=True)
class Settings:
    """All that a process needs to reach the database. It travels to the executors, and nowhere else.

    Attributes
    ----------
    catalog : str
        The catalog's name, for messages.
    url : str
        With the password; never shown.
    staging_schema : str or None
    staging_prefix : str
    column_types : mapping of str to str
    batch_rows, pool_size, read_partitions, read_partition_rows : int
    connect_timeout, lock_timeout : int
        Seconds.
    external_writes : str
        ``conflict`` or ``ignore``.
    """

    catalog: str
    url: str = field(repr=False)
    staging_schema: str | None = None
    staging_prefix: str = PREFIX
    column_types: Mapping[str, str] = field(default_factory=dict)
    batch_rows: int = 10_000
    pool_size: int = 5
    connect_timeout: int = 10
    lock_timeout: int = 60
    read_partitions: int = 8
    read_partition_rows: int = 100_000
    external_writes: str = "conflict"

    @property
    def parsed(self) -> URL:
        """SQLAlchemy's form of the URL."""
        return make_url(self.url)

    @property
    def display_url(self) -> str:
        """The URL for messages: without the password, and without other secrets in its query."""
        url = self.parsed
        shown = {key: "***" if _is_secret(key) else value for key, value in url.query.items()}
        return url.set(query=shown).render_as_string(hide_password=True)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that no message may hold."""
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
        An option is missing, unknown or has a wrong value; the message names the nearest right one.
    """
    reader = _Reader(catalog, options)
    reader.refuse_unknown()
    url = reader.url()
    return Settings(
        catalog=catalog,
        url=url.render_as_string(hide_password=False),
        staging_schema=reader.staging_schema(url),
        staging_prefix=reader.staging_prefix(),
        column_types=column_types(options.get("column_types", ""), f"Catalog {catalog}: the option column_types"),
        batch_rows=reader.number("batch_rows", 10_000),
        pool_size=reader.number("pool_size", 5),
        connect_timeout=reader.number("connect_timeout", 10),
        lock_timeout=reader.number("lock_timeout", 60),
        read_partitions=reader.number("read_partitions", 8),
        read_partition_rows=reader.number("read_partition_rows", 100_000),
        external_writes=reader.word("external_writes", ("conflict", "ignore")),
    )


def nearest(word: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    """A hint that names the nearest right word, and all of them."""
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    listed = f"Known: {', '.join(sorted(known))}."
    return f"Did you mean {close[0]}? {listed}" if close else listed


def column_types(text: str, where: str) -> dict[str, str]:
    """Column types from ``name VARCHAR(80), "other one" JSONB``.

    Raises
    ------
    ConfigurationError
        The text is something else.
    """
    found: dict[str, str] = {}
    rest = text
    while rest.strip():
        match = _COLUMN_TYPE.match(rest)
        if match is None or (match.end() < len(rest) and rest[match.end()] != ","):
            raise ConfigurationError(
                f"{where} cannot be read from {rest.strip()!r} on.", hint="Write: name VARCHAR(80), payload JSONB"
            )
        found[match[1] or match[2] or match[3]] = match[4].strip()
        rest = rest[match.end() + 1 :]
    return found


class _Reader:
    def __init__(self, catalog: str, options: Mapping[str, str]) -> None:
        self._catalog = catalog
        self._options = options

    def _wrong(self, what: str, hint: str | None = None) -> ConfigurationError:
        return ConfigurationError(f"Catalog {self._catalog}: {what}", hint=hint)

    def refuse_unknown(self) -> None:
        for name in self._options:
            if name not in KNOWN:
                raise self._wrong(f"there is no option {name}.", nearest(name, KNOWN))

    def number(self, name: str, default: int) -> int:
        text = self._options.get(name, str(default))
        if not text.strip().isdigit() or int(text) < 1:
            raise self._wrong(f"the option {name} is a whole number from 1 on, not {text!r}.")
        return int(text)

    def word(self, name: str, words: tuple[str, ...]) -> str:
        text = self._options.get(name, words[0]).strip().lower()
        if text not in words:
            raise self._wrong(f"the option {name} is {' or '.join(words)}, not {text!r}.")
        return text

    def url(self) -> URL:
        text = self._options.get("url")
        if not text:
            raise self._wrong(
                "the option url is missing.",
                f"Set spark.sql.catalog.{self._catalog}.url, such as postgresql+psycopg://user@host/database",
            )
        url = self._parsed(text)
        url = url.set(drivername=self._driver(url))
        if user := self._options.get("user"):
            url = url.set(username=user)
        password = self._password()
        if password is not None:
            url = url.set(password=password)
        if url.get_backend_name() in ("sqlite", "duckdb") and (not url.database or url.database == ":memory:"):
            raise self._wrong(
                "a database in memory is not seen by the executors.",
                f"Name a file: {url.get_backend_name()}:////directory/file.db",
            )
        return url

    def _parsed(self, text: str) -> URL:
        try:
            # Spark's own spelling of such a URL is no mistake to insist on.
            return make_url(text.removeprefix("jdbc:"))
        except ArgumentError:
            # The text may hold a password: it is not repeated.
            raise self._wrong(
                "the option url cannot be read.", "Write it as SQLAlchemy does: postgresql+psycopg://user@host/database"
            ) from None

    def _driver(self, url: URL) -> str:
        backend, _, driver = url.drivername.partition("+")
        backend = {"postgres": "postgresql"}.get(backend, backend)
        if backend not in DRIVERS:
            return self._other_driver(url)
        if driver and driver != DRIVERS[backend]:
            raise self._wrong(f"{backend} is reached through {DRIVERS[backend]} here, not through {driver!r}.")
        name = f"{'mysql' if backend == 'mariadb' else backend}+{DRIVERS[backend]}"
        try:
            URL.create(name).get_dialect().import_dbapi()
        except (NoSuchModuleError, ImportError) as error:
            extra = {"mariadb": "mysql"}.get(backend, backend)
            raise self._wrong(
                f"the driver of {backend} is not installed: {error}.", f"Run: pip install 'twophase[{extra}]'"
            ) from error
        return name

    def _other_driver(self, url: URL) -> str:
        """Any other database goes by its dialect, where that is installed."""
        try:
            url.get_dialect().import_dbapi()
        except NoSuchModuleError:
            backend = url.drivername.partition("+")[0]
            raise self._wrong(
                f"no SQLAlchemy dialect is installed for the database {backend!r}.", nearest(backend, tuple(DRIVERS))
            ) from None
        except ImportError as error:
            raise self._wrong(f"the driver of {url.drivername} is not installed: {error}.") from error
        return url.drivername

    def _password(self) -> str | None:
        given = [name for name in ("password", "password_env", "password_file") if self._options.get(name)]
        if len(given) > 1:
            raise self._wrong(f"the password is given twice, by {' and '.join(given)}.")
        if not given:
            return None
        value = self._options[given[0]]
        if given[0] == "password_env":
            if value not in os.environ:
                raise self._wrong(f"the environment variable {value} of the option password_env is not set.")
            return os.environ[value]
        if given[0] == "password_file":
            try:
                return Path(value).read_text(encoding="utf-8").rstrip("\r\n")
            except OSError as error:
                raise self._wrong(f"the password file {value} cannot be read: {error.strerror}.") from error
        return value

    def staging_schema(self, url: URL) -> str | None:
        name = self._options.get("staging_schema") or None
        if name and url.get_backend_name() not in ("postgresql", "mysql"):
            backend = url.get_backend_name()
            raise self._wrong(f"{backend} takes no schema for staging tables.", "Use the option staging_prefix.")
        return name

    def staging_prefix(self) -> str:
        prefix = self._options.get("staging_prefix") or PREFIX
        if not _PREFIX_WORD.fullmatch(prefix):
            raise self._wrong(
                f"the option staging_prefix is {prefix!r}.",
                "Use at most 24 lower-case letters, digits and underscores, and begin with no digit.",
            )
        return prefix
