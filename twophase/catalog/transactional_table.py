"""The participant of a :class:`~twophase.TransactionalCatalog`: staged as files, and published in one transaction."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from twophase.catalog.base import TwoPhaseCatalogTable
from twophase.catalog.reading import ReadSource
from twophase.catalog.staged_rows import RowsReader, Scan, StagedRows, scan_files, sync, write_file
from twophase.errors import (
    CatalogError,
    ConcurrentSchemaEvolutionError,
    TableAlreadyExistsError,
    TransactionAborted,
    WriteConflictError,
)
from twophase.model import ObjectPath, Outcome, Purpose, TableDefinition, WriteContext

if TYPE_CHECKING:
    import pyarrow as pa

    from twophase.catalog.transactional_store import StoredTable, TransactionalStore

#: Prefix of the directories of staged rows, below the catalog's staging directory.
PREFIX = "twophase-"


@dataclass(frozen=True)
class _State:
    """The typed view of a participant's document.

    Attributes
    ----------
    path : ObjectPath
    purpose : Purpose
    transaction_id : str
    ordinal : int
    definition : TableDefinition
        The definition of the table after the statement; without OPTIONS, which may contain secrets.
    seen : str or None
        The version of the table when the write was planned; None if the table did not exist.
    tolerant : bool
        Whether it is acceptable that another writer creates the table first (IF NOT EXISTS).
    base : mapping or None
        The document of the earlier statement of the same transaction on which this one builds.
    files : tuple of str
        Names of the staged files that are part of the rows.
    """

    path: ObjectPath
    purpose: Purpose
    transaction_id: str
    ordinal: int
    definition: TableDefinition
    seen: str | None
    tolerant: bool
    base: Mapping[str, Any] | None
    files: tuple[str, ...] = ()

    def to_document(self) -> dict[str, Any]:
        return {
            "path": self.path.to_document(),
            "purpose": self.purpose.value,
            "transaction_id": self.transaction_id,
            "ordinal": self.ordinal,
            "definition": replace(self.definition, options={}).to_document(),
            "seen": self.seen,
            "tolerant": self.tolerant,
            "base": None if self.base is None else dict(self.base),
            "files": list(self.files),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> _State:
        facts = {name: document[name] for name in ("transaction_id", "ordinal", "seen", "tolerant", "base")}
        return cls(
            path=ObjectPath.from_document(document["path"]),
            purpose=Purpose(document["purpose"]),
            definition=TableDefinition.from_document(document["definition"]),
            files=tuple(document["files"]),
            **facts,
        )


class TransactionalTable(TwoPhaseCatalogTable):
    """The participant of one statement: rows are staged as Parquet files, and loaded in the publishing transaction."""

    @classmethod
    def planned(
        cls,
        catalog: TransactionalStore,
        path: ObjectPath,
        definition: TableDefinition,
        purpose: Purpose,
        context: WriteContext,
        *,
        seen: str | None,
        tolerant: bool,
    ) -> TransactionalTable:
        """Create a participant that has not staged anything yet."""
        state = _State(path, purpose, context.transaction_id, context.ordinal, definition, seen, tolerant, context.base)
        return cls(catalog, state.to_document())

    @property
    def _store(self) -> TransactionalStore:
        return self.catalog  # type: ignore[return-value]

    @property
    def _state(self) -> _State:
        return _State.from_document(self.document)

    @cached_property
    def _target(self) -> ObjectPath:
        return self._store.canonical(self.path)

    @property
    def key(self) -> str:
        """The key that is recorded in the store; unique to the statement."""
        return f"{self.transaction_id}.{self.document['ordinal']}"

    @property
    def directory(self) -> str:
        """The staging directory of its rows."""
        return os.path.join(self._store.staging, PREFIX + self.key)

    # -- staging -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.prepare()
        os.makedirs(self.directory, exist_ok=True)

    def write(self, df: Any) -> None:
        runner, schema = self._store.environment.partition_runner, self._state.definition.schema
        if runner is None:
            raise CatalogError(f"Catalog {self._store.name} has no executors to write with.", path=self.path)
        if len(df.columns) != len(schema):
            raise CatalogError(
                f"Table {self.path} has {len(schema)} columns, and the rows have {len(df.columns)}.", path=self.path
            )
        # Each task attempt wrote its own file: the rows are in the files of the successful attempts.
        answers = runner.collect(df, partial(write_file, self.directory, schema))
        self.document["files"] = [name for name in answers if name is not None]

    def prepare(self) -> None:
        with self._store.transaction() as db:
            if not self._store.is_recorded(db, self.key):
                self._require_unchanged(db)

    def persist(self) -> None:
        if self._store.environment.fsync:
            for step in self._steps():
                sync(*step._rows().files, step.directory)
            sync(self._store.staging)

    # -- publishing ----------------------------------------------------------------------------------------------

    def commit(self) -> None:
        self._store.publish_group([self])

    def publish(self, db: Any) -> None:
        """Publish rows and record together, in a transaction of the store that the caller has opened. Idempotent.

        Raises
        ------
        TransactionAborted
            It cannot be published as planned.
        """
        if self._store.is_recorded(db, self.key):
            return
        self._require_staged()
        try:
            self._require_unchanged(db)
        except CatalogError as error:
            raise TransactionAborted(
                str(error), path=self.path, transaction_id=self.transaction_id, hint=error.hint
            ) from error
        if any([step._apply(db) for step in self._steps()]):  # noqa: C419 - each of them
            self._store.stamp(db, self._target, self.key)
        self._store.record(db, self.key)

    def outcome(self) -> Outcome:
        try:
            with self._store.transaction() as db:
                is_published = self._store.is_recorded(db, self.key)
        except Exception:  # a store may raise anything; the outcome is then unknown
            return Outcome.UNKNOWN
        return Outcome.PUBLISHED if is_published else Outcome.NOT_PUBLISHED

    def abort(self) -> None:
        # The published rows are in the store itself: the staged files are never more than a copy.
        if os.path.isdir(self.directory):
            shutil.rmtree(self.directory)

    def finish(self) -> None:
        self.abort()

    def left_behind(self) -> list[str]:
        return [self.directory] if os.path.isdir(self.directory) else []

    # -- for later statements of the transaction -----------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        steps = self._steps()
        if any(step._state.tolerant for step in steps):
            return None  # Whether its rows are used is known only at the publish.
        state, scans = self._state, list[Scan]()
        for step in steps:
            if step.purpose is not Purpose.INSERT_INTO:
                scans = []
            elif step is steps[0]:
                scans = [partial(self._store.scan, self._target)]
            scans.append(partial(scan_files, step._rows().files))
        reader = RowsReader(state.definition.schema, scans)
        return ReadSource("batches", definition=state.definition, reader=reader)

    def _steps(self) -> list[TransactionalTable]:
        """The statements of this transaction from which the table results, up to and including this one."""
        base = self.document["base"]
        earlier = [] if base is None else type(self)(self._store, base)._steps()
        return [*earlier, self]

    # -- inside --------------------------------------------------------------------------------------------------

    def _rows(self) -> StagedRows:
        state = self._state
        return StagedRows(tuple(os.path.join(self.directory, name) for name in state.files), state.definition.schema)

    def _require_staged(self) -> None:
        if not all(os.path.isdir(step.directory) for step in self._steps()):
            raise TransactionAborted(
                f"What was staged for {self.path} is gone.", path=self.path, transaction_id=self.transaction_id
            )

    def _require_unchanged(self, db: Any) -> None:
        """Refuse to write a table that has changed since the statements were planned."""
        self._store.require_database(db, self._target.database)
        found, steps = self._store.find(db, self._target), self._steps()
        if found is None and not steps[0].purpose.creates:
            raise self._conflict("was dropped by another writer")
        for step in steps:
            step._require_seen(found)
        if found is not None:
            self._require_columns(found.definition, steps)

    def _require_seen(self, found: StoredTable | None) -> None:
        """Each statement is asked: an INSERT before it has no objection to rows that an OVERWRITE would remove."""
        state = self._state
        if state.tolerant or state.purpose is Purpose.INSERT_INTO:
            return
        if found is not None and state.purpose is Purpose.CREATE_TABLE_AS:
            raise TableAlreadyExistsError(f"Table {self.path} was created by another writer.", path=self.path)
        if (found.version if found else None) != state.seen:
            raise self._conflict("was changed by another writer")

    def _require_columns(self, table: TableDefinition, steps: list[TransactionalTable]) -> None:
        """Refuse to fill rows into other columns than they were staged for."""
        first = steps[0]._state
        if first.purpose is Purpose.INSERT_INTO and table.schema != first.definition.schema:
            raise ConcurrentSchemaEvolutionError(
                f"The schema of {self.path} was changed by another writer.",
                path=self.path,
                transaction_id=self.transaction_id,
            )
        # Once a statement has replaced the table, the columns are its own.
        kept = takewhile(lambda step: step.purpose.inserts or step._state.tolerant, steps)
        if not all(_has_columns_of(table, step._state.definition) for step in kept if step.purpose.inserts):
            raise self._conflict("was created by another writer, with other columns")

    def _conflict(self, what: str) -> WriteConflictError:
        return WriteConflictError(f"Table {self.path} {what}.", path=self.path, transaction_id=self.transaction_id)

    def _apply(self, db: Any) -> bool:
        """Apply the change of this statement; return whether there was one."""
        store, state, target = self._store, self._state, self._target
        is_there = store.find(db, target) is not None
        if is_there and state.tolerant:
            return False
        if is_there and not state.purpose.inserts:
            store.remove(db, target)
        if not state.purpose.inserts:
            store.make(db, target, state.definition)
        elif state.purpose is Purpose.INSERT_OVERWRITE:
            store.clear(db, target)
        if state.files:
            store.fill(db, target, self._rows())
        return True


def _has_columns_of(table: TableDefinition, rows: TableDefinition) -> bool:
    return _columns(table) == _columns(rows)


def _columns(definition: TableDefinition) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in definition.schema]
