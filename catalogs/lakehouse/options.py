"""The options of a lakehouse catalog, read and checked when it is created; secrets among them are never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from twophase.config import settings
from twophase.config.schema_conflicts import DESCRIPTION, SchemaConflicts, strategy_of
from twophase.config.settings import Count, Flag, Text, lower, option, optional_flag, secret
from twophase.redaction import redact
from twophase.schema import SchemaConflictResolutionStrategy

_BACKENDS = ("sqlite", "postgresql")
_THRIFT = re.compile(r"thrift://[^/?#,@\s]+:\d+(,thrift://[^/?#,@\s]+:\d+)*")
_HTTP = re.compile(r"https?://[^/?#@\s]+(/[^?#@\s]*)?")
#: Options of only one kind of catalog.
_OF_ONE_KIND: Mapping[str, tuple[str, ...]] = {
    "sql": ("password", "init_catalog_tables", "catalog_name"),
    "hive": ("hive_locks",),
    "rest": ("rest_warehouse", "token", "credential", "oauth2_server_uri", "scope"),
}
#: The default of settings of file systems.
_SESSION = "that of the session's Hadoop client"
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*:")


class Settings(settings.Settings):
    """The settings of a lakehouse catalog.

    After :func:`read` the ``uri`` is complete, with the password, and never shown; ``kind``, ``warehouse`` (a URI) and
    ``catalog_name`` are known.
    """

    kind: Annotated[Literal["sql", "hive", "rest"] | None, lower] = option(
        None, "kind of the Iceberg catalog: sql, hive or rest", shown="as the uri says", alias="type"
    )
    uri: str = option(
        "",
        "SQLAlchemy URL, thrift://host:port of a Hive Metastore, or https://host/path of a REST catalog",
        shown="SQLite in the warehouse",
        repr=False,
    )
    password: str | None = secret("password of the database, where the uri holds none")
    warehouse: str = option("", "directory of the tables", shown="<spark.sql.warehouse.dir>/<name of the catalog>")
    catalog_name: str = option(
        "", "the name under which the Iceberg catalog keeps its tables", shown="the name of the catalog"
    )
    hive_locks: Flag = option(True, "whether writers take the Hive Metastore's locks, as Iceberg does by default")
    rest_warehouse: Text = option(None, "name of the warehouse that the REST catalog uses, where it has several")
    token: str | None = secret("bearer token of the REST catalog", plain=False)
    credential: str | None = secret("client_id:client_secret for the REST catalog", plain=False)
    oauth2_server_uri: Text = option(None, "where the credential is changed into a token")
    scope: Text = option(None, "of that token")
    s3_endpoint: Text = option(None, "URL of the S3 store of its files", shown=_SESSION, alias="s3.endpoint")
    s3_region: Text = option(None, "region of the S3 store", shown=_SESSION, alias="s3.region")
    s3_access_key_id: Text = option(None, "access key for S3", shown=_SESSION, alias="s3.access-key-id", repr=False)
    s3_secret_access_key: str | None = secret("secret key for S3", alias="s3.secret-access-key")
    s3_session_token: str | None = secret("token of temporary credentials for S3", alias="s3.session-token")
    s3_path_style: Annotated[bool | None, "true or false", BeforeValidator(optional_flag)] = option(
        None,
        "whether buckets are part of the path of the S3 store's URL",
        shown=_SESSION,
        alias="s3.path-style-access",
    )
    adls_account_key: str | None = secret("key of the Azure account", alias="adls.account-key")
    adls_sas_token: str | None = secret("SAS token for the Azure account", alias="adls.sas-token")
    gcs_token: str | None = secret("OAuth 2 token for Google's storage", alias="gcs.oauth2.token")
    init_catalog_tables: Flag = option(True, "whether to make the tables of the Iceberg catalog where they are missing")
    schema_conflicts: SchemaConflicts = option("rfc-82", DESCRIPTION)
    promotion: Annotated[Literal["exact"], lower] = option(
        "exact", "changes of type that ALTER TABLE may make: exact is all that other Iceberg readers know"
    )
    commit_retries: Count = option(20, "how often an append is rebased on what others committed meanwhile")
    read_footers_on_executors: Count = option(200, "number of new files from which executors read their footers")

    @property
    def strategy(self) -> SchemaConflictResolutionStrategy:
        """The rules for two writers that change one schema."""
        return strategy_of(self.schema_conflicts)

    @property
    def rest_properties(self) -> dict[str, str]:
        """The properties with which PyIceberg's REST catalog is opened, secrets among them; never shown."""
        found = {
            "warehouse": self.rest_warehouse,
            "oauth2-server-uri": self.oauth2_server_uri,
            "scope": self.scope,
            "token": self.token,
            "credential": self.credential,
        }
        return {name: value for name, value in found.items() if value}

    @property
    def file_properties(self) -> dict[str, str]:
        """PyIceberg's properties of the file systems, secrets among them; never shown."""
        found = {
            "s3.endpoint": self.s3_endpoint,
            "s3.region": self.s3_region,
            "s3.access-key-id": self.s3_access_key_id,
            "s3.secret-access-key": self.s3_secret_access_key,
            "s3.session-token": self.s3_session_token,
            "s3.force-virtual-addressing": None if self.s3_path_style is None else str(not self.s3_path_style).lower(),
            "adls.account-key": self.adls_account_key,
            "adls.sas-token": self.adls_sas_token,
            "gcs.oauth2.token": self.gcs_token,
        }
        return {name: value for name, value in found.items() if value}

    @property
    def url(self) -> URL:
        """SQLAlchemy's form of the URI of a SQL catalog."""
        return make_url(self.uri)

    @property
    def display_uri(self) -> str:
        """The URI for messages, without the password."""
        if self.kind != "sql":
            return self.uri
        return redact(self.url.set(query={}).render_as_string(hide_password=True))  # The host holds what follows an @.


