"""The one step: pointers of several tables, and the records of their participants; tried again on a lost race."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pyiceberg.table.metadata import TableMetadata

from twophase.catalogs.lakehouse.layout import remove_file, version_of
from twophase.catalogs.lakehouse.reachable import collects_garbage
from twophase.catalogs.lakehouse.store import PUBLISHED, Also, Loaded, LostRace, Move, NotStaged, Store
from twophase.errors import CatalogError, TableNotExistError, TransactionAborted, WriteConflictError
from twophase.failpoints import step
from twophase.model import ObjectPath, Outcome

if TYPE_CHECKING:
    from twophase.catalogs.files import Files
    from twophase.catalogs.lakehouse.participant import LakehouseParticipant

_LONGEST_PAUSE = 0.5
_THREADS = 4
_DELETE_OLD = "write.metadata.delete-after-commit.enabled"


def publish(store: Store, files: Files, members: Sequence[LakehouseParticipant], also: Also | None = None) -> None:
    """Publish one or several participants of one Iceberg catalog in one step. Idempotent.

    Parameters
    ----------
    store : Store
    files : Files
    members : sequence of LakehouseParticipant
    also : callable, optional
        Called inside the database transaction that is the step.

    Raises
    ------
    TransactionAborted
        A definite refusal: the table changed in a way that the statement does not go with, or it was aborted.
    """
    # In one order, so that two publishes never wait for each other in a circle.
    ordered = sorted(members, key=lambda member: (member.path, member.name))
    for attempt in range(store.settings.commit_retries + 1):
        waiting = _waiting(store, ordered)
        if not waiting:
            return
        try:
            _try(store, files, waiting, also)
            return
        except LostRace:
            time.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.01 * 2**attempt)))
    first = ordered[0]
    raise WriteConflictError(
        f"{first.path} was not written: others committed to it faster, {store.settings.commit_retries} times over.",
        path=first.path,
        transaction_id=first.transaction_id,
        hint="Run the statement again, or raise the option commit_retries.",
    )


def _waiting(store: Store, members: Sequence[LakehouseParticipant]) -> list[LakehouseParticipant]:
    """Those that are not published yet."""
    states = store.states([member.name for member in members])
    for member in members:
        if member.name not in states:
            member.drop_plan()
            raise member.gone()
    return [member for member in members if states[member.name] != PUBLISHED]


def _try(store: Store, files: Files, members: Sequence[LakehouseParticipant], also: Also | None) -> None:
    """One try; what it wrote goes away again where it surely did not go through."""
    written: list[str] = []
    try:
        moves = _stage_all(store, files, members, written)
        with step("lakehouse.swap"):
            store.publish(moves, also)
    except (LostRace, NotStaged, TransactionAborted) as error:
        for location in written:
            remove_file(files, location)
        for member in members:
            member.drop_plan()
        if isinstance(error, NotStaged):
            raise _member(members, error.participant).gone() from None
        raise
    except BaseException:
        # Whether it went through is not known here: what it wrote must stay until that is.
        for member in members:
            member.leave_tries()
        raise
    for member, move in zip(members, moves, strict=True):
        member.published_as(move.after)


def _member(members: Sequence[LakehouseParticipant], name: str) -> LakehouseParticipant:
    return next(member for member in members if name in member.names)


def _stage_all(store: Store, files: Files, members: Sequence[LakehouseParticipant], written: list[str]) -> list[Move]:
    """Stage each on what its table is at one moment, several side by side."""
    pointers = store.pointers([member.path for member in members])
    if len(members) == 1:
        return [_stage(store, files, members[0], pointers.get(members[0].path), written)]
    with ThreadPoolExecutor(_THREADS) as pool:
        staged = [pool.submit(_stage, store, files, member, pointers.get(member.path), written) for member in members]
    return [done.result() for done in staged]


def _stage(store: Store, files: Files, member: LakehouseParticipant, pointer: str | None, written: list[str]) -> Move:
    """Write the metadata that would follow on what the table is now."""
    current = None if pointer is None else Loaded(pointer, store.metadata(member.path, pointer))
    location = member.place.metadata_file(version_of(current.location) + 1 if current else 0)
    written.append(location)
    with step("lakehouse.write_metadata"):
        after = Loaded(location, member.plan(current).metadata())
        stage_metadata(store, files, current, after)
    return Move(member.path, member.names, current, after)


def stage_metadata(store: Store, files: Files, before: Loaded | None, after: Loaded) -> None:
    """Write what a pointer shall move to, so that it survives a power cut as the pointer does.

    With it the manifest list that it refers to: a try after a lost race has a new one.

    Parameters
    ----------
    store : Store
    files : Files
    before : Loaded or None
        The table now; None where there is none.
    after : Loaded
        What it shall become.
    """
    store.stage_metadata(before, after)
    snapshot = after.metadata.current_snapshot()
    lists = [] if snapshot is None else [snapshot.manifest_list]
    files.persist(after.location, *lists, below=store.settings.warehouse)


def undo(store: Store, members: Sequence[LakehouseParticipant]) -> bool:
    """Undo what was published in one step, in one step, where nobody has moved a pointer since. Idempotent.

    Parameters
    ----------
    store : Store
    members : sequence of LakehouseParticipant

    Returns
    -------
    bool
        Whether all tables are as they were before; where not, nothing was undone.
    """
    ordered = sorted(members, key=lambda member: (member.path, member.name))
    if all(member.outcome() is Outcome.NOT_PUBLISHED for member in ordered):
        return True
    moves = [move for member in ordered if (move := member.published_move()) is not None]
    if len(moves) < len(ordered) or not store.undo(moves):
        return False
    for member in ordered:
        member.undone()
    return True


def publish_step() -> AbstractContextManager[None]:
    """The failpoint around the one step."""
    return step("lakehouse.publish")


def change(
    store: Store, files: Files, path: ObjectPath, make: Callable[[Loaded], tuple[str, TableMetadata] | None]
) -> None:
    """Change a table's metadata at once, tried again where another writer was faster.

    Parameters
    ----------
    store : Store
    files : Files
    path : ObjectPath
    make : callable
        Gets the table; answers location and content of its next metadata file, or None where nothing changes.
    """
    for attempt in range(store.settings.commit_retries + 1):
        current = store.load(path)
        if current is None:
            raise TableNotExistError(f"Table {path} does not exist in catalog {store.settings.catalog}.", path=path)
        made = make(current)
        if made is None:
            return
        location, metadata = made
        after = Loaded(location, metadata)
        stage_metadata(store, files, current, after)
        with step("lakehouse.alter"):
            moved = store.swap(path, current, after)
        if moved:
            remove_old_metadata(store, files, path, metadata)
            return
        remove_file(files, location)
        time.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.01 * 2**attempt)))
    raise WriteConflictError(
        f"{path} was not changed: others committed to it faster.", path=path, hint="Run the statement again."
    )


def remove_old_metadata(store: Store, files: Files, path: ObjectPath, metadata: TableMetadata) -> None:
    """Remove metadata files that fell out of a table's log by its last commit, where the table wants that. Idempotent.

    A property that Iceberg names: see ``write.metadata.delete-after-commit.enabled`` and
    ``write.metadata.previous-versions-max`` there.
    """
    wanted = metadata.properties.get(_DELETE_OLD, "false").lower() == "true" and collects_garbage(metadata)
    if not wanted or not metadata.metadata_log:
        return
    log = [entry.metadata_file for entry in metadata.metadata_log]
    try:
        before = store.metadata(path, log[-1])
    except CatalogError:
        return  # The commit after this one has removed it, and did what is to be done here.
    for entry in before.metadata_log:
        if entry.metadata_file not in log:
            remove_file(files, entry.metadata_file)
