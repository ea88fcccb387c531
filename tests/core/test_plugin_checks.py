"""What a plugin gives is checked before anything rests on it, and the plugin and what is wrong are named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.core.bench import DEFINITION, ROWS, Bench, path
from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.errors import CatalogError
from twophase.model import Capabilities, Purpose
from twophase.testing.chaos import ChaosCatalog, ChaosTable

Document = dict[str, Any]

WRONG: dict[str, tuple[Callable[[Document], object], str]] = {
    "no JSON": (lambda document: document.update(where=path("t")), "'where' is ObjectPath"),
    "no transaction": (lambda document: document.pop("transaction_id"), "no 'transaction_id'"),
    "no purpose": (lambda document: document.pop("purpose"), "no 'purpose'"),
    "a purpose by its name": (lambda document: document.update(purpose="CREATE_TABLE_AS"), "'purpose'"),
    "a path that is a text": (lambda document: document.update(path="default.t"), "'path'"),
    "another path": (lambda document: document.update(path=["default", "u"]), "'path'"),
    "another transaction": (lambda document: document.update(transaction_id="someone-else"), "'transaction_id'"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_document_is_refused_before_it_is_recorded(bench: Bench, wrong: str) -> None:
    change, words = WRONG[wrong]

    class Plugin(ChaosCatalog):
        def two_phase_create_table(self, *args: Any, **facts: Any) -> TwoPhaseCatalogTable | None:
            participant = super().two_phase_create_table(*args, **facts)
            assert participant is not None
            change(participant.document)
            return participant

    tx = bench.coordinator().begin()
    with pytest.raises(CatalogError) as caught:
        tx.stage(Plugin("mine"), path("t"), DEFINITION, purpose=Purpose.CREATE_TABLE_AS)
    assert all(text in str(caught.value) for text in ("mine", "ChaosTable", words, "default.t"))
    tx.commit()
    assert bench.coordinators[0].timeline.transaction(tx.id) is None


def restoring_by(restore: Callable[[ChaosCatalog, Mapping[str, Any]], Any]) -> Catalog:
    """A plugin with participants of a class of its own, which it restores in this way."""

    class Table(ChaosTable):
        pass

    class Plugin(ChaosCatalog):
        def two_phase_create_table(self, *args: Any, **facts: Any) -> TwoPhaseCatalogTable | None:
            participant = super().two_phase_create_table(*args, **facts)
            assert participant is not None
            return Table(self, participant.document)

        def restore(self, document: Mapping[str, Any]) -> Any:
            return restore(self, document)

    return Plugin("mine")


@pytest.mark.parametrize("restored", ["nothing", "another document", "an error"])
def test_a_plugin_whose_participants_cannot_be_restored_is_refused_before_recovery_needs_them(
    bench: Bench, restored: str
) -> None:
    def restore(plugin: ChaosCatalog, document: Mapping[str, Any]) -> Any:
        if restored == "an error":
            return document["no such key"]
        return None if restored == "nothing" else ChaosTable(plugin, {**document, "key": "other"})

    tx = bench.coordinator().begin()
    with pytest.raises(CatalogError, match=r"mine.*restore"):
        tx.stage(restoring_by(restore), path("t"), DEFINITION, purpose=Purpose.CREATE_TABLE_AS)
    tx.commit()
    assert bench.coordinators[0].timeline.transaction(tx.id) is None


def test_an_error_of_restore_is_reported_without_its_secrets(bench: Bench) -> None:
    def restore(_: ChaosCatalog, __: Mapping[str, Any]) -> Any:
        raise RuntimeError("cannot reach postgresql://me:hush@db/shop")

    tx = bench.coordinator().begin()
    with pytest.raises(CatalogError, match=r"restore\(\) raised RuntimeError: cannot reach") as caught:
        tx.stage(restoring_by(restore), path("t"), DEFINITION, purpose=Purpose.CREATE_TABLE_AS)
    assert "hush" not in str(caught.value)


def test_a_declared_group_publish_without_its_interface_is_refused_before_anything_is_recorded(bench: Bench) -> None:
    class Plugin(Catalog):
        """All of a catalog but the interface, as a plugin has it that was written for an older version."""

        def __init__(self, name: str) -> None:
            self.name, self._chaos = name, ChaosCatalog(name)

        @property
        def capabilities(self) -> Capabilities:
            return self._chaos.capabilities

        def two_phase_create_table(self, *args: Any, **facts: Any) -> TwoPhaseCatalogTable | None:
            return self._chaos.two_phase_create_table(*args, **facts)

        def restore(self, document: Mapping[str, Any]) -> TwoPhaseCatalogTable:
            return self._chaos.restore(document)

    Plugin.__abstractmethods__ = frozenset()
    tx = bench.coordinator().begin()
    with pytest.raises(CatalogError, match=r"mine .*group_publish.*SupportsGroupPublish"):
        tx.stage(Plugin("mine"), path("t"), DEFINITION, purpose=Purpose.CREATE_TABLE_AS)
    tx.commit()
    assert bench.coordinators[0].timeline.transaction(tx.id) is None


def test_what_is_no_json_is_named_also_where_a_later_step_writes_it(bench: Bench) -> None:
    tx, catalog = bench.coordinator().begin(), bench.catalogs["one"]
    participant = tx.stage(catalog, path("t"), DEFINITION, purpose=Purpose.CREATE_TABLE_AS)
    assert participant is not None
    participant.document["files"] = {Path("a")}
    with pytest.raises(CatalogError, match=r"ChaosTable.* one .*'files' is set"):
        tx.begin_participant(participant)
    tx.abort()
    assert bench.staged() == []


def test_a_right_one_passes(bench: Bench) -> None:
    tx = bench.coordinator().begin()
    participant = tx.stage(bench.catalogs["one"], path("t"), DEFINITION, purpose=Purpose.CREATE_TABLE_AS)
    assert participant is not None
    tx.begin_participant(participant)
    tx.write(participant, ROWS)
    tx.commit()
    assert bench.tables() == ["one.t"]
