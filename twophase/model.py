"""The value types of the interface: paths, definitions, purposes, outcomes, levels.

They are frozen, compare by value and round-trip through plain JSON documents. Column types are those of PyArrow's
schema; there is no second type system.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum
from typing import Any

import pyarrow as pa

from twophase.errors import CatalogError, WriteConflictError

#: Additional column of the rows of an insert: JSON lists, as strings, of the columns whose value the store computes.
WAITING = "__twophase_waiting"


@dataclass(frozen=True, order=True)
class ObjectPath:
    """The name of a table inside a catalog.

    Parameters
    ----------
    namespace : tuple of str
        One name per level; ``("sales",)`` for the database ``sales``.
    name : str
        The table's name, unquoted, exactly as in the store. Dots, quotes and spaces are part of it.
    """

    namespace: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        if not self.name or any(not part for part in self.namespace):
            raise CatalogError(f"A table name has no empty part: {(*self.namespace, self.name)!r}.")

    @classmethod
    def of(cls, *parts: str) -> ObjectPath:
        """Create a path from its parts.

        Parameters
        ----------
        *parts : str
            One name per level, the table's name last: ``ObjectPath.of("sales", "daily")``.

        Raises
        ------
        CatalogError
            A part is empty, or there is none.
        """
        if not parts:
            raise CatalogError("A table name has at least one part.")
        return cls(tuple(parts[:-1]), parts[-1])

    @property
    def database(self) -> str:
        """The namespace as one string, levels joined by dots."""
        return ".".join(self.namespace)

    def to_document(self) -> list[str]:
        """Return its parts, the table's name last."""
        return [*self.namespace, self.name]

    @classmethod
    def from_document(cls, document: list[str]) -> ObjectPath:
        """Restore a value from its :meth:`to_document`.

        Parameters
        ----------
        document : list of str
        """
        return cls.of(*document)

    def __str__(self) -> str:
        return ".".join(quote_if_needed(part) for part in (*self.namespace, self.name))


def quote_if_needed(part: str) -> str:
    """Return a name as Spark SQL prints it: in backticks unless it is a plain identifier."""
    if part.isascii() and part.replace("_", "a").isalnum() and not part[0].isdigit():
        return part
    return quote(part)


def quote(part: str) -> str:
    """Return a name in backticks, with backticks in it doubled (Spark SQL, Hive, MySQL)."""
    return "`" + part.replace("`", "``") + "`"


class Purpose(Enum):
    """The effect of a statement on its target (the enum that Flink shipped after FLIP-305)."""

    CREATE_TABLE_AS = "create_table_as"
    CREATE_TABLE_AS_IF_NOT_EXISTS = "create_table_as_if_not_exists"
    REPLACE_TABLE_AS = "replace_table_as"
    CREATE_OR_REPLACE_TABLE_AS = "create_or_replace_table_as"
    INSERT_INTO = "insert_into"
    INSERT_OVERWRITE = "insert_overwrite"
    #: No write: see :class:`~twophase.catalog.SupportsStagedDrop`.
    DROP_TABLE = "drop_table"
    #: No rows: see :class:`~twophase.catalog.SupportsStagedAlter`.
    ALTER_TABLE = "alter_table"
    #: No tables: see :class:`~twophase.catalog.SupportsStagedDatabases`.
    CREATE_DATABASE = "create_database"
    DROP_DATABASE = "drop_database"

    @property
    def of_database(self) -> bool:
        """Whether the target is a database: its path has no namespace."""
        return self in (Purpose.CREATE_DATABASE, Purpose.DROP_DATABASE)

    @property
    def creates(self) -> bool:
        """Whether the statement may create the target."""
        return self in (
            Purpose.CREATE_TABLE_AS,
            Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS,
            Purpose.CREATE_OR_REPLACE_TABLE_AS,
        )

    @property
    def replaces(self) -> bool:
        """Whether the statement gives an existing target a new definition."""
        return self in (Purpose.REPLACE_TABLE_AS, Purpose.CREATE_OR_REPLACE_TABLE_AS)

    @property
    def inserts(self) -> bool:
        """Whether the target keeps its definition."""
        return self in (Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE)

    @property
    def drops(self) -> bool:
        """Whether the statement removes the target, instead of writing it."""
        return self in (Purpose.DROP_TABLE, Purpose.DROP_DATABASE)

    @property
    def alters(self) -> bool:
        """Whether the statement changes the target's definition and leaves its rows as they are."""
        return self is Purpose.ALTER_TABLE

    @property
    def redefines(self) -> bool:
        """Whether the statement creates or replaces the target, instead of building on what there is."""
        return not (self.inserts or self.alters)

    @property
    def writes(self) -> bool:
        """Whether the statement has rows to write; DROP TABLE, ALTER TABLE and those of databases have none."""
        return not (self.drops or self.alters or self.of_database)


