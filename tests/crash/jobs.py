"""What a child process of the crash matrix does: run the transaction, recover, look, run it again.

Each job opens the world anew, as a fresh driver would, and answers with plain JSON.
"""

from __future__ import annotations

import logging
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.crash.moments import watch
from tests.crash.scenario import Scenario, Statement
from tests.crash.worlds import World, world_of
from twophase import failpoints
from twophase.catalog import (
    SupportsSavepoints,
    SupportsStagedAlter,
    SupportsStagedDatabases,
    SupportsStagedDrop,
    SupportsStagedRename,
    TableChange,
    TwoPhaseCatalogTable,
)
from twophase.errors import (
    ConfigurationError,
    DatabaseAlreadyExistsError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
    TableNotExistError,
    TransactionInDoubt,
    TwoPhaseError,
)
from twophase.transactions.clean import clean as clean_all
from twophase.transactions.coordinator import Coordinator
from twophase.transactions.merging import Conflict
from twophase.transactions.transaction import Transaction
from twophase.transactions.undoing import plan_undo

#: Armed alone, so that steps are counted.
NOTHING = failpoints.Failpoint("none")

#: What a transaction is told that runs again on its own result; the last one: an undo is a change itself.
EXISTS = (
    TableAlreadyExistsError,
    TableNotExistError,
    DatabaseAlreadyExistsError,
    DatabaseNotExistError,
    ConfigurationError,
)

Answer = dict[str, Any]


def run(job: dict[str, Any]) -> Answer:
    """Run one job, with its failpoint armed; what it holds ends with its process."""
    return _run(world_of(job["world"])(Path(job["directory"])), job)


def _run(world: World, job: dict[str, Any]) -> Answer:
    scenario = world.scenarios[job["scenario"]]
    time.sleep = lambda _: None  # Waiting only sets the pace; the matrix has none.
    logging.getLogger("twophase").setLevel(logging.CRITICAL)
    failpoints.disarm()
    failpoints.arm_from_environment(job.get("arm") or f"{NOTHING.name}=")
    moments = watch(world) if job.get("watched") else []
    answer: Answer = JOBS[job["job"]](world, scenario, **job.get("facts", {}))
    return {**answer, "reached": dict(failpoints.reached()), "moments": moments}


def set_up(world: World, scenario: Scenario) -> Answer:
    world.set_up(scenario)
    return {}


def work(world: World, scenario: Scenario) -> Answer:
    """Run the transaction, and tell what its caller was told, and what others see then."""
    with closing(world.coordinator()) as coordinator:
        answer = _work(world, scenario, coordinator)
    reader = type(world)(world.directory)
    seen = _tables(reader, scenario)
    reader.close()
    return {**answer, "seen": seen}


def _work(world: World, scenario: Scenario, coordinator: Coordinator) -> Answer:
    transaction = coordinator.begin(scenario.isolation)
    if scenario.merged:
        transaction.will_merge()
    rival = coordinator.begin(scenario.isolation) if scenario.rival else None
    others: Answer = {}
    try:
        if scenario.reads:
            _read(world, transaction, scenario.reads)
        if scenario.undoes:
            _plan_undo(world, transaction, scenario)
        mark = None
        for statement in scenario.statements:
            if statement.undone:
                mark = mark or transaction.savepoint()
            elif mark is not None:
                transaction.rollback_to(mark)
                mark = None
            _execute(world, transaction, statement, alone=len(scenario.statements) == 1 and rival is None)
        if rival and scenario.rival:
            others["rival"] = _work_beside(world, rival, scenario.rival)
        for conflict in transaction.merging.conflicts() if transaction.merging else ():
            transaction.merging.rebase(conflict)
            _execute(world, transaction, _merging(world, scenario), alone=False, resolves=conflict)
        if scenario.other_writer:
            _let_in(transaction, lambda: world.interfere(str(scenario.other_writer)))
        transaction.commit()
        told: Answer = {"told": "success"}
    except BaseException as error:
        # Spark calls its abort even when commit threw.
        transaction.abort(error)
        told = {"told": _kind(error), "error": f"{type(error).__name__}: {error}"}
    return {**told, **others, "id": transaction.id}


