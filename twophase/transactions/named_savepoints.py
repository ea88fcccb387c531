"""Named savepoints: states of tables in several stores, as of one moment, that are kept and can be restored."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from twophase.catalog import Catalog, SupportsSavepoints, SupportsSnapshots, SupportsTimeTravel
from twophase.catalog.capabilities import required
from twophase.catalog.reading import ReadSource
from twophase.errors import (
    CatalogError,
    ConfigurationError,
    TableNotExistError,
    TwoPhaseError,
    VersionNotExistError,
    WriteConflictError,
)
from twophase.failpoints import Failpoint, step
from twophase.model import ObjectPath
from twophase.redaction import logger
from twophase.timeline.records import describe_error
from twophase.timeline.savepoints import LAST, KeptTable, SavepointRecord, SavepointState, taken
from twophase.timeline.timeline import Timeline
from twophase.transactions.conflicts import Claim
from twophase.transactions.coordinator import Coordinator
from twophase.transactions.driver import concerning
from twophase.transactions.published_states import source_after
from twophase.transactions.transaction import Transaction

__all__ = ["Restore", "create_savepoint", "drop_savepoint", "find_savepoint", "plan_restore"]

_log = logger("twophase")

KEEP = Failpoint("core.keep")
FORGET = Failpoint("core.forget_kept")

#: The longest name of a savepoint.
_LONGEST = 255
_CANNOT = "cannot keep states of its tables"
_NOT_FORGOTTEN = "The savepoint can no longer be used; twophase clean removes the rest of it once the store answers."

Table = tuple[Catalog, ObjectPath]
Database = tuple[Catalog, str]
Resolve = Callable[[str], Catalog]


# -- creating ----------------------------------------------------------------------------------------------------------


def create_savepoint(
    coordinator: Coordinator,
    name: str,
    *,
    databases: Iterable[Database] = (),
    tables: Iterable[Table] = (),
    keep_seconds: float | None = None,
    copies: bool = False,
) -> SavepointRecord:
    """Keep the present state of tables, as of one moment: no other transaction publishes to them.

    Parameters
    ----------
    coordinator : Coordinator
    name : str
        Unique on the timeline.
    databases : iterable of (Catalog, str)
        Databases with all their tables.
    tables : iterable of (Catalog, ObjectPath)
    keep_seconds : float, optional
        How long; until it is dropped when None.
    copies : bool
        Whether rows may be copied where a store cannot keep them otherwise.

    Raises
    ------
    ConfigurationError
        The name is taken, or is none; there is no table; nothing was changed.
    AtomicityNotSupportedError
        The store of one of the tables cannot keep it; nothing was changed.
    WriteConflictError
        Another transaction publishes to one of them for too long, or a writer outside twophase changed it meanwhile.
    """
    whole, single = list(databases), list(tables)
    _check(coordinator.timeline, name, keep_seconds)
    if not whole and not single:
        raise ConfigurationError(f"Savepoint {name} would contain no table; nothing was changed.")
    transaction = coordinator.begin()
    try:
        held = _hold(transaction, name, whole, single)
        record = SavepointRecord(
            id=f"sp{secrets.token_hex(10)}",
            name=name,
            transaction_id=transaction.id,
            user=coordinator.user,
            databases=tuple((catalog.name, database) for catalog, database in whole),
            keep_seconds=keep_seconds,
        )
        planned = tuple(_plan(catalog, path, record, copies=copies) for catalog, path in held)
        created = _keep(coordinator.timeline, transaction, replace(record, tables=planned), held)
    except BaseException as error:
        transaction.abort(error)
        raise
    _let_writers_in(transaction, created)
    return created


def _let_writers_in(transaction: Transaction, created: SavepointRecord) -> None:
    """End the transaction that kept writers out; a failure does not take back the savepoint, which is complete."""
    try:
        transaction.abort()
    except Exception as error:
        _log.warning("Savepoint %s was created, but writers wait for its lease to end: %s", created.name, error)


def _check(timeline: Timeline, name: str, keep_seconds: float | None) -> None:
    if not name.strip() or len(name) > _LONGEST or not name.isprintable():
        raise ConfigurationError(
            f"{name!r} is no name of a savepoint; nothing was changed.",
            hint=f"It has 1 to {_LONGEST} characters, none of which is a control character.",
        )
    if name.lstrip("-").isdigit():
        raise ConfigurationError(
            f"A savepoint cannot be named {name}; nothing was changed.",
            hint="VERSION AS OF would take a number for the snapshot of a table.",
        )
    if keep_seconds is not None and not 0 < keep_seconds < float("inf"):
        raise ConfigurationError(f"Savepoint {name} must be kept for longer than {keep_seconds:g} seconds.")
    if keep_seconds is not None and timeline.now() + keep_seconds > LAST:
        raise ConfigurationError(
            f"Savepoint {name} cannot be kept for {keep_seconds / 86400:g} days, into the year 9999 or beyond; "
            "nothing was changed.",
            hint="Without KEEP it stays until it is dropped.",
        )
    if timeline.savepoint(name) is not None:
        raise taken(name)


def _hold(
    transaction: Transaction, name: str, databases: Sequence[Database], tables: Sequence[Table]
) -> list[tuple[SupportsSavepoints, ObjectPath]]:
    """Keep writers out of all tables, also of those that were created in a database meanwhile."""
    held: dict[tuple[str, ObjectPath], tuple[SupportsSavepoints, ObjectPath]] = {}
    while True:
        every = [*_tables_of(databases), *((_able(catalog, path), path) for catalog, path in tables)]
        keys = {(catalog.name, catalog.canonical(path)): (catalog, path) for catalog, path in every}
        if keys.keys() <= held.keys():
            break
        new = {key: keys[key] for key in keys.keys() - held.keys()}
        transaction.keep_writers_out(new.values())
        held |= new
    if not keys:
        raise ConfigurationError(f"Savepoint {name} would contain no table; nothing was changed.")
    return [keys[key] for key in sorted(keys, key=Claim.order)]


def _tables_of(databases: Iterable[Database]) -> list[tuple[SupportsSavepoints, ObjectPath]]:
    tables: list[tuple[SupportsSavepoints, ObjectPath]] = []
    for catalog, database in [(_able(catalog, database), database) for catalog, database in databases]:
        with concerning(database):
            tables += [(catalog, path) for path in catalog.tables_to_keep(database)]
    return tables


def _able(catalog: Catalog, path: object) -> SupportsSavepoints:
    return required(catalog, SupportsSavepoints, _CANNOT, path)


def _plan(catalog: SupportsSavepoints, path: ObjectPath, record: SavepointRecord, *, copies: bool) -> KeptTable:
    with concerning(path):
        return KeptTable(catalog.name, path, catalog.plan_kept(path, record.id, record.name, copies=copies))


def _keep(
    timeline: Timeline,
    transaction: Transaction,
    record: SavepointRecord,
    held: Sequence[tuple[SupportsSavepoints, ObjectPath]],
) -> SavepointRecord:
    record = timeline.add_savepoint(record)
    try:
        before = [_version(*table) for table in held]
        documents = [_keep_one(catalog, table) for (catalog, _), table in zip(held, record.tables, strict=True)]
        transaction.require_held()
        # At the end of all: so they are kept as of one moment.
        for (catalog, path), version in zip(held, before, strict=True):
            if _version(catalog, path) != version:
                raise _changed_outside(f"{catalog.name}.{path}", path)
        number = timeline.last_number()
        timeline.complete_savepoint(record.id, documents, number)
    except BaseException as error:
        _give_up(timeline, record, {catalog.name: catalog for catalog, _ in held}, error)
        raise
    kept = tuple(replace(table, document=d) for table, d in zip(record.tables, documents, strict=True))
    return replace(record, tables=kept, state=SavepointState.READY, number=number)


def _version(catalog: SupportsSavepoints, path: ObjectPath) -> str | None:
    with concerning(path):
        return catalog.table_version(path)


def _keep_one(catalog: SupportsSavepoints, table: KeptTable) -> dict[str, object]:
    with concerning(table.path), step(KEEP):
        return dict(catalog.keep(table.document))


def _changed_outside(name: str, path: ObjectPath) -> WriteConflictError:
    return WriteConflictError(
        f"Table {name} was changed outside twophase while a savepoint of it was created; it was not created.",
        path=path,
        hint="Create it again.",
    )


def _give_up(
    timeline: Timeline, record: SavepointRecord, catalogs: Mapping[str, Catalog], error: BaseException
) -> None:
    """Remove what was kept before a failure; what cannot be removed now is removed by ``clean``."""
    try:
        remove_savepoint(timeline, record, catalogs.__getitem__)
    except Exception as problem:
        _log.warning("What savepoint %s had kept could not be removed: %s", record.name, problem)
        error.add_note(f"What was kept before this could not be removed ({problem}). Run: twophase clean")


# -- using -------------------------------------------------------------------------------------------------------------


def find_savepoint(timeline: Timeline, name: str) -> SavepointRecord:
    """Return a savepoint that can be read and restored.

    Raises
    ------
    ConfigurationError
        There is none, or its time is over.
    """
    record = timeline.savepoint(name)
    if record is None:
        raise _unknown(timeline, name)
    return _usable(timeline, record)


def _usable(timeline: Timeline, record: SavepointRecord) -> SavepointRecord:
    name = record.name
    if record.state is SavepointState.CREATING:
        raise ConfigurationError(
            f"Savepoint {name} is not complete: it is still being created, or its process died; nothing was changed.",
            hint="In the second case twophase clean removes what there is of it.",
        )
    if not record.is_usable(timeline.now()):
        raise ConfigurationError(
            f"Savepoint {name} has expired, or is being dropped; nothing was changed.",
            hint="KEEP said how long it lasts. twophase clean removes it.",
        )
    return record


def _unknown(timeline: Timeline, name: str) -> ConfigurationError:
    known = ", ".join(record.name for record in timeline.savepoints()[:20])
    return ConfigurationError(
        f"There is no savepoint {name}; nothing was changed.",
        hint=f"These are: {known}." if known else "There is none: CREATE SAVEPOINT name FOR DATABASE database.",
    )


@dataclass(frozen=True)
class Restore:
    """The actions of a restore.

    Attributes
    ----------
    record : SavepointRecord
    tables : tuple of (SupportsSavepoints, KeptTable)
        The tables to restore.
    new : tuple of (Catalog, ObjectPath)
        The tables that were made since in its databases.
    """

    record: SavepointRecord
    tables: tuple[tuple[SupportsSavepoints, KeptTable], ...]
    new: tuple[Table, ...] = ()


def plan_restore(
    timeline: Timeline,
    resolve: Resolve,
    name: str,
    *,
    databases: Iterable[Database] | None = None,
    tables: Iterable[Table] | None = None,
) -> Restore:
    """Find what a restore has to do; nothing is changed.

    Parameters
    ----------
    timeline : Timeline
    resolve : callable
        Returns the catalog of a name.
    name : str
    databases : iterable of (Catalog, str), optional
    tables : iterable of (Catalog, ObjectPath), optional
        Only these; everything in the savepoint when both are None.

    Raises
    ------
    ConfigurationError
        There is no such savepoint, or it does not contain one of them.
    DatabaseNotExistError
        The database of a table does not exist any more.
    """
    record = find_savepoint(timeline, name)
    kept = {_key(resolve(table.catalog), table.path): table for table in record.tables}
    chosen, whole = _chosen(record, kept, list(databases or ()), list(tables or ()))
    if databases is None and tables is None:
        chosen, whole = kept, [(resolve(catalog), database) for catalog, database in record.databases]
    able = tuple((_able(resolve(table.catalog), table.path), table) for table in chosen.values())
    new = [(catalog, path) for catalog, path in _tables_of(whole) if _key(catalog, path) not in kept]
    return Restore(record, able, tuple(new))


def _key(catalog: Catalog, path: ObjectPath) -> tuple[str, ObjectPath]:
    return catalog.name, catalog.canonical(path)


def _chosen(
    record: SavepointRecord,
    kept: dict[tuple[str, ObjectPath], KeptTable],
    databases: list[Database],
    tables: list[Table],
) -> tuple[dict[tuple[str, ObjectPath], KeptTable], list[Database]]:
    """The chosen tables of a savepoint, and the databases that are to be restored as a whole."""
    chosen: dict[tuple[str, ObjectPath], KeptTable] = {}
    for catalog, path in tables:
        if (key := _key(catalog, path)) not in kept:
            raise _not_in(record, f"{catalog.name}.{path}")
        chosen[key] = kept[key]
    for catalog, database in databases:
        namespace = catalog.canonical(ObjectPath.of(*database.split("."), "t")).namespace
        of_it = {key: table for key, table in kept.items() if (key[0], key[1].namespace) == (catalog.name, namespace)}
        if not of_it and (catalog.name, database) not in record.databases:
            raise _not_in(record, f"database {catalog.name}.{database}")
        chosen |= of_it
    whole = [(catalog, database) for catalog, database in databases if (catalog.name, database) in record.databases]
    return chosen, whole


def _not_in(record: SavepointRecord, what: str) -> ConfigurationError:
    names = ", ".join(table.name for table in record.tables[:10])
    return ConfigurationError(
        f"Savepoint {record.name} does not contain {what}; nothing was changed.", hint=f"It contains {names}."
    )


def require_still_kept(timeline: Timeline, record: SavepointRecord) -> None:
    """Refuse what was staged of a savepoint that is being removed meanwhile, as a part may have been gone already.

    Its removal is recorded before anything is removed: what was staged of one that is still there is whole.

    Raises
    ------
    CatalogError
    """
    current = timeline.savepoint(record.name)
    if current is None or current.id != record.id or current.state is not SavepointState.READY:
        raise CatalogError(
            f"Savepoint {record.name} was dropped, or removed by clean, while it was restored: nothing was changed.",
            hint="SHOW SAVEPOINTS lists those that there are.",
        )


def kept_table(timeline: Timeline, name: str, catalog: Catalog, path: ObjectPath) -> KeptTable | None:
    """Return what a savepoint keeps of a table; None if there is no such savepoint, or it does not contain the table.

    Raises
    ------
    ConfigurationError
        It has expired, or is not complete.
    """
    record = timeline.savepoint(name)
    if record is None:
        return None
    of_it = (table for table in record.tables if table.catalog == catalog.name)
    table = next((table for table in of_it if catalog.canonical(table.path) == catalog.canonical(path)), None)
    if table is not None:
        _usable(timeline, record)
    return table


def source_of_version(timeline: Timeline, catalog: SupportsSavepoints, path: ObjectPath, version: str) -> ReadSource:
    """Return the source of a read ``VERSION AS OF`` a name: of the table itself, of a savepoint, or of a transaction.

    A snapshot, tag or branch of the table goes first: a savepoint, which others may make, changes no read of it.

    Raises
    ------
    CatalogError
        There is none of them, or the state cannot be read.
    ConfigurationError
        The savepoint has expired, or is not complete.
    """
    unknown = CatalogError(
        f"There is no savepoint {version} that keeps a state of {path}, and no transaction of this id.",
        path=path,
        hint="SHOW SAVEPOINTS lists them, with their tables, and SHOW TRANSACTIONS the transactions.",
    )
    if isinstance(catalog, SupportsTimeTravel):
        try:
            return catalog.read_source_as_of(path, version=version)
        except (VersionNotExistError, TableNotExistError) as error:
            unknown = error
    kept = kept_table(timeline, version, catalog, path)
    if kept is not None:
        with concerning(path):
            return catalog.read_kept(kept.document)
    record = timeline.transaction(version)
    if record is None or not isinstance(catalog, SupportsSnapshots):
        raise unknown
    return source_after(timeline, catalog, path, record)


# -- removing ----------------------------------------------------------------------------------------------------------


def drop_savepoint(timeline: Timeline, resolve: Resolve, name: str) -> SavepointRecord:
    """Remove a savepoint with what is kept for it.

    Raises
    ------
    ConfigurationError
        There is none of this name; or it is still being created.
    TwoPhaseError
        A store could not remove what it keeps: the savepoint can no longer be used, and ``clean`` tries again.
    """
    record = timeline.savepoint(name)
    if record is None:
        raise _unknown(timeline, name)
    if record.state is SavepointState.CREATING and not _is_abandoned(timeline, record):
        raise ConfigurationError(f"Savepoint {name} is still being created; nothing was changed.")
    for catalog in {table.catalog for table in record.tables}:
        resolve(catalog)  # Before anything is removed: a session without one of them cannot do it.
    remove_savepoint(timeline, record, resolve)
    return record


def remove_savepoint(timeline: Timeline, record: SavepointRecord, resolve: Resolve) -> None:
    """Forget what is kept for a savepoint, and then the savepoint; a crash in between is completed by ``clean``.

    Where it cannot be forgotten for one table, it is for the others, and the savepoint stays.
    """
    timeline.drop_savepoint(record.id)
    problems: list[Exception] = []
    for table in record.tables:
        try:
            catalog = _able(resolve(table.catalog), table.path)
            with concerning(table.path, hint=_NOT_FORGOTTEN), step(FORGET):
                catalog.forget_kept(table.document)
        except Exception as error:
            problems.append(error)
    if problems:
        for other in problems[1:]:
            problems[0].add_note(f"Another table: {describe_error(other)}")
        raise problems[0]
    timeline.forget_savepoint(record.id)


def savepoints_over(timeline: Timeline) -> list[tuple[SavepointRecord, str]]:
    """Return the savepoints that ``clean`` removes, each with the reason."""
    now = timeline.now()
    expired = []
    for record in timeline.savepoints():
        if record.state is SavepointState.DROPPING:
            expired.append((record, "it was dropped"))
        elif record.state is SavepointState.CREATING and _is_abandoned(timeline, record):
            expired.append((record, "its process died before it was complete"))
        elif record.is_expired(now):
            expired.append((record, "its time is over"))
    return expired


def _is_abandoned(timeline: Timeline, record: SavepointRecord) -> bool:
    """Whether no process will complete a savepoint that is being created."""
    owner = timeline.transaction(record.transaction_id)
    return owner is None or not owner.is_open or owner.is_dead(timeline.now())


def try_to_remove(timeline: Timeline, record: SavepointRecord, resolve: Resolve) -> str | None:
    """Remove a savepoint; return why it could not be removed."""
    try:
        remove_savepoint(timeline, record, resolve)
    except (TwoPhaseError, OSError, RuntimeError, LookupError) as error:
        _log.warning("Savepoint %s could not be removed: %s", record.name, error)
        return describe_error(error)
    return None
