"""The atomic publish: pointers of several tables and the records of their participants, retried on a lost race."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate, update_table_metadata

from twophase.catalogs.files import Files
from twophase.catalogs.lakehouse.dropping import LakehouseDrop
from twophase.catalogs.lakehouse.lakehouse import Lakehouse
from twophase.catalogs.lakehouse.layout import Place, remove_file, version_of
from twophase.catalogs.lakehouse.participant import LakehouseParticipant
from twophase.catalogs.lakehouse.reachable import remove_old_metadata
from twophase.catalogs.lakehouse.store import PUBLISHED, Also, Loaded, LostRace, Move, NotStaged, Store
from twophase.errors import TransactionAborted, WriteConflictError
from twophase.failpoints import Failpoint, step
from twophase.model import ObjectPath, Outcome

WRITE_METADATA = Failpoint("lakehouse.write_metadata")
SWAP = Failpoint("lakehouse.swap")
ALTER = Failpoint("lakehouse.alter")

_LONGEST_PAUSE = 0.5
_THREADS = 4


def publish(store: Store, files: Files, members: Sequence[LakehouseParticipant], also: Also | None = None) -> None:
    """Publish one or several participants of one Iceberg catalog atomically. Idempotent.

    Parameters
    ----------
    store : Store
    files : Files
    members : sequence of LakehouseParticipant
    also : callable, optional
        Called inside the database transaction that publishes.

    Raises
    ------
    TransactionAborted
        A definite refusal: the table has changed in a conflicting way, or the participant was aborted.
    """
    # A fixed order, so that two publishes cannot deadlock.
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
    raise _too_slow(ordered[0], store.settings.commit_retries)


def _too_slow(member: LakehouseParticipant, retries: int) -> WriteConflictError:
    return WriteConflictError(
        f"{member.path} was not written: others committed to it faster, {retries} times over.",
        path=member.path,
        transaction_id=member.transaction_id,
        hint="Run the statement again, or raise the option commit_retries.",
    )


def _waiting(store: Store, members: Sequence[LakehouseParticipant]) -> list[LakehouseParticipant]:
    """The participants that are not published yet."""
    states = store.states([member.name for member in members])
    for member in members:
        if member.name not in states:
            member.drop_plan()
            raise member.gone()
    return [member for member in members if states[member.name] != PUBLISHED]


def _try(store: Store, files: Files, members: Sequence[LakehouseParticipant], also: Also | None) -> None:
    """Try once; remove what it wrote if it has definitely failed."""
    written: list[str] = []
    try:
        moves = _stage_all(store, files, members, written)
        with step(SWAP):
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
        # The outcome is unknown here: what it wrote must be kept until it is known.
        for member in members:
            member.leave_tries()
        raise
    for member, move in zip(members, moves, strict=True):
        if move.after is not None:
            member.published_as(move.after)


def _member(members: Sequence[LakehouseParticipant], name: str) -> LakehouseParticipant:
    return next(member for member in members if name in member.names)


def _stage_all(store: Store, files: Files, members: Sequence[LakehouseParticipant], written: list[str]) -> list[Move]:
    """Stage each participant on the current state of its table, several in parallel."""
    pointers = store.pointers([member.path for member in members])
    if len(members) == 1:
        return [_stage(store, files, members[0], pointers.get(members[0].path), written)]
    with ThreadPoolExecutor(_THREADS) as pool:
        staged = [pool.submit(_stage, store, files, member, pointers.get(member.path), written) for member in members]
    return [done.result() for done in staged]


def _stage(store: Store, files: Files, member: LakehouseParticipant, pointer: str | None, written: list[str]) -> Move:
    """Write the next metadata file on top of the current state of the table."""
    current = None if pointer is None else Loaded(pointer, store.metadata(member.path, pointer))
    if isinstance(member, LakehouseDrop):
        return member.move_on(current)
    before = member.built_on(current)
    location = member.place.metadata_file(version_of(before.location) + 1 if before else 0)
    written.append(location)
    with step(WRITE_METADATA):
        plan = member.plan(before)
        updates = plan.updates()
        after = Loaded(location, plan.apply(updates))
        stage_metadata(store, files, member.path, before, after, member.own_manifests())
    return Move(member.path, member.names, current, after, updates, member.dropped)


def stage_metadata(
    store: Store,
    files: Files,
    path: ObjectPath,
    before: Loaded | None,
    after: Loaded,
    staged: Sequence[str] = (),
) -> None:
    """Write the metadata file to which a pointer will move, durably: it must survive a power cut as the pointer does.

    This includes the manifest list that it refers to, since a try after a lost race writes a new one.

    Parameters
    ----------
    store : Store
    files : Files
    path : ObjectPath
    before : Loaded or None
        The current table; None if it does not exist.
    after : Loaded
        The table after the publish.
    staged : sequence of str
        Other files that were written for it.

    Raises
    ------
    TransactionAborted
        Files are gone that were there before.
    """
    store.stage_metadata(before, after)
    snapshot = after.metadata.current_snapshot()
    lists = [] if snapshot is None else [snapshot.manifest_list]
    files.persist(after.location, *lists, below=store.settings.warehouse)
    _require_place(store, files, path, before, [*staged, *lists])


def _require_place(store: Store, files: Files, path: ObjectPath, before: Loaded | None, staged: Sequence[str]) -> None:
    """Refuse to move a pointer to files in a place that is no longer the table's: its file system is not mounted, say.

    Whoever writes into a directory that has vanished makes a new one, which is hidden when the old one comes back.
    """
    there = staged if before is None else [before.location, *staged]
    gone = next((file for file in there if files.is_local(file) and not files.exists(file)), None)
    if gone is None or (before is not None and store.pointer(path) != before.location):
        return  # Another writer may have removed old metadata; the pointer will not move then.
    raise TransactionAborted(
        f"{path} was not changed: {gone} is gone, which was there before.",
        path=path,
        hint="Is its file system mounted? Run the statement again when the file is back.",
    )


def undo(store: Store, members: Sequence[LakehouseParticipant]) -> bool:
    """Undo a publish atomically, if no other writer has moved a pointer since. Idempotent.

    Returns
    -------
    bool
        Whether all tables are as they were before; if not, nothing was undone.
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


