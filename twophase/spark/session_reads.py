"""The versions of session tables that a DataFrame reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.catalogs.hive.catalog import HiveCatalog
from twophase.model import ObjectPath, Purpose
from twophase.redaction import logger
from twophase.spark import active
from twophase.spark.attached import AttachedSession
from twophase.spark.jvm.partitions import path_of
from twophase.spark.jvm.scans import lists_the_same, session_tables
from twophase.spark.versions_read import states_read
from twophase.transactions.failures import rows_read_before
from twophase.transactions.transaction import Transaction

_log = logger("twophase.spark")


def resolved_version(session: AttachedSession, location: str | None, stamp: str | None) -> Callable[[Any], bool] | None:
    """Return whether a version of a table is the one with the location, as a URI, and the stamp that a plan has."""
    catalog = _session_catalog(session)
    if catalog is None or location is None:
        return None
    return lambda version: catalog.is_version_at(version, path_of(location), stamp)


def note_reads(session: AttachedSession, frame: Any) -> None:
    """Record in the surrounding transaction the session tables that a DataFrame reads, with the versions scanned."""
    transaction, catalog = active.current_transaction(session), _session_catalog(session)
    if transaction is None or catalog is None:
        return
    for table in session_tables(session.jvm, frame):
        if table.transaction_id == transaction.id:
            continue  # It was recorded when Spark has looked the table up.
        path = ObjectPath.of(table.database, table.name)
        transaction.note_read(catalog, path, catalog.version_of(table.location, table.stamp))


def note_inputs(session: AttachedSession, transaction: Transaction, frame: Any) -> None:
    """Note for the observers which tables a statement of its own reads; what fails of it is only logged."""
    try:
        read: list[tuple[Catalog, ObjectPath, Any]] = list(states_read(session.jvm, frame, session.catalogs))
        if (catalog := _session_catalog(session)) is not None:
            for table in session_tables(session.jvm, frame):
                path = ObjectPath.of(table.database, table.name)
                read.append((catalog, path, catalog.version_of(table.location, table.stamp)))
        transaction.note_inputs(read)
    except Exception as error:
        _log.warning("What transaction %s reads is not reported: %s", transaction.id, error)


def _session_catalog(session: AttachedSession) -> HiveCatalog | None:
    """The catalog that serves the session's own tables, if it distinguishes the versions of a table."""
    catalog = session.catalogs.of_session
    return catalog if isinstance(catalog, HiveCatalog) and catalog.metastore.read_by_session else None


def require_as_read(session: AttachedSession, participant: TwoPhaseCatalogTable, frame: Any) -> None:
    """Refuse to replace a session table by rows that were read from an older version of it.

    Called once the statement is staged: the base version of the statement is between that of the read and the current
    one, so if those two are the same, all are.
    """
    catalog = _session_catalog(session)
    if participant.purpose is Purpose.INSERT_INTO or catalog is None or participant.catalog is not catalog:
        return
    target = catalog.canonical(participant.path)
    for table in session_tables(session.jvm, frame):
        path = catalog.canonical(ObjectPath.of(table.database, table.name))
        if path != target or (table.transaction_id == participant.transaction_id and _merges(participant)):
            continue
        moved = catalog.version_of(table.location, table.stamp) != catalog.table_version(target)
        files = None if moved else table.files()
        if moved or not (files is None or lists_the_same(session.jvm, files)):
            raise rows_read_before(f"{catalog.name}.{target}", participant.transaction_id)


def _merges(participant: TwoPhaseCatalogTable) -> bool:
    """Whether the end of the block compares what was read, and asks the user."""
    joined = active.find(participant.transaction_id)
    return joined is not None and joined.transaction.merging is not None
