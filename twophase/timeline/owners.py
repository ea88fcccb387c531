"""Owners of transactions, and whether an owner is certainly gone.

Two questions are distinguished. Whether an owner is *certainly gone* can only be determined on its own machine, by
looking at the process. Everywhere else there is only the lease, and an expired lease does not prove a crash: the owner
may have been paused and may resume (the fencing number stops it then).
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
    """Reset the state in a forked child: it holds no transactions, and a lock held at the fork is never released."""
    global _held_lock, _token
    _held_lock = threading.RLock()
    _held.clear()
    _token = secrets.token_hex(8)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True)
class Owner:
    """A process, distinguished from all others that had the same process id.

    Attributes
    ----------
    host : str
        Name of the machine, for messages.
    boot_id : str
        Identifies one boot of a kernel and one PID namespace: process ids are comparable only within it.
    pid : int
        Process id.
    pid_started : str
        Start time of the process, in a form that is independent of clock changes.
    token : str
        A random value for this start of the process: clones of one machine snapshot share all of the above. Empty if
        recorded by an earlier version.
    """

    host: str
    boot_id: str
    pid: int
    pid_started: str
    token: str = ""

    def is_gone(self) -> bool:
        """Whether this process has certainly ended. False if that cannot be determined from here."""
        here = this_process()
        if (self.host, self.boot_id) != (here.host, here.boot_id):
            return False
        return _process_ended(self.pid, self.pid_started)

    def is_of_this_kernel(self) -> bool:
        """Whether it runs, or ran, on the same boot of the same kernel, in any container."""
        return self.boot_id.partition("/")[0] == _boot_id().partition("/")[0]

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> Owner:
    """Return the calling process."""
    pid = os.getpid()  # Not cached: a forked child is a different owner.
    return Owner(socket.gethostname(), _boot_id(), pid, _started(pid) or "", _token)


def inherited(transaction_id: str, pid: int) -> TwoPhaseError:
    """The error for a forked child that continues its parent's block."""
    return TwoPhaseError(
        f"Transaction {transaction_id} belongs to process {pid}, of which this one (process {os.getpid()}) is a fork: "
        "nothing was done here, and the transaction goes on there.",
        transaction_id=transaction_id,
        hint="Fork before the block, or end the child inside of it with os._exit().",
    )


def hold(transaction_id: str) -> None:
    """Record that this process works on a transaction."""
    with _held_lock:
        _held.add(transaction_id)


def release(transaction_id: str) -> None:
    """Record that this process no longer works on a transaction. Idempotent."""
    with _held_lock:
        _held.discard(transaction_id)


def is_abandoned(owner: Owner, transaction_id: str) -> bool:
    """Return whether certainly no process works on the transaction any more.

    A transaction of this process that is not held here is abandoned, although the process is still alive.
    """
    if owner == this_process():
        with _held_lock:
            return transaction_id not in _held
    return owner.is_gone()


@lru_cache(maxsize=1)
def _boot_id() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        # Containers may share the machine's name and kernel, but not its process ids.
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{psutil.boot_time():.0f}"


def _process_ended(pid: int, started: str) -> bool:
    if not _number_in_use(pid):
        return True
    try:
        if psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return True  # A zombie: it has ended, but its parent has not fetched the exit code yet.
    except psutil.Error:
        return False  # It exists but cannot be inspected: /proc can hide the processes of other users.
    now = _started(pid)
    if now is None or now.partition(":")[0] != started.partition(":")[0]:
        return False  # Missing, or in another unit.
    return now != started


def _number_in_use(pid: int) -> bool:
    """Return whether a process with this id exists, according to the kernel, even if its details are hidden."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # It belongs to another user.
    return True


def _started(pid: int) -> str | None:
    """Return the start time of a process: in kernel ticks since boot if available, else in seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
        return f"ticks:{fields[19]}"
    except (OSError, IndexError):
        pass
    try:
        return f"seconds:{psutil.Process(pid).create_time():.0f}"
    except psutil.Error:
        return None


#: The initial time namespace, whose number is fixed in Linux (``PROC_TIME_INIT_INO``).
_FIRST_TIME_NAMESPACE = "time:[4026531834]"


@lru_cache(maxsize=1)
def _has_own_time() -> bool:
    try:
        return os.readlink("/proc/self/ns/time") != _FIRST_TIME_NAMESPACE
    except OSError:
        return False  # The kernel does not support time namespaces.


def steady_clock() -> float | None:
    """Return the seconds of a clock that is never set, the same for all processes of one boot of a kernel.

    Like the processes, it pauses while the machine is suspended. None in a container with its own time namespace.
    """
    return None if _has_own_time() else time.monotonic()


class Lease:
    """The right to work on one transaction for a limited time.

    Parameters
    ----------
    transaction_id : str
    fencing : int
        The fencing number, required for every write.
    seconds : float
        The duration of the lease from each renewal.
    """

    def __init__(self, transaction_id: str, fencing: int, seconds: float) -> None:
        self.transaction_id = transaction_id
        self.fencing = fencing
        self.seconds = seconds
        #: The process that owns the lease: a fork of it has none.
        self.pid = os.getpid()
        self.lost = False
        self._until = clock() + seconds

    def renewed(self, asked_at: float) -> None:
        """Record a renewal, counted from its request, not from the reply: the timeline's lease is at least as long."""
        self._until = max(self._until, asked_at + self.seconds)

    def surely_held(self) -> bool:
        """Return whether no other process can have taken the transaction over yet. If False, check the timeline."""
        return not self.lost and clock() < self._until

    def __repr__(self) -> str:
        return f"<Lease {self.transaction_id} #{self.fencing}>"


def clock() -> float:
    """Return the seconds of a clock that continues while the machine is suspended: leases expire then, too."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
