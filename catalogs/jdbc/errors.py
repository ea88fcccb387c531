"""Conversion of a database's errors to ours: in plain words, with a hint what to do, and without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from twophase.catalogs.jdbc.options import Settings
from twophase.errors import CatalogError, TwoPhaseError
from twophase.model import ObjectPath

#: A pattern for a database's message or code, and a hint what to do. The first match counts.
_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"password authentication failed|no password supplied|\b1045\b|\b28P01\b|denied for user .*using password",
        "Check the options user and password (or password_env, password_file). A MariaDB that wants TLS may say the "
        "same: then add ?ssl_ca=FILE to the url.",
    ),
    (
        r"no encryption|SSL off|require_secure_transport|\b3159\b|insecure transport|hostssl",
        "The server wants TLS: add ?sslmode=require (PostgreSQL) or ?ssl_ca=FILE (MariaDB, MySQL) to the url.",
    ),
    (
        # The last pattern is Python's error for a missing ssl_ca file.
        r"certificate.*(verif|match|host)|certificate_verify_failed|root certificate|no such file or directory \(2\)",
        "Check that sslrootcert (PostgreSQL) or ssl_ca (MariaDB, MySQL) in the url is the file of the CA that signed "
        "the server's certificate, and that the certificate is for the url's host.",
    ),
    (
        r"'cryptography' package",
        "MySQL takes this password over TLS only: take ssl_disabled out of the url, or add ?ssl_ca=FILE to it. Or "
        "install the package cryptography on the driver and the executors.",
    ),
    (
        r"sql_require_primary_key",
        "Staged rows have no key of their own. Let the server give tables an invisible one: SET PERSIST "
        "sql_generate_invisible_primary_key = ON.",
    ),
    (
        r"no pg_hba.conf entry",
        "The server does not admit this user from this machine: see its pg_hba.conf.",
    ),
    (
        r"could not translate host|failed to resolve host|name or service not known|nodename nor servname|getaddrinfo",
        "Check the host name in the url.",
    ),
    (
        r"connection refused|can't connect|could not connect|timed? ?out.*connect|connection timeout|\b2003\b",
        "Check host and port in the url, and that the server runs.",
    ),
    (
        r"read-only (option|transaction)",
        "This server takes no writes, as a replica does: name the one that does in the url.",
    ),
    (
        r"permission denied for table \S*_published\b|(select|insert|update|delete) command denied .*_published\b",
        "Roles that share a schema need SELECT on this table, to read in a block, and to write INSERT, UPDATE and "
        "DELETE, too. Its owner can run: GRANT SELECT, INSERT, UPDATE, DELETE ON {published} TO {role}",
    ),
    (
        r"permission denied|must be owner|command denied|access denied|\b1142\b|\b1044\b|\b1227\b|\b42501\b|readonly",
        "The role needs CREATE on the schema, and to own the tables that it replaces (MariaDB, MySQL: SELECT, INSERT, "
        "UPDATE, DELETE, CREATE, DROP, ALTER and INDEX); or set staging_schema to a schema where it may create tables.",
    ),
    (
        r"too many (clients|connections)|connection slots|max_user_connections|\b1040\b|\b1203\b|\b1226\b|\b53300\b",
        "Let the server or the role have more connections (max_connections, CONNECTION LIMIT); a write takes one for "
        "each of its tasks that run at once, and a few more.",
    ),
    (
        r"no space left|could not extend file|disk.*full|is full|disk quota|\b53100\b|\b1114\b|\b1021\b",
        "Make room on the database's disk, and run the statement again.",
    ),
    (
        r"incorrect datetime value|out of range value|\b1292\b|\b1264\b",
        "The column's type does not hold the value. A TIMESTAMP of MariaDB and MySQL holds 1970 to 2038 only: set "
        "column_types to DATETIME(6) for this column.",
    ),
    (
        r"lock timeout|lock wait timeout|\b55P03\b|\b1205\b|database is locked|table is locked",
        "Another session holds the table: run the statement again when it has ended, or raise the option lock_timeout.",
    ),
    (r"unknown database|does not exist.*database|database .* does not exist", "Check the database in the url."),
)
_HINTS_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), hint) for pattern, hint in _HINTS)


def reason(error: BaseException, settings: Settings) -> str:
    """The database's message, in one line and without secrets."""
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    arguments: tuple[object, ...] = getattr(origin, "args", ())
    if len(arguments) > 1 and isinstance(arguments[0], int):  # drivers of MariaDB: number and text
        text = f"{arguments[1]} ({arguments[0]})"
    else:
        text = str(origin).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = "; ".join(lines[:2]) or type(origin).__name__
    for secret in settings.secrets:
        said = said.replace(secret, "***")
    return said.rstrip(".")


def failed(
    error: BaseException, settings: Settings, *, path: object = None, transaction_id: str | None = None
) -> CatalogError:
    """Make the CatalogError for a database's error."""
    said = reason(error, settings)
    hint = next((hint for pattern, hint in _HINTS_COMPILED if pattern.search(said)), None)
    if hint is not None and "{published}" in hint:
        schema = settings.staging_schema or (path.database if isinstance(path, ObjectPath) else "SCHEMA")
        hint = hint.format(published=f"{schema}.{settings.staging_prefix}published", role=settings.parsed.username)
    return CatalogError(
        f"{settings.display_url} answered: {said}.", path=path, transaction_id=transaction_id, hint=hint
    )


@contextmanager
def speaking(settings: Settings, *, path: object = None, transaction_id: str | None = None) -> Iterator[None]:
    """Convert a database's errors to ours; the driver's error is not chained, as it may contain the statement."""
    try:
        yield
    except TwoPhaseError:
        raise
    except (SQLAlchemyError, OSError) as error:
        raise failed(error, settings, path=path, transaction_id=transaction_id) from None
    except Exception as error:
        of_driver = type(error).__module__.split(".")[0] in ("psycopg", "pymysql", "sqlite3")
        if not of_driver and "'cryptography' package" not in str(error):  # PyMySQL's RuntimeError if it is missing
            raise
        raise failed(error, settings, path=path, transaction_id=transaction_id) from None
