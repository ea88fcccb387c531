"""``create_table_as``: atomic creation of a table from a DataFrame, without SQL and without a JVM of our own.

It is the way for Spark Connect, whose client has no Py4J gateway through which to register a catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twophase.catalog import Catalog
from twophase.catalog.schema_changes import MERGE_SCHEMA, accepts_any_schema
from twophase.errors import ConfigurationError
from twophase.hooks.hook import JobStatusHook, checked
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition, Transform
from twophase.spark import active, types
from twophase.spark.assignment import fitted
from twophase.spark.begun import OpenTransaction
from twophase.spark.execution.cancellation import interruptible
from twophase.spark.staged import table_definition
from twophase.spark.statement import StatementContext, open_statement, run_statement, scope_as_read
from twophase.transactions.coordinator import Coordinator
from twophase.transactions.transaction import Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OTHER_WAY = "Write it with df.write if it need not be atomic."


@active.carried()
def create_table_as(
    df: DataFrame,
    catalog: Catalog | str,
    path: ObjectPath | str | Sequence[str],
    *,
    purpose: Purpose = Purpose.CREATE_TABLE_AS,
    provider: str | None = None,
    partitioned_by: Sequence[str | Transform] = (),
    properties: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    comment: str | None = None,
    location: str | None = None,
    overwrite: OverwriteScope | None = None,
    hooks: Iterable[JobStatusHook] = (),
    transaction: Transaction | OpenTransaction | None = None,
    coordinator: Coordinator | None = None,
) -> Transaction | None:
    """Write a DataFrame atomically as a table of a catalog.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The rows (classic or Connect).
    catalog : Catalog or str
        A catalog, or the name of one in the attached session of ``df``.
    path : ObjectPath or str or sequence of str
        The target: ``"db.table"``, or its parts if a name contains a dot.
    purpose : Purpose
        The kind of write. Inserts use the table's own definition, as seen by the transaction: columns are matched by
        name, all must be present, and their types must be the table's or convert to them without loss (``int`` to
        ``long``, ``date`` to ``timestamp_ntz``; NULL columns to any type). A table that accepts any schema (lakehouse)
        applies its own rules instead.
    provider, properties, options, comment, location
        As in ``CREATE TABLE``: ``USING``, ``TBLPROPERTIES``, ``OPTIONS``, ``COMMENT``, ``LOCATION``. As there, all
        columns of the new table are nullable.
    partitioned_by : sequence of str or Transform
        Column names, or transforms if the catalog supports them.
    overwrite : OverwriteScope, optional
        For INSERT_OVERWRITE; the whole table when None.
    hooks : iterable of JobStatusHook
        Notified in addition to those given to :func:`twophase.attach`.
    transaction : Transaction or OpenTransaction, optional
        Join this transaction: the table is published when it commits.
    coordinator : Coordinator, optional
        Required if the session of ``df`` is not attached (Spark Connect).

    Returns
    -------
    Transaction or None
        The transaction that the table is part of, with its level; None if IF NOT EXISTS found the table.

    Raises
    ------
    TableAlreadyExistsError, TableNotExistError, DatabaseNotExistError, CatalogError
        The target does not match the purpose, or the columns do not fit it; nothing was started, and a surrounding
        transaction is not affected.
    ConfigurationError
        An argument of a wrong type; or an insert with arguments that describe the table, which already has them.
    AtomicityNotSupportedError
        The catalog offers no two-phase write for this.
    WriteConflictError
        Another writer has changed the table since the rows were read from it, or its columns meanwhile.
    TransactionAborted, TransactionInDoubt
        The publish was refused, or its outcome could not be determined.

    Notes
    -----
    Source of the idea: the Table API half of Flink FLIP-305.
    """
    if isinstance(transaction, OpenTransaction):
        transaction = transaction.transaction
    own_hooks = checked(hooks)
    target = _object_path(path)
    clauses: dict[str, Any] = {
        "provider": provider,
        "partitioned_by": partitioned_by,
        "properties": properties,
        "options": options,
        "comment": comment,
        "location": location,
    }
    _check_types(df, catalog, purpose, overwrite, transaction, coordinator, clauses)
    unused = clauses if purpose.inserts else {}
    _refuse(purpose, target, unused if purpose is Purpose.INSERT_OVERWRITE else {**unused, "overwrite": overwrite})
    found, context = _context(df, catalog, coordinator, transaction, own_hooks)
    joined, session = context.joined, context.session
    if purpose is Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS and _is_there(joined, found, target):
        return None
    # All checks happen before the catalog is called: nothing is staged by then.
    rows, definition, table, columns = df, _new_definition(df, **clauses), None, None
    if purpose.inserts:
        table = table_definition(joined, found, target)
        rows, definition = _inserted(df, definition, found, table, target)
        columns = table.schema.names if definition is table else None  # Rows that bring columns are matched by name.
        if purpose is Purpose.INSERT_OVERWRITE:
            overwrite = scope_as_read(context, found, target, overwrite or OverwriteScope(), df)
    elif not found.capabilities.column_defaults:
        definition = replace(definition, schema=types.without_defaults(definition.schema))
    # Ctrl-C cancels the jobs if there is a job tracker.
    with interruptible(session.tracker) if session else nullcontext():
        statement = open_statement(
            context, found, target, definition, purpose, overwrite, other_way=_OTHER_WAY, columns=columns
        )
        run_statement(session, statement, rows, lambda: table or definition)
    return statement.transaction


def _context(
    df: DataFrame,
    catalog: Catalog | str,
    coordinator: Coordinator | None,
    transaction: Transaction | None,
    hooks: tuple[JobStatusHook, ...],
) -> tuple[Catalog, StatementContext]:
    """The catalog, and the statement's context: an attached session, or what the caller has passed."""
    if coordinator is not None and isinstance(catalog, Catalog):
        return catalog, StatementContext(coordinator, None, transaction, hooks)
    from twophase.spark.handle import handle_of

    handle = handle_of(df.sparkSession)
    if handle is None:
        raise ConfigurationError(
            "The session of this DataFrame is not attached.",
            hint="Call twophase.attach(spark) first, or pass a Catalog object and coordinator=.",
        )
    session = handle.session
    named = session.catalogs.named(catalog) if isinstance(catalog, str) else catalog
    joined = transaction or active.transaction_to_join(session)
    return named, StatementContext(coordinator or session.coordinator, session, joined, hooks)


