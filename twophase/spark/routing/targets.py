"""The target table of a statement, and whether twophase takes the statement over.

A name is taken over if it means a table of Spark's session catalog whose format the session's twophase catalog can
write. Everything else remains Spark's: views, other formats, other catalogs, paths.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions

from twophase.catalog import Catalog, SupportsStagedAlter, SupportsStagedDrop
from twophase.errors import CatalogError, DatabaseNotExistError, TableNotExistError
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition, quote
from twophase.spark import active
from twophase.spark.attached import AttachedSession
from twophase.spark.jvm import session_state
from twophase.spark.jvm.formats import DEFAULT_FORMAT, TEXT
from twophase.spark.jvm.statements import NameReader, TableFacts
from twophase.spark.staged import is_dropped, staged_table, table_definition

SESSION_CATALOG = "spark_catalog"
#: Database of the global temporary views.
GLOBAL_VIEWS = "global_temp"
#: Changed by users of another lakehouse: its extension serves all session tables, and twophase leaves them alone.
_EXTENSION = "spark.sql.catalog.spark_catalog"
_BUILTIN = "builtin"
#: Hint: the ways to keep a table's files at their location.
STAYS = "give the table a LOCATION, or its catalog the option recipe=rename"
_LEGACY_HIVE_DEFAULT = "spark.sql.legacy.createHiveTableByDefault"
_OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"


@dataclass(frozen=True, slots=True)
class Names:
    """The context in which Spark resolves one name, as ``SessionNames.java`` gives it to a rule, or to Python."""

    facts: Mapping[str, Any]

    @property
    def current_catalog(self) -> str:
        """Name of the current catalog; empty if Spark cannot load it."""
        return str(self.facts["current_catalog"])

    @property
    def current_namespace(self) -> tuple[str, ...]:
        """The current namespace of the current catalog."""
        return tuple(self.facts["current_namespace"])

    @property
    def current_database(self) -> str:
        """The current database of the session catalog."""
        return str(self.facts["current_database"])

    @property
    def is_catalog(self) -> bool:
        """Whether a catalog has the name's first part, which is not its only one."""
        return bool(self.facts["is_catalog"])

    @property
    def is_temporary_view(self) -> bool:
        """Whether the name is that of a temporary view, without a database."""
        return bool(self.facts["is_temporary_view"])

    @property
    def extension(self) -> str:
        """The session's setting of what serves its session catalog."""
        return str(self.facts["extension"])


@dataclass(frozen=True, slots=True)
class Target:
    """A twophase table that a statement writes.

    Attributes
    ----------
    catalog : Catalog
    catalog_name : str
        The catalog's name in the session.
    path : ObjectPath
    via_session_catalog : bool
        Whether the catalog's name must be prepended; False if Spark finds the catalog anyway, because the user wrote
        its name or said USE.
    """

    catalog: Catalog
    catalog_name: str
    path: ObjectPath
    via_session_catalog: bool = True

    @property
    def name(self) -> str:
        """The full name, quoted."""
        return quoted((self.catalog_name, *self.path.to_document()))


def session_catalog(session: AttachedSession, extension: str | None = None) -> Catalog | None:
    """The catalog that serves unprefixed names; None if that is off or another extension serves them.

    Parameters
    ----------
    session : AttachedSession
    extension : str, optional
        The session's setting for other extensions, if the caller knows it.
    """
    name = session.catalogs.session_name
    if name is None:
        return None
    if extension is None:
        extension = session.spark.conf.get(_EXTENSION, _BUILTIN)
    return session.catalogs.named(name) if extension == _BUILTIN else None


