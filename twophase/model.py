"""The words of the interface as values: paths, definitions, purposes, outcomes, levels.

They are frozen, compare by value and round-trip through plain JSON documents. PyArrow's schema carries the
types; there is no second type system.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

import pyarrow as pa

from twophase.errors import CatalogError


@dataclass(frozen=True, order=True)
class ObjectPath:
    """The name of a table inside a catalog.

    Parameters
    ----------
    namespace : tuple of str
        One name a level; ``("sales",)`` for the database ``sales``.
    name : str
        The table's name, unquoted, exactly as the store has it. Dots, quotes and spaces are part of it.
    """

    namespace: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        if not self.name or any(not part for part in self.namespace):
            raise CatalogError(f"A table name has no empty part: {(*self.namespace, self.name)!r}.")

    @classmethod
    def of(cls, *parts: str) -> ObjectPath:
        """From its parts.

        Parameters
        ----------
        *parts : str
            One name a level, the table's name last: ``ObjectPath.of("sales", "daily")``.

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
        """Its parts, the table's name last."""

        return [*self.namespace, self.name]

    @classmethod
    def from_document(cls, document: list[str]) -> ObjectPath:
        """What :meth:`to_document` gave.

        Parameters
        ----------
        document : list of str
        """

        return cls.of(*document)

    def __str__(self) -> str:
        return ".".join(quote_if_needed(part) for part in (*self.namespace, self.name))


def quote_if_needed(part: str) -> str:
    """A name as Spark SQL prints it: in backticks where it is no plain identifier."""
    if part.isascii() and part.replace("_", "a").isalnum() and not part[0].isdigit():
        return part
    return quote(part)


def quote(part: str) -> str:
    """A name in backticks, backticks in it doubled (Spark SQL, Hive, MySQL)."""
    return "`" + part.replace("`", "``") + "`"


class Purpose(Enum):
    """What a statement does to its target (the enum that Flink shipped after FLIP-305)."""

    CREATE_TABLE_AS = "create_table_as"
    CREATE_TABLE_AS_IF_NOT_EXISTS = "create_table_as_if_not_exists"
    REPLACE_TABLE_AS = "replace_table_as"
    CREATE_OR_REPLACE_TABLE_AS = "create_or_replace_table_as"
    INSERT_INTO = "insert_into"
    INSERT_OVERWRITE = "insert_overwrite"

    @property
    def creates(self) -> bool:
        """Whether the target may come into being by this."""
        return self in (
            Purpose.CREATE_TABLE_AS,
            Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS,
            Purpose.CREATE_OR_REPLACE_TABLE_AS,
        )

    @property
    def replaces(self) -> bool:
        """Whether an existing target gets a new definition by this."""
        return self in (Purpose.REPLACE_TABLE_AS, Purpose.CREATE_OR_REPLACE_TABLE_AS)

    @property
    def inserts(self) -> bool:
        """Whether the target keeps its definition."""
        return self in (Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE)


class Outcome(Enum):
    """What a store says of a publish. ``UNKNOWN`` never cleans up."""

    PUBLISHED = "published"
    NOT_PUBLISHED = "not_published"
    UNKNOWN = "unknown"


class Level(IntEnum):
    """What a recipe guarantees (the atomicity levels of Flink's CTAS documents)."""

    #: Nothing is undone.
    NONE = 1
    #: Undone on failure, but readers could see it meanwhile.
    UNDONE = 2
    #: Nobody sees anything before the publish, and the publish is one step.
    ATOMIC = 3