def _new_definition(
    df: DataFrame,
    *,
    provider: str | None,
    partitioned_by: Sequence[str | Transform],
    properties: Mapping[str, str] | None,
    options: Mapping[str, str] | None,
    comment: str | None,
    location: str | None,
) -> TableDefinition:
    return TableDefinition(
        schema=types.to_arrow_schema(df.schema.toNullable()),
        provider=provider,
        partitioning=tuple(Transform.identity(c) if isinstance(c, str) else c for c in _several(partitioned_by)),
        properties=dict(properties or {}),
        options=dict(options or {}),
        comment=comment,
        location=location,
        external=location is not None,
    )


def _inserted(
    df: DataFrame, definition: TableDefinition, catalog: Catalog, table: TableDefinition, path: ObjectPath
) -> tuple[DataFrame, TableDefinition]:
    """The rows of an insert as they fit the table, and the definition that the catalog gets with them."""
    if accepts_any_schema(catalog, table):
        return df, replace(definition, options={**definition.options, MERGE_SCHEMA: "true"})
    return fitted(df, table.schema, path), table


def _several(partitioned_by: Sequence[str | Transform]) -> Sequence[str | Transform]:
    """Treat a single name as one column, not as a sequence of letters."""
    return [partitioned_by] if isinstance(partitioned_by, str) else partitioned_by


def _check_types(
    df: Any, catalog: Any, purpose: Any, overwrite: Any, transaction: Any, coordinator: Any, clauses: Mapping[str, Any]
) -> None:
    """Refuse arguments of wrong types: later they would fail with unrelated errors, or not at all."""
    by = clauses["partitioned_by"]
    maps = [clauses["properties"] or {}, clauses["options"] or {}]
    texts = [clauses[name] for name in ("provider", "comment", "location")]
    right = {
        "df, a DataFrame": hasattr(df, "sparkSession") and hasattr(df, "schema"),
        "catalog, a Catalog or its name": isinstance(catalog, Catalog | str),
        "purpose, a Purpose": isinstance(purpose, Purpose),
        "overwrite, an OverwriteScope": isinstance(overwrite, OverwriteScope | None),
        "transaction, a Transaction": isinstance(transaction, Transaction | None),
        "coordinator, a Coordinator": isinstance(coordinator, Coordinator | None),
        "partitioned_by, names of columns or Transforms": isinstance(by, Iterable)
        and all(isinstance(column, str | Transform) for column in by),
        "properties and options, texts by name": all(
            isinstance(found, Mapping) and all(isinstance(text, str) for pair in found.items() for text in pair)
            for found in maps
        ),
        "provider, comment and location, texts": all(isinstance(text, str | None) for text in texts),
        "location, which is not empty": clauses["location"] != "",
    }
    if wrong := [what for what, fits in right.items() if not fits]:
        raise ConfigurationError(
            f"create_table_as was given something else than {'; '.join(wrong)}. Nothing was started.",
            hint="For instance: create_table_as(df, 'hive', 'database.table', partitioned_by=['day'])",
        )


def _refuse(purpose: Purpose, path: ObjectPath, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that would be silently ignored, because the purpose does not use them."""
    given = [f"{name}=" for name, value in arguments.items() if value]
    if given:
        raise ConfigurationError(
            f"{purpose.value} of {path} has no use for {', '.join(given)}; nothing was started.",
            path=path,
            hint="An insert goes by the table's own definition; overwrite= belongs to INSERT_OVERWRITE.",
        )


def _is_there(transaction: Transaction | None, catalog: Catalog, path: ObjectPath) -> bool:
    """Return whether a table exists, published or staged by this transaction."""
    staged = transaction.find(catalog.name, path) if transaction else None
    return not staged.purpose.drops if staged is not None else catalog.table_exists(path)


def _object_path(path: ObjectPath | str | Sequence[str]) -> ObjectPath:
    if isinstance(path, ObjectPath):
        return path
    parts = path.split(".") if isinstance(path, str) else path
    if not isinstance(parts, Sequence) or not parts or not all(isinstance(part, str) for part in parts):
        raise ConfigurationError(
            f"{path!r} names no table. Nothing was started.",
            hint="Write 'database.table', or ('database', 'table') where a name holds a dot.",
        )
    return ObjectPath.of(*parts)
