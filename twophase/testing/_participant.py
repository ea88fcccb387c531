"""The chaos catalog's participant: staged rows beside the tables, in the same store."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twophase.catalog import TwoPhaseCatalogTable as Participant
from twophase.errors import (
    CatalogError,
    ConcurrentSchemaEvolutionError,
    TransactionAborted,
    TwoPhaseError,
    WriteConflictError,
)
from twophase.model import Level, ObjectPath, Outcome, OverwriteScope, Purpose, TableDefinition, WriteContext
from twophase.reading import ReadSource
from twophase.testing import _rows
from twophase.testing._files import as_files
from twophase.testing._store import Document

if TYPE_CHECKING:
    from twophase.testing.chaos import ChaosCatalog


class ChaosTable(Participant):
    """One participant of a chaos catalog.

    ``document["key"]`` names its entry under ``staged`` and, once published, under ``published``: the owner stamp. As a
    real store's does, the document grows on the way: ``rows`` when they are written, ``prepared`` when they are.
    """

    #: OPTIONS may hold secrets: they go from the statement into the store, never into the document.
    _options: Mapping[str, str] = {}

    @classmethod
    def offer(
        cls,
        catalog: ChaosCatalog,
        path: ObjectPath,
        definition: TableDefinition,
        purpose: Purpose,
        context: WriteContext,
        target: TableDefinition | None,
        tolerant: bool,
    ) -> ChaosTable:
        """A participant that has staged nothing yet."""
        becomes = definition
        if purpose.inserts and target is not None:
            becomes = target
            if len(definition.schema) != len(target.schema):
                raise CatalogError(
                    f"The rows have {len(definition.schema)} columns, the table has {len(target.schema)}.", path=path
                )
        participant = cls(
            catalog,
            {
                "path": path.to_document(),
                "purpose": purpose.value,
                "transaction_id": context.transaction_id,
                "key": f"{context.transaction_id}-{context.ordinal}",
                "definition": replace(becomes, options={}).to_document(),
                "overwrite": (context.overwrite or OverwriteScope()).to_document(),
                "base": dict(context.base) if context.base else None,
                "tolerant": tolerant,
                "level": Level.ATOMIC.value,
            },
        )
        participant._options = becomes.options
        return participant

    @property
    def _home(self) -> ChaosCatalog:
        return self.catalog  # type: ignore[return-value]

    @property
    def key(self) -> str:
        return str(self.document["key"])

    @property
    def definition(self) -> TableDefinition:
        return TableDefinition.from_document(self.document["definition"])

    # -- staging -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        with self._home.step("begin"), self._home.store.change() as store:
            if self.key in store["staged"] or self.key in store["published"]:
                return
            target = self._home.tables_of(store, self.path).get(self.path.name)
            store["staged"][self.key] = {
                "transaction_id": self.transaction_id,
                "definition": replace(self.definition, options=self._options).to_document(),
                "rows": None,
                "seen": target and target["version"],
                "seen_schema": target and target["definition"]["schema"],
                "since": time.time(),
            }

    def write(self, df: Any) -> None:
        table = _rows.to_arrow(df, self.definition.schema)
        with self._home.step("write"), self._home.store.change() as store:
            if self.key not in store["staged"]:
                raise CatalogError("Nothing was begun to write to.", path=self.path, transaction_id=self.transaction_id)
            store["staged"][self.key]["rows"] = _rows.encode(table)
        self.document["rows"] = table.num_rows

    def prepare(self) -> None:
        with self._home.step("prepare"):
            store = self._home.store.read()
            if not self._is_published(store):
                self._result(store)
        self.document["prepared"] = True

    def abort(self) -> None:
        with self._home.step("abort"), self._home.store.change() as store:
            store["staged"].pop(self.key, None)

    # -- publishing ----------------------------------------------------------------------------------------------

    def commit(self) -> None:
        with self._home.step("publish"), self._home.store.change() as store:
            self.publish_into(store)

    def publish_into(self, store: Document) -> None:
        """Publish inside a change of the store that the caller holds."""
        if self._is_published(store):
            return
        result = self._result(store)
        tables = self._home.tables_of(store, self.path)
        before, staged = tables.get(self.path.name), store["staged"].pop(self.key)
        store["published"][self.key] = {"version": result["version"], "before": before, "staged": staged}
        tables[self.path.name] = result

    def outcome(self) -> Outcome:
        try:
            with self._home.step("outcome"):
                published = self._is_published(self._home.store.read())
        except (TwoPhaseError, RuntimeError, OSError):
            return Outcome.UNKNOWN
        return Outcome.PUBLISHED if published else Outcome.NOT_PUBLISHED

    def finish(self) -> None:
        with self._home.step("finish"), self._home.store.change() as store:
            if self._is_published(store):
                for no_longer in ("before", "staged"):
                    store["published"][self.key].pop(no_longer, None)

    def compensate(self) -> bool:
        return self._home.compensate_group([self])

    def is_undoable(self, store: Document) -> bool:
        """Whether the table is still as this participant left it, or as it was before."""
        if not self._is_published(store):
            return True
        publish = store["published"][self.key]
        now = self._home.tables_of(store, self.path).get(self.path.name)
        return "before" in publish and now is not None and now["version"] == publish["version"]

    def undo_in(self, store: Document) -> None:
        """Undo inside a change of the store that the caller holds; what was staged is staged again. Idempotent."""
        if not self._is_published(store):
            return
        publish = store["published"].pop(self.key)
        tables = self._home.tables_of(store, self.path)
        if publish["before"] is None:
            del tables[self.path.name]
        else:
            tables[self.path.name] = publish["before"]
        store["staged"][self.key] = publish["staged"]

    def _is_published(self, store: Document) -> bool:
        return self.key in store["published"]

    # -- what a publish would make of the table ------------------------------------------------------------------

    def _result(self, store: Document) -> Document:
        """The table after this participant; what the transaction staged for it before comes first."""
        staged = store["staged"].get(self.key)
        if staged is None:
            raise TransactionAborted(
                f"What was staged for {self.path} is gone.", path=self.path, transaction_id=self.transaction_id
            )
        if self.document["base"]:
            table: Document | None = ChaosTable(self._home, self.document["base"])._result(store)
        else:
            table = self._home.tables_of(store, self.path).get(self.path.name)
            self._check_unchanged(staged, table)
        return self._applied(staged, table)

    def _check_unchanged(self, staged: Document, table: Document | None) -> None:
        version = table and table["version"]
        if self.purpose is Purpose.INSERT_INTO:
            if table is not None and table["definition"]["schema"] != staged["seen_schema"]:
                raise ConcurrentSchemaEvolutionError(
                    f"The schema of {self.path} changed since the statement began.",
                    path=self.path,
                    transaction_id=self.transaction_id,
                )
        elif version != staged["seen"] and not self.document["tolerant"]:
            raise self._conflict("was changed by another writer since the statement began")

    def _applied(self, staged: Document, table: Document | None) -> Document:
        if table is None and not self.purpose.creates:
            raise self._conflict("was dropped since the statement began")
        if table is not None and self.document["tolerant"]:
            return table  # IF NOT EXISTS: somebody made it, and that is what was asked for.
        if table is not None and self.purpose is Purpose.CREATE_TABLE_AS:
            raise self._conflict("was created by another writer since the statement began")
        definition = staged["definition"]
        rows = _rows.decode(staged["rows"]) if staged["rows"] else self.definition.schema.empty_table()
        if table is not None and self.purpose.inserts:
            definition = table["definition"]
            rows = self._inserted(_rows.decode(table["rows"]), rows)
        return {"definition": definition, "rows": _rows.encode(rows), "version": f"{self.key}-{uuid.uuid4().hex}"}

    def _inserted(self, old: Any, new: Any) -> Any:
        if self.purpose is Purpose.INSERT_INTO:
            return _rows.appended(old, new)
        scope = OverwriteScope.from_document(self.document["overwrite"])
        return _rows.overwritten(old, new, scope, self.definition.partition_columns)

    def _conflict(self, what: str) -> WriteConflictError:
        return WriteConflictError(f"Table {self.path} {what}.", path=self.path, transaction_id=self.transaction_id)

    # -- for the transaction -------------------------------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        return as_files(self._home.directory, self._result(self._home.store.read()))

    def left_behind(self) -> list[str]:
        return [self.key] if self.key in self._home.store.read()["staged"] else []
