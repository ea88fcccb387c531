"""What the tests of the coordinator run on: a real timeline, and chaos catalogs in files that other processes see."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from twophase import failpoints
from twophase.catalog import TwoPhaseCatalogTable
from twophase.errors import TransactionInDoubt
from twophase.model import ObjectPath, Purpose, TableDefinition
from twophase.testing._participant import ChaosTable
from twophase.testing.chaos import ChaosCatalog
from twophase.timeline.owners import Lease
from twophase.timeline.records import TransactionRecord
from twophase.timeline.reservations import WHOLE_TABLE, Reservation
from twophase.timeline.timeline import Timeline
from twophase.transactions.coordinator import Coordinator
from twophase.transactions.transaction import Transaction

ROWS = pa.table({"id": [1, 2]})
DEFINITION = TableDefinition(ROWS.schema)


def path(name: str) -> ObjectPath:
    return ObjectPath.of("default", name)


def reserve(
    timeline: Timeline, lease: Lease, name: str, wanted: Reservation = WHOLE_TABLE, catalog: str = "hive"
) -> str | None:
    """Reserve a table; return the transaction that prevents it, if any."""
    return timeline.reserve_all(lease, [(catalog, path(name), wanted)])[1]


class OtherTables(ChaosCatalog):
    """A chaos catalog some of whose participants are of another class."""

    def participant_class(self, participant: ChaosTable) -> type[ChaosTable]:
        raise NotImplementedError

    def two_phase_create_table(self, *args: Any, **facts: Any) -> Any:
        return self._changed(super().two_phase_create_table(*args, **facts))

    def restore(self, document: Any) -> Any:
        return self._changed(super().restore(document))

    def _changed(self, participant: Any) -> Any:
        participant.__class__ = self.participant_class(participant)
        return participant


@dataclass
class Bench:
    """A timeline and catalogs, and coordinators over them."""

    url: str
    directory: Path
    options: dict[str, str] = field(default_factory=lambda: {"group_publish": "false"})
    coordinators: list[Coordinator] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.catalogs = {name: self.new_catalog(name) for name in ("one", "two")}

    def new_catalog(self, name: str) -> ChaosCatalog:
        return ChaosCatalog(name, {"file": str(self.directory / f"{name}.json"), **self.options})

    def coordinator(self, name: str = "app", **arguments: Any) -> Coordinator:
        """A coordinator with a connection of its own."""
        coordinator = Coordinator(Timeline(self.url), self.catalogs.__getitem__, name=name, **arguments)
        self.coordinators.append(coordinator)
        return coordinator

    def close(self) -> None:
        for coordinator in self.coordinators:
            coordinator.close()

    def tables(self) -> list[str]:
        """What readers see."""
        return [f"{name}.{table}" for name, c in self.catalogs.items() for table in c.list_tables("default")]

    def staged(self) -> list[str]:
        """What readers do not see, and nobody may forget."""
        return [leftover.location for catalog in self.catalogs.values() for leftover in catalog.leftovers()]


def write(
    tx: Transaction, catalog: ChaosCatalog, name: str, purpose: Purpose = Purpose.CREATE_TABLE_AS, rows: Any = ROWS
) -> TwoPhaseCatalogTable:
    """One statement inside a transaction, to its end."""
    participant = stage(tx, catalog, name, purpose)
    tx.begin_participant(participant)
    tx.write(participant, rows)
    tx.prepare_participant(participant)
    return participant


def stage(
    tx: Transaction, catalog: ChaosCatalog, name: str, purpose: Purpose = Purpose.CREATE_TABLE_AS
) -> TwoPhaseCatalogTable:
    participant = tx.stage(catalog, path(name), DEFINITION, purpose=purpose)
    assert participant is not None
    return participant


def with_rows(bench: Bench, name: str) -> None:
    """Publish a table ``one.NAME`` with the rows 1 and 2."""
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], name)
    tx.commit()


#: Which tables a transaction of the tests writes: one publish, or two in two stores.
SHAPES = {"single": (("one", "t"),), "several": (("one", "t"), ("two", "u"))}


def run_shape(bench: Bench, shape: str, **arguments: Any) -> Transaction:
    """A whole transaction of that shape."""
    tx = bench.coordinator(**arguments).begin()
    try:
        for catalog, name in SHAPES[shape]:
            write(tx, bench.catalogs[catalog], name)
    except BaseException as error:
        tx.abort(error)
        raise
    tx.commit()
    return tx


# -- in a process of its own ------------------------------------------------------------------------------------------

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.core.bench"])


def child(function: Callable[..., Any], *arguments: Any, failpoint: str = "", directory: Path | None = None) -> Any:
    """Start a function in a process of its own, armed with failpoints."""
    process = _context.Process(target=_run, args=(function, arguments, failpoint, str(directory or "")))
    process.start()
    return process


def _run(function: Callable[..., Any], arguments: tuple[Any, ...], failpoint: str, directory: str) -> None:
    os.environ["TWOPHASE_FAILPOINT_DIR"] = directory
    failpoints.arm_from_environment(failpoint)
    function(*arguments)


def run_shape_in(url: str, directory: Path, shape: str, lease_seconds: float = 60.0, name: str = "app") -> None:
    """For a child: a whole transaction."""
    run_shape(Bench(url, directory), shape, lease_seconds=lease_seconds, name=name)


def report_in(url: str, directory: Path, shape: str, lease_seconds: float, name: str = "told") -> None:
    """For a child: a whole transaction, and what its user was told."""
    try:
        told = run_shape(Bench(url, directory), shape, lease_seconds=lease_seconds).state.name
    except Exception as error:
        told = type(error).__name__
    (directory / name).write_text(told)


def recover_in(url: str, directory: Path) -> None:
    """For a child: recover what is dead."""
    Bench(url, directory).coordinator().recover()


def recorded(coordinator: Coordinator, tx: Transaction) -> TransactionRecord:
    record = coordinator.timeline.transaction(tx.id)
    assert record is not None
    return record


def in_doubt(bench: Bench, reply: str = "lost_reply", **arguments: Any) -> Transaction:
    """A transaction that was published, or not, while its store no longer answers."""
    tx = bench.coordinator(**arguments).begin()
    write(tx, bench.catalogs["one"], "t")
    bench.catalogs["one"].faults.add("publish", reply, 1)
    bench.catalogs["one"].faults.add("outcome", "error")
    with pytest.raises(TransactionInDoubt):
        tx.commit()
    return tx
