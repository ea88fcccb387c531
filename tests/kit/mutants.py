"""Catalogs that break one promise each; the suite must find every one of them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from twophase.catalog import Leftover, SupportsDelete, TwoPhaseCatalogTable
from twophase.catalog.reading import Deletion
from twophase.errors import CatalogError, TableAlreadyExistsError
from twophase.model import Level, ObjectPath, Outcome, Purpose, TableDefinition
from twophase.testing._participant import ChaosTable
from twophase.testing._store import Document
from twophase.testing.chaos import ChaosCatalog


class Mutant(ChaosCatalog):
    """A chaos catalog with another participant."""

    participant: type[ChaosTable] = ChaosTable

    def two_phase_create_table(self, *args: Any, **facts: Any) -> TwoPhaseCatalogTable | None:
        made = super().two_phase_create_table(*args, **facts)
        return made and self._changed(made)

    def two_phase_drop_table(self, *args: Any, **facts: Any) -> TwoPhaseCatalogTable | None:
        made = super().two_phase_drop_table(*args, **facts)
        return made and self._changed(made)

    def restore(self, document: Mapping[str, Any]) -> TwoPhaseCatalogTable:
        return self._changed(super().restore(document))

    def _changed(self, made: TwoPhaseCatalogTable) -> TwoPhaseCatalogTable:
        made.__class__ = self.participant
        return made


# -- abort ------------------------------------------------------------------------------------------------------------


class DropsTheTargetOnAbort(ChaosTable):
    def abort(self) -> None:
        super().abort()
        self._home.drop_table(self.path, ignore_if_not_exists=True)


class DropsItsPublishedTableOnAbort(ChaosTable):
    def abort(self) -> None:
        super().abort()
        if self.outcome() is Outcome.PUBLISHED:
            self._home.drop_table(self.path, ignore_if_not_exists=True)


class RemovesAllStagingOnAbort(ChaosTable):
    def abort(self) -> None:
        with self._home.store.change() as store:
            store["staged"].clear()


class LeavesItsStagingOnAbort(ChaosTable):
    def abort(self) -> None:
        pass


class AbortsOnlyOnce(ChaosTable):
    def abort(self) -> None:
        with self._home.store.change() as store:
            if self.key not in store["published"]:
                del store["staged"][self.key]


# -- drops ------------------------------------------------------------------------------------------------------------


class DropsBeforeTheCommit(ChaosTable):
    def prepare(self) -> None:
        super().prepare()
        self._home.drop_table(self.path, ignore_if_not_exists=True)


class DropsWhatOthersHaveChanged(ChaosTable):
    def _check_unchanged(self, staged: Document, table: Document | None) -> None:
        if not self.purpose.drops:
            super()._check_unchanged(staged, table)


class CreatesWhatOthersHaveChangedSinceTheDrop(ChaosTable):
    def _result(self, store: Document) -> Document | None:
        base, staged = self.document["base"], store["staged"].get(self.key)
        if staged and base and Purpose(base["purpose"]).drops:
            return self._applied(staged, None)
        return super()._result(store)


class DropsOnAbort(ChaosTable):
    def abort(self) -> None:
        super().abort()
        if self.purpose.drops:
            self._home.drop_table(self.path, ignore_if_not_exists=True)


class DropsTheNextTableOfTheName(ChaosTable):
    def finish(self) -> None:
        super().finish()
        if self.purpose.drops:
            self._home.drop_table(self.path, ignore_if_not_exists=True)


# -- commit -----------------------------------------------------------------------------------------------------------


class CommitsOnlyOnce(ChaosTable):
    def commit(self) -> None:
        assert not self._is_published(self._home.store.read())
        super().commit()


class CommitsAgain(ChaosTable):
    """A second commit publishes a second time."""

    kept = ""

    def commit(self) -> None:
        with self._home.store.change() as store:
            staged = store["staged"].get(self.key)
            if staged:
                store["kept"] = {**store.get("kept", {}), self.key: staged}
            elif self._is_published(store):
                store["staged"][self.key] = {**store["kept"][self.key], "seen": self._version(store)}
                del store["published"][self.key]
            self.publish_into(store)

    def _version(self, store: Document) -> Any:
        table = self._home.tables_of(store, self.path).get(self.path.name)
        return table and table["version"]


class IsVisibleBeforeCommit(ChaosTable):
    def prepare(self) -> None:
        super().prepare()
        self.commit()


class OverwritesWhatOthersMade(ChaosTable):
    def _check_unchanged(self, staged: Document, table: Document | None) -> None:
        pass

    def _applied(self, staged: Document, table: Document | None) -> Document:
        return super()._applied(staged, table if self.purpose.inserts else None)


class AsksOnlyTheFirstStatement(ChaosTable):
    """What a later one replaces was seen by nobody."""

    def _check_unchanged(self, staged: Document, table: Document | None) -> None:
        if not self.document["base"]:
            super()._check_unchanged(staged, table)


class ReplacesOnInsert(ChaosTable):
    def _inserted(self, old: Any, new: Any) -> Any:
        return new


class LosesAnEmptyResult(ChaosTable):
    def commit(self) -> None:
        with self._home.store.change() as store:
            staged = store["staged"].get(self.key)
            if staged and staged["rows"] == _empty_rows(self):
                store["published"][self.key] = {"version": uuid.uuid4().hex}
                del store["staged"][self.key]
                return
            self.publish_into(store)


def _empty_rows(participant: ChaosTable) -> str:
    from twophase.testing import _rows

    return _rows.encode(_rows.to_arrow(participant.definition.schema.empty_table(), participant.definition.schema))


# -- outcome ----------------------------------------------------------------------------------------------------------


class SaysAlwaysPublished(ChaosTable):
    def outcome(self) -> Outcome:
        return Outcome.PUBLISHED


class SaysNeverPublished(ChaosTable):
    def outcome(self) -> Outcome:
        return Outcome.NOT_PUBLISHED


class JudgesByTheNameOnly(ChaosTable):
    """Whoever published: the table is there."""

    def outcome(self) -> Outcome:
        return Outcome.PUBLISHED if self._home.table_exists(self.path) else Outcome.NOT_PUBLISHED


class JudgesByTheLastStampOnly(ChaosTable):
    """A later writer's stamp hides this one's."""

    def outcome(self) -> Outcome:
        table = self._home.tables_of(self._home.store.read(), self.path).get(self.path.name)
        mine = table is not None and table["version"].startswith(f"{self.key}-")
        return Outcome.PUBLISHED if mine else Outcome.NOT_PUBLISHED


class RemembersInMemoryOnly(ChaosTable):
    done = False

    def commit(self) -> None:
        super().commit()
        self.done = True

    def outcome(self) -> Outcome:
        return Outcome.PUBLISHED if self.done else Outcome.NOT_PUBLISHED


# -- secrets and pickles ----------------------------------------------------------------------------------------------


class KeepsOptionsInItsDocument(ChaosTable):
    def begin(self) -> None:
        self.document["options"] = dict(self._options)
        super().begin()


class KeepsTheCatalogsPasswordInItsDocument(ChaosTable):
    def prepare(self) -> None:
        super().prepare()
        self.document["login"] = self._home.options.get("password")


class TellsSecretsInItsRepr(ChaosTable):
    def __repr__(self) -> str:
        return f"<{self.path} of {self._home.options if self._catalog else ''}>"


class KeepsStateOutsideItsDocument(ChaosTable):
    """What it staged is known to the live object only."""

    begun = False

    def begin(self) -> None:
        super().begin()
        self.begun = True

    def commit(self) -> None:
        assert self.begun, "commit before begin"
        super().commit()


# -- levels and undoing -----------------------------------------------------------------------------------------------


class HasALevelWithoutAReason(ChaosTable):
    def prepare(self) -> None:
        super().prepare()
        self.document["level"] = 2


class UndoesUnderALaterWriter(ChaosTable):
    def is_undoable(self, store: Document) -> bool:
        return True


class ClaimsToHaveUndone(ChaosTable):
    def compensate(self) -> bool:
        return True


# -- the catalog ------------------------------------------------------------------------------------------------------


class StagesOnOffer(Mutant):
    def two_phase_create_table(self, *args: Any, **facts: Any) -> TwoPhaseCatalogTable | None:
        made = super().two_phase_create_table(*args, **facts)
        if made:
            made.begin()
        return made


class OffersForStreams(Mutant):
    def two_phase_create_table(self, *args: Any, **facts: Any) -> TwoPhaseCatalogTable | None:
        return super().two_phase_create_table(*args, **{**facts, "is_streaming_mode": False})


class CreatesOverAnExistingTable(Mutant):
    def two_phase_create_table(self, path: ObjectPath, *args: Any, **facts: Any) -> TwoPhaseCatalogTable | None:
        if facts["purpose"] is Purpose.CREATE_TABLE_AS:
            facts["purpose"] = Purpose.CREATE_OR_REPLACE_TABLE_AS
        return super().two_phase_create_table(path, *args, **facts)


class TellsAWrongErrorForAnExistingTable(Mutant):
    def two_phase_create_table(self, *args: Any, **facts: Any) -> TwoPhaseCatalogTable | None:
        try:
            return super().two_phase_create_table(*args, **facts)
        except TableAlreadyExistsError as error:
            raise ValueError(str(error)) from None


class FindsNoLeftover(Mutant):
    def leftovers(self, *, live_transactions: frozenset[str] = frozenset()) -> list[Leftover]:
        return []


class FindsWhatTheLivingStage(Mutant):
    def leftovers(self, *, live_transactions: frozenset[str] = frozenset()) -> list[Leftover]:
        return super().leftovers()


class TakesBadDefinitions(Mutant):
    def _check(self, path: ObjectPath, definition: TableDefinition) -> None:
        pass


class MangledNames(Mutant):
    """Dots become underscores, and two tables one."""

    def tables_of(self, document: Document, path: ObjectPath) -> Document:
        tables = super().tables_of(document, path)
        if "." in path.name and path.name in tables:
            tables["neighbour"] = tables.pop(path.name)
        return tables


class OffersDeletionsUndeclared(Mutant, SupportsDelete):
    def plan_delete(self, path: ObjectPath, conditions: Any) -> Deletion:
        return Deletion((), "")


class MindsTheFormat(Mutant):
    def _check(self, path: ObjectPath, definition: TableDefinition) -> None:
        if definition.provider:
            raise CatalogError("There are no formats.", path=path)
        super()._check(path, definition)


class PublishesAGroupHalf(Mutant):
    def publish_group(self, participants: list[TwoPhaseCatalogTable]) -> None:
        super().publish_group(participants[:1])


class UndoesAGroupHalf(Mutant):
    def compensate_group(self, participants: list[TwoPhaseCatalogTable]) -> bool:
        return super().compensate_group(participants[:1])


class UndoesOneByOne(Mutant):
    def compensate_group(self, participants: list[TwoPhaseCatalogTable]) -> bool:
        return all([super(UndoesOneByOne, self).compensate_group([member]) for member in participants])  # noqa: C419


class DeniesThatItCanBeUndone(ChaosTable):
    @property
    def can_undo(self) -> bool:
        return False


class PublishesHalfAgain(ChaosTable):
    """What was undone once is published without its rows."""

    def undo_in(self, store: Document) -> None:
        super().undo_in(store)
        store["staged"][self.key]["rows"] = None


class NeverUndoes(ChaosTable):
    def compensate(self) -> bool:
        return False


class IsWorseThanDeclared(ChaosTable):
    @property
    def level(self) -> Level:
        return Level.REVERSIBLE

    @property
    def level_reason(self) -> str | None:
        return "It takes two steps."


class IgnoresTheScopeOfAnOverwrite(ChaosTable):
    def _inserted(self, old: Any, new: Any) -> Any:
        return new if self.purpose is Purpose.INSERT_OVERWRITE else super()._inserted(old, new)


class TellsItsPasswordInItsRepr(Mutant):
    def __repr__(self) -> str:
        return f"<chaos {self.options}>"
