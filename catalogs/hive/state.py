"""The state of one write of a Hive table: a frozen dataclass, stored in the timeline as a JSON document.

Documents carry a format number. A document of an earlier version of twophase is read into the same state, so that the
write can be recovered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

from twophase.catalogs.files import join
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.identity import STORE
from twophase.errors import CatalogError
from twophase.model import Level, ObjectPath, OverwriteScope, Purpose, TableDefinition

#: Formats of the documents written now: of writes that take the name of a table which their transaction drops, or gives
#: another one, and of those that bring columns, all of which an older version would leave out, and of all others;
#: format 1 had no number.
FORMAT, DISPLACING, WITH_COLUMNS, WITHOUT_COLUMNS = 5, 4, 3, 2

CREATE, REPLACE, INSERT, DROP, ALTER = "create", "replace", "insert", "drop", "alter"
#: Of a renamed table: its new name, and its former one.
RENAME, LEAVE = "rename", "leave"


class PublisherName(StrEnum):
    """The name of a publisher; :data:`twophase.catalogs.hive.publish.PUBLISHERS` maps it to the class."""

    CREATE_TABLE = "create table"
    CREATE_IN_PLACE = "create in place"
    SWITCH_POINTER = "switch pointer"
    LINK_FILES = "link files"
    SWITCH_PARTITIONS = "switch partitions"
    SWITCH_LAYOUT = "switch layout"
    SWAP_NAMES = "swap names"
    REPLACE_IN_PLACE = "replace in place"
    MOVE_FILES = "move files"
    APPEND_FILES = "append files"
    DROP_TABLE = "drop table"
    DROP_RENAMED = "drop renamed"
    ALTER_TABLE = "alter table"
    RENAME_TABLE = "rename table"
    LEAVE_NAME = "leave name"
    #: Not known before the rows are staged: see :mod:`twophase.catalogs.hive.publish.by_rows`.
    BY_ROWS = "by rows"

    @property
    def recipe(self) -> str:
        """The recipe, as named in the failpoints."""
        if self is PublisherName.APPEND_FILES:
            return "append"
        moves = self in (PublisherName.CREATE_IN_PLACE, PublisherName.REPLACE_IN_PLACE, PublisherName.MOVE_FILES)
        return "rename" if moves else "pointer"


# -- the publishers' own state -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnState:
    """State of one publisher, in addition to the shared state; most publishers have none."""


@dataclass(frozen=True)
class CreateState(OwnState):
    """State of creating a table over its version."""

    #: Whether the table is created under a hidden name first, unless prepare finds that unnecessary.
    hidden: bool = True
    #: Whether the publish call itself creates the table; known after prepare.
    at_once: bool = False


@dataclass(frozen=True)
class PointerState(OwnState):
    """State of pointing a table at its new version."""

    #: Number of files in the version, and their total size in bytes.
    holds: Sequence[int] | None = None
    #: Whether an append links the files of all subdirectories into one directory.
    flattens: bool = False


@dataclass(frozen=True)
class InPlaceState(OwnState):
    """State of a write whose files are moved to a fixed location, the target."""

    target: str = ""
    #: ``EXTERNAL`` if the user gave a LOCATION, otherwise ``MANAGED``.
    kind: str = ""
    #: Whether the table is created under a hidden name first.
    hidden: bool = False
    #: Whether the location already existed, as an empty directory.
    existed: bool | None = None


@dataclass(frozen=True)
class MoveState(OwnState):
    """State of renaming files into the table's directories."""

    #: As in :class:`InPlaceState`; None for an append, which looks up the table's current location.
    target: str | None = None
    kind: str | None = None
    #: Final path of the last file to be renamed.
    lands: str | None = None
    #: Partitions of an append (one empty key without partitions), each with its directory when planned.
    goes_to: Sequence[Any] = ()
    #: Whether an append renames one directory that holds all files.
    gathered: bool = False


@dataclass(frozen=True)
class RenameState(OwnState):
    """State of the new name of a renamed table."""

    #: The name that the table has until the publish, in the same database.
    former: str = ""
    #: Ordinal of the statement that has first renamed it; None if this one.
    renamed_by: int | None = None


