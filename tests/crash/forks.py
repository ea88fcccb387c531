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

from sqlalchemy.engine import Engine
from sqlalchemy.util import LRUCache

ROOT = Path(__file__).parents[2]
Job = dict[str, Any]


class Forks:
    """The parent's end: runs jobs in children, several at once where asked.

    A context manager.

    Parameters
    ----------
    *worlds : str
        Keys of ``PLACES``: nothing but what their jobs need is imported.
    """

    def __init__(self, *worlds: str) -> None:
        self._worlds = worlds

    def __enter__(self) -> Forks:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.forks", *self._worlds],
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


class _Without(MetaPathFinder):
    """PyArrow takes NumPy and pandas along where they are there, and each fork would copy their page tables."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname in self._names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


class _Compiled(LRUCache[Any, Any]):
    """What SQLAlchemy has compiled, for all engines of a kind: each child opens its own and would compile anew."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(self._of_kind(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(self._of_kind(key), value)

    @staticmethod
    def _of_kind(key: Any) -> Any:
        dialect, *rest = key
        return type(dialect), *rest


def _compile_once() -> None:
    compiled = _Compiled(2000)
    Engine._compiled_cache = property(lambda _: compiled, lambda *_: None)  # type: ignore[assignment]


def _serve(*worlds: str) -> None:
    # The lakehouse catalog counts with NumPy.
    sys.meta_path.insert(0, _Without("pandas", *(() if any("lake" in world for world in worlds) else ("numpy",))))
    from tests.crash import jobs

    _compile_once()
    # A job that prints must not spoil the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for world in worlds:
        jobs.warm_up(world)
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
    _serve(*sys.argv[1:])