def read(catalog: str, options: Mapping[str, str], warehouse: str) -> Settings:
    """Read and check all options of a catalog.

    Parameters
    ----------
    catalog : str
    options : mapping of str to str
    warehouse : str
        The session's warehouse.

    Raises
    ------
    ConfigurationError
        An option is missing, unknown or has a wrong value; the message suggests the nearest valid one.
    """
    given = Settings.read(options, catalog)
    scheme = given.uri.partition(":")[0]
    kind = given.kind or {"thrift": "hive", "http": "rest", "https": "rest"}.get(scheme, "sql")
    for of, names in _OF_ONE_KIND.items():
        for name in names:
            if of != kind and name in given.model_fields_set:
                raise given.wrong(f"the option {name} is for catalogs of the type {of}, not {kind}.")
    if (given.s3_access_key_id is None) != (given.s3_secret_access_key is None):
        raise given.wrong("of the options s3.access-key-id and s3.secret-access-key, one is missing.")
    facts: dict[str, Any] = {"kind": kind, "catalog_name": given.catalog_name or catalog}
    facts["warehouse"] = _warehouse(given, warehouse)
    return given.model_copy(update={**facts, "uri": _ADDRESSES[kind](given, facts["warehouse"])})


def _warehouse(given: Settings, session_warehouse: str) -> str:
    if not given.warehouse and not session_warehouse:
        raise given.wrong("the option warehouse is missing.", "Name a directory for its tables.")
    found = given.warehouse or f"{session_warehouse.rstrip('/')}/{given.catalog}"
    if not _SCHEME.match(found):
        found = f"file://{os.path.abspath(found)}"
    if found.startswith("file:"):
        found = "file:///" + found.removeprefix("file:").lstrip("/")
    if any(mark in found for mark in "?#%*[]{}"):
        raise given.wrong(f"the warehouse {found} has a character that readers of Iceberg tables take for another.")
    return found.rstrip("/")


def _metastore(given: Settings, _: str) -> str:
    if not _THRIFT.fullmatch(given.uri):
        raise given.wrong("the option uri does not name a Hive Metastore.", "Write it as thrift://host:port")
    return given.uri


def _server(given: Settings, _: str) -> str:
    if not _HTTP.fullmatch(given.uri):
        hint = "Write it as https://host/path, with no user and no query."
        raise given.wrong("the option uri does not name a REST catalog.", hint)
    return given.uri


def _database(given: Settings, warehouse: str) -> str:
    if not given.uri and not warehouse.startswith("file:"):
        raise given.wrong("the option uri is missing: the warehouse is no local directory.")
    try:
        url = make_url(given.uri or f"sqlite:///{warehouse.removeprefix('file://')}/iceberg_catalog.db")
    except ArgumentError:
        # The text may contain a password, so it is not repeated.
        hint = "Write it as SQLAlchemy does: sqlite:////directory/catalog.db or postgresql+psycopg://user@host/db"
        raise given.wrong("the option uri cannot be read.", hint) from None
    backend = url.get_backend_name()
    if backend not in _BACKENDS:
        raise given.wrong(f"the Iceberg catalog cannot be in {backend}.", "Use one of: sqlite, postgresql.")
    if backend == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    elif not url.database or url.database == ":memory:":
        raise given.wrong("a catalog in memory ends with the process.", "Name a file: sqlite:////directory/file.db")
    if given.password is not None:
        url = url.set(password=given.password)
    return url.render_as_string(hide_password=False)


_ADDRESSES = {"sql": _database, "hive": _metastore, "rest": _server}
