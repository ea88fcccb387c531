"""Which table a statement's target is, and whether twophase takes the statement over.

A name is taken over where it means a table of Spark's session catalog whose format the session's twophase catalog can
write. Everything else stays exactly Spark's: views, other formats, other catalogs, paths.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions

from twophase.errors import DatabaseNotExistError, TableNotExistError
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition, quote
from twophase.spark import live
from twophase.spark.jvm.formats import DEFAULT_FORMAT, TEXT
from twophase.spark.jvm.statements import NameReader, TableFacts, WriteNode

if TYPE_CHECKING:
    from twophase.catalog import Catalog
    from twophase.spark.session import Handle

SESSION_CATALOG = "spark_catalog"
#: Database of the global temporary views.
GLOBAL_VIEWS = "global_temp"
#: Set to something else by users of another lakehouse: their extension serves all session tables, and we keep out.
_EXTENSION = "spark.sql.catalog.spark_catalog"
#: What keeps a table's files where they are.
STAYS = "give the table a LOCATION, or its catalog the option recipe=rename"
_LEGACY_HIVE_DEFAULT = "spark.sql.legacy.createHiveTableByDefault"
_OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"


@dataclass(frozen=True, slots=True)
class Target:
    """A table that a statement of ours writes.

    Attributes
    ----------
    catalog : Catalog
    catalog_name : str
        The catalog's name in the session.
    path : ObjectPath
    spliced : bool
        Whether the catalog's name is to be put in front; False where Spark finds the catalog without that: the user
        wrote it, or said USE.
    """

    catalog: Catalog
    catalog_name: str
    path: ObjectPath
    spliced: bool = True

    @property
    def name(self) -> str:
        """The full name, quoted."""
        return quoted((self.catalog_name, *self.path.to_document()))


class Targets:
    """Resolves names for one attached session.

    Parameters
    ----------
    handle : Handle
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.names = NameReader(handle.jvm)
        self.streams = Streams(handle)

    # -- names ---------------------------------------------------------------------------------------------------

    @property
    def session_catalog(self) -> Catalog | None:
        """The catalog that serves unprefixed names; None where that is off or another extension serves them."""
        if self._handle.session_catalog is None:
            return None
        if self._handle.spark.conf.get(_EXTENSION, "builtin") != "builtin":
            return None
        return self._handle.catalog(self._handle.session_catalog)

    def resolve(self, parts: tuple[str, ...], *, views: bool = False) -> Target | None:
        """The table that a name means; None where it is none of ours.

        Parameters
        ----------
        parts : tuple of str
            The name as the statement has it.
        views : bool
            Whether a temporary view of that name goes first (inserts and reads, not CREATE).
        """
        if len(parts) > 1 and parts[0] in self._handle.catalogs:
            return self._named(parts[0], parts[1:])
        if not all(parts) or (views and self._is_temporary_view(parts)):
            return None
        if len(parts) == 3 and parts[0].lower() == SESSION_CATALOG:
            return self.in_session(ObjectPath.of(*parts[1:]))
        current = self.names.current_catalog()
        if current in self._handle.catalogs:
            return self._in_current(current, parts)
        if current != SESSION_CATALOG or len(parts) > 2 or self._is_elsewhere(parts):
            return None
        return self.in_session(ObjectPath.of(*(parts if len(parts) == 2 else (self.names.current_database(), *parts))))

    def in_session(self, path: ObjectPath) -> Target | None:
        """A table of the session catalog; None where twophase does not serve it."""
        catalog = self.session_catalog
        return Target(catalog, self._handle.name_of(catalog), path) if catalog else None

    def _named(self, catalog: str, parts: tuple[str, ...]) -> Target:
        """A table that Spark finds in a catalog of ours by the name as it is written."""
        return Target(self._handle.catalog(catalog), catalog, ObjectPath.of(*parts), spliced=False)

    def _in_current(self, catalog: str, parts: tuple[str, ...]) -> Target | None:
        """After ``USE catalog``: Spark itself finds the way to it by the name as it is written."""
        if len(parts) > 1:
            return None if self.names.is_catalog(parts[0]) else self._named(catalog, parts)
        namespace = self.names.current_namespace()
        return self._named(catalog, (*namespace, *parts)) if namespace else None

    def _is_elsewhere(self, parts: tuple[str, ...]) -> bool:
        """Whether the first of two parts is no database of the session catalog."""
        return len(parts) == 2 and (parts[0].lower() == GLOBAL_VIEWS or self.names.is_catalog(parts[0]))

    def _is_temporary_view(self, parts: tuple[str, ...]) -> bool:
        if len(parts) == 1:
            return self.names.is_temporary_view(parts[0])
        return len(parts) == 2 and parts[0].lower() == GLOBAL_VIEWS

    @property
    def in_transaction(self) -> bool:
        """Whether a ``with twophase.transaction(spark)`` is around this thread's statement; free where none is open."""
        return live.any_open() and self._handle.current_transaction() is not None

    # -- tables --------------------------------------------------------------------------------------------------

    def existing(self, target: Target) -> TableFacts | None:
        """Provider and partition columns of a table, staged in the surrounding transaction or published."""
        staged = self.staged_definition(target)
        if staged is not None:
            provider = (staged.provider or self.default_provider()).lower()
            return TableFacts(provider, _sources(staged), lambda: staged.options)
        if target.catalog_name == self._handle.session_catalog:
            return self.names.table(target.path.database, target.path.name)
        return self._loaded(target)

    def _loaded(self, target: Target) -> TableFacts | None:
        try:
            definition = target.catalog.load_table(target.path)
        except (TableNotExistError, DatabaseNotExistError):
            return None
        return TableFacts(definition.provider or "", _sources(definition), lambda: definition.options)

    def staged_definition(self, target: Target) -> TableDefinition | None:
        """The definition of what the surrounding transaction staged for a table."""
        found = live.staged(self._handle, target.catalog, target.path)
        return (found[1] or target.catalog.load_table(target.path)) if found else None

    def has_rows(self, target: Target, values: Mapping[str, str | None]) -> bool:
        """Whether a table has rows in a partition, given by a value for each column, as in a directory name."""
        rows = self._handle.spark.table(target.name)
        for column, value in values.items():
            rows = rows.where(functions.col(quote(column)).eqNullSafe(functions.lit(value)))
        return not rows.isEmpty()

    def redefined(self, target: Target) -> TableDefinition | None:
        """The definition of a table that the surrounding transaction makes or replaces; None for every other."""
        transaction = self._handle.current_transaction()
        participant = transaction.find(target.catalog.name, target.path) if transaction else None
        if transaction is None or participant is None or not transaction.redefines(participant):
            return None
        return self.staged_definition(target)

    def default_provider(self) -> str:
        """The format of a table that is created without one."""
        if self.names.setting(_LEGACY_HIVE_DEFAULT).lower() == "true":
            return "hive"
        return self.names.setting("spark.sql.sources.default").lower()

    def hive_format(self) -> str:
        """The format of a SerDe table that is created without one, a word of ``STORED AS``."""
        return self.names.setting(DEFAULT_FORMAT, TEXT).lower()

    def providers(self, catalog: Catalog) -> Collection[str]:
        """Formats that a catalog writes atomically."""
        return catalog.capabilities.providers

    def is_view(self, parts: tuple[str, ...]) -> bool:
        """Whether a name that is read means a view, temporary or kept in the session catalog."""
        if self._is_temporary_view(parts):
            return True
        target = self.resolve(parts)
        if target is None or not target.spliced or self.staged_definition(target) is not None:
            return False
        facts = self.existing(target)
        return facts is not None and facts.provider is None

    def can_create(self, target: Target, provider: str | None) -> bool:
        """Whether a new table of this format is ours to make. SerDe tables need Hive support, as in Spark itself."""
        name = self.names.short_name(provider) if provider else self.default_provider()
        if name == "hive" and self.names.setting("spark.sql.catalogImplementation") != "hive":
            return False
        return name in self.providers(target.catalog)

    def can_write(self, target: Target, facts: TableFacts | None) -> bool:
        """Whether an existing table is ours to write."""
        return facts is not None and facts.provider is not None and facts.provider in self.providers(target.catalog)

    def hindrance(self, target: Target, purpose: Purpose | None) -> tuple[str, str] | None:
        """Why a write cannot be made all-or-nothing, and what helps; None where it can.

        Without a purpose, the catalog itself will say whether it can.
        """
        if self.streams.reads(target):
            problem = f"a streaming query of this session reads {target.path}, and it would move"
            return problem, f"Stop the query, or {STAYS}"
        offered = target.catalog.capabilities.purposes
        if purpose is not None and purpose not in offered:
            problem = f"catalog {target.catalog_name} has no two-phase write for {purpose.value} of {target.path}"
            return problem, f"Use what it has ({', '.join(sorted(known.value for known in offered)) or 'nothing'})"
        return None

    # -- overwrites ----------------------------------------------------------------------------------------------

    def carried_scope(
        self, facts: TableFacts, static: Mapping[str, str | None], options: Mapping[str, str]
    ) -> OverwriteScope | None:
        """The scope of an overwrite that Spark cannot hand to a V1 write itself; None where it can.

        Tables with a Hive SerDe always replace only the partitions that they write. For others the statement's option
        counts before the table's own, and that before the session's: as in Spark itself. In a session's dynamic mode
        Spark makes *every* overwrite of a v2 table a dynamic one.
        """
        named = {column.lower() for column in static}
        is_open = any(column.lower() not in named for column in facts.partition_columns)
        configured = self.names.setting(_OVERWRITE_MODE).lower()
        is_dynamic = is_open and (facts.provider == "hive" or _overwrite_mode(facts, options, configured) == "dynamic")
        return OverwriteScope(dict(static), dynamic=is_dynamic) if is_dynamic or configured == "dynamic" else None