@dataclass(frozen=True)
class LeaveState(OwnState):
    """State of the former name of a renamed table."""

    #: The document of the new name's write, which renames it.
    arriving: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ByRowsState(OwnState):
    """State of an insert whose rows are not staged yet."""

    #: How several files are published, according to the catalog option or the table property.
    mode: str | None = None
    #: Version of an earlier append of the transaction, whose rows are published together with these.
    adopts: str | None = None


OWN_STATES: Mapping[PublisherName, type[OwnState]] = {
    PublisherName.CREATE_TABLE: CreateState,
    PublisherName.CREATE_IN_PLACE: InPlaceState,
    PublisherName.SWITCH_POINTER: PointerState,
    PublisherName.LINK_FILES: PointerState,
    PublisherName.SWITCH_PARTITIONS: OwnState,
    PublisherName.SWITCH_LAYOUT: PointerState,
    PublisherName.SWAP_NAMES: CreateState,
    PublisherName.REPLACE_IN_PLACE: InPlaceState,
    PublisherName.MOVE_FILES: MoveState,
    PublisherName.APPEND_FILES: MoveState,
    PublisherName.DROP_TABLE: OwnState,
    PublisherName.DROP_RENAMED: RenameState,
    PublisherName.ALTER_TABLE: OwnState,
    PublisherName.RENAME_TABLE: RenameState,
    PublisherName.LEAVE_NAME: LeaveState,
    PublisherName.BY_ROWS: ByRowsState,
}

_Own = TypeVar("_Own", bound=OwnState)

# -- the state of a write ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Before:
    """A table as it was when the write was planned; see :class:`~twophase.catalogs.hive.tables.HiveTable`."""

    location: str
    kind: str
    tracked: bool
    #: Without secrets.
    definition: TableDefinition
    stamp: str | None = None
    #: Inode number of its directory; None if the filesystem has none.
    number: int | None = None

    def to_document(self) -> dict[str, Any]:
        """Return a plain JSON document."""
        found = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {**found, "definition": self.definition.to_document()}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Before:
        """Restore from the result of :meth:`to_document`."""
        return _fitting(cls, {**document, "definition": TableDefinition.from_document(document["definition"])})


