"""``create_table_as``: an all-or-nothing table from a DataFrame, without SQL and without a JVM of our own.

It is the path for Spark Connect, whose client has no Py4J gateway to hang a catalog on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.coordinator import Coordinator
from twophase.errors import AtomicityNotSupportedError, CatalogError, ConfigurationError
from twophase.hooks.hook import JobStatusHook
from twophase.hooks.statement import JobScope, Statement
from twophase.hooks.status import JobState
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition, Transform, quote
from twophase.spark import types
from twophase.spark.cancellation import interruptible
from twophase.transactions import Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
        What to do; the inserts take the table's own definition.
    provider, properties, options, comment, location
        As in ``CREATE TABLE``: ``USING``, ``TBLPROPERTIES``, ``OPTIONS``, ``COMMENT``, ``LOCATION``.
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
        The target is not as the purpose needs it; nothing was started.
    AtomicityNotSupportedError
        The catalog offers no two-phase write for this.
    TransactionAborted, TransactionInDoubt
        The publish was refused, or its outcome could not be learned.

    Notes
    -----
    Source of the idea: the Table API half of Flink FLIP-305.
    """
    host = _Host.of(df, catalog, coordinator)
    target = _object_path(path)
    if purpose is Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS and host.catalog.table_exists(target):
        return None
    definition = TableDefinition(
        schema=types.to_arrow_schema(df.schema),
        provider=provider,
        partitioning=tuple(Transform.identity(c) if isinstance(c, str) else c for c in partitioned_by),
        properties=dict(properties or {}),
        options=dict(options or {}),
        comment=comment,
        location=location,
        external=location is not None,
    )
    if purpose.inserts:
        definition = _insert_definition(host.catalog, target, definition)
    joined = transaction or host.current_transaction()
    own = joined or host.coordinator.begin()
    participant = _stage(own, host.catalog, target, definition, purpose, overwrite, autocommit=joined is None)
    statement = Statement(
        own, participant, hooks=(*host.hooks, *hooks), autocommit=joined is None, job_scope=host.job_scope
    )
    with host.interruptible():
        try:
            _run(statement, _in_table_order(df, definition) if purpose.inserts else df)
        finally:
            if statement.job.state is JobState.FINISHED:  # also when an interrupt came after the publish
                host.refresh(target)
    return own


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


def _run(statement: Statement, df: DataFrame) -> None:
    statement.start()
    try:
        statement.write(df)
    except BaseException as error:
        statement.fail(error)
        raise
    statement.finish()


def _insert_definition(catalog: Catalog, path: ObjectPath, rows: TableDefinition) -> TableDefinition:
    """The table's own definition, after the columns were found to be the same by name."""
    table = catalog.load_table(path)
    have, want = ({name.lower() for name in d.schema.names} for d in (rows, table))
    if have != want:
        raise CatalogError(
            f"The columns of the rows are not those of {path}: missing {sorted(want - have)}, "
            f"unknown {sorted(have - want)}. Nothing was started.",
            path=path,
        )
    return table


def _in_table_order(df: DataFrame, definition: TableDefinition) -> DataFrame:
    return df.select(*(quote(name) for name in definition.schema.names))


def _object_path(path: ObjectPath | str | Sequence[str]) -> ObjectPath:
    if isinstance(path, ObjectPath):
        return path
    return ObjectPath.of(*(path.split(".") if isinstance(path, str) else path))


class _Host:
    """Where the catalog, the coordinator and the hooks come from: an attached session, or the caller."""

    def __init__(self, catalog: Catalog, coordinator: Coordinator, handle: Any = None) -> None:
        self.catalog = catalog
        self.coordinator = coordinator
        self._handle = handle
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
        return self._handle.current_transaction() if self._handle else None

    def interruptible(self) -> AbstractContextManager[None]:
        """Let Ctrl-C cancel the jobs, where there is a tracker of jobs to do that."""
        return interruptible(self._handle.tracker) if self._handle else nullcontext()

    def refresh(self, path: ObjectPath) -> None:
        """Let the session forget what it cached of the table."""
        if self._handle:
            self._handle.refresh(self.catalog, path)
