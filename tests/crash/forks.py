"""Fresh processes at the price of a fork.

A server process imports what the jobs need, opens nothing, and forks a child for each job: a process with its own
number, that dies like any other. A really fresh interpreter for each would cost half a second.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import traceback
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[2]
Job = dict[str, Any]


class Forks:
    """The parent's end: runs jobs in children, several at once where asked.

    A context manager.
    """

    def __enter__(self) -> Forks:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.close()
        self._server.wait(timeout=30)
        self._server.stdout.close()

    def run(self, *jobs: Job) -> list[Job]:
        """Run jobs at once; each answer has ``exit`` besides what the job said."""
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps(jobs) + "\n")
        self._server.stdin.flush()
        answers: list[Job] = json.loads(self._server.stdout.readline())
        return answers


class _WithoutPandas(MetaPathFinder):
    """PyArrow takes pandas along where it is there; nobody needs it here, and each fork would copy its page tables."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ImportError(fullname)


def _serve() -> None:
    sys.meta_path.insert(0, _WithoutPandas())
    from tests.crash import jobs

    # A job that prints must not spoil the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    jobs.warm_up()
    gc.collect()
    gc.freeze()  # Children share these pages as long as nobody counts on them.
    for line in sys.stdin:
        children = [_fork(jobs.run, job) for job in json.loads(line)]
        answers.write(json.dumps([_fetch(*child) for child in children]) + "\n")
        answers.flush()


def _fork(run: Any, job: Job) -> tuple[int, int]:
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    status = 1
    try:
        gc.disable()
        os.close(reading)
        try:
            answer = run(job)
        except BaseException:
            answer = {"broken": traceback.format_exc()}
        with os.fdopen(writing, "w") as pipe:
            json.dump(answer, pipe)
        status = 0
    finally:
        os._exit(status)


def _fetch(child: int, reading: int) -> Job:
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return {**(json.loads(said) if said else {}), "exit": os.waitstatus_to_exitcode(status)}


if __name__ == "__main__":
    _serve()
