"""A participant in a really fresh process: what the conformance suite sends there, and what runs there."""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from twophase.errors import CatalogError

if TYPE_CHECKING:
    from twophase.catalog import TwoPhaseCatalogTable
    from twophase.testing._suite_base import FreshProcess


def in_fresh_process(participant: TwoPhaseCatalogTable, process: FreshProcess | None) -> dict[str, Any]:
    """Pickle a participant into a child process, and publish it there where the child can make the catalog.

    Returns
    -------
    dict
        ``document`` and ``pickle`` as they come back, ``unbound`` (it asked for its catalog), ``outcomes`` (before the
        commit, after it, and after everything was done twice).
    """
    question = {
        "pickle": base64.b64encode(pickle.dumps(participant)).decode(),
        "factory": process and process.factory,
        "arguments": dict(process.arguments) if process else {},
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
    answer: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    answer["pickle"] = base64.b64decode(answer["pickle"])
    return answer


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    participant = pickle.loads(base64.b64decode(question["pickle"]))
    answer: dict[str, Any] = {"document": participant.document, "unbound": _asks_for_its_catalog(participant)}
    if question["factory"]:
        module, _, name = question["factory"].partition(":")
        catalog = getattr(import_module(module), name)(**question["arguments"])
        answer["outcomes"] = _publish(participant.bind(catalog))
    answer["pickle"] = base64.b64encode(pickle.dumps(participant)).decode()
    return answer


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
