"""Keeps the leases of a coordinator's live transactions alive, with one thread."""

from __future__ import annotations

import os
import threading

from twophase.errors import LeaseLostError, TimelineError
from twophase.liveness import Lease
from twophase.redaction import logger
from twophase.timeline import Timeline

_log = logger("twophase")


class Heartbeat:
    """Renews leases until they are removed or lost; the thread ends a beat after the last one, not to start each time.

    Parameters
    ----------
    timeline : Timeline
    seconds : float
        Between two renewals.
    """

    def __init__(self, timeline: Timeline, seconds: float) -> None:
        self._timeline = timeline
        self._seconds = seconds
        self._leases: dict[str, Lease] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def add(self, lease: Lease) -> None:
        """Begin to renew a lease."""
        self._leave_parent()
        with self._changed:
            self._leases[lease.transaction_id] = lease
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="twophase-heartbeat", daemon=True)
                self._thread.start()

    def remove(self, transaction_id: str) -> None:
        """Stop renewing a lease. Idempotent."""
        self._leave_parent()
        with self._changed:
            self._leases.pop(transaction_id, None)

    def stop(self) -> None:
        """Stop renewing at all."""
        self._leave_parent()
        with self._changed:
            self._leases.clear()
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _leave_parent(self) -> None:
        """In a forked child: the leases are the parent's, and so may be the lock, which nobody would release here."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._leases, self._changed, self._thread = {}, threading.Condition(), None

    def _run(self) -> None:
        while leases := self._wait():
            if self._timeline.is_remote:
                self._beat_in_time(leases)
            else:
                self._beat(leases)

    def _beat_in_time(self, leases: list[Lease]) -> None:
        """A server may have gone, or stand still, without a word: the next beat does not wait for this one."""
        beat = threading.Thread(target=self._beat, args=(leases,), name="twophase-renewal", daemon=True)
        try:
            beat.start()
        except RuntimeError:
            return  # The interpreter is ending, and starts no thread any more.
        beat.join(self._seconds)
        if beat.is_alive():
            _log.warning("%r has not answered for %.1f seconds; trying again anew.", self._timeline, self._seconds)
            self._timeline.drop_connections()

    def _beat(self, leases: list[Lease]) -> None:
        for lease in leases:
            self._renew(lease)

    def _wait(self) -> list[Lease]:
        me = threading.current_thread()
        with self._changed:
            if self._changed.wait_for(lambda: self._thread is not me, timeout=self._seconds):
                return []
            if not self._leases:
                self._thread = None
            return list(self._leases.values())

    def _renew(self, lease: Lease) -> None:
        try:
            self._timeline.renew(lease)
        except LeaseLostError:
            # Also when it has just been finished. The lease knows; its transaction's next step tells the user.
            self.remove(lease.transaction_id)
        except TimelineError as error:
            _log.warning("Could not renew the lease of %s: %s", lease.transaction_id, error)
