"""DROP TABLE as a statement of a transaction, over two drivers and stores that fail on demand."""

from __future__ import annotations

import pytest

from tests.core.bench import DEFINITION, ROWS, Bench, path, run_shape, write
from twophase.catalog import TwoPhaseCatalogTable
from twophase.errors import TableNotExistError, WriteConflictError
from twophase.model import Isolation, Level, Purpose
from twophase.testing.chaos import ChaosCatalog
from twophase.transactions.transaction import Transaction


@pytest.fixture
def one(bench: Bench) -> ChaosCatalog:
    """The catalog ``one``, with table ``t``."""
    run_shape(bench, "single")
    return bench.catalogs["one"]


def drop(tx: Transaction, catalog: ChaosCatalog, name: str = "t") -> TwoPhaseCatalogTable:
    participant = tx.stage_drop(catalog, path(name))
    assert participant is not None
    tx.begin_participant(participant)
    tx.write_nothing(participant)
    tx.prepare_participant(participant)
    return participant


def test_a_drop_is_published_with_the_other_statements(bench: Bench, one: ChaosCatalog) -> None:
    tx = bench.coordinator().begin()
    drop(tx, one)
    write(tx, bench.catalogs["two"], "u")
    assert bench.tables() == ["one.t"]
    tx.commit()
    assert bench.tables() == ["two.u"]
    assert tx.level is Level.REVERSIBLE  # two catalogs
    assert bench.staged() == []


def test_a_dropped_table_is_given_back_where_a_later_publish_is_refused(bench: Bench, one: ChaosCatalog) -> None:
    tx = bench.coordinator().begin()
    drop(tx, one)
    write(tx, bench.catalogs["two"], "u")
    prepare_all = tx._ending.prepare_all

    def then() -> None:
        prepare_all()
        bench.new_catalog("two").create_table(path("u"), DEFINITION)

    tx._ending.prepare_all = then  # type: ignore[method-assign]
    with pytest.raises(WriteConflictError):
        tx.commit()
    assert bench.tables() == ["one.t", "two.u"]
    assert bench.staged() == []


def test_a_discarded_drop_has_never_been(bench: Bench, one: ChaosCatalog) -> None:
    tx = bench.coordinator().begin()
    dropped = drop(tx, one)
    write(tx, bench.catalogs["two"], "u")
    tx.discard(dropped)
    assert tx.find("one", path("t")) is None
    tx.commit()
    assert bench.tables() == ["one.t", "two.u"]


@pytest.mark.parametrize("purpose", [Purpose.CREATE_TABLE_AS, Purpose.CREATE_OR_REPLACE_TABLE_AS])
def test_a_table_is_created_by_the_transaction_that_drops_it(bench: Bench, one: ChaosCatalog, purpose: Purpose) -> None:
    tx = bench.coordinator().begin()
    drop(tx, one)
    write(tx, one, "t", purpose, ROWS[:1])
    write(tx, one, "t", Purpose.INSERT_INTO, ROWS[:1])
    tx.commit()
    assert one.rows(path("t")) == [{"id": 1}, {"id": 1}]
    assert bench.staged() == []


def test_the_drop_is_back_when_the_create_after_it_is_discarded(bench: Bench, one: ChaosCatalog) -> None:
    tx = bench.coordinator().begin()
    drop(tx, one)
    tx.discard(write(tx, one, "t"))
    tx.commit()
    assert bench.tables() == []


@pytest.mark.parametrize("isolation", list(Isolation))
@pytest.mark.parametrize("purpose", [Purpose.CREATE_TABLE_AS, Purpose.CREATE_OR_REPLACE_TABLE_AS])
@pytest.mark.parametrize("is_late", [False, True])
def test_rows_that_others_add_after_the_drop_are_not_lost_by_the_create(
    bench: Bench, one: ChaosCatalog, isolation: Isolation, purpose: Purpose, is_late: bool
) -> None:
    """The create rests on what the drop has seen, not on the table of its own moment."""
    replacing, adding = (bench.coordinator(name).begin(isolation) for name in ("replacing", "adding"))
    drop(replacing, one)
    if is_late:
        write(replacing, one, "t", purpose)
    write(adding, one, "t", Purpose.INSERT_INTO, ROWS)
    adding.commit()
    before = one.rows(path("t"))
    with pytest.raises(WriteConflictError):
        if not is_late:
            write(replacing, one, "t", purpose)
        replacing.commit()
    replacing.abort()
    assert one.rows(path("t")) == before
    assert bench.staged() == []


@pytest.mark.parametrize("purpose", [Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE, Purpose.REPLACE_TABLE_AS])
def test_what_needs_the_table_is_refused_after_its_drop(bench: Bench, one: ChaosCatalog, purpose: Purpose) -> None:
    tx = bench.coordinator().begin()
    drop(tx, one)
    with pytest.raises(TableNotExistError, match="this transaction drops it"):
        write(tx, one, "t", purpose)
    tx.commit()
    assert bench.tables() == []


@pytest.mark.parametrize("isolation", list(Isolation))
def test_the_first_of_a_drop_and_another_write_to_commit_wins(
    bench: Bench, one: ChaosCatalog, isolation: Isolation
) -> None:
    for is_first in (False, True):
        dropping, writing = (bench.coordinator(name).begin(isolation) for name in ("dropping", "writing"))
        drop(dropping, one)
        write(writing, one, "t", Purpose.INSERT_OVERWRITE, ROWS)
        winner, loser = (dropping, writing) if is_first else (writing, dropping)
        winner.commit()
        with pytest.raises(WriteConflictError):
            loser.commit()
        assert one.table_exists(path("t")) != is_first
    assert bench.staged() == []
