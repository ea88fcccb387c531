"""The history of one table's schema: all versions by id, and the one that was current at any instant.

Sources: Hudi's schema history, FLIP-226.

A version is written before its transaction is decided, so the history queries each transaction's outcome: a version of
a failed one is invisible immediately and removed later, and its field ids are never reused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from twophase.schema.apply import apply_changes
from twophase.schema.changes import Change
from twophase.schema.errors import SchemaConflictError, SchemaHistoryError
from twophase.schema.history_store import Fate, HistoryStore, Record, always_committed
from twophase.schema.merge import plan_read
from twophase.schema.promotion import EXACT, PromotionPolicy, promotion_policy
from twophase.schema.read_plan import ReadPlan
from twophase.schema.schema import Schema

#: Seconds after which files of a writer with an unknown outcome are treated as those of a crashed one.
_SURELY_DEAD = 86400.0


class SchemaHistory:
    """The schema versions of one table.

    Parameters
    ----------
    store : HistoryStore
    fate : callable
        Transaction id -> :class:`Fate`.
    """

    def __init__(self, store: HistoryStore, fate: Callable[[str], Fate] = always_committed) -> None:
        self._store = store
        self._fate = fate

    # -- reading ---------------------------------------------------------------------------------------------------

    def versions(self, transaction_id: str | None = None) -> list[Record]:
        """The visible versions, oldest first.

        Parameters
        ----------
        transaction_id : str, optional
            An undecided transaction, which sees its own versions.
        """
        return self._seen(self._store.read(), transaction_id)

    def _seen(self, records: Iterable[Record], transaction_id: str | None) -> list[Record]:
        return [record for record in records if self._visible(record, transaction_id)]

    def _visible(self, record: Record, transaction_id: str | None = None) -> bool:
        if record.schema is None:
            return False
        fate = self._fate_of(record)
        return fate is Fate.COMMITTED or (fate is Fate.PENDING and record.transaction_id == transaction_id)

    def _fate_of(self, record: Record) -> Fate:
        return Fate.COMMITTED if not record.transaction_id else self._fate(record.transaction_id)

    def latest(self, transaction_id: str | None = None) -> Schema | None:
        """The current schema, as visible to a transaction (see :meth:`versions`); None for a table without history.

        Parameters
        ----------
        transaction_id : str, optional
            An undecided transaction, which sees its own versions.
        """
        versions = self.versions(transaction_id)
        return versions[-1].schema if versions else None

    def version(self, schema_id: int) -> Schema:
        """The schema of the version that a data file names.

        Parameters
        ----------
        schema_id : int
            Number of a published version.

        Raises
        ------
        SchemaHistoryError
            There is no such version.
        """
        return _version(self.versions(), schema_id)

    def at(self, instant: int) -> Schema:
        """The schema that was current at an instant: that of the latest version up to it.

        Parameters
        ----------
        instant : int
            An instant on the clock with which the versions were recorded.

        Raises
        ------
        SchemaHistoryError
            The instant is before the first version.
        """
        versions = self.versions()
        earlier = [record for record in versions if record.instant <= instant]
        if not earlier or earlier[-1].schema is None:
            first = f"from {versions[0].instant} on" if versions else "none: the table has no history yet"
            raise SchemaHistoryError(
                f"The history begins after the instant {instant}.", allowed=(f"an instant {first}",)
            )
        return earlier[-1].schema

    def read_plan(
        self, file_schema_id: int, query: Schema | None = None, *, transaction_id: str | None = None, **options: Any
    ) -> ReadPlan:
        """Plan the read of a file that names the version with which it was written.

        A value that does not fit a later type is handled as recorded with the version of that type
        (:attr:`Record.on_cast_failure`).

        Parameters
        ----------
        file_schema_id : int
        query : Schema, optional
            Default: the current schema.
        transaction_id : str, optional
            As in :meth:`versions`.
        **options
            As in :func:`twophase.schema.plan_read`; ``on_cast_failure`` overrides that of the versions.

        Raises
        ------
        SchemaHistoryError
            There is no such version.
        """
        versions = self.versions(transaction_id)
        file = _version(versions, file_schema_id)
        wanted = versions[-1].schema if query is None else query
        assert wanted is not None
        between = [record for record in versions if file.schema_id < record.number < wanted.schema_id]
        last = next((record.on_cast_failure for record in versions if record.number == wanted.schema_id), "error")
        options.setdefault("on_cast_failure", [*(record.on_cast_failure for record in between), last])
        return plan_read(file, wanted, through=[r.schema for r in between if r.schema is not None], **options)

    # -- writing ---------------------------------------------------------------------------------------------------

    def evolve(
        self,
        current: Schema,
        changes: Change | Iterable[Change],
        *,
        transaction_id: str,
        instant: int,
        promotion: str | PromotionPolicy = EXACT,
    ) -> Schema:
        """Apply changes to the current schema and record the new version.

        If the table has no history, its current schema is recorded first. A transaction may evolve its table several
        times, each time from the previous result, and may repeat a call whose reply was lost.

        Parameters
        ----------
        current : Schema
            The current schema of the table, as seen by the transaction.
        changes : Change or iterable of Change
        transaction_id : str
        instant : int
            Not earlier than that of the latest version.
        promotion : str or PromotionPolicy
            The policy; its ``on_cast_failure`` is recorded with the version.

        Returns
        -------
        Schema
            The new version; ``current`` itself if the changes have no effect, and then nothing is recorded.

        Raises
        ------
        SchemaConflictError
            The current schema is not the given one, or another transaction is recording a version.
        SchemaError
            The changes cannot be applied; nothing is recorded.
        """
        policy = promotion_policy(promotion)
        listed = [changes] if isinstance(changes, Change) else list(changes)

        def make(base: Schema | None, floor: int) -> Schema:
            assert base is not None
            return apply_changes(base, listed, promotion=policy, highest_field_id=floor)

        made = self._add(current, transaction_id, instant, policy.on_cast_failure, make)
        return current if made.same_as(current) else made

    def record(
        self,
        schema: Schema,
        *,
        transaction_id: str,
        instant: int,
        based_on: Schema | None,
        on_cast_failure: str = "error",
    ) -> Schema:
        """Record a version that was created elsewhere (a merged one, or the first of a new table).

        Parameters
        ----------
        schema : Schema
            The schema; the history assigns its number.
        transaction_id : str
        instant : int
        based_on : Schema or None
            The current schema; None for a new table.
        on_cast_failure : str
            ``error`` or ``null``, for the types that this version changes.

        Returns
        -------
        Schema
            The new version; the latest one if it is the same.

        Raises
        ------
        SchemaConflictError
            The current schema is not ``based_on``.
        SchemaHistoryError
            A new field has an id that a failed transaction used.
        """
        mode = promotion_policy("explicit", on_cast_failure=on_cast_failure).on_cast_failure

        def make(base: Schema | None, floor: int) -> Schema:
            if base is not None and schema.same_as(base) and schema.highest_field_id <= floor:
                return base
            _check_ids(schema, base, floor)
            return schema

        return self._add(based_on, transaction_id, instant, mode, make)

    def _add(
        self,
        current: Schema | None,
        transaction_id: str,
        instant: int,
        on_cast_failure: str,
        make: Callable[[Schema | None, int], Schema],
    ) -> Schema:
        """Add a version, based on one read of the history.

        The base, the highest id and the number of the new version must come from the same read, so that the insert
        under that number fails if another writer was faster.
        """
        records = self._store.read()
        self._refuse_pending(records, transaction_id)
        seen = self._seen(records, transaction_id)
        latest = seen[-1].schema if seen else None
        if seen and not _same(latest, current):
            return self._repeated(records, seen, current, transaction_id, make)
        base = latest if seen else current
        made = make(base, _floor(records, base))
        if made is base:
            return made
        if base is not None and not seen:
            records = [*records, self._baseline(base, records)]
        last = max((record.instant for record in seen), default=0)
        if instant < last:
            raise SchemaHistoryError(
                f"The instant {instant} is before that of the latest version, {last}.",
                allowed=(f"an instant from {last} on",),
            )
        return self._insert(made, transaction_id, instant, on_cast_failure, records)

    def _repeated(
        self,
        records: Sequence[Record],
        seen: Sequence[Record],
        current: Schema | None,
        transaction_id: str,
        make: Callable[[Schema | None, int], Schema],
    ) -> Schema:
        """The version that an earlier try of the same call recorded, when its reply was lost.

        Raises
        ------
        SchemaConflictError
            There was none: the table's schema is not the one that the caller saw.
        """
        last = seen[-1]
        before = seen[-2].schema if len(seen) > 1 else None
        if last.schema is not None and last.transaction_id == transaction_id and _same(before, current):
            others = [record for record in records if record is not last]
            if make(before, _floor(others, before)).same_as(last.schema):
                return last.schema
        raise _moved(last.schema, current, transaction_id)

    def _baseline(self, current: Schema, records: Sequence[Record]) -> Record:
        """Record the first version of a table without history."""
        for record in records:
            if record.number == current.schema_id:
                # No version is visible and no transaction is pending, so this is a leftover of a failed transaction.
                self._store.delete(record)
        baseline = Record(current.schema_id, "", 0, current, _floor(records, current))
        if self._store.insert(baseline):
            return baseline
        # Another writer was first. That is harmless if it saw the same schema.
        present = next((record for record in self._store.read() if record.number == baseline.number), None)
        if present is None or not _same(present.schema, current):
            raise _moved(None if present is None else present.schema, current, "")
        return present

    def _refuse_pending(self, records: Iterable[Record], transaction_id: str) -> None:
        for record in records:
            if record.transaction_id == transaction_id or record.schema is None:
                continue
            if self._fate_of(record) is Fate.PENDING:
                raise _taken(record)

    def _insert(
        self, schema: Schema, transaction_id: str, instant: int, on_cast_failure: str, records: Sequence[Record]
    ) -> Schema:
        number = max((record.number for record in records), default=-1) + 1
        version = replace(schema, schema_id=number, highest_field_id=_floor(records, schema))
        entry = Record(number, transaction_id, instant, version, version.highest_field_id, on_cast_failure)
        if not self._store.insert(entry):
            raise _taken(next((record for record in self._store.read() if record.number == number), entry))
        return version

    # -- cleaning ----------------------------------------------------------------------------------------------------

    def leftovers(self) -> list[Record]:
        """Leftovers of failed transactions: entries with a schema that is not visible."""
        return [r for r in self._store.read() if r.schema is not None and self._fate_of(r) is Fate.FAILED]

    def clean(self) -> int:
        """Remove the leftovers of failed transactions. Safe while writers and other cleaners are running.

        Returns
        -------
        int
            Number of removed versions.

        Notes
        -----
        The number of a removed version stays taken until a later version is visible: if it was free immediately, a
        slow second cleaner could remove a new version with the same number.
        """
        left = self.leftovers()
        for record in left:
            self._store.replace(replace(record, schema=None))
        records = self._store.read()
        newest = max((record for record in records if self._visible(record)), key=_number, default=None)
        for record in records:
            if record.schema is None and newest is not None and _superseded(record, newest):
                self._store.delete(record)
        self._store.remove_unfinished(
            lambda transaction_id: self._fate(transaction_id) is Fate.FAILED, time.time() - _SURELY_DEAD
        )
        return len(left)


def _version(versions: Sequence[Record], schema_id: int) -> Schema:
    for record in versions:
        if record.number == schema_id and record.schema is not None:
            return record.schema
    known = ", ".join(str(record.number) for record in versions) or "none"
    raise SchemaHistoryError(
        f"The history has no schema version {schema_id}; it has {known}.", allowed=(f"one of the versions {known}",)
    )


def _same(one: Schema | None, other: Schema | None) -> bool:
    return one is other or (one is not None and other is not None and one.same_as(other))


def _floor(records: Iterable[Record], base: Schema | None) -> int:
    """The highest field id that was ever used, including by failed transactions."""
    own = -1 if base is None else base.highest_field_id
    return max([own, *(record.highest_field_id for record in records)])


def _check_ids(schema: Schema, base: Schema | None, used: int) -> None:
    known = frozenset() if base is None else base.field_ids
    for node in schema.walk():
        if node.id <= used and node.id not in known:
            path = schema.name_of(node.id)
            raise SchemaHistoryError(
                f"The new field {path} has the id {node.id}, which was used before.",
                field_path=path,
                new_type=node.type_name,
                allowed=(f"ids above {used} (highest_field_id={used})",),
            )


def _moved(latest: Schema | None, current: Schema | None, transaction_id: str) -> SchemaConflictError:
    now = None if latest is None else latest.schema_id
    seen = None if current is None else current.schema_id
    return SchemaConflictError(
        f"The table's schema is version {now}, not {seen} as the transaction saw it.",
        table_version=now,
        writer_version=seen,
        transaction_id=transaction_id or None,
        hint="Run the transaction again.",
    )


def _taken(record: Record) -> SchemaConflictError:
    return SchemaConflictError(
        f"The transaction {record.transaction_id} is recording the schema version {record.number}.",
        table_version=record.number,
        transaction_id=record.transaction_id,
        hint="Run the transaction again once that one is decided.",
    )


def _superseded(record: Record, newest: Record) -> bool:
    """Return True if a later version prevents the reuse of both the number and the ids of a removed one."""
    return record.number < newest.number and record.highest_field_id <= newest.highest_field_id


def _number(record: Record) -> int:
    return record.number
