"""A publish that fails after readers have seen a part of it, and a store that refuses to undo it for a while."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.core.bench import DEFINITION, Bench, OtherTables, child, path, write
from twophase import failpoints
from twophase.errors import TransactionAborted, TransactionInDoubt, WriteConflictError
from twophase.failpoints import EXIT_CODE
from twophase.model import Isolation, Purpose
from twophase.protocol.states import TransactionState
from twophase.testing import _rows
from twophase.testing._participant import ChaosTable
from twophase.testing._store import Document
from twophase.testing.chaos import ChaosCatalog
from twophase.transactions.transaction import Transaction


class InSteps(ChaosTable):
    """As where files are moved one by one: a publish that fails has shown its first row, which only ``abort`` hides."""

    def commit(self) -> None:
        with self._home.store.change() as store:
            if not self._is_published(store) and self.key in store["staged"]:
                self._hide(store)
                self._show(store)
        with self._home.step("publish"), self._home.store.change() as store:
            self._hide(store)
            self.publish_into(store)

    def abort(self) -> None:
        with self._home.step("undo"), self._home.store.change() as store:
            self._hide(store)
        super().abort()

    def _show(self, store: Document) -> None:
        tables = self._home.tables_of(store, self.path)
        store.setdefault("before", {})[self.key] = tables[self.path.name]
        rows = _rows.decode(tables[self.path.name]["rows"])
        shown = _rows.appended(rows, _rows.decode(store["staged"][self.key]["rows"]).slice(0, 1))
        tables[self.path.name] = {**tables[self.path.name], "rows": _rows.encode(shown)}

    def _hide(self, store: Document) -> None:
        before = store.get("before", {}).pop(self.key, None)
        if before is not None:
            self._home.tables_of(store, self.path)[self.path.name] = before


class InStepsCatalog(OtherTables):
    def participant_class(self, participant: ChaosTable) -> type[ChaosTable]:
        return InSteps if participant.purpose.inserts else ChaosTable


class InStepsBench(Bench):
    def new_catalog(self, name: str) -> ChaosCatalog:
        return InStepsCatalog(name, {"file": str(self.directory / f"{name}.json"), **self.options})

    def ids(self, catalog: str = "one") -> list[int]:
        """What readers see."""
        return [row["id"] for row in self.catalogs[catalog].rows(path("t"))]

    def refuse(self, catalog: str = "one") -> None:
        """Let each publish fail, and each undo."""
        for step in ("publish", "undo"):
            self.catalogs[catalog].faults.add(step, "error")

    def answer(self) -> None:
        for catalog in self.catalogs.values():
            catalog.faults.clear()


def recover_in(url: str, directory: Path) -> None:
    """For a child: recover what is dead."""
    InStepsBench(url, directory).coordinator().recover()


def append_in_vain(url: str, directory: Path) -> None:
    """For a child: append to a table whose store then refuses everything."""
    bench = InStepsBench(url, directory)
    bench.refuse()
    append(bench, "one").commit()


@pytest.fixture
def bench(bench: Bench) -> Any:
    found = InStepsBench(bench.url, bench.directory)
    for catalog in found.catalogs.values():
        catalog.create_table(path("t"), DEFINITION)
    yield found
    found.answer()
    found.close()


def append(bench: InStepsBench, *catalogs: str, app: str = "app") -> Transaction:
    tx = bench.coordinator(name=app).begin()
    for catalog in catalogs:
        write(tx, bench.catalogs[catalog], "t", Purpose.INSERT_INTO)
    return tx


def state_of(bench: InStepsBench, tx: Transaction) -> TransactionState:
    record = bench.coordinator().timeline.transaction(tx.id)
    assert record is not None
    return record.state


@pytest.mark.quick
@pytest.mark.promise(
    "in-doubt", "a publish that failed and that its store refuses to undo stays open until it is undone"
)
def test_what_cannot_be_undone_is_in_doubt_until_a_fresh_process_has_undone_it(bench: InStepsBench) -> None:
    bench.refuse()
    tx = append(bench, "one")
    with pytest.raises(TransactionInDoubt) as caught:
        tx.commit()
    assert bench.ids() == [1]
    assert tx.state is TransactionState.IN_DOUBT
    (held,) = bench.coordinator().timeline.transactions(open_only=True)
    assert (held.id, held.state) == (tx.id, TransactionState.ROLLED_BACK)
    text = str(caught.value)
    assert "Perhaps published in part: one.default.t" in text
    assert f"twophase recover {tx.id}" in text
    assert caught.value.path == "one.default.t"
    assert "undo failed" in "".join(getattr(caught.value.__cause__, "__notes__", []))
    assert str(pickle.loads(pickle.dumps(caught.value))) == text
    (still,) = bench.coordinator().recover()
    assert (still.state, still.account.in_part) == (TransactionState.IN_DOUBT, ("one.default.t",))
    assert "undo failed" in str(still)
    bench.answer()
    for _ in range(2):
        process = child(recover_in, bench.url, bench.directory)
        process.join(60)
        assert process.exitcode == 0
        assert (bench.ids(), bench.staged()) == ([], [])
        assert state_of(bench, tx) is TransactionState.ROLLED_BACK
    assert not bench.coordinator().timeline.transactions(open_only=True)


def test_a_recovery_that_lacks_its_catalog_has_not_resolved_it(bench: InStepsBench) -> None:
    bench.refuse()
    tx = append(bench, "one")
    with pytest.raises(TransactionInDoubt):
        tx.commit()
    catalog = bench.catalogs.pop("one")
    (left,) = bench.coordinator().recover(transaction_id=tx.id)
    assert (left.state, left.is_resolved) == (TransactionState.ROLLED_BACK, False)
    assert f"run twophase recover {tx.id}" in str(left)
    assert bench.coordinator("another").carry_on() == []
    bench.catalogs["one"] = catalog
    bench.answer()
    (ended,) = bench.coordinator().recover(transaction_id=tx.id)
    assert ended.is_resolved
    assert bench.ids() == []


def test_another_append_undoes_it_first_or_is_refused(bench: InStepsBench) -> None:
    bench.refuse()
    tx = append(bench, "one")
    with pytest.raises(TransactionInDoubt):
        tx.commit()
    with pytest.raises(WriteConflictError, match=f"held by transaction {tx.id}.*undo failed"):
        append(bench, "one").commit()
    assert bench.ids() == [1]
    bench.answer()
    append(bench, "one", app="another").commit()
    assert bench.ids() == [1, 2]
    assert state_of(bench, tx) is TransactionState.ROLLED_BACK


def test_an_undo_that_its_store_refuses_once_is_tried_again(bench: InStepsBench) -> None:
    bench.catalogs["one"].faults.add("publish", "error")
    bench.catalogs["one"].faults.add("undo", "error", 1)
    tx = append(bench, "one")
    with pytest.raises(TransactionAborted, match="nothing was published"):
        tx.commit()
    assert (bench.ids(), bench.staged(), state_of(bench, tx)) == ([], [], TransactionState.ROLLED_BACK)


@pytest.mark.parametrize("refusing", ["one", "two"])
def test_of_two_tables_the_other_one_is_undone(bench: InStepsBench, refusing: str) -> None:
    bench.refuse(refusing)
    tx = append(bench, "one", "two")
    with pytest.raises(TransactionInDoubt) as caught:
        tx.commit()
    other = "two" if refusing == "one" else "one"
    assert (bench.ids(refusing), bench.ids(other)) == ([1], [])
    assert f"Perhaps published in part: {refusing}.default.t; " in str(caught.value)
    bench.answer()
    (recovered,) = bench.coordinator().recover()
    assert recovered.state is TransactionState.ROLLED_BACK
    assert (bench.ids("one"), bench.ids("two"), bench.staged()) == ([], [], [])


def test_an_operator_can_end_it(bench: InStepsBench) -> None:
    bench.refuse()
    tx = append(bench, "one")
    with pytest.raises(TransactionInDoubt):
        tx.commit()
    coordinator = bench.coordinator()
    (ended,) = coordinator.recover(transaction_id=tx.id, assume=TransactionState.ROLLED_BACK)
    assert (ended.state, len(ended.left_behind)) == (TransactionState.ROLLED_BACK, 1)
    bench.answer()
    coordinator.recover(transaction_id=tx.id)
    assert (bench.ids(), bench.staged()) == ([], [])


@pytest.mark.parametrize("refusing", ["undo", "abort"])
def test_what_was_never_published_is_rolled_back_though_its_removal_fails(bench: InStepsBench, refusing: str) -> None:
    bench.catalogs["one"].faults.add(refusing, "error")
    tx = append(bench, "one")
    tx.abort(RuntimeError("the user's"))
    assert (tx.state, len(tx.left_behind), bench.ids()) == (TransactionState.ROLLED_BACK, 1, [])
    assert state_of(bench, tx) is TransactionState.ROLLED_BACK


def test_a_table_that_is_undone_is_free_while_another_one_is_not(bench: InStepsBench) -> None:
    bench.refuse("two")
    tx = append(bench, "one", "two")
    with pytest.raises(TransactionInDoubt):
        tx.commit()
    timeline = bench.coordinator().timeline
    assert timeline.changes_since("one", path("t"), 0, "another") == []
    assert [change.transaction_id for change in timeline.changes_since("two", path("t"), 0, "another")] == [tx.id]
    other = bench.coordinator(name="another").begin(Isolation.SERIALIZABLE)
    write(other, bench.catalogs["one"], "t", Purpose.CREATE_OR_REPLACE_TABLE_AS)
    other.commit()
    replaced = bench.ids("one")
    assert replaced
    with pytest.raises(WriteConflictError, match=f"held by transaction {tx.id}"):
        append(bench, "two", app="another").commit()
    bench.answer()
    (recovered,) = bench.coordinator().recover()
    assert (recovered.state, bench.ids("one"), bench.ids("two")) == (TransactionState.ROLLED_BACK, replaced, [])


@pytest.mark.parametrize("action", ["error", "error_after"])
def test_an_error_of_the_timeline_leaves_it_open_too(bench: InStepsBench, action: str) -> None:
    bench.refuse()
    failpoints.arm("core.suspend", action)
    tx = append(bench, "one")
    with pytest.raises(TransactionInDoubt, match="Perhaps published in part"):
        tx.commit()
    failpoints.disarm()
    bench.answer()
    bench.coordinator().recover()
    assert (bench.ids(), state_of(bench, tx)) == ([], TransactionState.ROLLED_BACK)


@pytest.mark.parametrize("action", ["exit", "exit_after"])
def test_a_process_that_dies_there_is_recovered_by_a_fresh_one(bench: InStepsBench, action: str) -> None:
    process = child(append_in_vain, bench.url, bench.directory, failpoint=f"core.suspend={action}")
    process.join(60)
    assert (process.exitcode, bench.ids()) == (EXIT_CODE, [1])
    process = child(recover_in, bench.url, bench.directory)
    process.join(60)
    assert (process.exitcode, bench.ids(), bench.staged()) == (0, [], [])


def test_its_change_is_in_no_snapshot_until_it_is_undone(bench: InStepsBench) -> None:
    bench.refuse()
    tx = append(bench, "one")
    with pytest.raises(TransactionInDoubt):
        tx.commit()
    timeline = bench.coordinator().timeline
    (pending,) = timeline.changes_since("one", path("t"), 0, "another")
    assert (pending.transaction_id, pending.number) == (tx.id, None)
    bench.answer()
    bench.coordinator().recover()
    assert timeline.changes_since("one", path("t"), 0, "another") == []
