"""The heartbeat: one thread that keeps the leases of a coordinator's live transactions alive."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from twophase.errors import LeaseLostError, TimelineError
from twophase.redaction import logger
from twophase.timeline.owners import Lease, clock
from twophase.timeline.timeline import Timeline

_log = logger("twophase")

#: Seconds between the renewals of a lease that others may take while it is held: this soon its owner knows of it.
_CONTESTED = 2.0


@dataclass
class _Beating:
    """A lease, when it is renewed next, and when its transaction's time is over."""

    lease: Lease
    due: float
    is_contested: bool = False
    ends_at: float | None = None

    @property
    def next(self) -> float:
        """When there is something to do for it."""
        return self.due if self.ends_at is None else min(self.due, self.ends_at)


class Heartbeat:
    """A thread that renews leases until they are removed or lost.

    The thread ends one beat after the last lease, so that it need not be restarted for each transaction.

    Parameters
    ----------
    timeline : Timeline
    seconds : float
        The interval between renewals.
    on_lost, on_timeout : callable, optional
        Called with the id of a transaction whose lease is lost, or whose time is over; they must not block.
    """

    def __init__(
        self,
        timeline: Timeline,
        seconds: float,
        on_lost: Callable[[str], None] = lambda _: None,
        on_timeout: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._timeline = timeline
        self._seconds = seconds
        self._on_lost, self._on_timeout = on_lost, on_timeout
        self._leases: dict[str, _Beating] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def add(self, lease: Lease, ends_at: float | None = None) -> None:
        """Start renewing a lease.

        Parameters
        ----------
        lease : Lease
        ends_at : float, optional
            When the transaction's time is over, by :func:`~twophase.timeline.owners.clock`.
        """
        self._leave_parent()
        with self._changed:
            self._leases[lease.transaction_id] = _Beating(lease, clock() + self._seconds, ends_at=ends_at)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="twophase-heartbeat", daemon=True)
                self._thread.start()
            elif ends_at is not None:
                self._changed.notify_all()

    def contest(self, transaction_id: str) -> None:
        """Renew a lease more often from now on: others may take it while it is held. Idempotent."""
        self._leave_parent()
        with self._changed:
            beating = self._leases.get(transaction_id)
            if beating is not None and not beating.is_contested:
                beating.is_contested = True
                beating.due = min(beating.due, clock() + _CONTESTED)
                self._changed.notify_all()

    def remove(self, transaction_id: str) -> None:
        """Stop renewing a lease. Idempotent."""
        self._leave_parent()
        with self._changed:
            self._leases.pop(transaction_id, None)

    def stop(self) -> None:
        """Stop renewing all leases."""
        self._leave_parent()
        with self._changed:
            self._leases.clear()
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _leave_parent(self) -> None:
        """Reset in a forked child: the leases belong to the parent, and a lock held at the fork is never released."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._leases, self._changed, self._thread = {}, threading.Condition(), None

    def _run(self) -> None:
        while (leases := self._wait()) is not None:
            if leases and self._timeline.is_remote:
                self._beat_in_time(leases)
            else:
                self._beat(leases)

    def _beat_in_time(self, leases: list[Lease]) -> None:
        """Renew leases without delaying the next beat, even if the server is unreachable or hangs."""
        beat = threading.Thread(target=self._beat, args=(leases,), name="twophase-renewal", daemon=True)
        try:
            beat.start()
        except RuntimeError:
            return  # The interpreter is shutting down, and no longer starts threads.
        beat.join(self._seconds)
        if beat.is_alive():
            _log.warning("%r has not answered for %.1f seconds; trying again anew.", self._timeline, self._seconds)
            self._timeline.drop_connections()

    def _beat(self, leases: list[Lease]) -> None:
        for lease in leases:
            self._renew(lease)

    def _wait(self) -> list[Lease] | None:
        """Wait until leases must be renewed, and return them; None to end the thread."""
        me = threading.current_thread()
        with self._changed:
            pause = min([self._seconds, *(beating.next - clock() for beating in self._leases.values())])
            # One that was stopped while it was at work was not there to be woken.
            was_woken = self._thread is not me or pause <= 0 or self._changed.wait(pause)
            if self._thread is not me:
                return None
            if not self._leases and not was_woken:
                self._thread = None
                return None
            due, over = self._due(clock())
        for transaction_id in over:
            self._on_timeout(transaction_id)
        return due

    def _due(self, now: float) -> tuple[list[Lease], list[str]]:
        due = [beating for beating in self._leases.values() if beating.due <= now]
        for beating in due:
            beating.due = now + (min(_CONTESTED, self._seconds) if beating.is_contested else self._seconds)
        over = [b for b in self._leases.values() if b.ends_at is not None and b.ends_at <= now]
        for beating in over:
            beating.ends_at = None
        return [beating.lease for beating in due], [beating.lease.transaction_id for beating in over]

    def _renew(self, lease: Lease) -> None:
        try:
            self._timeline.renew(lease)
        except LeaseLostError:
            # Also if it has just been finished.
            self.remove(lease.transaction_id)
            self._on_lost(lease.transaction_id)
        except TimelineError as error:
            _log.warning("Could not renew the lease of %s: %s", lease.transaction_id, error)
