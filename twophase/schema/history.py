"""The history of one table's schema: every version with its id, and which one held at any commit.

Sources: Hudi's schema history, FLIP-226.

A version is written before its transaction is decided, so the history asks for each transaction's outcome: what failed
is
invisible at once and removed later; its field ids are never given out again.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from twophase.schema.apply import apply_changes
from twophase.schema.changes import Change
from twophase.schema.document import FORMAT, from_document, to_document
from twophase.schema.errors import (
    NewerDocumentError,
    SchemaConflictError,
    SchemaDocumentError,
    SchemaHistoryError,
)
from twophase.schema.merge import ReadPlan, plan_read
from twophase.schema.promotion import EXACT, PromotionPolicy, promotion_policy
from twophase.schema.schema import Schema


class Fate(Enum):
    """What became of the transaction that wrote a version."""

    COMMITTED = "committed"
    #: Rolled back, or never heard of again: the version is residue.
    FAILED = "failed"
    #: Not decided yet.
    PENDING = "pending"


@dataclass(frozen=True)
class Record:
    """One entry of the store.

    Parameters
    ----------
    number : int
        The version's schema id; no two entries have the same.
    transaction_id : str
        Who wrote it; empty for the baseline of a table that had no history.
    instant : int
        When, on the catalog's own rising scale (milliseconds, sequence numbers).
    schema : Schema or None
        None: the residue of a failed transaction was removed; the entry keeps only its ids from being used again.
    highest_field_id : int
    """

    number: int
    transaction_id: str
    instant: int
    schema: Schema | None
    highest_field_id: int

    def to_json(self) -> str:
        """The entry as a document."""
        document = {
            "format": FORMAT,
            "number": self.number,
            "transaction_id": self.transaction_id,
            "instant": self.instant,
            "highest_field_id": self.highest_field_id,
            "schema": None if self.schema is None else to_document(self.schema),
        }
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """The entry of a document.

        Raises
        ------
        SchemaDocumentError, NewerDocumentError
        """
        try:
            document = json.loads(text)
            if document["format"] > FORMAT:
                raise NewerDocumentError(
                    f"The history's entry has the format {document['format']}; this version reads up to {FORMAT}.",
                    hint="Upgrade twophase.",
                )
            schema = None if document["schema"] is None else from_document(document["schema"])
            facts = (document["number"], document["transaction_id"], document["instant"])
            return cls(*facts, schema, document["highest_field_id"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise SchemaDocumentError(f"The history's entry cannot be read: {error!r}.") from error


class HistoryStore(ABC):
    """Where the entries of one table lie. Three calls, each atomic; :class:`SchemaHistory` has the rules."""

    @abstractmethod
    def read(self) -> list[Record]:
        """All entries, in the order of their numbers."""

    @abstractmethod
    def insert(self, record: Record) -> bool:
        """Add an entry; False, and nothing happens, where its number is taken. Durable once it returns."""

    @abstractmethod
    def replace(self, record: Record) -> None:
        """Put an entry in the place of the one with its number and transaction; nothing happens if there is none."""

    @abstractmethod
    def delete(self, record: Record) -> None:
        """Remove the entry of that number and transaction; nothing happens if there is none."""


def always_committed(_transaction_id: str) -> Fate:
    """For stores whose entries are written in the very transaction that they belong to."""
    return Fate.COMMITTED


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

    def versions(self) -> list[Record]:
        """The visible versions, oldest first."""
        return [record for record in self._store.read() if self._visible(record)]

    def _visible(self, record: Record) -> bool:
        return record.schema is not None and self._fate_of(record) is Fate.COMMITTED

    def _fate_of(self, record: Record) -> Fate:
        return Fate.COMMITTED if not record.transaction_id else self._fate(record.transaction_id)

    def latest(self) -> Schema | None:
        """The current schema; None for a table without history."""
        versions = self.versions()
        return versions[-1].schema if versions else None

    def version(self, schema_id: int) -> Schema:
        """The schema of a version, as a data file names it.

        Raises
        ------
        SchemaHistoryError
            There is no such version.
        """
        versions = self.versions()
        for record in versions:
            if record.number == schema_id and record.schema is not None:
                return record.schema
        known = ", ".join(str(record.number) for record in versions) or "none"
        raise SchemaHistoryError(f"The history has no schema version {schema_id}; it has {known}.")

    def at(self, instant: int) -> Schema:
        """The schema that held at an instant: that of the version, or of the nearest earlier one.

        Raises
        ------
        SchemaHistoryError
            The instant is before the first version.
        """
        earlier = [record for record in self.versions() if record.instant <= instant]
        if not earlier or earlier[-1].schema is None:
            raise SchemaHistoryError(f"The history begins after the instant {instant}.")
        return earlier[-1].schema

    def read_plan(self, file_schema_id: int, query: Schema | None = None, **options: Any) -> ReadPlan:
        """How a file is read that names the version it was written with.

        Parameters
        ----------
        file_schema_id : int
        query : Schema, optional
            Default: the current schema.
        **options
            As in :func:`twophase.schema.plan_read`.

        Raises
        ------
        SchemaHistoryError
            There is no such version.
        """
        schemas = [record.schema for record in self.versions() if record.schema is not None]
        file = self.version(file_schema_id)
        wanted = schemas[-1] if query is None else query
        between = [schema for schema in schemas if file.schema_id < schema.schema_id < wanted.schema_id]
        return plan_read(file, wanted, through=between, **options)

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

        A table without history gets one first, from its current schema.

        Parameters
        ----------
        current : Schema
            What the transaction believes the table's schema to be.
        changes : Change or iterable of Change
        transaction_id : str
        instant : int
            Not before the latest version's.
        promotion : str or PromotionPolicy

        Returns
        -------
        Schema
            The new version; ``current`` itself where the changes have no effect, and then nothing is recorded.

        Raises
        ------
        SchemaConflictError
            The current schema is not the one given, or another transaction records a version at this moment.
        SchemaError
            The changes do not apply.
        """
        records = self._snapshot(current)
        base = self._base(records, current, transaction_id)
        floor = max([base.highest_field_id, *(record.highest_field_id for record in records)])
        policy = promotion_policy(promotion)
        changed = apply_changes(base, changes, promotion=policy, highest_field_id=floor)
        if changed is base:
            return current
        return self._record(changed, transaction_id, instant, floor, records)

    def record(self, schema: Schema, *, transaction_id: str, instant: int, based_on: Schema | None) -> Schema:
        """Record a version that was made elsewhere (a merged one, the first of a new table).

        Parameters
        ----------
        schema : Schema
            Its number is given by the history.
        transaction_id : str
        instant : int
        based_on : Schema or None
            The current schema; None for a new table.

        Raises
        ------
        SchemaConflictError
            The current schema is another one.
        SchemaHistoryError
            A new field has an id that a failed transaction used.
        """
        records = self._snapshot(based_on)
        if based_on is not None:
            self._base(records, based_on, transaction_id)
        elif (latest := self._latest_of(records)) is not None:
            raise self._moved(latest, None, transaction_id)
        self._check_ids(schema, based_on, records)
        floor = max([schema.highest_field_id, *(record.highest_field_id for record in records)])
        return self._record(schema, transaction_id, instant, floor, records)

    def _check_ids(self, schema: Schema, based_on: Schema | None, records: Iterable[Record]) -> None:
        used = max((record.highest_field_id for record in records), default=-1)
        known = frozenset() if based_on is None else based_on.field_ids
        for node in schema.walk():
            if node.id <= used and node.id not in known:
                raise SchemaHistoryError(
                    f"The new field {node.name} has the id {node.id}, which was used before.",
                    field_path=schema.name_of(node.id),
                    allowed=(f"ids above {used} (highest_field_id={used})",),
                )

    def _snapshot(self, current: Schema | None) -> list[Record]:
        """What a new version is decided on: read once, all of it decided, with a first version where there was none.

        The base, the highest id and the number of the new version must come from one reading: the insert under that
        number then fails for whoever was overtaken in between.
        """
        records = self._store.read()
        self._refuse_pending(records)
        if current is not None and self._latest_of(records) is None:
            self._baseline(current)
            records = self._store.read()
            self._refuse_pending(records)
        return records

    def _latest_of(self, records: Iterable[Record]) -> Schema | None:
        visible = [record.schema for record in records if self._visible(record) and record.schema is not None]
        return visible[-1] if visible else None

    def _base(self, records: list[Record], current: Schema, transaction_id: str) -> Schema:
        """The schema that changes start from: the latest visible one, which must be what the caller has seen."""
        latest = self._latest_of(records)
        if latest is None or not latest.same_as(current):
            raise self._moved(latest, current, transaction_id)
        return latest

    def _baseline(self, current: Schema) -> Schema:
        record = Record(current.schema_id, "", 0, current, current.highest_field_id)
        if not self._store.insert(record):
            # Another writer was first. That is harmless where it saw the same schema.
            present = next((r for r in self._store.read() if r.number == record.number), None)
            if present is None or present.schema is None or not present.schema.same_as(current):
                raise self._moved(None if present is None else present.schema, current, "")
        return current

    def _refuse_pending(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.schema is not None and self._fate_of(record) is Fate.PENDING:
                raise self._taken(record)

    def _record(self, schema: Schema, transaction_id: str, instant: int, floor: int, records: list[Record]) -> Schema:
        last = max((record.instant for record in records if self._visible(record)), default=0)
        if instant < last:
            raise SchemaHistoryError(f"The instant {instant} is before that of the latest version, {last}.")
        number = max((record.number for record in records), default=-1) + 1
        version = replace(schema, schema_id=number, highest_field_id=max(floor, schema.highest_field_id))
        entry = Record(number, transaction_id, instant, version, version.highest_field_id)
        if not self._store.insert(entry):
            raise self._taken(next((r for r in self._store.read() if r.number == number), entry))
        return version

    def _moved(self, latest: Schema | None, current: Schema | None, transaction_id: str) -> SchemaConflictError:
        now = None if latest is None else latest.schema_id
        seen = None if current is None else current.schema_id
        return SchemaConflictError(
            f"The table's schema is version {now}, not {seen} as the transaction saw it.",
            table_version=now,
            writer_version=seen,
            transaction_id=transaction_id or None,
            hint="Run the transaction again.",
        )

    def _taken(self, record: Record) -> SchemaConflictError:
        return SchemaConflictError(
            f"The transaction {record.transaction_id} is recording the schema version {record.number}.",
            table_version=record.number,
            transaction_id=record.transaction_id,
            hint="Run the transaction again once that one is decided.",
        )

    # -- cleaning ----------------------------------------------------------------------------------------------------

    def residue(self) -> list[Record]:
        """What failed transactions left: entries with a schema that nobody sees."""
        return [r for r in self._store.read() if r.schema is not None and self._fate_of(r) is Fate.FAILED]

    def clean(self) -> int:
        """Remove the residue of failed transactions. Safe beside writers and other cleaners.

        Returns
        -------
        int
            How many versions were removed.

        Notes
        -----
        The number of a removed version stays taken until a later version is visible: were it free at once, a slow
        second
        cleaner could remove a new version of the same number.
        """
        left = self.residue()
        for record in left:
            self._store.replace(replace(record, schema=None))
        records = self._store.read()
        newest = max((record for record in records if self._visible(record)), key=_number, default=None)
        for record in records:
            if record.schema is None and newest is not None and self._superseded(record, newest):
                self._store.delete(record)
        return len(left)

    def _superseded(self, record: Record, newest: Record) -> bool:
        """Whether a later version keeps both the number and the ids of a removed one from coming back."""
        return record.number < newest.number and record.highest_field_id <= newest.highest_field_id


def _number(record: Record) -> int:
    return record.number
