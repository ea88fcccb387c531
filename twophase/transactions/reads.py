"""The tables that a transaction has read, in which state, and whether other writers have changed them since."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twophase.catalog import Catalog, Change, OpenSnapshot, SupportsSnapshots
from twophase.catalog.reading import ReadSource
from twophase.errors import SnapshotTooOldError, TableNotExistError, WriteConflictError
from twophase.model import Isolation, ObjectPath, TableDefinition
from twophase.redaction import logger
from twophase.timeline.commit_order import Check, conflict_of
from twophase.timeline.reservations import Mode
from twophase.timeline.timeline import Timeline
from twophase.transactions import failures
from twophase.transactions.conflicts import Claim
from twophase.transactions.driver import Enlisted, concerning

_log = logger("twophase")


@dataclass(frozen=True)
class _Read:
    """The state of a table at its first read, according to its catalog and to the timeline."""

    catalog: Catalog
    version: Any
    snapshot: int


@dataclass(frozen=True)
class _Former:
    """The source of a table's state without some changes, which stays what it was."""

    changes: list[Change]
    version: Any
    source: ReadSource

    def is_of(self, changes: list[Change], version: Any) -> bool:
        return self.changes == changes and version in (self.version, self.source.version)


class Reads:
    """The tables that one transaction has read.

    Parameters
    ----------
    timeline : Timeline
        Records which transactions change a table.
    transaction_id : str
    isolation : Isolation
    snapshot : int or None
        The last commit number that the transaction sees; None under ``READ_COMMITTED``: each table has its own.
    hold : weakref.WeakMethod
        Called before the first read is noted: what the snapshot needs must be kept from then on.
    opened : mapping of str to OpenSnapshot
        Snapshots that stores keep for the transaction, by catalog.
    """

    def __init__(
        self,
        timeline: Timeline,
        transaction_id: str,
        isolation: Isolation,
        snapshot: int | None,
        hold: weakref.WeakMethod[Callable[[], None]],
        opened: Mapping[str, OpenSnapshot],
    ) -> None:
        self._timeline = timeline
        self._id = transaction_id
        self._isolation = isolation
        self._snapshot = snapshot
        self._hold = hold
        self._opened = dict(opened)
        self._first: dict[tuple[str, ObjectPath], _Read] = {}
        self._listed: dict[tuple[str, ObjectPath], _Former] = {}
        self._bases: dict[tuple[str, ObjectPath], Any] = {}
        self._rebased: dict[tuple[str, ObjectPath], _Read] = {}
        self._is_untouched = True

    @property
    def is_untouched(self) -> bool:
        """Whether nothing has been read."""
        return self._is_untouched and not self._first

    def tables(self) -> list[tuple[Catalog, ObjectPath, Any]]:
        """Return the tables that have been read, with their versions at the first read."""
        return [(read.catalog, path, read.version) for (_, path), read in list(self._first.items())]

    def refreshed(self) -> int | None:
        """See the state of now, if nothing has been read yet, and return the last commit number in it."""
        if self._is_untouched and self._snapshot is not None and not self._opened:
            self._snapshot = self._timeline.last_number()
        return self._snapshot

    # -- reading ------------------------------------------------------------------------------------------------------

    def source(self, catalog: Catalog, path: ObjectPath) -> tuple[ReadSource, Callable[[], None]]:
        """Return the source of a table in the transaction's state; call the second result when rows are requested.

        Raises
        ------
        SnapshotTooOldError
            That state can no longer be read.
        """
        self._is_untouched = False
        if not self._isolation.pins_reads:
            source, version = self._present(catalog, path)
            return source, self.reading(catalog, path, version)
        known = self._first.get(_key(catalog, path))
        if (opened := self._opened.get(catalog.name)) is not None:
            with concerning(path, self._id):
                changes = self._changes(catalog, path)
                source = opened.read_source_before(path, changes, None if known is None else known.version)
            return source, self._note(catalog, path, source.version)
        if isinstance(catalog, SupportsSnapshots) and catalog.reads_when_executed:
            source = self._former(catalog, path, self._changes(catalog, path), known)
            return source, self._note(catalog, path, source.version)
        source, version = self._present_or_former(catalog, path, known)
        return source, self._note(catalog, path, version)

    def _present_or_former(self, catalog: Catalog, path: ObjectPath, known: _Read | None) -> tuple[ReadSource, Any]:
        """The source of the present state, or, if the table has changed since, of the snapshot's; and its version."""
        try:
            source, version = self._present(catalog, path)
            changes = self._changes(catalog, path)  # After the source: whatever is in it and not in the snapshot.
            if not changes and not _differs(known, version):
                return source, version
        except TableNotExistError:
            changes = self._changes(catalog, path)
            if not changes and known is None:
                if self._isolation is Isolation.SERIALIZABLE:  # That it is not there has been read, too.
                    self.is_reading(catalog, path, None)
                raise
        source = self._former(catalog, path, changes, known)
        return source, source.version

    @staticmethod
    def _present(catalog: Catalog, path: ObjectPath) -> tuple[ReadSource, Any]:
        """The source of a table's present state, and its version."""
        before = catalog.table_version(path)
        source = catalog.read_source(path)
        return source, before if source.version is None else source.version

    def close(self) -> None:
        """Let the stores forget the snapshots that they keep for the transaction. Idempotent."""
        while self._opened:
            name, opened = self._opened.popitem()
            try:
                opened.close()
            except Exception as error:  # It says nothing about the outcome of the transaction.
                _log.warning("Catalog %s could not close the snapshot of transaction %s: %s", name, self._id, error)

    def reading(self, catalog: Catalog, path: ObjectPath, version: Any) -> Callable[[], None]:
        """Take the state of a table that may be read; call the result when its rows are requested.

        Raises
        ------
        SnapshotTooOldError
            It is not the state that the transaction sees.
        """
        self._is_untouched = False
        known = self._first.get(_key(catalog, path))
        if self._isolation.pins_reads and (self._changes(catalog, path) or _differs(known, version)):
            raise failures.moved_since_begin(_name(catalog, path), self._id, self._changes(catalog, path))
        return self._note(catalog, path, version)

    def has_moved(self, catalog: Catalog, path: ObjectPath, version: Any) -> bool:
        """Return whether the present version of a table is not of the state that the transaction sees."""
        self._is_untouched = False
        if not self._isolation.pins_reads:
            return False
        return _differs(self._first.get(_key(catalog, path)), version) or bool(self._changes(catalog, path))

    def is_reading(self, catalog: Catalog, path: ObjectPath, version: Any) -> None:
        """Note a table of which :meth:`instead_of_listed` will be asked; the first version noted counts."""
        self._note(catalog, path, version)()

    def instead_of_listed(
        self,
        catalog: Catalog,
        path: ObjectPath,
        *,
        resolved: Callable[[Any], bool] | None = None,
        looked_up: bool = True,
    ) -> ReadSource | None:
        """Return what to read instead of listed files; see :meth:`~twophase.Transaction.instead_of_listed`.

        The host's plan reads with the columns and the format of the version that it has resolved.
        """
        known = self._first.get(_key(catalog, path))
        changes = self._changes(catalog, path)
        if known is not None and known.version is not None and resolved is not None and not resolved(known.version):
            raise failures.moved_since_begin(_name(catalog, path), self._id, changes)
        if not changes and known is not None and not looked_up and _still_has(catalog, known.version):
            return None
        version = catalog.table_version(path)
        changes = self._changes(catalog, path)
        if not changes and not _differs(known, version):
            self.is_reading(catalog, path, version)
            return None
        return self._former(catalog, path, changes, known)

    def _note(self, catalog: Catalog, path: ObjectPath, version: Any) -> Callable[[], None]:
        key = _key(catalog, path)
        if key in self._first:
            return lambda: None
        read = _Read(catalog, version, self._since(catalog, path))

        def note() -> None:
            if self._isolation.pins_reads and (hold := self._hold()) is not None:
                hold()
            self._first.setdefault(key, read)

        return note

    def _former(self, catalog: Catalog, path: ObjectPath, changes: list[Change], known: _Read | None) -> ReadSource:
        if not isinstance(catalog, SupportsSnapshots):
            raise failures.moved_since_begin(_name(catalog, path), self._id, changes)
        key, version = _key(catalog, path), None if known is None else known.version
        if (former := self._listed.get(key)) is not None and former.is_of(changes, version):
            return former.source
        with concerning(path, self._id):
            while True:
                source = catalog.read_source_before(path, changes, version)
                # Again after the source, which may contain what has been published meanwhile.
                if (later := self._changes(catalog, path)) == changes:
                    break
                changes = later
        if not catalog.reads_when_executed:
            self._listed[key] = _Former(changes, version, source)
        return source

    def _changes(self, catalog: Catalog, path: ObjectPath) -> list[Change]:
        return self._timeline.changes_since(*_key(catalog, path), self._since(catalog, path), self._id)

    def _since(self, catalog: Catalog, path: ObjectPath) -> int:
        if self._snapshot is not None:
            return self._snapshot
        known = self._first.get(_key(catalog, path))
        return self._timeline.last_number() if known is None else known.snapshot

    # -- writing ------------------------------------------------------------------------------------------------------

    def require_unchanged(self, catalog: Catalog, path: ObjectPath) -> None:
        """Refuse to overwrite a table that another writer has changed since the transaction's state of it.

        Called after the write is planned, so that the check covers the state on which the plan is based.

        Raises
        ------
        WriteConflictError
        """
        seen = self._first.get(_key(catalog, path))
        if seen is None and self._snapshot is None:
            return
        changes = self._changes(catalog, path)
        with concerning(path, self._id):
            if changes:
                raise failures.changed_since_read(_name(catalog, path), self._id, changes)
            if seen is not None and seen.version is not None and catalog.table_version(path) != seen.version:
                raise failures.changed_since_read(_name(catalog, path), self._id)

    def require_same_columns(self, catalog: Catalog, path: ObjectPath) -> None:
        """Refuse rows for a table whose columns others have changed since: they were planned for the present ones.

        Called after the write is planned, as :meth:`require_unchanged`.

        Raises
        ------
        WriteConflictError
        """
        if self._snapshot is None:
            return
        changes = self._changes(catalog, path)
        altering = [change for change in changes if change.alters]
        with concerning(path, self._id):
            if altering or self._has_other_columns(catalog, path, changes):
                raise failures.columns_changed_since(_name(catalog, path), self._id, altering or changes)

    def _has_other_columns(self, catalog: Catalog, path: ObjectPath, changes: list[Change]) -> bool:
        """Whether a table now has other columns than before some changes, as far as the store or the timeline knows."""
        if all(change.appends for change in changes):
            return False
        try:
            former = self.before(catalog, path).definition
        except TableNotExistError:
            return False
        except SnapshotTooOldError:
            former = None
        if former is None:
            is_another = any(change.drops for change in changes)
            return is_another or self._timeline.columns_changed(*_key(catalog, path), changes)
        return _columns(former) != _columns(catalog.load_table(path))

    def require_base_unchanged(self, catalog: Catalog, path: ObjectPath, *, is_kept: bool = False) -> None:
        """Refuse to read a table with the transaction's own rows if others have changed the rows around them.

        It counts as a read of the table. They are known to be as they were if the source was made before any change.

        Raises
        ------
        SnapshotTooOldError
        """
        if not self._isolation.pins_reads:
            return
        if not is_kept and (changes := self._changes(catalog, path)):
            raise failures.moved_since_begin(_name(catalog, path), self._id, changes)
        self._note(catalog, path, None)()

    # -- conflicts that the user resolves -----------------------------------------------------------------------------

    def note_base(self, catalog: Catalog, path: ObjectPath) -> None:
        """Note the version of a table before a statement on it is planned; the first one counts."""
        key = _key(catalog, path)
        if key not in self._first and key not in self._bases and catalog.table_exists(path):
            self._bases[key] = catalog.table_version(path)

    def sees(self, catalog: Catalog, path: ObjectPath, version: str) -> bool:
        """Return whether a version of a table is the transaction's own, or one of those that the user now merges."""
        return _key(catalog, path) in self._rebased or self.source(catalog, path)[0].version == version

    def has_changes(self, catalog: Catalog, path: ObjectPath) -> bool:
        """Whether others have changed a table since the transaction's snapshot."""
        return bool(self._changes(catalog, path))

    def conflict(self, member: Enlisted) -> WriteConflictError | None:
        """Return why the commit would refuse a write, as far as timeline and versions show it; None if it would not."""
        assert self._snapshot is not None
        catalog, path = member.catalog, member.target
        check = Check(catalog.name, path, self._since(catalog, path), member.reservation())
        changes = self._changes(catalog, path)
        if (found := conflict_of(self._id, check, changes)) is not None or changes or member.rests_on_rows:
            return found
        version = self._version(_key(catalog, path))
        if version is not None and version != catalog.table_version(path):
            return failures.changed_since_read(_name(catalog, path), self._id)
        return None

    def require_unread(self) -> None:
        """Under ``SERIALIZABLE``, refuse if anything that the transaction has read has changed.

        Raises
        ------
        WriteConflictError
        """
        for check in self.checks(()):
            changes = self._timeline.changes_since(check.catalog, check.path, check.snapshot, self._id)
            if (found := conflict_of(self._id, check, changes)) is not None:
                raise found
        self.require_versions()

    def before(self, catalog: Catalog, path: ObjectPath) -> ReadSource:
        """Return the source of a table as the transaction sees it without its own writes.

        Raises
        ------
        SnapshotTooOldError
        """
        changes, version = self._changes(catalog, path), self._version(_key(catalog, path))
        if (opened := self._opened.get(catalog.name)) is not None:
            with concerning(path, self._id):
                return opened.read_source_before(path, changes, version)
        return self._former(catalog, path, changes, _Read(catalog, version, self._since(catalog, path)))

    def rebase(self, catalog: Catalog, path: ObjectPath) -> None:
        """Let writes of a table, which other transactions cannot change any more, rest on its present state."""
        key = _key(catalog, path)
        self._rebased[key] = _Read(catalog, catalog.table_version(path), self._timeline.last_number())
        if self._isolation is Isolation.SERIALIZABLE:
            self._first.pop(key, None)  # Nothing but the state that the user merges: of what was read nothing changed.

    def require_base(self, catalog: Catalog, path: ObjectPath) -> None:
        """Refuse to write what rests on a state of a table that has been changed past twophase, after it was planned.

        Raises
        ------
        WriteConflictError
        """
        if _differs(self._rebased.get(_key(catalog, path)), catalog.table_version(path)):
            raise failures.changed_since_read(_name(catalog, path), self._id)

    def _version(self, key: tuple[str, ObjectPath]) -> Any:
        known = self._first.get(key)
        return self._bases.get(key) if known is None or known.version is None else known.version

    # -- the decision -------------------------------------------------------------------------------------------------

    def checks(self, members: Iterable[Enlisted]) -> list[Check]:
        """Return what must not have changed when the transaction is decided.

        Under ``SNAPSHOT`` these are the tables that it writes, except that appends go with one another and with
        everything else but a drop; under ``SERIALIZABLE`` those that it has read, too, also if it writes them.
        """
        if self._snapshot is None:
            return []
        checks = [
            Check(
                member.catalog.name,
                member.target,
                self._written_since(member),
                member.reservation(),
                only_drops=member.only_appends,
            )
            for member in members
        ]
        if self._isolation is Isolation.SERIALIZABLE:
            checks += [Check(catalog, path, read.snapshot) for (catalog, path), read in self._first.items()]
        return checks

    def _written_since(self, member: Enlisted) -> int:
        rebased = self._rebased.get((member.catalog.name, member.target))
        return self._since(member.catalog, member.target) if rebased is None else rebased.snapshot

    def claims(self) -> list[Claim]:
        """Return what the commit reserves under ``SERIALIZABLE``, in addition to what it writes.

        Its place in the serial order is that of the decision, and its commit number comes later: if another one changed
        in between what it has read, and was numbered first, a third one would see them in the wrong order.
        """
        if self._isolation is not Isolation.SERIALIZABLE:
            return []
        return [Claim.of_table(read.catalog, path, Mode.READ) for (_, path), read in self._first.items()]

    def require_versions(self) -> None:
        """Under ``SERIALIZABLE``, refuse if a writer outside twophase has changed what the transaction has read.

        Raises
        ------
        WriteConflictError
        """
        if self._isolation is not Isolation.SERIALIZABLE:
            return
        by_catalog: dict[str, list[tuple[ObjectPath, _Read]]] = {}
        for (name, path), read in self._first.items():
            if read.version is not None:
                by_catalog.setdefault(name, []).append((path, read))
        for found in by_catalog.values():
            self._require_versions(found[0][1].catalog, found)

    def _require_versions(self, catalog: Catalog, reads: Sequence[tuple[ObjectPath, _Read]]) -> None:
        paths = [path for path, _ in reads]
        # Of several it is not known which one the store could not tell of.
        with concerning(", ".join(map(str, paths[:5])), self._id):
            versions = catalog.table_versions(paths)
        for (path, read), version in zip(reads, versions, strict=True):
            if version == read.version:
                continue
            with concerning(path, self._id):
                if not self._changes(catalog, path):  # Otherwise the decision itself refuses, and says by whom.
                    raise failures.changed_since_read(_name(catalog, path), self._id)


def _differs(known: _Read | None, version: Any) -> bool:
    """Whether a table is not in the state in which it was first read; unknown if that was only with own rows."""
    return known is not None and known.version is not None and known.version != version


def _still_has(catalog: Catalog, version: Any) -> bool:
    """Whether the files of a version are all there, and no others; False if that is unknown."""
    return version is not None and isinstance(catalog, SupportsSnapshots) and catalog.still_has_files(version)


def _columns(definition: TableDefinition) -> list[tuple[str, Any]]:
    return [(field.name, field.type) for field in definition.schema]


def _key(catalog: Catalog, path: ObjectPath) -> tuple[str, ObjectPath]:
    return catalog.name, catalog.canonical(path)


def _name(catalog: Catalog, path: ObjectPath) -> str:
    return f"{catalog.name}.{path}"
