"""The cancellation of the jobs of a transaction that another process, or its timeout, ends."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Cancellation:
    """The ways to cancel the running jobs of one transaction.

    Parameters
    ----------
    transaction_id : str
    """

    def __init__(self, transaction_id: str) -> None:
        self._id = transaction_id
        self._calls: list[Callable[[str, str], None]] = []

    def add(self, cancel: Callable[[str, str], None]) -> None:
        """Register a callback, which gets the transaction's id and the reason. Registered once."""
        if cancel not in self._calls:
            self._calls.append(cancel)

    def request(self, reason: str) -> None:
        """Call all of them, each on a thread of its own."""
        for cancel in self._calls:
            threading.Thread(target=cancel, args=(self._id, reason), name="twophase-cancel", daemon=True).start()
