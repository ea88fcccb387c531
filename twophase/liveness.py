"""Who owns a transaction, and whether that owner is certainly gone.

Two questions are kept apart. *Certainly gone* can only be answered on the owner's own machine, by looking at the
process. Everywhere else only the lease speaks, and a lease that ran out proves silence, not death: the owner may have
been paused and may come back (the fencing number stops it then).
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import psutil

from twophase.errors import TwoPhaseError

_held: set[str] = set()
_held_lock = threading.RLock()  # A finalizer may run inside of it.
_token = secrets.token_hex(8)


def _after_fork() -> None:
    """A child holds nothing, and is another process; a lock that another thread had at the fork is never released."""
    global _held_lock, _token
    _held_lock = threading.RLock()
    _held.clear()
    _token = secrets.token_hex(8)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True)
class Owner:
    """A process, told apart from every other one that had its number.

    Attributes
    ----------
    host : str
        Name of the machine, for people.
    boot_id : str
        One start of one kernel and one namespace of process numbers: numbers compare within it only.
    pid : int
        Process number.
    pid_started : str
        When that process started, in a form that clock changes do not move.
    token : str
        Random, of that start of that process: clones of one snapshot of a machine share all of the above. Empty where
        an earlier version has recorded it.
    """

    host: str
    boot_id: str
    pid: int
    pid_started: str
    token: str = ""

    def is_gone(self) -> bool:
        """Whether this process has certainly ended. False where that cannot be seen from here."""
        here = this_process()
        if (self.host, self.boot_id) != (here.host, here.boot_id):
            return False
        return _process_ended(self.pid, self.pid_started)

    def is_of_this_kernel(self) -> bool:
        """Whether it runs, or ran, on the same start of the same kernel, in whatever container."""
        return self.boot_id.partition("/")[0] == _boot_id().partition("/")[0]

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> Owner:
    """The process that calls."""
    pid = os.getpid()  # Not cached: a forked child is another owner.
    return Owner(socket.gethostname(), _boot_id(), pid, _started(pid) or "", _token)


def inherited(transaction_id: str, pid: int) -> TwoPhaseError:
    """To a forked child that goes on with its parent's block."""
    return TwoPhaseError(
        f"Transaction {transaction_id} belongs to process {pid}, of which this one (process {os.getpid()}) is a fork: "
        "nothing was done here, and the transaction goes on there.",
        transaction_id=transaction_id,
        hint="Fork before the block, or end the child inside of it with os._exit().",
    )


def hold(transaction_id: str) -> None:
    """Note that this very process works on a transaction."""
    with _held_lock:
        _held.add(transaction_id)


def release(transaction_id: str) -> None:
    """Note that this process no longer works on a transaction. Idempotent."""
    with _held_lock:
        _held.discard(transaction_id)


def is_abandoned(owner: Owner, transaction_id: str) -> bool:
    """Whether nobody works on the transaction any more, for certain.

    A transaction of this very process that nobody here holds was given up, although the process lives on.
    """
    if owner == this_process():
        with _held_lock:
            return transaction_id not in _held
    return owner.is_gone()


@lru_cache(maxsize=1)
def _boot_id() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        # Containers may share the machine's name and kernel, but not its process numbers.
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{psutil.boot_time():.0f}"


def _process_ended(pid: int, started: str) -> bool:
    if not _number_in_use(pid):
        return True
    try:
        if psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return True  # Killed, but its parent has not fetched the exit code yet.
    except psutil.Error:
        return False  # It is there, and may not be looked at: /proc can hide the processes of other users.
    now = _started(pid)
    if now is None or now.partition(":")[0] != started.partition(":")[0]:
        return False  # Not told, or told in another unit.
    return now != started


def _number_in_use(pid: int) -> bool:
    """Whether there is a process of this number: the kernel itself says so, whatever it shows of it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # Another user's.
    return True


def _started(pid: int) -> str | None:
    """Start time of a process: kernel ticks since boot where there are some, else seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
        return f"ticks:{fields[19]}"
    except (OSError, IndexError):
        pass
    try:
        return f"seconds:{psutil.Process(pid).create_time():.0f}"
    except psutil.Error:
        return None


#: The first namespace of clocks, whose number is fixed in Linux (``PROC_TIME_INIT_INO``).
_FIRST_TIME_NAMESPACE = "time:[4026531834]"


@lru_cache(maxsize=1)
def _has_own_time() -> bool:
    try:
        return os.readlink("/proc/self/ns/time") != _FIRST_TIME_NAMESPACE
    except OSError:
        return False  # A kernel that knows no such namespaces.


def steady_clock() -> float | None:
    """Seconds of a clock that nobody sets, alike for all processes of one start of one kernel.

    It stands still while the machine sleeps, as they do. None in a container that has clocks of its own.
    """
    return None if _has_own_time() else time.monotonic()


class Lease:
    """The right to work on one transaction, for a while.

    Parameters
    ----------
    transaction_id : str
    fencing : int
        The number that every write must bear.
    seconds : float
        How long the lease runs from each renewal.
    """

    def __init__(self, transaction_id: str, fencing: int, seconds: float) -> None:
        self.transaction_id = transaction_id
        self.fencing = fencing
        self.seconds = seconds
        #: The process whose lease it is: a fork of it has none.
        self.pid = os.getpid()
        self.lost = False
        self._until = clock() + seconds

    def renewed(self, asked_at: float) -> None:
        """Count from the moment the renewal was asked for, not from its answer: the timeline's lease is no shorter."""
        self._until = max(self._until, asked_at + self.seconds)

    def surely_held(self) -> bool:
        """Whether no other process can have taken the transaction over yet. False: ask the timeline."""
        return not self.lost and clock() < self._until

    def __repr__(self) -> str:
        return f"<Lease {self.transaction_id} #{self.fencing}>"


def clock() -> float:
    """Seconds that go on while the machine sleeps: a lease runs out then, too."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
