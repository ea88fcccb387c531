"""The crash matrix: every failpoint, every time it is reached, every way to fail; then recovery, twice.

A dead process leaves nothing but its world: two deaths between which no file of it changes are one death, and are tried
once. What the world has on a server is compared, too.

Afterwards the tables must be wholly old or wholly new, as the caller was told, nothing may be left, and the same
transaction can be run again at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.crash.forks import Forks, Job
from tests.crash.scenario import OLD, Scenario, State
from tests.crash.worlds import world_of
from twophase import failpoints

Actions = Callable[[str], tuple[str, ...]]
ACTIONS = ("error", "error_after", "lost_reply", "exit", "exit_after")
KILLS = ("exit", "exit_after")
#: What else is tried at most steps: an error before the effect, and a lost reply after it. Another error there is left
#: to ``make test-exhaustive``: it differs in its class only.
ERRORS = ("error", "lost_reply")


def main_actions(step: str) -> tuple[str, ...]:
    """The actions that tell most: die after each step, and lose the reply where a reply matters."""
    matters = any(
        word in step for word in ("publish", "record_committing", "record_completed", "compensate", "outcome")
    )
    return ("exit_after", "lost_reply") if matters else ("exit_after",)


#: What the coordinator does on its own before the decision: tried over the chaos catalogs, whatever the catalog.
COORDINATOR_ONLY = {
    f"core.{step}"
    for step in (
        *("begin", "prepare", "persist", "reserve", "save_participant"),
        *("record_inflight", "record_finished"),
    )
}


def first_actions(*, thorough: bool) -> Actions:
    """What the first test does at a step of a real catalog: every step of a thorough scenario, else the publish."""

    def actions(step: str) -> tuple[str, ...]:
        if step.startswith("core.") and step not in ("core.publish", "core.record_committing"):
            return ()
        if not thorough:
            return ("exit_after",) if "publish" in step else ()
        return main_actions(step)

    return actions


#: How the scenarios begin whose publish is refused: no death is inside of one, so all steps are tried.
_REFUSED = "another writer comes before the publish"


def first_of(scenario: str, thorough: Collection[str]) -> Actions:
    """What the first test of a catalog does in one of its scenarios, of which some are thorough."""
    return first_actions(thorough=scenario in thorough or scenario.startswith(_REFUSED))


def other_actions(done: Actions) -> Actions:
    """What is left to the test of every kind of failure."""

    def actions(step: str) -> tuple[str, ...]:
        return () if step in COORDINATOR_ONLY else tuple(a for a in ACTIONS if a not in done(step))

    return actions


def first_of_any_kind(wanted: Actions, *, errors: bool) -> Actions:
    """The deaths among some actions, and where they are tried, ``ERRORS``; the rest is left to `test-exhaustive`."""
    return lambda step: tuple(a for a in wanted(step) if a in KILLS or (errors and a in ERRORS))


def rest_of(wanted: Actions, tried: Actions) -> Actions:
    """Some actions but those that another test tries: errors, as a death that leaves the same is tried once."""
    return lambda step: tuple(a for a in wanted(step) if a not in tried(step))


def with_rest(databases: Sequence[str], cases: Iterable[Any], tried: Callable[[str, Any], bool]) -> list[Any]:
    """Each case on each database; what is not to be tried every time is left to ``make test-exhaustive``."""
    return [
        pytest.param(database, case, marks=() if tried(database, case) else pytest.mark.exhaustive)
        for database, case in product(databases, cases)
    ]


#: How a transaction fails so that it takes each of its ways: it undoes what it did; a recovery does; a recovery carries
#: it through, before and after its publish.
WAYS = (
    "",
    "core.publish=error",
    "core.record_committing=exit",
    "core.record_committing=exit_after",
    "core.publish=exit_after",
)


@dataclass
class Report:
    """What was tried, and what went wrong."""

    name: str
    points: set[str] = field(default_factory=set)
    cases: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"crash matrix {self.name}: {len(self.points)} failpoints, {self.cases} cases, "
            f"{len(self.violations)} violations"
        )


@dataclass(frozen=True)
class Case:
    """One failure in one scenario.

    Parameters
    ----------
    scenario : str
    work : str
        What fails while the transaction runs, as in ``TWOPHASE_FAILPOINTS``.
    recovery : str
        What fails in the first recovery.
    at_once : bool
        Two recoveries side by side.
    """

    scenario: str
    work: str
    recovery: str = ""
    at_once: bool = False

    def __str__(self) -> str:
        then = f", recovery {self.recovery}" if self.recovery else ""
        return f"[{self.scenario}] {self.work}{then}{', two recoveries at once' if self.at_once else ''}"


class Matrix:
    """Runs cases in one world.

    Parameters
    ----------
    world : str
        A key of ``PLACES``.
    forks : Forks
    directory : Path
    report : Report
    """

    def __init__(self, world: str, forks: Forks, directory: Path, report: Report) -> None:
        self._world = world
        self._kind = world_of(world)
        self._forks = forks
        self._directory = directory / "world"
        self._templates = directory / "templates"
        self._server = self._kind.server_side(self._directory)
        self._made: dict[str, Any] = {}
        self._watched: dict[tuple[str, str, str], Job] = {}
        self.report = report

    def close(self) -> None:
        """Remove what is on a server, and the files: who looks at all that is there finds nothing."""
        if self._server:
            self._server.remove()
            self._server.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def scenario(self, name: str) -> Scenario:
        return self._kind.scenarios[name]

    # -- which cases there are -----------------------------------------------------------------------------------

    def cases(self, name: str, wanted: Actions, done: Actions = lambda _: ()) -> Iterator[Case]:
        """One case for each time that a step is reached, and for each action that is wanted for that step.

        Parameters
        ----------
        name : str
            Of a scenario.
        wanted : callable
            The actions for a step.
        done : callable
            What another test tries: a death that would leave the same behind is left out.
        """
        for arm in self._ways(self._watch(name, "work"), wanted, done):
            yield Case(name, arm)

    def recovery_cases(self, case: Case, actions: tuple[str, ...] = KILLS, *, only: str = "") -> Iterator[Case]:
        """The same case, with the recovery failing at each step that it reaches, or at one of them."""
        watched = self._watch(case.scenario, "recover", case.work)
        for arm in self._ways(watched, lambda step: actions if only in ("", step) else ()):
            yield Case(case.scenario, case.work, arm)

    def _watch(self, scenario: str, job: str, before: str = "") -> Job:
        """What a job reaches, and what its deaths would leave; several tests ask.

        Parameters
        ----------
        scenario, job : str
        before : str
            What failed in the transaction that is recovered.
        """
        key = scenario, job, before
        if key not in self._watched:
            self._reset(scenario)
            if before:
                self._job(scenario, "work", before)
            self._watched[key] = self._job(scenario, job, watched=True)
        return self._watched[key]

    def _ways(self, watched: Job, wanted: Actions, done: Actions = lambda _: ()) -> Iterator[str]:
        for step, times in sorted(watched["reached"].items()):
            for nth in range(1, times + 1):
                yield from (f"{step}={action}@{nth}" for action in wanted(step) if action not in KILLS)
        died = {left for step, _, action, left in watched["moments"] if action in done(step)}
        for step, nth, action, left in watched["moments"]:
            if action in wanted(step) and left not in died:
                died.add(left)
                yield f"{step}={action}@{nth}"

    def reached(self, scenario: str, way: str) -> set[str]:
        """The failpoints that a transaction reaches which fails in one of ``WAYS``, or its recovery."""
        self._reset(scenario)
        jobs = [self._job(scenario, "work", way), *([self._job(scenario, "recover")] if way else [])]
        return {point for job in jobs for point in job.get("reached", {})}

    def tell(self, case: Case) -> Job:
        """What the caller of the transaction is told; nothing is recovered."""
        self._reset(case.scenario)
        return self._job(case.scenario, "work", case.work)

    def look(self, scenario: str) -> Job:
        """What is there after :meth:`tell` and one recovery."""
        self._job(scenario, "recover")
        return self._job(scenario, "look")

    def at_once(self, scenario: str, *jobs: tuple[str, dict[str, Any]]) -> list[Job]:
        """Run several jobs side by side on a fresh world, and then look and clean."""
        self._reset(scenario)
        described = [{**self._described(scenario, job), "facts": facts} for job, facts in jobs]
        answers = self._forks.run(*described)
        broken = [answer["broken"] for answer in answers if "broken" in answer]
        assert not broken, broken[0]
        return [*answers, self._job(scenario, "look"), self._job(scenario, "clean")]

    # -- one case ------------------------------------------------------------------------------------------------

    def run(self, case: Case) -> None:
        """Run one case and note its violations."""
        self.report.cases += 1
        self._reset(case.scenario)
        worked = self._job(case.scenario, "work", case.work)
        recovered, settled = self._settle(case, died=worked["exit"] != 0)
        problems = [
            *_was_tried(case.work, worked),
            *_judge(self.scenario(case.scenario), worked, recovered, settled, self._undoes(case.scenario)),
        ]
        self.report.violations += [f"{case}: {problem}" for problem in problems]

    def _undoes(self, scenario: str) -> bool:
        return self._kind.undoes and self.scenario(scenario).undone

    def run_all(self, cases: Iterable[Case]) -> None:
        """Run cases, one after the other."""
        for case in cases:
            self.run(case)

    def _settle(self, case: Case, *, died: bool) -> tuple[list[Job], Job]:
        """Recover twice, and look: each in a process of its own, but for what nobody died of."""
        if not (died or case.recovery or case.at_once):
            settled = self._job(case.scenario, "settle")
            return [{"exit": 0, **settled.pop("recovered first")}], settled
        if case.recovery:
            failed = self._job(case.scenario, "recover", case.recovery)
            self.report.violations += [f"{case}: {problem}" for problem in _was_tried(case.recovery, failed)]
        return self._recover(case), self._job(case.scenario, "again")

    def _recover(self, case: Case) -> list[Job]:
        job = self._described(case.scenario, "recover")
        if case.at_once:
            return self._forks.run(job, job) + self._forks.run(job)
        return self._forks.run(job)  # The second one is part of the job "again".

    def _job(self, scenario: str, job: str, arm: str = "", *, watched: bool = False) -> Job:
        (answer,) = self._forks.run({**self._described(scenario, job, arm), "watched": watched})
        if "broken" in answer:
            raise RuntimeError(f"{scenario}, {job}, {arm}:\n{answer['broken']}")
        self._note(answer)
        return answer

    def _described(self, scenario: str, job: str, arm: str = "") -> Job:
        return {
            "world": self._world,
            "directory": str(self._directory),
            "scenario": scenario,
            "job": job,
            "arm": arm,
        }

    def _note(self, answer: Job) -> None:
        self.report.points |= set(answer.get("reached", {})) & failpoints.declared()

    def _reset(self, scenario: str) -> None:
        """The world as it was before the transaction; paths inside it stay true, so it is always at one place."""
        template = self._templates / scenario.replace(" ", "_")
        if scenario not in self._made:
            self._make(scenario, template)
        if self._server:
            self._server.restore(self._made[scenario])
        shutil.rmtree(self._directory)
        shutil.copytree(template, self._directory, symlinks=True)

    def _make(self, scenario: str, template: Path) -> None:
        for directory in (self._directory, template):
            shutil.rmtree(directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        self._job(scenario, "set up")
        shutil.copytree(self._directory, template, symlinks=True)
        self._made[scenario] = saved = self._server.save() if self._server else None
        if self._server:
            self._server.restore(saved)
            assert self._server.save() == saved, "What is restored is not what was made."


class Crew:
    """Some workers that share the cases out, each with processes and a directory of its own.

    Parameters
    ----------
    world : str
    directory : Path
    report : Report
    size : int
    """

    def __init__(self, world: str, directory: Path, report: Report, size: int = 2) -> None:
        self.world = world
        self.report = report
        self._forks = [Forks(world) for _ in range(size)]
        self._workers = [
            Matrix(world, forks, directory / str(number), report) for number, forks in enumerate(self._forks)
        ]

    def __enter__(self) -> Crew:
        for forks in self._forks:
            forks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for forks in self._forks:
            forks.__exit__(*error)
        for worker in self._workers:
            worker.close()

    @property
    def planner(self) -> Matrix:
        """Any worker, to ask which cases there are."""
        return self._workers[0]

    def run(self, cases: Iterable[Case]) -> list[str]:
        """Run cases; the violations that they found."""
        before = len(self.report.violations)
        cases = list(cases)
        assert cases, "No case, so nothing was tried"
        shares = [cases[number :: len(self._workers)] for number in range(len(self._workers))]
        with ThreadPoolExecutor(len(self._workers)) as pool:
            for done in [
                pool.submit(worker.run_all, share) for worker, share in zip(self._workers, shares, strict=True)
            ]:
                done.result()
        return self.report.violations[before:]

    def unreached(
        self, prefix: str | tuple[str, ...], scenarios: Iterable[str], *, elsewhere: Collection[str] = ()
    ) -> set[str]:
        """The failpoints, of those whose names begin so, that no scenario reaches, whichever tests were run before.

        Parameters
        ----------
        prefix : str or tuple of str
        scenarios : iterable of str
            Tried until nothing is missing.
        elsewhere : collection of str
            What only other worlds reach.
        """
        stale = set(elsewhere) - failpoints.declared()
        assert not stale, f"No failpoint has these names: {sorted(stale)}"
        missing = {name for name in failpoints.declared() if name.startswith(prefix)} - set(elsewhere)
        for scenario, way in product(scenarios, WAYS):
            if missing:
                missing -= self.planner.reached(scenario, way)
        return missing


# -- what must hold ---------------------------------------------------------------------------------------------------


def _was_tried(armed: str, job: Job) -> Iterator[str]:
    """A case whose failure never came says nothing."""
    for name, action, nth in failpoints.parse(armed):
        killed = action in KILLS and job["exit"] == failpoints.EXIT_CODE
        if not killed and job.get("reached", {}).get(name, 0) < (nth or 1):
            yield f"{name} was not reached: nothing failed"


def _judge(scenario: Scenario, worked: Job, recovered: list[Job], settled: Job, undoes: bool) -> Iterator[str]:
    yield from _ran(worked, [*recovered, settled])
    before, after = settled["before"], settled["after"]
    yield from _is_read_alike(settled)
    old, new = _plain(scenario.old()), _plain(scenario.new())
    if scenario.other_writer:
        yield from _other_writer_is_untouched(scenario, worked, before, undoes)
        return
    if scenario.rival:
        yield from _each_is_whole(scenario, worked, before)
    else:
        yield from _is_whole(before["tables"], old, new)
        yield from _agrees_with_what_was_told(worked, before["tables"], old, new)
        yield from _agrees_with_the_timeline(before, old, new)
    yield from _is_tidy(settled)
    yield from _runs_again(scenario, settled, after)


def _plain(state: State) -> dict[str, Any]:
    return {table: None if rows is None else [list(row) for row in rows] for table, rows in state.items()}


def _ran(worked: Job, others: list[Job]) -> Iterator[str]:
    if worked["exit"] not in (0, failpoints.EXIT_CODE):
        yield f"the work ended with {worked['exit']}"
    for other in others:
        if other["exit"] != 0 or "broken" in other or "failed" in other:
            yield f"recovery went wrong: {other}"


def _is_read_alike(settled: Job) -> Iterator[str]:
    tables, otherwise = settled["before"]["tables"], settled["read otherwise"]
    if otherwise != tables:
        yield f"two readers disagree: {tables}, {otherwise}"


def _is_whole(tables: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    if tables not in (old, new):
        yield f"neither wholly old nor wholly new: {tables}"


def _each_is_whole(scenario: Scenario, worked: Job, before: Job) -> Iterator[str]:
    """Two transactions: each is wholly there or not at all, as its caller was told and the timeline says."""
    published = next((who for who, state in scenario.outcomes().items() if before["tables"] == _plain(state)), None)
    if published is None:
        yield f"no outcome of two transactions: {before['tables']}"
        return
    told = {"work": worked.get("told"), "rival": worked.get("rival", {}).get("told")}
    for who, what in told.items():
        if what in ("success", "failed", "exists") and (what == "success") != (who in published):
            yield f"{what} was told of the {who}, but published are {sorted(published)}: {worked}"
    states = sorted(state for _, state, _ in before["timeline"] if state != "ROLLED_BACK")
    if states != ["COMPLETED"] * len(published):
        yield f"published are {sorted(published)}, the timeline says {before['timeline']}"
    if before["reservations"]:
        yield f"still reserved: {before['reservations']}"


def _agrees_with_what_was_told(
    worked: Job, tables: dict[str, Any], old: dict[str, Any], new: dict[str, Any]
) -> Iterator[str]:
    told = worked.get("told")
    if told == "success":
        if worked["seen"] != new:
            yield f"success was told, but readers saw {worked['seen']}"
        if tables != new:
            yield f"success was told, but recovery made it {tables}"
    elif told in ("failed", "exists"):
        if worked["seen"] != old:
            yield f"{worked['error']!r} was told, but readers saw {worked['seen']}"
        if tables != old:
            yield f"{worked['error']!r} was told, but recovery made it {tables}"


def _agrees_with_the_timeline(before: Job, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    for identity, state, error in before["timeline"]:
        if state not in ("COMPLETED", "ROLLED_BACK"):
            yield f"after two recoveries {identity} is {state} ({error})"
        if state == "COMPLETED" and before["tables"] != new:
            yield f"the timeline says COMPLETED, the tables are {before['tables']}"
        if state == "ROLLED_BACK" and before["tables"] != old:
            yield f"the timeline says ROLLED_BACK, the tables are {before['tables']}"
    if before["reservations"]:
        yield f"still reserved: {before['reservations']}"


def _is_tidy(settled: Job) -> Iterator[str]:
    if settled["left"]:
        yield f"left behind after clean: {settled['left']}"


def _runs_again(scenario: Scenario, settled: Job, after: Job) -> Iterator[str]:
    told, before = settled["work"], settled["before"]["tables"]
    was_new = before == _plain(scenario.new())
    if was_new and scenario.creates():
        if told["told"] != "exists" or after["tables"] != before:
            yield f"run again on its own result: {told}, {after['tables']}"
        return
    as_state: State = {t: None if rows is None else [tuple(row) for row in rows] for t, rows in before.items()}
    if told["told"] != "success" or after["tables"] != _plain(scenario.new(as_state)):
        yield f"it cannot be run again: {told}, {after['tables']}"
    if after["reservations"]:
        yield f"still reserved after the second run: {after['reservations']}"


def _other_writer_is_untouched(scenario: Scenario, worked: Job, before: Job, undoes: bool) -> Iterator[str]:
    """The other writer's table stays as it is; all the others are wholly old, or in doubt where nobody can undo."""
    theirs, tables = scenario.other_writer, before["tables"]
    assert theirs
    if worked.get("told") == "success":
        yield "success was told, although another writer holds a target"
    if tables[theirs] not in (None, _plain({theirs: OLD})[theirs]):
        yield f"the other writer's table was touched: {tables[theirs]}"
    others, old, new = ({t: rows for t, rows in s.items() if t != theirs} for s in _states(scenario, tables))
    doubtful = [identity for identity, state, _ in before["timeline"] if state == "IN_DOUBT"]
    if doubtful and (undoes or not before["reservations"]):
        yield f"in doubt after two recoveries: {doubtful}"
    if others != old and not (doubtful and others == new):
        yield f"neither wholly old nor in doubt under another writer: {others}"


def _states(scenario: Scenario, tables: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return tables, _plain(scenario.old()), _plain(scenario.new())