class Outcome(Enum):
    """The outcome of a publish, as reported by the store. After ``UNKNOWN`` nothing is ever cleaned up."""

    PUBLISHED = "published"
    NOT_PUBLISHED = "not_published"
    UNKNOWN = "unknown"


class Level(IntEnum):
    """The guarantee of a publish, from weakest to strongest (the atomicity levels of Flink's CTAS documents)."""

    #: A partial publish is reported and can be completed, but not rolled back.
    BEST_EFFORT = 1
    #: Rolled back on failure, but readers may see an intermediate state.
    REVERSIBLE = 2
    #: No reader sees anything before the publish, and the publish is a single step.
    ATOMIC = 3

    def __str__(self) -> str:
        return self.name

    __format__ = Enum.__format__


class Isolation(StrEnum):
    """The isolation level of a transaction with several statements, in the terms of Berenson et al. (1995) and Adya.

    Modelled on the snapshot isolation over several tables of Hudi's RFC-73.
    """

    #: Each statement reads what is published when it begins.
    READ_COMMITTED = "read_committed"
    #: All statements read the state at the beginning of the transaction; of two that write the same, one is refused.
    SNAPSHOT = "snapshot"
    #: Like ``SNAPSHOT``, and a transaction is refused if anything that it has read was changed before its commit.
    SERIALIZABLE = "serializable"

    @property
    def pins_reads(self) -> bool:
        """Whether all reads see the state at the beginning of the transaction."""
        return self is not Isolation.READ_COMMITTED


