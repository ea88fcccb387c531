"""The chaos catalog's participant: its rows are staged in the same store as the tables."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from twophase.catalog import TwoPhaseCatalogTable as Participant
from twophase.catalog.reading import ReadSource
from twophase.errors import (
    CatalogError,
    ConcurrentSchemaEvolutionError,
    TransactionAborted,
    TwoPhaseError,
    WriteConflictError,
)
from twophase.model import Level, ObjectPath, Outcome, OverwriteScope, Purpose, TableDefinition, WriteContext
from twophase.testing import _rows
from twophase.testing._files import as_files
from twophase.testing._home import ChaosHome
from twophase.testing._store import Document


class ChaosTable(Participant):
    """One participant of a chaos catalog.

    ``document["key"]`` names its entry under ``staged`` and, once published, under ``published``: the owner stamp. As
    in a real store, the document grows over time: ``rows`` is added by ``write``, ``prepared`` by ``prepare``.
    """

    #: OPTIONS may contain secrets: they go from the statement into the store, never into the document.
    _options: Mapping[str, str] = {}

    @classmethod
    def offer(
        cls,
        catalog: ChaosHome,
        path: ObjectPath,
        definition: TableDefinition,
        purpose: Purpose,
        context: WriteContext,
        target: TableDefinition | None,
        tolerant: bool,
    ) -> ChaosTable:
        """Create a participant that has not staged anything yet."""
        becomes = definition
        if purpose.inserts and target is not None:
            becomes = target
            _require_width(path, definition, target)
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
    def _home(self) -> ChaosHome:
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
        """Publish within a change of the store that the caller has opened."""
        if self._is_published(store):
            return
        result = self._result(store)
        tables = self._home.tables_of(store, self.path)
        before, staged = tables.pop(self.path.name, None), store["staged"].pop(self.key)
        version = result and result["version"]
        store["published"][self.key] = {"version": version, "before": before, "staged": staged}
        if result is not None:
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
        """Return whether the table is unchanged since this participant's publish, or as it was before."""
        if not self._is_published(store):
            return True
        publish = store["published"][self.key]
        now = self._home.tables_of(store, self.path).get(self.path.name)
        return "before" in publish and (now and now["version"]) == publish["version"]

    def undo_in(self, store: Document) -> None:
        """Undo within a change of the store that the caller has opened; restores the staged data. Idempotent."""
        if not self._is_published(store):
            return
        publish = store["published"].pop(self.key)
        tables = self._home.tables_of(store, self.path)
        if publish["before"] is None:
            tables.pop(self.path.name, None)
        else:
            tables[self.path.name] = publish["before"]
        store["staged"][self.key] = publish["staged"]

    def _is_published(self, store: Document) -> bool:
        return self.key in store["published"]

    # -- what a publish would make of the table ------------------------------------------------------------------

    def _result(self, store: Document) -> Document | None:
        """Return the table after this participant, including what the transaction staged for it earlier; None if it is
        dropped.
        """
        staged = store["staged"].get(self.key)
        if staged is None:
            raise TransactionAborted(
                f"What was staged for {self.path} is gone.", path=self.path, transaction_id=self.transaction_id
            )
        table: Document | None = self._home.tables_of(store, self.path).get(self.path.name)
        base = self.document["base"]
        if not base or self.purpose is not Purpose.INSERT_INTO:
            self._check_unchanged(staged, table)
        if self.purpose.drops:
            return None
        if base:
            table = type(self)(self._home, base)._result(store)
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
            return table  # IF NOT EXISTS: another writer created it, which is acceptable.
        if table is not None and self.purpose is Purpose.CREATE_TABLE_AS:
            raise self._conflict("was created by another writer since the statement began")
        definition = staged["definition"]
        if table is not None and self.purpose.inserts and table["definition"]["schema"] != definition["schema"]:
            raise self._conflict("was created by another writer with other columns since the statement began")
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
        result = self._result(self._home.store.read())
        return None if result is None else as_files(self._home.directory, result)

    def left_behind(self) -> list[str]:
        return [self.key] if self.key in self._home.store.read()["staged"] else []


def _require_width(path: ObjectPath, rows: TableDefinition, table: TableDefinition) -> None:
    if len(rows.schema) != len(table.schema):
        raise CatalogError(f"The rows have {len(rows.schema)} columns, the table has {len(table.schema)}.", path=path)
