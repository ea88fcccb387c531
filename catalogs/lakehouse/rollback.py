"""Rollback: removal of what a participant staged."""

from __future__ import annotations

from twophase.catalogs.lakehouse.lakehouse import Lakehouse
from twophase.catalogs.lakehouse.publish_lookup import own_place
from twophase.failpoints import Failpoint, step

MARK_ABORTED = Failpoint("lakehouse.mark_aborted")
REMOVE_FILES = Failpoint("lakehouse.remove_files")
FORGET = Failpoint("lakehouse.forget")


def remove_staged(lakehouse: Lakehouse, participant: str) -> None:
    """Make sure that a participant is never published, and remove what it staged. Idempotent."""
    with step(MARK_ABORTED):
        record = lakehouse.store.record_aborted(participant)
    if record is None:
        return
    with step(REMOVE_FILES):
        own_place(record).remove(lakehouse.files)
    with step(FORGET):
        lakehouse.store.forget(participant)