@dataclass(frozen=True)
class Displaced:
    """The table that has the name of a write, until its transaction gives it another one, or drops it."""

    before: Before
    #: Ordinal of the statement that has first renamed it; None if it is dropped.
    renamed_by: int | None = None
    #: If it is dropped: version of the first statement of the transaction on it.
    first_version: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Return a plain JSON document."""
        found: dict[str, Any] = {"before": self.before.to_document(), "renamed_by": self.renamed_by}
        return found if self.first_version is None else {**found, "first_version": self.first_version}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Displaced:
        """Restore from the result of :meth:`to_document`."""
        return _fitting(cls, {**document, "before": Before.from_document(document["before"])})


def _refuse_newer(document: Mapping[str, Any]) -> None:
    if document["format"] > FORMAT or document["publisher"] not in list(PublisherName):
        raise CatalogError(
            f"This version of twophase does not know the format {document['format']} of a recorded write, or its "
            f"publisher {document['publisher']!r}.",
            transaction_id=document["transaction_id"],
            hint="A newer version wrote it: run the recovery with that one.",
        )


@dataclass(frozen=True)
class WriteState:
    """The complete state of one write."""

    catalog: str
    #: Identity of its metastore; the write is recovered and cleaned only with that one.
    store: str
    path: ObjectPath
    purpose: Purpose
    transaction_id: str
    ordinal: int
    #: Publishes it.
    publisher: PublisherName
    #: Definition of the table after the publish, without secrets.
    definition: TableDefinition
    #: Where stock Spark would have put the files.
    default_location: str
    #: The directory where the files are staged.
    version: str
    #: The table when the write was planned; None if there was none.
    before: Before | None
    #: ``create``, ``replace``, ``insert``, ``drop``, ``alter``, ``rename`` or ``leave``, as the metastore will see it.
    effect: str
    #: Whether the publish removes existing rows.
    replaces: bool
    #: The publisher's own state.
    own: OwnState = field(default_factory=OwnState)
    #: Directory whose files are part of the new version, too.
    inherit: str | None = None
    inherited: bool = False
    #: Fingerprint of that directory.
    inherit_mark: Any = None
    overwrite: OverwriteScope | None = None
    #: Version of the statement of the same transaction that this one builds on, and of the first in that chain.
    base_version: str | None = None
    first_version: str | None = None
    #: Whether the write depends on nothing but the table's layout.
    appends: bool = False
    #: Whether this publish is the only one of its transaction.
    autocommit: bool = False
    #: Guarantee of the publish; known after prepare.
    level: Level | None = None
    level_reason: str | None = None
    can_undo: bool | None = None
    #: Columns of the table as SQL over the rows of the statement, where these are matched by name.
    fits: Sequence[str] | None = None
    #: Whether the publish gives the table columns, or wider types, that only the new rows have.
    brings: bool = False
    #: Whether a replacement is the table as an ALTER TABLE of the same transaction has it.
    alters: bool = False
    #: Whether a list in the version names the staged files, and what else is found beside them is not the statement's.
    listed: bool = False
    #: The table that has the name until the publish; the transaction gives it another one, or drops it.
    displaces: Displaced | None = None

    #: Fields stored in the document as they are.
    _PLAIN: ClassVar[tuple[str, ...]] = (
        *("catalog", "transaction_id", "ordinal", "default_location", "version", "effect", "replaces", "inherit"),
        *("inherited", "inherit_mark", "base_version", "first_version", "appends", "autocommit"),
    )

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def empty(self) -> str:
        """The empty directory beside the version, for partitions that must exist without rows."""
        return layout.empty_beside(self.version)

    def empty_of(self, key: tuple[str, ...]) -> str:
        """The empty directory of one partition: rows written to it by others appear in no other partition."""
        return join(self.empty, layout.partition_name(key, self.partition_columns))

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Partition columns of the table after the publish."""
        return tuple(self.definition.partition_columns)

    @property
    def old(self) -> Before:
        """The table when the write was planned; only for writes to an existing table."""
        assert self.before is not None
        return self.before

    def of(self, kind: type[_Own]) -> _Own:
        """The publisher's own state."""
        assert isinstance(self.own, kind)
        return self.own

    def with_own(self, **changes: Any) -> WriteState:
        """Return a copy with changes to the publisher's own state."""
        return replace(self, own=replace(self.own, **changes))

    def stamp_facts(self) -> dict[str, Any]:
        """Contents of the owner stamp of a directory."""
        return {
            "transaction_id": self.transaction_id,
            "ordinal": self.ordinal,
            "path": self.path.to_document(),
            "catalog": self.catalog,
            STORE: self.store,
            "purpose": RENAME if self.effect == RENAME else self.purpose.value,
        }

    # -- documents -----------------------------------------------------------------------------------------------

    @property
    def _format(self) -> int:
        if self.displaces is not None:
            return FORMAT if self.displaces.renamed_by is None else DISPLACING
        return WITH_COLUMNS if self.brings or self.fits is not None else WITHOUT_COLUMNS

    def to_document(self) -> dict[str, Any]:
        """Return a plain JSON document."""
        prepared = {"level": self.level and int(self.level), "can_undo": self.can_undo}
        return {
            "format": self._format,
            "publisher": self.publisher.value,
            STORE: self.store,
            "path": self.path.to_document(),
            "purpose": self.purpose.value,
            "definition": self.definition.to_document(),
            "before": self.before and self.before.to_document(),
            "overwrite": self.overwrite and self.overwrite.to_document(),
            "own": asdict(self.own),
            "level_reason": self.level_reason,
            **({} if self.fits is None else {"fits": list(self.fits)}),
            **({"brings": True} if self.brings else {}),
            **({"alters": True} if self.alters else {}),
            **({"listed": True} if self.listed else {}),
            **({} if self.displaces is None else {"displaces": self.displaces.to_document()}),
            **{name: getattr(self, name) for name in self._PLAIN},
            **{key: value for key, value in prepared.items() if value is not None},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> WriteState:
        """Restore from a document, written by this or an earlier version of twophase.

        Raises
        ------
        CatalogError
            A newer version of twophase wrote it.
        """
        found = dict(document) if "format" in document else upgraded(document)
        _refuse_newer(found)
        publisher, before, scope = PublisherName(found["publisher"]), found["before"], found["overwrite"]
        displaces = found.get("displaces")
        level = found.get("level")
        return cls(
            store=str(found.get(STORE) or ""),
            path=ObjectPath.from_document(found["path"]),
            purpose=Purpose(found["purpose"]),
            publisher=publisher,
            definition=TableDefinition.from_document(found["definition"]),
            before=before and Before.from_document(before),
            overwrite=None if scope is None else OverwriteScope.from_document(scope),
            own=_fitting(OWN_STATES[publisher], found["own"]),
            level=None if level is None else Level(level),
            level_reason=found["level_reason"],
            can_undo=found.get("can_undo"),
            fits=found.get("fits"),
            brings=bool(found.get("brings")),
            alters=bool(found.get("alters")),
            listed=bool(found.get("listed")),
            displaces=displaces and Displaced.from_document(displaces),
            **{name: found[name] for name in cls._PLAIN},
        )


def renamed_by(state: WriteState) -> int:
    """Return the ordinal of the statement that has first renamed the table to which a write gives a name."""
    first = state.of(RenameState).renamed_by
    return state.ordinal if first is None else first


_Kind = TypeVar("_Kind")


def _fitting(kind: type[_Kind], document: Mapping[str, Any]) -> _Kind:
    names = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in document.items() if name in names})