class Streams:
    """Tables that streaming queries of one session read, and that twophase has not moved yet.

    Parameters
    ----------
    handle : Handle
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        #: Where the files of each table are.
        self._places: dict[ObjectPath, str] = {}

    def add(self, target: Target) -> None:
        """A streaming DataFrame of a table was made."""
        table = self._handle.jvm.session_table(target.path.database, target.path.name)
        self._places[target.catalog.canonical(target.path)] = str(table.location().toString())

    def reads(self, target: Target) -> bool:
        """Whether a query that runs reads a table, as far as that can be told: one may not have looked yet."""
        place = self._places.get(target.catalog.canonical(target.path)) if self._places else None
        if place is None:
            return False
        said = [query.lastProgress for query in self._handle.spark.streams.active]
        sources = [None if progress is None else [s.description for s in progress.sources] for progress in said]
        return any(found is None or any(f"[{place}]" in description for description in found) for found in sources)


def _sources(definition: TableDefinition) -> tuple[str, ...]:
    """Columns that partitions are made of, whatever the transform."""
    makes_partitions = [t for t in definition.partitioning if t.name != "cluster_by"]
    return tuple(dict.fromkeys(column for t in makes_partitions for column in t.columns))


def _overwrite_mode(facts: TableFacts, options: Mapping[str, str], configured: str) -> str:
    """How much an overwrite replaces: ``static`` or ``dynamic``."""
    for given in (options, facts.options()):
        for key, value in given.items():
            if key.lower() == "partitionoverwritemode":
                return value.lower()
    return configured


def purpose_of(node: WriteNode) -> Purpose:
    """What a parsed statement does to its target."""
    if node.kind == "insert":
        return Purpose.INSERT_OVERWRITE if node.overwrite else Purpose.INSERT_INTO
    if node.kind == "replace":
        return Purpose.CREATE_OR_REPLACE_TABLE_AS
    return Purpose.CREATE_TABLE_AS


def quoted(parts: Collection[Any]) -> str:
    """A name from its parts."""
    return ".".join(quote(str(part)) for part in parts)