def _work_beside(world: World, rival: Transaction, statement: Statement) -> Answer:
    """Run the other transaction, whose failure is not that of the first one."""
    try:
        _execute(world, rival, statement, alone=False)
        rival.commit()
    except Exception as error:
        rival.abort(error)
        return {"told": _kind(error), "error": f"{type(error).__name__}: {error}"}
    return {"told": "success"}


def _read(world: World, transaction: Transaction, table: str) -> None:
    catalog, path = world.catalogs[table.split(".")[0]], world.path(table)
    transaction.note_read(catalog, path, catalog.table_version(path))


def _plan_undo(world: World, transaction: Transaction, scenario: Scenario) -> None:
    """Plan the undo that the statements of a scenario are: it says what they do."""
    timeline = transaction._life.coordinator.timeline
    first = min((r for r in timeline.transactions() if r.number is not None), key=lambda r: r.number or 0)
    plan = plan_undo(timeline, world.catalogs.__getitem__, first.id, transaction.note_read)
    replaced, dropped = ([s.table for s in scenario.statements if s.purpose.drops == drops] for drops in (False, True))
    assert [str(path) for _, path, _ in plan.former] == [str(world.path(table)) for table in replaced]
    assert [str(path) for _, path in plan.created] == [str(world.path(table)) for table in dropped]


def _let_in(transaction: Transaction, other_writer: Callable[[], None]) -> None:
    """Let another writer come when everything is prepared for the last time."""
    prepare_all = transaction._ending.prepare_all

    def then() -> None:
        prepare_all()
        with _calm():
            other_writer()

    transaction._ending.prepare_all = then  # type: ignore[method-assign]


def _merging(world: World, scenario: Scenario) -> Statement:
    """The answer to a conflict: the rival's rows as they are there now, as a rival that was rolled back has none."""
    assert scenario.rival
    with _calm():
        reader = type(world)(world.directory)
        theirs = [tuple(row) for row in _tables(reader, scenario)[scenario.rival.table] or ()]
        reader.close()
    rows = tuple(row for row in scenario.merged if row not in scenario.rival.rows or row in theirs)
    return replace(scenario.statements[-1], rows=rows)


def _execute(
    world: World,
    transaction: Transaction,
    statement: Statement,
    *,
    alone: bool,
    resolves: Conflict | None = None,
) -> None:
    if statement.purpose.of_database:
        _change_database(world, transaction, statement, alone=alone)
        return
    if statement.renames:
        _rename(world, transaction, statement, statement.renames)
        return
    if statement.purpose.drops:
        _drop(world, transaction, statement, alone=alone)
        return
    if statement.purpose.alters:
        _alter(world, transaction, statement, alone=alone)
        return
    if statement.restores:
        _restore(world, transaction, statement, alone=alone)
        return
    participant = transaction.stage(
        world.catalogs[statement.catalog],
        world.path(statement.table),
        world.definition(statement),
        purpose=statement.purpose,
        overwrite=statement.overwrite,
        resolves=resolves,
    )
    assert participant is not None
    transaction.begin_participant(participant)
    schema = world.definition(statement).schema
    transaction.write(participant, world.frame(list(statement.rows), schema, scattered=statement.scattered))
    if statement.fails:
        transaction.discard(participant)
    elif not alone:
        transaction.prepare_participant(participant)
        if statement.read:
            participant.read_source()