# -- format 1 ----------------------------------------------------------------------------------------------------------

#: Names of the publishing classes in documents of format 1.
_CLASSES = {
    "PointerCreate": PublisherName.CREATE_TABLE,
    "PointerCreateHidden": PublisherName.CREATE_TABLE,
    "PointerSwitch": PublisherName.SWITCH_POINTER,
    "PointerAppend": PublisherName.LINK_FILES,
    "PointerPartitions": PublisherName.SWITCH_PARTITIONS,
    "PointerUntrack": PublisherName.SWITCH_LAYOUT,
    "PointerSwap": PublisherName.SWAP_NAMES,
    "RenameCreate": PublisherName.CREATE_IN_PLACE,
    "RenameReplace": PublisherName.REPLACE_IN_PLACE,
    "MoveInsert": PublisherName.MOVE_FILES,
    "MoveAppend": PublisherName.APPEND_FILES,
    "Insert": PublisherName.BY_ROWS,
}


def upgraded(document: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a document of format 1, with all keys at the top level, to the current format."""
    name = str(document.get("class"))
    return {
        **document,
        "format": WITHOUT_COLUMNS,
        "publisher": _CLASSES.get(name, name),
        "own": _own_of_format_1(name, document),
        "default_location": document["home"],
        "overwrite": document.get("overwrite"),
        "inherit": document.get("inherit"),
        "inherited": bool(document.get("inherited")),
        "inherit_mark": document.get("inherit_mark"),
        "base_version": document.get("base"),
        "first_version": document.get("first"),
        "replaces": document.get("replaces", document["purpose"] != Purpose.INSERT_INTO.value),
        "appends": bool(document.get("appends")),
        "autocommit": bool(document.get("alone")),
        "level": document.get("level"),
        "level_reason": document.get("level_reason"),
        "can_undo": document.get("can_undo"),
    }


def _own_of_format_1(name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    at_once = name == "PointerCreate" or bool(document.get("at_once"))
    hidden = {"hidden": name == "PointerCreateHidden", "at_once": at_once} if name.startswith("PointerCreate") else {}
    return {**document, "mode": document.get("append"), **hidden}
