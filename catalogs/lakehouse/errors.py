"""Conversion of errors of PyIceberg, its database and the file system to twophase's, without secrets in the text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError
from pyiceberg.exceptions import NoSuchTableError, RESTError
from pyiceberg.exceptions import ValidationError as IcebergValidationError
from requests import RequestException
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from thrift.Thrift import TException

from twophase.catalogs.lakehouse.options import Settings
from twophase.errors import CatalogError, TwoPhaseError

_NO_MORE = "Let the server or the role have more connections (max_connections, CONNECTION LIMIT), or close others."
_NO_SPACE = "Make room on the disk, and run the statement again."
#: A part of an error, and advice. The first match counts.
_HINTS = (
    ("read-only transaction", "This server takes no writes, as a replica does: name the one that does in the uri."),
    ("resolve host", "Check the host in the uri."),
    ("fatal:  database", "Check the database in the uri."),
    ("fatal:  role", "Check the user in the uri."),
    ("too many", _NO_MORE),
    ("connection slots", _NO_MORE),
    (
        "lock timeout",
        "Another session holds rows or tables of the Iceberg catalog: SELECT pid, query FROM pg_stat_activity WHERE "
        "state <> 'idle' shows it. Run the statement again when it has ended.",
    ),
    ("statement timeout", "A limit of the role or the server: ALTER ROLE ... SET statement_timeout = 0"),
    ("is full", _NO_SPACE),
    ("no space left", _NO_SPACE),
    ("no such table", "Its tables are missing: set init_catalog_tables to true, or name the right uri."),
    ("undefinedtable", "Its tables are missing: set init_catalog_tables to true, or name the right uri."),
    ("does not exist", "Its tables are missing: set init_catalog_tables to true, or name the right uri."),
    ("no such column", "It is no Iceberg catalog of a version that PyIceberg knows."),
    ("undefinedcolumn", "It is no Iceberg catalog of a version that PyIceberg knows."),
    ("not a database", "The file is no SQLite database, or it is damaged."),
    ("malformed", "The file is no SQLite database, or it is damaged."),
    ("unable to open", "The directory of the file must exist and be writable."),
    ("readonly", "The file and its directory must be writable."),
    ("read-only", "The file and its directory must be writable."),
    ("locked", "Another process holds the catalog: run the statement again."),
    ("refused", "Check host and port in the uri, and that the server runs."),
    ("unauthorized", "Check the token that token_env or credential_env names."),
    ("no token", "Check the token that token_env or credential_env names."),
    ("authentication", "Check user and password in the uri."),
    ("connect to any", "Check host and port in the uri, and that the metastore runs."),
    ("read 0 bytes", "A metastore without locks ends the connection like this: see the option hive_locks."),
    ("permission denied", "The role needs to read and write the Iceberg catalog's tables."),
)


class UnreadableMetadataError(CatalogError):
    """A metadata file, a manifest list or a manifest of a table is missing or damaged."""


def reason(error: BaseException) -> str:
    """The message of an error, in one line."""
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    said = getattr(origin, "message", None) if isinstance(origin, TException) else str(origin)
    text = (said or "").strip() or type(origin).__name__
    return text.splitlines()[0].rstrip(".")


def hint(error: BaseException) -> str | None:
    """Advice for an error, if there is any."""
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = f"{type(origin).__name__} {origin}".lower()
    return next((advice for mark, advice in _HINTS if mark in text), None)


@contextmanager
def speaking(settings: Settings, *, path: object = None, transaction_id: str | None = None) -> Iterator[None]:
    """Convert errors of the catalog's database, metastore or server to :class:`CatalogError`."""
    try:
        yield
    except TwoPhaseError:
        raise
    except (SQLAlchemyError, TException, RESTError, RequestException) as error:
        raise CatalogError(
            f"The Iceberg catalog {settings.display_uri} failed: {reason(error)}.",
            path=path,
            transaction_id=transaction_id,
            hint=hint(error),
        ) from error


@contextmanager
def reading_metadata(path: object, location: str | None) -> Iterator[None]:
    """Convert failures to read a table's metadata to :class:`UnreadableMetadataError`."""
    try:
        yield
    except NoSuchTableError:
        raise
    except TwoPhaseError as error:
        error.concerns(path)
        raise
    except FileNotFoundError as error:
        raise UnreadableMetadataError(
            f"The metadata file of {path} is missing: {location}.",
            path=path,
            hint="Restore the file, or drop the table: its pointer leads nowhere.",
        ) from error
    except (ValidationError, IcebergValidationError, ValueError, KeyError, TypeError, EOFError) as error:
        raise UnreadableMetadataError(
            f"The metadata file of {path} cannot be read ({location}): {reason(error)}.",
            path=path,
            hint="It is damaged, or of a format that PyIceberg does not know.",
        ) from error
    except OSError as error:
        raise UnreadableMetadataError(
            f"The metadata file of {path} cannot be opened ({location}): {reason(error)}.", path=path
        ) from error


@contextmanager
def reading_manifests(location: str) -> Iterator[None]:
    """Convert failures to read a manifest, or a list of them, but those of the store, which may answer again."""
    try:
        yield
    except FileNotFoundError as error:
        raise UnreadableMetadataError(
            f"{location} is missing: it lists files of the table.",
            hint="Restore the file, or read the table as of an earlier snapshot.",
        ) from error
    except (OSError, TwoPhaseError):
        raise
    except Exception as error:  # PyIceberg's decoder takes damaged bytes for lengths: it may raise anything.
        raise UnreadableMetadataError(
            f"{location} cannot be read: {reason(error)}. It lists files of the table.",
            hint="It is damaged: restore the file, or read the table as of an earlier snapshot.",
        ) from error


@contextmanager
def writing(path: object, location: str) -> Iterator[None]:
    """Convert failures to write a file to :class:`CatalogError`."""
    try:
        yield
    except OSError as error:
        raise CatalogError(
            f"{path} cannot be written: {location} cannot be made ({reason(error)}).",
            path=path,
            hint="The warehouse must exist, or its directory be writable.",
        ) from error