class Targets:
    """Resolves names for one attached session."""

    def __init__(self, session: AttachedSession) -> None:
        self._session = session
        self.names = NameReader(session.jvm)
        self.streams = Streams(session)

    # -- names ---------------------------------------------------------------------------------------------------

    @property
    def session_catalog(self) -> Catalog | None:
        """As the function of that name."""
        return session_catalog(self._session)

    def resolve(self, parts: tuple[str, ...], *, views: bool = False, names: Names | None = None) -> Target | None:
        """The table that a name means; None if it is outside twophase.

        Parameters
        ----------
        parts : tuple of str
            The name as written in the statement.
        views : bool
            Whether a temporary view of that name takes precedence (for inserts and reads, not for CREATE).
        names : Names, optional
            The context of the name; that of the session when None.
        """
        if len(parts) > 1 and parts[0] in self._session.catalogs:
            return self._named(parts[0], parts[1:])
        if not all(parts):
            return None
        names = names or Names(self.names.context(parts))
        if views and _is_temporary_view(parts, names):
            return None
        if len(parts) == 3 and parts[0].lower() == SESSION_CATALOG:
            return self.in_session(ObjectPath.of(*parts[1:]), names.extension)
        current = names.current_catalog
        if current in self._session.catalogs:
            return self._in_current(current, parts, names)
        if current != SESSION_CATALOG or len(parts) > 2 or _is_elsewhere(parts, names):
            return None
        path = ObjectPath.of(*(parts if len(parts) == 2 else (names.current_database, *parts)))
        return self.in_session(path, names.extension)

    def in_session(self, path: ObjectPath, extension: str | None = None) -> Target | None:
        """A table of the session catalog; None if twophase does not serve it.

        Parameters
        ----------
        path : ObjectPath
        extension : str, optional
            Spark's setting of what serves its session catalog, if the caller knows it.
        """
        catalog = session_catalog(self._session, extension)
        return Target(catalog, self._session.catalogs.name_of(catalog), path) if catalog else None

    def _named(self, catalog: str, parts: tuple[str, ...]) -> Target:
        """A table that Spark finds in a twophase catalog by the name as written."""
        return Target(self._session.catalogs.named(catalog), catalog, ObjectPath.of(*parts), via_session_catalog=False)

    def _in_current(self, catalog: str, parts: tuple[str, ...], names: Names) -> Target | None:
        """A table after ``USE catalog``: Spark itself finds it by the name as written."""
        if len(parts) > 1:
            return None if names.is_catalog else self._named(catalog, parts)
        namespace = names.current_namespace
        return self._named(catalog, (*namespace, *parts)) if namespace else None

    @property
    def in_transaction(self) -> bool:
        """Whether a ``with twophase.transaction(spark)`` is around this thread's statement; free if none is open."""
        return active.any_open() and active.current_transaction(self._session) is not None

    # -- tables --------------------------------------------------------------------------------------------------

    def existing(self, target: Target) -> TableFacts | None:
        """Provider and partition columns of a table, staged in the surrounding transaction or published."""
        if self.is_dropped(target):
            return None
        staged = self.staged_definition(target)
        if staged is not None:
            provider = (staged.provider or self.default_provider()).lower()
            return TableFacts(provider, _sources(staged), staged.options, staged.properties)
        if target.catalog_name == self._session.catalogs.session_name:
            return self.names.table(target.path.database, target.path.name)
        return self._loaded(target)

    def _loaded(self, target: Target) -> TableFacts | None:
        try:
            definition = target.catalog.load_table(target.path)
        except (TableNotExistError, DatabaseNotExistError):
            return None
        return TableFacts(definition.provider or "", _sources(definition), definition.options)

    def staged_definition(self, target: Target) -> TableDefinition | None:
        """The definition that the surrounding transaction staged for a table."""
        if not self.is_staged(target):
            return None
        return table_definition(active.current_transaction(self._session), target.catalog, target.path)

    def require_managed(self, target: Target) -> None:
        """Refuse a table whose rows are not Spark's to remove.

        Raises
        ------
        CatalogError
        """
        definition = self.staged_definition(target) or target.catalog.load_table(target.path)
        if definition.external:
            raise CatalogError(
                f"{target.path} is an EXTERNAL table, which TRUNCATE TABLE does not empty.",
                path=target.path,
                hint="Write INSERT OVERWRITE, with a query of no rows.",
            )

    def is_dropped(self, target: Target) -> bool:
        """Return whether the surrounding transaction drops a table."""
        transaction = active.current_transaction(self._session) if self.in_transaction else None
        return is_dropped(transaction, target.catalog, target.path)

    def drops(self, target: Target) -> bool:
        """Return whether a table can be dropped as a part of a transaction; or there is none, which Spark reports."""
        if not target.via_session_catalog:
            return True  # The catalog itself decides.
        if not isinstance(target.catalog, SupportsStagedDrop):
            return False
        facts = self.existing(target)
        return facts is None or facts.provider is None or self.can_write(target, facts)

    def alters(self, target: Target) -> bool:
        """Return whether a session table can be altered as a part of a transaction."""
        if not target.via_session_catalog or not isinstance(target.catalog, SupportsStagedAlter):
            return False
        return self.is_staged(target) or self.can_write(target, self.existing(target))

    def is_staged(self, target: Target) -> bool:
        """Return whether the surrounding transaction has written a table."""
        return staged_table(self._session, target.catalog, target.path) is not None

    def partition_exists(self, target: Target, values: Mapping[str, str | None]) -> bool:
        """Return whether a partition, given by a value for each column, exists: published or staged.

        Of what the surrounding transaction alone sees, a snapshot or what it has staged, only the rows can be found.
        """
        if self.is_staged(target) or self.has_moved(target):
            return self.has_rows(target, values)
        return self.names.partition_exists(target.path.database, target.path.name, values)

    def has_moved(self, target: Target) -> bool:
        """Return whether the surrounding transaction reads a table in another state than the published one."""
        transaction = active.current_transaction(self._session) if self.in_transaction else None
        if transaction is None or not transaction.isolation.pins_reads:
            return False
        version = target.catalog.table_version(target.path)
        return version is not None and transaction.has_moved(target.catalog, target.path, version)

    def existing_partition(
        self, target: Target, facts: TableFacts, values: Mapping[str, str | None]
    ) -> dict[str, str | None]:
        """The columns of a PARTITION clause as the table spells them, with their values.

        Raises
        ------
        CatalogError
            They are not the table's first partition columns, or there is no such partition.
        """
        by_column = {column.lower(): value for column, value in values.items()}
        named = [column for column in facts.partition_columns[: len(by_column)] if column.lower() in by_column]
        if len(named) != len(values):
            columns = ", ".join(facts.partition_columns)
            raise CatalogError(
                f"PARTITION names {', '.join(values)} of {target.path}, which is "
                f"{f'partitioned by {columns}: it has to name the first of them' if columns else 'not partitioned'}.",
                path=target.path,
            )
        partition = {column: by_column[column.lower()] for column in named}
        is_whole = partition and len(partition) == len(facts.partition_columns)
        if is_whole and not self._has_partition(target, partition):
            raise CatalogError(f"{target.path} has no partition {partition}.", path=target.path)
        return partition

    def _has_partition(self, target: Target, partition: Mapping[str, str | None]) -> bool:
        """Return whether a partition exists; also one without rows, unless the surrounding transaction has made it."""
        if self.partition_exists(target, partition):
            return True
        path = target.path
        return self.redefined(target) is None and self.names.partition_exists(path.database, path.name, partition)

    def has_rows(self, target: Target, values: Mapping[str, str | None]) -> bool:
        """Return whether a table has rows in a partition, given by a value for each column as in a directory name."""
        rows = self._session.spark.table(target.name)
        for column, value in values.items():
            rows = rows.where(functions.col(quote(column)).eqNullSafe(functions.lit(value)))
        return not rows.isEmpty()

    def redefined(self, target: Target) -> TableDefinition | None:
        """The definition of a table that the surrounding transaction creates or replaces; otherwise None."""
        transaction = active.current_transaction(self._session)
        participant = transaction.find(target.catalog.name, target.path) if transaction else None
        if transaction is None or participant is None or not transaction.member(participant).redefines:
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

    def can_create(self, target: Target, provider: str | None) -> bool:
        """Return whether twophase creates new tables of this format. SerDe tables need Hive support, as in Spark."""
        name = self.names.short_name(provider) if provider else self.default_provider()
        if name == "hive" and self.names.setting("spark.sql.catalogImplementation") != "hive":
            return False
        return name in self.providers(target.catalog)

    def can_write(self, target: Target, facts: TableFacts | None) -> bool:
        """Return whether twophase writes an existing table."""
        return facts is not None and facts.provider is not None and facts.provider in self.providers(target.catalog)

    def unsupported_reason(self, target: Target, purpose: Purpose | None) -> tuple[str, str] | None:
        """The reason why a write cannot be made atomic, and a hint; None if it can.

        Without a purpose, the catalog itself raises if it cannot.
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
        """The scope of an overwrite that Spark itself cannot pass to a V1 write; None if it can.

        Tables with a Hive SerDe always replace only the partitions that they write. For others the statement's option
        overrides the table's own, and that overrides the session's, as in Spark itself. In a session's dynamic mode
        Spark makes *every* overwrite of a v2 table a dynamic one.
        """
        named = {column.lower() for column in static}
        is_open = any(column.lower() not in named for column in facts.partition_columns)
        configured = self.names.setting(_OVERWRITE_MODE).lower()
        is_dynamic = is_open and (facts.provider == "hive" or _overwrite_mode(facts, options, configured) == "dynamic")
        return OverwriteScope(dict(static), dynamic=is_dynamic) if is_dynamic or configured == "dynamic" else None


class Streams:
    """Tables read by streaming queries of one session, and not yet moved by twophase."""

    def __init__(self, session: AttachedSession) -> None:
        self._session = session
        #: The location of each table's files.
        self._places: dict[ObjectPath, str] = {}

    def add(self, target: Target) -> None:
        """Register the table of a new streaming DataFrame."""
        table = session_state.session_table(self._session.jvm, target.path.database, target.path.name)
        self._places[target.catalog.canonical(target.path)] = str(table.location().toString())

    def reads(self, target: Target) -> bool:
        """Return whether a running query reads a table, as far as known: a query may not have read anything yet."""
        place = self._places.get(target.catalog.canonical(target.path)) if self._places else None
        if place is None:
            return False
        reports = [query.lastProgress for query in self._session.spark.streams.active]
        sources = [None if progress is None else [s.description for s in progress.sources] for progress in reports]
        return any(texts is None or any(f"[{place}]" in text for text in texts) for texts in sources)


def _is_elsewhere(parts: tuple[str, ...], names: Names) -> bool:
    """Return whether the first of two parts is not a database of the session catalog."""
    return len(parts) == 2 and (parts[0].lower() == GLOBAL_VIEWS or names.is_catalog)


def _is_temporary_view(parts: tuple[str, ...], names: Names) -> bool:
    if len(parts) == 1:
        return names.is_temporary_view
    return len(parts) == 2 and parts[0].lower() == GLOBAL_VIEWS


def _sources(definition: TableDefinition) -> tuple[str, ...]:
    """The source columns of the partitions, whatever the transform."""
    makes_partitions = [t for t in definition.partitioning if t.name != "cluster_by"]
    return tuple(dict.fromkeys(column for t in makes_partitions for column in t.columns))


def _overwrite_mode(facts: TableFacts, options: Mapping[str, str], configured: str) -> str:
    """The mode of an overwrite: ``static`` or ``dynamic``."""
    for source in (options, facts.options):
        for key, value in source.items():
            if key.lower() == "partitionoverwritemode":
                return value.lower()
    return configured


def quoted(parts: Collection[Any]) -> str:
    """A name from its parts."""
    return ".".join(quote(str(part)) for part in parts)