@dataclass(frozen=True)
class Transform:
    """A partition transform: ``identity``, ``bucket``, ``years``, ``months``, ``days``, ``hours``, ``truncate``; and
    ``cluster_by``, Spark's ``CLUSTER BY``, which makes no partitions.

    Parameters
    ----------
    name : str
    columns : tuple of str
        Column paths, levels joined by dots.
    arguments : tuple
        Literals: the number of buckets or the width; for a sorted bucket also the sort columns, as a list; for
        ``cluster_by`` each column's path, as a list.
    """

    name: str
    columns: tuple[str, ...]
    arguments: tuple[Any, ...] = ()

    @classmethod
    def identity(cls, column: str) -> Transform:
        """The column's own value.

        Parameters
        ----------
        column : str
            Its path, levels joined by dots.
        """

        return cls("identity", (column,))

    @classmethod
    def cluster_by(cls, *columns: Sequence[str]) -> Transform:
        """``CLUSTER BY``.

        Parameters
        ----------
        *columns : sequence of str
            Path of each column, one name a level.
        """
        return cls("cluster_by", tuple(".".join(path) for path in columns), tuple(list(path) for path in columns))

    def to_document(self) -> dict[str, Any]:
        """A plain JSON document."""

        return {"name": self.name, "columns": list(self.columns), "arguments": list(self.arguments)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Transform:
        """What :meth:`to_document` gave.

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
        Buckets, at least 1.
    columns : tuple of str
        Whose hash tells a row's bucket.
    sort_columns : tuple of str
        By which the rows of a bucket are sorted.
    """

    count: int
    columns: tuple[str, ...]
    sort_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableDefinition:
    """What a table is: schema, layout, properties. A plain value, without rows and without connections.

    Parameters
    ----------
    schema : pyarrow.Schema
        All columns, partition columns included. Field metadata may carry ``comment`` and ``SPARK:field`` (Spark's
        own JSON of the field, so that types without an Arrow counterpart survive).
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
        ``OPTIONS`` of the format. May hold secrets of the user's: never log.
    location : str, optional
        ``LOCATION`` as the user wrote it; None for a managed location.
    external : bool
        Whether the files outlive the table.
    serde : mapping of str to str
        ``serde``, ``input_format``, ``output_format`` for ``STORED AS``.
    written_provider : str, optional
        The provider as the statement names it, where that is by a class or in capitals: the table keeps that name.
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
        """Columns of the identity transforms, in order."""
        return tuple(t.columns[0] for t in self.partitioning if t.name == "identity")

    @property
    def clustering_columns(self) -> tuple[tuple[str, ...], ...]:
        """Paths of the columns of ``CLUSTER BY``, one name a level, in order."""
        return tuple(tuple(path) for t in self.partitioning if t.name == "cluster_by" for path in t.arguments)

    def to_document(self) -> dict[str, Any]:
        """A plain JSON document (the schema as Arrow IPC, base64)."""
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
        """What :meth:`to_document` gave.

        Parameters
        ----------
        document : mapping
        """

        facts = dict(document)
        if "provider_class" in facts:  # A transaction may be pending since before the field was renamed.
            facts["written_provider"] = facts.pop("provider_class")
        facts["schema"] = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(facts["schema"])))
        facts["partitioning"] = tuple(Transform.from_document(t) for t in facts["partitioning"])
        if facts["bucketing"]:
            count, columns, sort_columns = facts["bucketing"]
            facts["bucketing"] = BucketSpec(count, tuple(columns), tuple(sort_columns))
        return cls(**facts)


@dataclass(frozen=True)
class OverwriteScope:
    """Which rows an INSERT OVERWRITE replaces.

    Parameters
    ----------
    static_partition : mapping of str to str or None
        ``PARTITION (p = 1)``: only rows of that partition; values as in the directory name, None for NULL.
        Empty: the whole table.
    dynamic : bool
        Only those partitions that the new rows fall into (``partitionOverwriteMode=dynamic``).
    files : tuple of str, optional
        For ``DELETE FROM ... WHERE``: only the rows of these files (:meth:`Catalog.plan_delete` tells them).
    version : str, optional
        With ``files``: the state of the table that they were told of. Else the one that the new rows were read from,
        where they are rows of the table itself: what others have done since to the replaced rows is a conflict.
    """

    static_partition: Mapping[str, str | None] = field(default_factory=dict)
    dynamic: bool = False
    files: tuple[str, ...] | None = None
    version: str | None = None

    def to_document(self) -> dict[str, Any]:
        """A plain JSON document."""

        document: dict[str, Any] = {"static_partition": dict(self.static_partition), "dynamic": self.dynamic}
        if self.version is not None:
            document["version"] = self.version
        return document if self.files is None else {**document, "files": list(self.files)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> OverwriteScope:
        """What :meth:`to_document` gave.

        Parameters
        ----------
        document : mapping
        """

        files, version = document.get("files"), document.get("version")
        scope = (document["static_partition"], document["dynamic"])
        return cls(*scope, None if files is None else tuple(files), version)


@dataclass(frozen=True)
class WriteContext:
    """What the coordinator tells a catalog about the statement.

    Parameters
    ----------
    transaction_id : str
        Owner stamp of everything that is staged.
    ordinal : int
        Number of the participant inside its transaction, from 0; part of every staging name.
    overwrite : OverwriteScope, optional
        For INSERT_OVERWRITE.
    base : mapping, optional
        Document of the participant of the same transaction that wrote the same table before, so that a second
        statement builds on what the first one staged.
    autocommit : bool
        Whether the statement is a transaction of its own: its publish is then the decision, and what the store refuses
        there is simply rolled back.
    """

    transaction_id: str
    ordinal: int = 0
    overwrite: OverwriteScope | None = None
    base: Mapping[str, Any] | None = None
    autocommit: bool = False

    @classmethod
    def alone(cls, catalog: str) -> WriteContext:
        """For a participant that no coordinator asked for: a transaction id of its own.

        Parameters
        ----------
        catalog : str
            The catalog's name; the id begins with it.
        """
        return cls(f"{catalog}-{secrets.token_hex(6)}")


@dataclass(frozen=True)
class Capabilities:
    """What a catalog can do. Every flag is closed until opened, as in SQLAlchemy's requirements.

    Parameters
    ----------
    purposes : frozenset of Purpose
        Purposes for which :meth:`Catalog.two_phase_create_table` gives a participant.
    streaming : bool
        Whether it does so for an unbounded query.
    partitioning : frozenset of str
        Names of the partition transforms.
    bucketing, alter_database, rename_table, alter_table, read, group_publish, external_location : bool
    compensate : bool
        Whether a publish can be undone, with ``group_publish`` also one of several tables. Where some cannot, their
        participants say so (:attr:`TwoPhaseCatalogTable.can_undo`).
    delete : bool
        Whether ``DELETE FROM ... WHERE`` and ``TRUNCATE TABLE`` are offered.
    providers : frozenset of str
        Formats; empty: the store has none to choose.
    max_level : Level
        The best level that this catalog reaches.
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
    providers: frozenset[str] = frozenset()
    max_level: Level = Level.ATOMIC
