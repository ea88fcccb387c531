"""Participants in a truly new process: the jobs that the conformance suite sends there, and their execution."""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from twophase.errors import CatalogError
from twophase.testing._moments import Moment, interrupt

if TYPE_CHECKING:
    from twophase.catalog import Catalog, TwoPhaseCatalogTable
    from twophase.testing._suite_base import FreshProcess


def in_fresh_process(participant: TwoPhaseCatalogTable, process: FreshProcess | None) -> dict[str, Any]:
    """Pickle a participant into a child process, and publish it there if the child can create the catalog.

    Returns
    -------
    dict
        ``document`` and ``pickle`` as they come back, ``unbound`` (it asked for its catalog), ``outcomes`` (before the
        commit, after it, and after repeating everything).
    """
    answer = _ask("publish", process, pickle=_packed(participant))
    answer["pickle"] = base64.b64decode(answer["pickle"])
    return answer


def killed(
    participants: Sequence[TwoPhaseCatalogTable],
    moments: Sequence[Moment],
    folders: frozenset[str],
    process: FreshProcess,
) -> list[bool]:
    """Publish each participant in a process that is killed at a moment; return for each if that moment was reached."""
    jobs = [
        {"pickle": _packed(participant), "moment": moment}
        for participant, moment in zip(participants, moments, strict=True)
    ]
    return _ask("kill", process, jobs=jobs, folders=sorted(folders))["killed"]


def recovered(participants: Sequence[TwoPhaseCatalogTable], process: FreshProcess) -> list[list[str]]:
    """Publish each participant as recovery does; return the outcomes before, after, and after repeating everything."""
    return _ask("recover", process, pickles=[_packed(p) for p in participants])["outcomes"]


def _packed(participant: TwoPhaseCatalogTable) -> str:
    return base64.b64encode(pickle.dumps(participant)).decode()


def _unpacked(text: str) -> TwoPhaseCatalogTable:
    return pickle.loads(base64.b64decode(text))


def _ask(verb: str, process: FreshProcess | None, **facts: Any) -> dict[str, Any]:
    question = {
        "verb": verb,
        "factory": process and process.factory,
        "arguments": dict(process.arguments) if process else {},
        **facts,
    }
    child = subprocess.run(
        [sys.executable, "-m", "twophase.testing._child"],
        input=json.dumps(question),
        text=True,
        capture_output=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if child.returncode:
        raise AssertionError(f"The participant did not survive into a fresh process:\n{child.stderr}")
    return json.loads(child.stdout.splitlines()[-1])


def _factory(question: Mapping[str, Any]) -> Callable[[], Catalog]:
    module, _, name = question["factory"].partition(":")
    make = getattr(import_module(module), name)
    return lambda: make(**question["arguments"])


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    if question["verb"] == "kill":
        open_catalog, folders = _factory(question), frozenset(question["folders"])
        return {"killed": [_dies(_unpacked(job["pickle"]), open_catalog, folders, job) for job in question["jobs"]]}
    if question["verb"] == "recover":
        catalog = _factory(question)()
        return {"outcomes": [_publish(_unpacked(text).bind(catalog)) for text in question["pickles"]]}
    participant = _unpacked(question["pickle"])
    answer: dict[str, Any] = {"document": participant.document, "unbound": _asks_for_its_catalog(participant)}
    if question["factory"]:
        answer["outcomes"] = _publish(participant.bind(_factory(question)()))
    answer["pickle"] = _packed(participant)
    return answer


def _dies(
    participant: TwoPhaseCatalogTable, open_catalog: Callable[[], Catalog], folders: frozenset[str], job: dict[str, Any]
) -> bool:
    """Publish in a separate process that is killed at the moment. Nothing is open here that it could share."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            participant.bind(open_catalog())
            interrupt(folders, tuple(job["moment"]), participant.commit, lambda: os.kill(os.getpid(), signal.SIGKILL))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise AssertionError(f"A publish failed, see above; its process ended with {status}.")
    return status != 0


def _asks_for_its_catalog(participant: TwoPhaseCatalogTable) -> bool:
    try:
        return participant.catalog is None
    except CatalogError:
        return True


def _publish(participant: TwoPhaseCatalogTable) -> list[str]:
    outcomes = [participant.outcome()]
    participant.commit()
    outcomes.append(participant.outcome())
    for method in (participant.commit, participant.finish, participant.finish, participant.abort):
        method()
    outcomes.append(participant.outcome())
    return [outcome.value for outcome in outcomes]


if __name__ == "__main__":
    print(json.dumps(_answer(json.load(sys.stdin))))