def change(
    lakehouse: Lakehouse, path: ObjectPath, make: Callable[[Loaded], Sequence[TableUpdate]]
) -> tuple[Loaded, Loaded] | None:
    """Change a table's metadata immediately, and retry if another writer was faster.

    Parameters
    ----------
    lakehouse : Lakehouse
    path : ObjectPath
    make : callable
        Takes the table and returns the changes; none if there is nothing to do.

    Returns
    -------
    tuple of Loaded, or None
        The table before and after; None if nothing was changed.
    """
    store, files, key = lakehouse.store, lakehouse.files, lakehouse.own_key()
    for attempt in range(store.settings.commit_retries + 1):
        current = store.load(path)
        if current is None:
            raise lakehouse.no_table(path)
        updates = tuple(make(current))
        if not updates:
            return None
        metadata = update_table_metadata(current.metadata, updates, metadata_location=current.location)
        metadata = _with_unbroken_log(current.metadata, metadata)
        place = Place(current.metadata.location, key)
        after = Loaded(place.metadata_file(version_of(current.location) + 1), metadata)
        stage_metadata(store, files, path, current, after)
        with step(ALTER):
            moved = store.swap(path, current, after, updates)
        if moved:
            remove_old_metadata(store, files, path, metadata)
            return current, after
        remove_file(files, after.location)
        time.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.01 * 2**attempt)))
    raise WriteConflictError(
        f"{path} was not changed: others committed to it faster.", path=path, hint="Run the statement again."
    )


def _with_unbroken_log(before: TableMetadata, after: TableMetadata) -> TableMetadata:
    """A table whose snapshot log begins after the last snapshot that it has lost, as Iceberg's own writers have it.

    PyIceberg leaves the entries before it, too: an older state would seem to be that of the time of the lost one.
    """
    known = {snapshot.snapshot_id for snapshot in after.snapshots}
    lost = [number for number, entry in enumerate(before.snapshot_log) if entry.snapshot_id not in known]
    old = before.snapshot_log[: lost[-1]] if lost else []
    return after.model_copy(update={"snapshot_log": [entry for entry in after.snapshot_log if entry not in old]})
