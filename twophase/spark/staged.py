"""The tables that the transaction around a statement has staged."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.catalog.reading import ReadSource
from twophase.errors import AtomicityNotSupportedError
from twophase.model import ObjectPath, TableDefinition
from twophase.spark import active
from twophase.spark.attached import AttachedSession
from twophase.transactions import failures
from twophase.transactions.transaction import Transaction


def staged_table(
    session: AttachedSession, catalog: Catalog, path: ObjectPath
) -> tuple[TwoPhaseCatalogTable, TableDefinition | None] | None:
    """The participant that the surrounding transaction has for a table, and the definition as far as it is known.

    None as well for a table that it drops: see :func:`is_dropped`.
    """
    transaction = active.current_transaction(session)
    participant = transaction.find(catalog.name, path) if transaction else None
    if transaction is None or participant is None or participant.purpose.drops:
        return None
    return participant, _as_made(catalog, transaction.member(participant).definition)


def _as_made(catalog: Catalog, definition: TableDefinition | None) -> TableDefinition | None:
    """A definition with the columns in the order in which the table will have them."""
    if definition is None or not definition.partition_columns or not catalog.capabilities.partition_columns_last:
        return definition
    names = {name.lower(): name for name in definition.schema.names} | {name: name for name in definition.schema.names}
    keys = {names.get(name, names.get(name.lower())): place for place, name in enumerate(definition.partition_columns)}
    fields = sorted(definition.schema, key=lambda field: keys.get(field.name, -1))
    return replace(definition, schema=pa.schema(fields, definition.schema.metadata))


def is_dropped(transaction: Transaction | None, catalog: Catalog, path: ObjectPath) -> bool:
    """Return whether a transaction drops a table: its later statements see none."""
    participant = transaction.find(catalog.name, path) if transaction else None
    return participant is not None and participant.purpose.drops


def require_there(transaction: Transaction | None, catalog: Catalog, path: ObjectPath) -> None:
    """Refuse a table that a transaction drops.

    Raises
    ------
    TableNotExistError
    """
    if transaction is not None and is_dropped(transaction, catalog, path):
        raise failures.dropped(catalog.name, path, transaction.id)


def staged_tables(session: AttachedSession, catalog: Catalog, database: str, *, dropped: bool = False) -> list[str]:
    """The names of the tables of a database that the surrounding transaction writes, or of those that it drops."""
    transaction = active.current_transaction(session)
    if transaction is None:
        return []
    found = [p for p in transaction.participants if p.catalog is catalog and p.purpose.drops == dropped]
    paths = [catalog.canonical(participant.path) for participant in found]
    return [path.name for path in paths if path.database.lower() == database.lower()]


def table_definition(transaction: Transaction | None, catalog: Catalog, path: ObjectPath) -> TableDefinition:
    """The definition of a table as seen by a transaction: the staged one, otherwise the store's.

    Raises
    ------
    TableNotExistError
        The table is neither staged nor published, or the transaction drops it.
    AtomicityNotSupportedError
        The catalog cannot show what was staged.
    """
    participant = transaction.find(catalog.name, path) if transaction else None
    if transaction is None or participant is None:
        return catalog.load_table(path)
    require_there(transaction, catalog, path)
    known = _as_made(catalog, transaction.member(participant).definition)
    return known or staged_source(participant).definition or catalog.load_table(path)


def written_definition(transaction: Transaction | None, catalog: Catalog, path: ObjectPath) -> TableDefinition:
    """The definition that rows for a table are cast to; with the types of the store if the transaction makes the table.

    Those are what later statements will see: a lake has no CHAR, and a TINYINT is a smallint in PostgreSQL.

    Raises
    ------
    TableNotExistError, AtomicityNotSupportedError
        As of :func:`table_definition`.
    """
    declared = table_definition(transaction, catalog, path)
    participant = transaction.find(catalog.name, path) if transaction else None
    if transaction is None or participant is None:
        return declared
    if not (catalog.capabilities.own_types and transaction.member(participant).redefines):
        return declared
    try:
        source = participant.read_source()
    except AtomicityNotSupportedError:
        return declared
    return replace(declared, schema=source.definition.schema) if source and source.definition else declared


def staged_source(participant: TwoPhaseCatalogTable) -> ReadSource:
    """The source from which a participant's staged rows are read.

    Raises
    ------
    AtomicityNotSupportedError
        Its catalog cannot show it.
    WriteConflictError
        Another thread's statement is still writing it.
    SnapshotTooOldError
        It adds rows to a table that others have changed since the transaction began.
    """
    joined = active.find(participant.transaction_id)
    if joined is not None:
        joined.transaction.require_written(participant)
    source = participant.read_source()
    if joined is not None:
        joined.transaction.require_base(participant)
    if source is None:
        raise AtomicityNotSupportedError(
            f"Catalog {participant.catalog.name} cannot show what this transaction staged for {participant.path}.",
            path=participant.path,
            transaction_id=participant.transaction_id,
            hint="Read the table before it is written, or after the transaction.",
        )
    return source


def staged_definition(participant: TwoPhaseCatalogTable) -> TableDefinition:
    """The definition that a participant without rows stages; errors as of :func:`staged_source`."""
    definition = staged_source(participant).definition
    assert definition is not None
    return definition
