"""A chaos catalog whose ALTER TABLE is staged, and those that break one promise of it each."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Sequence
from typing import Any

from tests.kit.mutants import Mutant
from twophase.catalog import SupportsStagedAlter, TableChange, TwoPhaseCatalogTable
from twophase.errors import TableNotExistError
from twophase.model import ObjectPath, Purpose, TableDefinition, WriteContext
from twophase.testing import _alter, _rows
from twophase.testing._participant import ChaosTable
from twophase.testing._store import Document


class AlteringTable(ChaosTable):
    """A participant that may be an ALTER TABLE that adds columns."""

    def _result(self, store: Document) -> Document | None:
        staged = store["staged"].get(self.key)
        if self.purpose is not Purpose.ALTER_TABLE or staged is None:
            return super()._result(store)
        table = self._home.tables_of(store, self.path).get(self.path.name)
        self._check_unchanged(staged, table)
        assert table is not None
        return self._altered(table)

    def _altered(self, table: Document) -> Document:
        result = copy.deepcopy(table)
        for added in self.document["added"]:
            field = TableDefinition.from_document(added).schema
            _alter.apply(result, [TableChange("add_column", (field.names[0],), {"field": field})], self.path)
        return {**result, "version": f"{self.key}-{uuid.uuid4().hex}"}


class Altering(Mutant, SupportsStagedAlter):
    """It breaks nothing, unless it is given a participant that does."""

    participant: type[ChaosTable] = AlteringTable

    def two_phase_alter_table(
        self, path: ObjectPath, changes: Sequence[TableChange], *, context: WriteContext | None = None
    ) -> TwoPhaseCatalogTable | None:
        context = context or WriteContext.alone(self.name)
        target = self._target(path, context)
        if target is None:
            raise TableNotExistError(f"Table {path} does not exist.", path=path)
        made = ChaosTable.offer(self, path, target, Purpose.ALTER_TABLE, context, target, False)
        earlier = context.base["added"] if context.base else []
        made.document["added"] = [*earlier, *(TableDefinition(c.arguments["field"]).to_document() for c in changes)]
        return self._changed(made)


# -- those that break something ----------------------------------------------------------------------------------------


class AltersBeforeTheCommit(AlteringTable):
    def prepare(self) -> None:
        super().prepare()
        self.commit()


class LosesTheRowsOfAnAlteredTable(AlteringTable):
    def _altered(self, table: Document) -> Document:
        result = super()._altered(table)
        return {**result, "rows": _rows.encode(_rows.decode(result["rows"]).slice(0, 0))}


class AltersOnAbort(AlteringTable):
    def abort(self) -> None:
        if self.purpose is Purpose.ALTER_TABLE:
            self.commit()
        super().abort()


class LeavesAnAlterStaged(AlteringTable):
    def abort(self) -> None:
        if self.purpose is not Purpose.ALTER_TABLE:
            super().abort()


class ForgetsTheAlterBefore(AlteringTable):
    def _altered(self, table: Document) -> Document:
        del self.document["added"][:-1]
        return super()._altered(table)


class PutsBackTheDefinitionThatItHasSeen(AlteringTable):
    """What another ALTER TABLE has changed meanwhile is lost."""

    seen: Document | None = None

    def prepare(self) -> None:
        self.seen = self._home.tables_of(self._home.store.read(), self.path).get(self.path.name)
        super().prepare()

    def _check_unchanged(self, staged: Document, table: Document | None) -> None:
        pass

    def _altered(self, table: Document) -> Document:
        return super()._altered(self.seen or table)


class ClaimsToHaveUndoneAnAlter(AlteringTable):
    def compensate(self) -> bool:
        return self.purpose is Purpose.ALTER_TABLE or super().compensate()


class DropsWhatItHasAltered(AlteringTable):
    """Its undo knows of no definition before."""

    def undo_in(self, store: Document) -> None:
        super().undo_in(store)
        self._home.tables_of(store, self.path).pop(self.path.name, None)


class AltersAMissingTable(Altering):
    def two_phase_alter_table(
        self, path: ObjectPath, changes: Sequence[TableChange], *, context: WriteContext | None = None
    ) -> TwoPhaseCatalogTable | None:
        if not self.table_exists(path):
            self.create_table(path, TableDefinition(changes[0].arguments["field"]))
        return super().two_phase_alter_table(path, changes, context=context)


def _all() -> list[type[Any]]:
    return [thing for thing in globals().values() if isinstance(thing, type) and thing.__module__ == __name__]


#: Those that break something.
MUTANTS = [thing for thing in _all() if thing not in (AlteringTable, Altering)]