def _restore(world: World, transaction: Transaction, statement: Statement, *, alone: bool) -> None:
    catalog = world.catalogs[statement.catalog]
    assert isinstance(catalog, SupportsSavepoints)
    document = world.kept(transaction._life.coordinator.timeline, statement).document
    definition = catalog.kept_definition(document)
    participant = transaction.stage(catalog, world.path(statement.table), definition, purpose=statement.purpose)
    assert participant is not None
    transaction.begin_participant(participant)
    assert transaction.write_kept(participant, catalog, document)
    if not alone:
        transaction.prepare_participant(participant)


def _change_database(world: World, transaction: Transaction, statement: Statement, *, alone: bool) -> None:
    catalog, database = world.catalogs[statement.catalog], world.path(statement.table).database
    assert isinstance(catalog, SupportsStagedDatabases)
    if statement.purpose.drops:
        participant = transaction.stage_drop_database(catalog, database)
    else:
        participant = transaction.stage_create_database(catalog, database, {})
    transaction.begin_participant(participant)
    transaction.write_nothing(participant)
    if not alone:
        transaction.prepare_participant(participant)


def _rename(world: World, transaction: Transaction, statement: Statement, new_name: str) -> None:
    catalog, path, new_path = world.catalogs[statement.catalog], world.path(statement.table), world.path(new_name)
    assert isinstance(catalog, SupportsStagedRename)
    arriving = transaction.stage_rename(catalog, path, new_path)
    assert arriving is not None
    _finish(transaction, arriving)
    _finish(transaction, transaction.stage_leave(catalog, path, arriving))


def _finish(transaction: Transaction, participant: TwoPhaseCatalogTable) -> None:
    transaction.begin_participant(participant)
    transaction.write_nothing(participant)
    transaction.prepare_participant(participant)


def _drop(world: World, transaction: Transaction, statement: Statement, *, alone: bool) -> None:
    catalog = world.catalogs[statement.catalog]
    assert isinstance(catalog, SupportsStagedDrop)
    participant = transaction.stage_drop(catalog, world.path(statement.table), purge=not statement.anew)
    assert participant is not None
    transaction.begin_participant(participant)
    transaction.write_nothing(participant)
    if not alone:
        transaction.prepare_participant(participant)


def _alter(world: World, transaction: Transaction, statement: Statement, *, alone: bool) -> None:
    catalog = world.catalogs[statement.catalog]
    assert isinstance(catalog, SupportsStagedAlter)
    change = TableChange("drop_column", ("part",), {"if_exists": True})
    participant = transaction.stage_alter(catalog, world.path(statement.table), [change])
    assert participant is not None
    transaction.begin_participant(participant)
    transaction.write_nothing(participant)
    if not alone:
        transaction.prepare_participant(participant)


def _kind(error: BaseException) -> str:
    if isinstance(error, EXISTS):
        return "exists"
    return "in doubt" if isinstance(error, TransactionInDoubt) else "failed"


def recover(world: World, scenario: Scenario) -> Answer:
    """Recovery, as at the start of the next driver."""
    with closing(world.coordinator()) as coordinator:
        return _recover(coordinator)


def _recover(coordinator: Coordinator) -> Answer:
    try:
        return {"recovered": [r.to_document() for r in coordinator.recover()]}
    except TwoPhaseError as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def _tables(world: World, scenario: Scenario) -> Answer:
    return {table: world.rows(table) for table in scenario.tables}


def _read_otherwise(world: World, tables: Answer) -> Answer:
    return {table: world.other_reader(table) for table in tables} if world.reads_twice else tables


def look(world: World, scenario: Scenario) -> Answer:
    """What readers and operators see."""
    return {
        "tables": _tables(world, scenario),
        "timeline": _query(world, "select id, state, error from twophase_transactions where coordinator = 'crash'"),
        "reservations": _query(world, "select * from twophase_reservations"),
    }


def clean(world: World, scenario: Scenario) -> Answer:
    """``twophase clean``; then what is left."""
    with closing(world.coordinator()) as coordinator:
        return _clean(world, coordinator)


def _clean(world: World, coordinator: Coordinator) -> Answer:
    clean_all(coordinator, world.catalogs.values())
    return {"left": world.leftovers()}


