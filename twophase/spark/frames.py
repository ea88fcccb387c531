"""``create_table_as``: an all-or-nothing table from a DataFrame, without SQL and without a JVM of our own.

It is the path for Spark Connect, whose client has no Py4J gateway to hang a catalog on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.coordinator import Coordinator
from twophase.errors import AtomicityNotSupportedError, ConfigurationError
from twophase.hooks.hook import JobStatusHook, checked
from twophase.hooks.statement import JobScope, Statement
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition, Transform
from twophase.spark import live, types
from twophase.spark.assignment import fitted
from twophase.spark.cancellation import interruptible
from twophase.transactions import Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@live.carried()
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
    transaction: Transaction | None = None,
    coordinator: Coordinator | None = None,
) -> Transaction | None:
    """Write a DataFrame as a table of a catalog, wholly or not at all.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The rows (classic or Connect).
    catalog : Catalog or str
        A catalog, or the name of one in the attached session of ``df``.
    path : ObjectPath or str or sequence of str
        The target: ``"db.table"``, or its parts where a name holds a dot.
    purpose : Purpose
        What to do. The inserts take the table's own definition, as the transaction has it: columns are found by name,
        all must be given, and their types must be the table's or become them without loss (``int`` to ``long``,
        ``date`` to ``timestamp_ntz``; NULL columns become anything). In a table that takes any schema (lakehouse)
        they follow its rules instead.
    provider, properties, options, comment, location
        As in ``CREATE TABLE``: ``USING``, ``TBLPROPERTIES``, ``OPTIONS``, ``COMMENT``, ``LOCATION``. As there, all
        columns of the new table may be null.
    partitioned_by : sequence of str or Transform
        Column names, or transforms where the catalog has them.
    overwrite : OverwriteScope, optional
        For INSERT_OVERWRITE; the whole table when None.
    hooks : iterable of JobStatusHook
        Told beside those given to :func:`twophase.attach`.
    transaction : Transaction, optional
        Join this one: the table is published when it commits.
    coordinator : Coordinator, optional
        Needed where the session of ``df`` is not attached (Spark Connect).

    Returns
    -------
    Transaction or None
        The transaction that the table is part of, with its level; None where IF NOT EXISTS found the table.

    Raises
    ------
    TableAlreadyExistsError, TableNotExistError, DatabaseNotExistError, CatalogError
        The target is not as the purpose needs it, or the columns do not fit it; nothing was started, and a transaction
        around this goes on as it was.
    ConfigurationError
        An argument of another type; or an insert that says anything of the table: it has all that already.
    AtomicityNotSupportedError
        The catalog offers no two-phase write for this.
    TransactionAborted, TransactionInDoubt
        The publish was refused, or its outcome could not be learned.

    Notes
    -----
    Source of the idea: the Table API half of Flink FLIP-305.
    """
    told = checked(hooks)
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
    host = _Host.of(df, catalog, coordinator)
    joined = transaction or host.current_transaction()
    if purpose is Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS and _is_there(joined, host.catalog, target):
        return None
    definition = _new_definition(df, **clauses)
    rows, table = df, definition
    if purpose.inserts:
        # Whatever can be refused is refused before the catalog is asked: nothing is staged by then.
        table = live.table_definition(joined, host.catalog, target)
        if not host.catalog.accepts_any_schema(table):
            rows, definition = fitted(df, table.schema, target), table
    with host.interruptible():
        own = joined or host.coordinator.begin()
        participant = _stage(own, host.catalog, target, definition, purpose, overwrite, autocommit=joined is None)
        heard = (*host.hooks_of(own), *told)
        statement = Statement(own, participant, hooks=heard, autocommit=joined is None, job_scope=host.job_scope)
        statement.start()
        live.run_statement(host.handle, statement, rows, table)
    return own


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


def _several(partitioned_by: Sequence[str | Transform]) -> Sequence[str | Transform]:
    """A single name is no sequence of its letters."""
    return [partitioned_by] if isinstance(partitioned_by, str) else partitioned_by


def _check_types(
    df: Any, catalog: Any, purpose: Any, overwrite: Any, transaction: Any, coordinator: Any, clauses: Mapping[str, Any]
) -> None:
    """Refuse arguments of other types: further down they would fail in words of other things, or not at all."""
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
    """Refuse what would be lost without a word: a purpose has no use for these."""
    given = [f"{name}=" for name, value in arguments.items() if value]
    if given:
        raise ConfigurationError(
            f"{purpose.value} of {path} has no use for {', '.join(given)}; nothing was started.",
            path=path,
            hint="An insert goes by the table's own definition; overwrite= belongs to INSERT_OVERWRITE.",
        )


def _is_there(transaction: Transaction | None, catalog: Catalog, path: ObjectPath) -> bool:
    """Whether a table exists, or would by what this transaction has staged."""
    staged = transaction.find(catalog.name, path) if transaction else None
    return staged is not None or catalog.table_exists(path)


def _stage(
    transaction: Transaction,
    catalog: Catalog,
    path: ObjectPath,
    definition: TableDefinition,
    purpose: Purpose,
    overwrite: OverwriteScope | None,
    *,
    autocommit: bool,
) -> TwoPhaseCatalogTable:
    participant = transaction.stage(
        catalog,
        path,
        definition,
        purpose=purpose,
        ignore_if_exists=purpose is Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS,
        overwrite=overwrite,
        autocommit=autocommit,
    )
    if participant is None:
        raise AtomicityNotSupportedError(
            f"Catalog {catalog.name} has no two-phase write for {purpose.value} of {path}; nothing was started.",
            path=path,
            hint="Write it with df.write if it need not be atomic.",
        )
    return participant


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


class _Host:
    """Where the catalog, the coordinator and the hooks come from: an attached session, or the caller."""

    def __init__(self, catalog: Catalog, coordinator: Coordinator, handle: Any = None) -> None:
        self.catalog = catalog
        self.coordinator = coordinator
        self.handle = handle
        self.hooks: tuple[JobStatusHook, ...] = tuple(handle.hooks) if handle else ()
        self.job_scope: JobScope | None = handle.tracker.scope if handle else None

    @classmethod
    def of(cls, df: DataFrame, catalog: Catalog | str, coordinator: Coordinator | None) -> _Host:
        if coordinator is not None and isinstance(catalog, Catalog):
            return cls(catalog, coordinator)
        from twophase.spark.session import handle_of

        handle = handle_of(df.sparkSession)
        if handle is None:
            raise ConfigurationError(
                "The session of this DataFrame is not attached.",
                hint="Call twophase.attach(spark) first, or pass a Catalog object and coordinator=.",
            )
        found = handle.catalog(catalog) if isinstance(catalog, str) else catalog
        return cls(found, coordinator or handle.coordinator, handle)

    def current_transaction(self) -> Transaction | None:
        """The surrounding ``with twophase.transaction(spark)``, if any."""
        return self.handle.current_transaction() if self.handle else None

    def interruptible(self) -> AbstractContextManager[None]:
        """Let Ctrl-C cancel the jobs, where there is a tracker of jobs to do that."""
        return interruptible(self.handle.tracker) if self.handle else nullcontext()

    def hooks_of(self, transaction: Transaction) -> tuple[JobStatusHook, ...]:
        """The session's, and those of a ``with twophase.transaction(spark, hooks=...)``."""
        found = live.find(transaction.id)
        return (*self.hooks, *(found.hooks if found else ()))
