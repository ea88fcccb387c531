"""The options of a lakehouse catalog, read and checked when it is made; and the secrets among them, never shown."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from twophase.errors import ConfigurationError
from twophase.schema import (
    DEFAULT_STRATEGY,
    RebaseSchemaConflictResolutionStrategy,
    SchemaConflictResolutionStrategy,
)

KNOWN: Mapping[str, str] = {
    "type": "kind of the Iceberg catalog: sql, hive or rest (default: as the uri says)",
    "uri": "SQLAlchemy URL (default: SQLite in the warehouse), thrift://host:port, or https://host/path of a server",
    "password": "password, where the uri holds none; better in the environment",
    "password_env": "name of the environment variable that holds the password",
    "warehouse": "directory of the tables (default: <spark.sql.warehouse.dir>/<name of the catalog>)",
    "catalog_name": "the name under which the Iceberg catalog keeps its tables (default: the name of the catalog)",
    "hive_locks": "whether writers take the Hive Metastore's locks, as Iceberg does by default (default: true)",
    "rest_warehouse": "name of the warehouse that the REST catalog shall use, where it has several",
    "token_env": "name of the environment variable that holds the REST catalog's bearer token",
    "credential_env": "name of the environment variable that holds client_id:client_secret for the REST catalog",
    "oauth2_server_uri": "where credential_env is changed into a token",
    "scope": "of that token",
    "init_catalog_tables": "whether to make the tables of the Iceberg catalog where they are missing (default: true)",
    "schema_conflicts": "two writers change one schema: rfc-82 (default), or rebase, which combines what it can",
    "promotion": "changes of type that ALTER TABLE may make: exact, the only one that all Iceberg readers take",
    "commit_retries": "how often an append is rebased on what others committed meanwhile, 20 by default",
    "read_footers_on_executors": "number of new files from which executors read their footers, 200 by default",
}
_STRATEGIES: Mapping[str, SchemaConflictResolutionStrategy] = {
    "rfc-82": DEFAULT_STRATEGY,
    "rebase": RebaseSchemaConflictResolutionStrategy(),
}
_BACKENDS = ("sqlite", "postgresql")
_KINDS = ("sql", "hive", "rest")
_THRIFT = re.compile(r"thrift://[^/?#,@\s]+:\d+(,thrift://[^/?#,@\s]+:\d+)*")
_HTTP = re.compile(r"https?://[^/?#@\s]+(/[^?#@\s]*)?")
_REST_PROPERTIES = {"rest_warehouse": "warehouse", "oauth2_server_uri": "oauth2-server-uri", "scope": "scope"}
#: Options that only one kind of catalog has.
_OF_ONE_KIND = {
    "password": "sql",
    "password_env": "sql",
    "init_catalog_tables": "sql",
    "catalog_name": "sql",
    "hive_locks": "hive",
    "rest_warehouse": "rest",
    "token_env": "rest",
    "credential_env": "rest",
    "oauth2_server_uri": "rest",
    "scope": "rest",
}
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*:")


@dataclass(frozen=True)
class Settings:
    """What a lakehouse catalog is made of.

    Attributes
    ----------
    catalog : str
        The catalog's name, for messages.
    uri : str
        With the password; never shown.
    warehouse : str
        A URI (``file:///...``).
    catalog_name : str
    kind : str
        ``sql``, ``hive`` or ``rest``.
    hive_locks, init_catalog_tables : bool
    strategy : SchemaConflictResolutionStrategy
    commit_retries, read_footers_on_executors : int
    rest_properties : mapping of str to str
        What PyIceberg's REST catalog is opened with, secrets among it; never shown.
    """

    catalog: str
    uri: str = field(repr=False)
    warehouse: str
    catalog_name: str
    kind: str = "sql"
    hive_locks: bool = True
    init_catalog_tables: bool = True
    strategy: SchemaConflictResolutionStrategy = DEFAULT_STRATEGY
    commit_retries: int = 20
    read_footers_on_executors: int = 200
    rest_properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def url(self) -> URL:
        """SQLAlchemy's form of the URI of a SQL catalog."""
        return make_url(self.uri)

    @property
    def display_uri(self) -> str:
        """The URI for messages, without the password."""
        return self.uri if self.kind != "sql" else self.url.set(query={}).render_as_string(hide_password=True)


def read(catalog: str, options: Mapping[str, str], warehouse: str) -> Settings:
    """Read and check all options of a catalog.

    Parameters
    ----------
    catalog : str
    options : mapping of str to str
    warehouse : str
        The session's own.

    Raises
    ------
    ConfigurationError
        An option is missing, unknown or has a wrong value; the message names the nearest right one.
    """
    for name in options:
        if name not in KNOWN:
            raise _wrong(catalog, f"there is no option {name}.", nearest(name, KNOWN))
    kind = _kind(catalog, options)
    if options.get("promotion", "exact") != "exact":
        raise _wrong(catalog, "the option promotion is exact: other Iceberg readers take no wider changes of type.")
    place = _warehouse(catalog, options, warehouse)
    return Settings(
        catalog=catalog,
        uri=_ADDRESSES[kind](catalog, options, place),
        rest_properties=_rest(catalog, options) if kind == "rest" else {},
        warehouse=place,
        catalog_name=options.get("catalog_name", catalog),
        kind=kind,
        hive_locks=_flag(catalog, options, "hive_locks"),
        init_catalog_tables=_flag(catalog, options, "init_catalog_tables"),
        strategy=_strategy(catalog, options),
        commit_retries=_number(catalog, options, "commit_retries", 20),
        read_footers_on_executors=_number(catalog, options, "read_footers_on_executors", 200),
    )


def nearest(word: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    """A hint that names the nearest right word, and all of them."""
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    listed = f"Known: {', '.join(sorted(known))}."
    return f"Did you mean {close[0]}? {listed}" if close else listed


def _wrong(catalog: str, what: str, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(f"Catalog {catalog}: {what}", hint=hint)


def _flag(catalog: str, options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "true").lower()
    if text not in ("true", "false"):
        raise _wrong(catalog, f"the option {name} is true or false, not {text!r}.")
    return text == "true"


def _number(catalog: str, options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default)).strip()
    if not text.isdigit() or int(text) < 1:
        raise _wrong(catalog, f"the option {name} is a whole number from 1 on, not {text!r}.")
    return int(text)


def _strategy(catalog: str, options: Mapping[str, str]) -> SchemaConflictResolutionStrategy:
    name = options.get("schema_conflicts", "rfc-82")
    if name not in _STRATEGIES:
        raise _wrong(catalog, f"the option schema_conflicts cannot be {name!r}.", nearest(name, _STRATEGIES))
    return _STRATEGIES[name]


def _warehouse(catalog: str, options: Mapping[str, str], session_warehouse: str) -> str:
    named = options.get("warehouse")
    if not named and not session_warehouse:
        raise _wrong(catalog, "the option warehouse is missing.", "Name a directory for its tables.")
    place = named or f"{session_warehouse.rstrip('/')}/{catalog}"
    if not _SCHEME.match(place):
        place = f"file://{os.path.abspath(place)}"
    if place.startswith("file:"):
        place = "file:///" + place.removeprefix("file:").lstrip("/")
    if any(mark in place for mark in "?#%*[]{}"):
        raise _wrong(catalog, f"the warehouse {place} has a character that readers of Iceberg tables take for another.")
    return place.rstrip("/")


def _kind(catalog: str, options: Mapping[str, str]) -> str:
    scheme = options.get("uri", "").partition(":")[0]
    by_uri = {"thrift": "hive", "http": "rest", "https": "rest"}.get(scheme, "sql")
    kind = options.get("type", by_uri)
    if kind not in _KINDS:
        raise _wrong(
            catalog,
            f"Iceberg catalogs of the type {kind!r} are not offered.",
            "Use type sql (PyIceberg's SQL catalog, which is also the JDBC catalog of other engines), hive or rest.",
        )
    for name, of in _OF_ONE_KIND.items():
        if name in options and of != kind:
            raise _wrong(catalog, f"the option {name} is for catalogs of the type {of}, not {kind}.")
    return kind


def _metastore(catalog: str, options: Mapping[str, str], _: str) -> str:
    uri = options.get("uri", "")
    if not _THRIFT.fullmatch(uri):
        raise _wrong(catalog, "the option uri does not name a Hive Metastore.", "Write it as thrift://host:port")
    return uri


def _database(catalog: str, options: Mapping[str, str], warehouse: str) -> str:
    return _uri(catalog, options, warehouse).render_as_string(hide_password=False)


def _server(catalog: str, options: Mapping[str, str], _: str) -> str:
    uri = options.get("uri", "")
    if not _HTTP.fullmatch(uri):
        raise _wrong(
            catalog,
            "the option uri does not name a REST catalog.",
            "Write it as https://host/path, with no user and no query.",
        )
    return uri


def _rest(catalog: str, options: Mapping[str, str]) -> dict[str, str]:
    found = {name: options[option] for option, name in _REST_PROPERTIES.items() if option in options}
    for option in ("token_env", "credential_env"):
        if variable := options.get(option):
            if variable not in os.environ:
                raise _wrong(catalog, f"the environment variable {variable} (option {option}) is not set.")
            found[option.removesuffix("_env")] = os.environ[variable]
    return found


def _uri(catalog: str, options: Mapping[str, str], warehouse: str) -> URL:
    text = options.get("uri")
    if not text and not warehouse.startswith("file:"):
        raise _wrong(catalog, "the option uri is missing: the warehouse is no local directory.")
    try:
        url = make_url(text or f"sqlite:///{warehouse.removeprefix('file://')}/iceberg_catalog.db")
    except ArgumentError:
        # The text may hold a password: it is not repeated.
        hint = "Write it as SQLAlchemy does: sqlite:////directory/catalog.db or postgresql+psycopg://user@host/db"
        raise _wrong(catalog, "the option uri cannot be read.", hint) from None
    if url.get_backend_name() not in _BACKENDS:
        raise _wrong(
            catalog, f"the Iceberg catalog cannot be in {url.get_backend_name()}.", "Use one of: sqlite, postgresql."
        )
    if url.get_backend_name() == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    elif not url.database or url.database == ":memory:":
        raise _wrong(catalog, "a catalog in memory ends with the process.", "Name a file: sqlite:////directory/file.db")
    return _with_password(catalog, options, url)


def _with_password(catalog: str, options: Mapping[str, str], url: URL) -> URL:
    if variable := options.get("password_env"):
        if variable not in os.environ:
            raise _wrong(catalog, f"the environment variable {variable} (option password_env) is not set.")
        return url.set(password=os.environ[variable])
    return url.set(password=options["password"]) if options.get("password") else url


_ADDRESSES = {"sql": _database, "hive": _metastore, "rest": _server}
