"""Delayed calls: metastore calls that publish, and may arrive after the driver that made them has crashed.

A remote metastore executes a call even if its driver is dead. Therefore a rollback of a dead driver's write first makes
such a call fail, and keeps the files until no call can be under way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from twophase.errors import TransactionAborted


class PublishCalls:
    """The publish calls of one write that may be under way."""

    def __init__(self) -> None:
        #: Whether a call of this process is unanswered; None if another process may have made one.
        self._unanswered: bool | None = None

    def start(self) -> None:
        """Record that no call was made yet: the write has just begun, in this process."""
        self._unanswered = False

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Make a call. One that was answered, even by a refusal, is not under way; an earlier one may be."""
        before, self._unanswered = self._unanswered, True
        try:
            yield
        except TransactionAborted:
            self._unanswered = before
            raise
        self._unanswered = before

    def may_be_under_way(self, *, decided: bool) -> bool:
        """Whether a remote metastore may still execute a call.

        Parameters
        ----------
        decided : bool
            Whether the write was prepared, according to the timeline: nothing is published before that.
        """
        return decided if self._unanswered is None else self._unanswered

    @property
    def none_was_made(self) -> bool:
        """Whether it is known that no call is unanswered."""
        return self._unanswered is False