def settle(world: World, scenario: Scenario) -> Answer:
    """Both recoveries in one fresh process, and what follows them in :func:`again`."""
    return {"recovered first": recover(world, scenario), **again(world, scenario)}


def again(world: World, scenario: Scenario) -> Answer:
    """What the driver after the next one does: recover once more, clean, look, run the same once more, and look."""
    with closing(world.coordinator()) as coordinator:
        recovered = _recover(coordinator)
        cleaned = _clean(world, coordinator)
        before = look(world, scenario)
        otherwise = _read_otherwise(world, before["tables"])
        told = _work(world, replace(scenario, other_writer=None, reads=None, rival=None), coordinator)
    found = {"before": before, "read otherwise": otherwise, "after": look(world, scenario)}
    return {**recovered, **found, "left": cleaned["left"], "work": told}


# -- several at once -----------------------------------------------------------------------------------------------


def race(world: World, scenario: Scenario, who: int, of: int) -> Answer:
    """Run the transaction at the same moment as others, with rows that tell whose they are."""
    statements = tuple(replace(s, rows=tuple((who, part) for part in "ab")) for s in scenario.statements)
    _meet(world, who, of)
    return work(world, replace(scenario, statements=statements))


def replaces(world: World, scenario: Scenario, times: int) -> Answer:
    """Replace the table again and again; generation n has ten rows, all n."""
    _meet(world, 0, 2)
    (statement,) = scenario.statements
    for generation in range(times):
        value = str(generation) if statement.schema_change else generation
        rows = tuple((value, "ab"[i % 2]) for i in range(10))
        told = work(world, replace(scenario, statements=(replace(statement, rows=rows),)))
        if told["told"] != "success":
            break
    (world.directory / "done").touch()
    return told


def reads(world: World, scenario: Scenario) -> Answer:
    """Read the table again and again until the writer is done; every different state that was seen."""
    (statement,) = scenario.statements
    _meet(world, 1, 2)
    times, seen = 0, set()
    while not (world.directory / "done").exists():
        times += 1
        rows = world.rows(statement.table)
        seen.add(None if rows is None else (len({row[0] for row in rows}), len(rows), rows[0][0] if rows else None))
    return {"times": times, "seen": sorted(seen, key=repr)}


def _meet(world: World, who: int, of: int) -> None:
    """Wait until all are here."""
    (world.directory / f"here.{who}").touch()
    gate = threading.Event()
    while len(list(world.directory.glob("here.*"))) < of:
        gate.wait(0.001)


def _query(world: World, sql: str) -> list[list[Any]]:
    with sqlite3.connect(world.timeline_file) as connection:
        rows = [list(row) for row in connection.execute(sql)]
    connection.close()
    return rows


@contextmanager
def _calm() -> Iterator[None]:
    """No failpoints inside: another writer is no part of the transaction."""
    armed = dict(failpoints._armed)
    failpoints._armed.clear()
    yield
    failpoints._armed.update(armed)


def warm_up(world: str) -> None:
    """Import what a world imports late, by doing everything once; nothing stays open, nor on a server."""
    world = world_of(world).warmed_as or world
    with tempfile.TemporaryDirectory() as directory:
        server = world_of(world).server_side(Path(directory))
        job = {"world": world, "directory": directory, "scenario": "create"}
        for name in ("set up", "work", "recover", "again"):
            opened = world_of(world)(Path(directory))
            opened.reads_twice = False  # A reader may start threads, which no fork has.
            _run(opened, {**job, "job": name})
            opened.close()
        if server:
            server.remove()
            server.close()


JOBS: dict[str, Callable[..., Answer]] = {
    "set up": set_up,
    "work": work,
    "recover": recover,
    "look": look,
    "clean": clean,
    "settle": settle,
    "again": again,
    "race": race,
    "replaces": replaces,
    "reads": reads,
}