@dataclass(frozen=True)
class Transform:
    """A partition transform: ``identity``, ``bucket``, ``years``, ``months``, ``days``, ``hours``, ``truncate``; and
    ``cluster_by``, Spark's ``CLUSTER BY``, which does not create partitions.

    Parameters
    ----------
    name : str
    columns : tuple of str
        Column paths, with levels joined by dots.
    arguments : tuple
        Literals: the number of buckets or the width; for a sorted bucket also the sort columns, as a list; for
        ``cluster_by`` the path of each column, as a list.
    """

    name: str
    columns: tuple[str, ...]
    arguments: tuple[Any, ...] = ()

    @classmethod
    def identity(cls, column: str) -> Transform:
        """Partition by the value of a column itself.

        Parameters
        ----------
        column : str
            Its path, with levels joined by dots.
        """
        return cls("identity", (column,))

    @classmethod
    def cluster_by(cls, *columns: Sequence[str]) -> Transform:
        """Cluster by columns, as Spark's ``CLUSTER BY``.

        Parameters
        ----------
        *columns : sequence of str
            The path of each column, one name per level.
        """
        return cls("cluster_by", tuple(".".join(path) for path in columns), tuple(list(path) for path in columns))

    def to_document(self) -> dict[str, Any]:
        """Return a plain JSON document."""
        return {"name": self.name, "columns": list(self.columns), "arguments": list(self.arguments)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Transform:
        """Restore a value from its :meth:`to_document`.

        Parameters
        ----------
        document : mapping
        """
        return cls(document["name"], tuple(document["columns"]), tuple(document["arguments"]))


@dataclass(frozen=True)
class BucketSpec:
    """``CLUSTERED BY (columns) SORTED BY (sort_columns) INTO count BUCKETS``.

    Parameters
    ----------
    count : int
        The number of buckets, at least 1.
    columns : tuple of str
        The columns whose hash determines a row's bucket.
    sort_columns : tuple of str
        The columns by which the rows of a bucket are sorted.
    """

    count: int
    columns: tuple[str, ...]
    sort_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableDefinition:
    """The definition of a table: schema, layout, properties. A plain value, without rows or connections.

    Parameters
    ----------
    schema : pyarrow.Schema
        All columns, including partition columns. Field metadata may contain ``comment`` and ``SPARK:field`` (Spark's
        own JSON of the field, which preserves types without an Arrow counterpart).
    provider : str, optional
        Spark's name of the format (``parquet``, ``orc``, ``csv``, ...; ``hive`` for a SerDe); None: the catalog's
        default.
    partitioning : tuple of Transform
        ``PARTITIONED BY``.
    bucketing : BucketSpec, optional
    comment : str, optional
    properties : mapping of str to str
        ``TBLPROPERTIES``.
    options : mapping of str to str
        ``OPTIONS`` of the format. They may contain the user's secrets: never log them.
    location : str, optional
        ``LOCATION`` as the user wrote it; None for a managed location.
    external : bool
        Whether the files are preserved when the table is dropped.
    serde : mapping of str to str
        ``serde``, ``input_format``, ``output_format`` for ``STORED AS``.
    written_provider : str, optional
        The provider as written in the statement, if it is a class name or in upper case: the table keeps that name.
    """

    schema: pa.Schema
    provider: str | None = None
    partitioning: tuple[Transform, ...] = ()
    bucketing: BucketSpec | None = None
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    location: str | None = None
    external: bool = False
    serde: Mapping[str, str] = field(default_factory=dict)
    written_provider: str | None = None

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The columns of the identity transforms, in order."""
        return tuple(t.columns[0] for t in self.partitioning if t.name == "identity")

    @property
    def clustering_columns(self) -> tuple[tuple[str, ...], ...]:
        """The paths of the columns of ``CLUSTER BY``, one name per level, in order."""
        return tuple(tuple(path) for t in self.partitioning if t.name == "cluster_by" for path in t.arguments)

    def to_document(self) -> dict[str, Any]:
        """Return a plain JSON document (the schema as Arrow IPC, base64)."""
        bucketing = self.bucketing
        document = {
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "provider": self.provider,
            "partitioning": [t.to_document() for t in self.partitioning],
            "bucketing": bucketing and [bucketing.count, list(bucketing.columns), list(bucketing.sort_columns)],
            "comment": self.comment,
            "properties": dict(self.properties),
            "options": dict(self.options),
            "location": self.location,
            "external": self.external,
            "serde": dict(self.serde),
        }
        return {**document, "written_provider": self.written_provider} if self.written_provider else document

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> TableDefinition:
        """Restore a value from its :meth:`to_document`.

        Parameters
        ----------
        document : mapping
        """
        facts = dict(document)
        if "provider_class" in facts:  # A pending transaction may date from before the field was renamed.
            facts["written_provider"] = facts.pop("provider_class")
        facts["schema"] = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(facts["schema"])))
        facts["partitioning"] = tuple(Transform.from_document(t) for t in facts["partitioning"])
        if facts["bucketing"]:
            count, columns, sort_columns = facts["bucketing"]
            facts["bucketing"] = BucketSpec(count, tuple(columns), tuple(sort_columns))
        return cls(**facts)


@dataclass(frozen=True)
class OverwriteScope:
    """The rows that an INSERT OVERWRITE replaces.

    Parameters
    ----------
    static_partition : mapping of str to str or None
        ``PARTITION (p = 1)``: only rows of that partition; values as in the directory name, None for NULL.
        Empty: the whole table.
    dynamic : bool
        Only the partitions that contain new rows (``partitionOverwriteMode=dynamic``).
    files : tuple of str, optional
        For ``DELETE FROM ... WHERE``: only the rows of these files, from
        :meth:`~twophase.catalog.SupportsDelete.plan_delete`.
    version : str, optional
        With ``files``: the table version that they belong to. Otherwise, if the new rows were read from the table
        itself, the version that was read: any later change of the replaced rows by another writer is a conflict.
    if_not_exists : bool
        With a value for each partition column: the partition was not there when the statement was analysed. If another
        writer has added it since, that is a conflict.
    """

    static_partition: Mapping[str, str | None] = field(default_factory=dict)
    dynamic: bool = False
    files: tuple[str, ...] | None = None
    version: str | None = None
    if_not_exists: bool = False

    @property
    def is_whole_table(self) -> bool:
        """Whether all rows are replaced."""
        return not (self.static_partition or self.dynamic or self.files is not None)

    def to_document(self) -> dict[str, Any]:
        """Return a plain JSON document."""
        document: dict[str, Any] = {"static_partition": dict(self.static_partition), "dynamic": self.dynamic}
        if self.version is not None:
            document["version"] = self.version
        if self.if_not_exists:
            document["if_not_exists"] = True
        return document if self.files is None else {**document, "files": list(self.files)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> OverwriteScope:
        """Restore a value from its :meth:`to_document`.

        Parameters
        ----------
        document : mapping
        """
        files, version = document.get("files"), document.get("version")
        scope = (document["static_partition"], document["dynamic"])
        return cls(*scope, None if files is None else tuple(files), version, document.get("if_not_exists", False))


@dataclass(frozen=True)
class WriteContext:
    """The context of a statement that is passed to a catalog.

    Parameters
    ----------
    transaction_id : str
        Owner stamp of everything that is staged.
    ordinal : int
        The number of the participant in its transaction, from 0; part of every staging name.
    overwrite : OverwriteScope, optional
        For INSERT_OVERWRITE.
    base : mapping, optional
        The document of the earlier participant of the same transaction and table, if any: a second statement builds on
        the staged data of the first.
    autocommit : bool
        Whether the statement is a transaction of its own: its publish is then the decision, and if the store refuses
        it, the transaction is simply rolled back.
    pins_reads : bool
        Whether the transaction reads a snapshot (:attr:`Isolation.pins_reads`): with its own rows, a later statement
        must not read rows that others have published since this one began.
    alters : bool
        Whether a replacement has the table's own rows, and a definition that rests on the table's: the publish is a
        conflict if another writer has changed anything of that meanwhile.
    restores : bool
        Whether a replacement is a table as a savepoint has kept it (:meth:`.SupportsSavepoints.write_kept`): the files
        may be those that it had then, so that its definition must be the one that they were written by.
    former : mapping, optional
        For a rename: the document of what the transaction has staged by the table's former name, if anything.
    waited : bool
        Whether the statement has met another transaction, which may have published since: what Spark's analysis of the
        statement has loaded is out of date.
    columns : tuple of str, optional
        For an insert whose rows Spark has put in order: the columns of the table as its analysis has seen them.
    """

    transaction_id: str
    ordinal: int = 0
    overwrite: OverwriteScope | None = None
    base: Mapping[str, Any] | None = None
    autocommit: bool = False
    pins_reads: bool = False
    alters: bool = False
    restores: bool = False
    former: Mapping[str, Any] | None = None
    waited: bool = False
    columns: tuple[str, ...] | None = None

    @classmethod
    def alone(cls, catalog: str) -> WriteContext:
        """Create the context of a participant without a coordinator, with a transaction id of its own.

        Parameters
        ----------
        catalog : str
            The catalog's name; the id begins with it.
        """
        return cls(f"{catalog}-{secrets.token_hex(6)}")

    def require_columns(self, path: ObjectPath, names: Sequence[str]) -> None:
        """Refuse rows that were put in order for other columns than those that the table has now.

        Parameters
        ----------
        path : ObjectPath
        names : sequence of str
            The columns of the published table.

        Raises
        ------
        WriteConflictError
            Another writer has changed the columns since Spark has analysed the statement.
        """
        if self.base is not None or self.columns is None:
            return  # What the transaction itself has staged, nobody else changes.
        if [name.lower() for name in names] != [name.lower() for name in self.columns]:
            raise WriteConflictError(
                f"{path} was not written: another writer has changed its columns, since the statement was analysed, "
                f"from {', '.join(self.columns)} to {', '.join(names)}.",
                path=path,
                transaction_id=self.transaction_id,
                hint="Run the statement again: it will see the new columns.",
            )

    def document(self, path: ObjectPath, purpose: Purpose) -> dict[str, Any]:
        """Return what the document of each participant says of its statement.

        Parameters
        ----------
        path : ObjectPath
        purpose : Purpose
        """
        facts = {"transaction_id": self.transaction_id, "ordinal": self.ordinal}
        return {"path": path.to_document(), "purpose": purpose.value, **facts}


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of a catalog. Every flag is off by default, as in SQLAlchemy's requirements.

    Parameters
    ----------
    purposes : frozenset of Purpose
        The purposes for which :meth:`Catalog.two_phase_create_table` returns a participant. Those that write nothing
        are left out: a catalog has them by an interface.
    streaming : bool
        Whether it also does so for an unbounded query.
    partitioning : frozenset of str
        The names of the supported partition transforms.
    bucketing, alter_database, rename_table, alter_table, read, group_publish, external_location : bool
    compensate : bool
        Whether a publish can be undone; with ``group_publish``, also that of several tables. Participants for which
        this is not the case declare it (:attr:`TwoPhaseCatalogTable.can_undo`).
    delete : bool
        Whether ``DELETE FROM ... WHERE`` is supported.
    copying_savepoints : bool
        Whether a named savepoint keeps a copy of the rows, so that it must be allowed to (``WITH COPIES``).
    column_defaults : bool
        Whether a new table gets the defaults of Spark that the fields of its definition have (``CURRENT_DEFAULT``).
    partition_columns_last : bool
        Whether the partition columns of a new table come behind all others, wherever its definition has them.
    own_types : bool
        Whether the columns of a new table may have other types than its definition: those that the store has for them.
        Later statements of the transaction write in the types of :meth:`TwoPhaseCatalogTable.read_source`.
    unseen_changes : bool
        Whether another writer's change of a table may go unnoticed by the publish of a transaction that drops it, as
        the store has nothing that shows a change. The reservations of twophase's own transactions are not meant.
    providers : frozenset of str
        The supported formats; empty if the store has no choice of formats.
    max_level : Level
        The highest level of this catalog.
    """

    purposes: frozenset[Purpose] = frozenset()
    streaming: bool = False
    partitioning: frozenset[str] = frozenset()
    bucketing: bool = False
    alter_database: bool = False
    rename_table: bool = False
    alter_table: bool = False
    read: bool = False
    group_publish: bool = False
    external_location: bool = False
    compensate: bool = False
    delete: bool = False
    copying_savepoints: bool = False
    column_defaults: bool = False
    partition_columns_last: bool = False
    own_types: bool = False
    unseen_changes: bool = False
    providers: frozenset[str] = frozenset()
    max_level: Level = Level.ATOMIC

    def __post_init__(self) -> None:
        object.__setattr__(self, "purposes", frozenset(purpose for purpose in self.purposes if purpose.writes))
