"""The doors of the DataFrame API: ``saveAsTable``, ``insertInto`` and ``writeTo``.

Each asks what the job means to do, and hands Spark's own method the full name of the table in the twophase catalog
where the table is ours. Where Spark would refuse a statement because it does not fit the table that is there, it is
left to Spark, which then refuses it in its own words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from pyspark.sql.readwriter import DataFrameWriterV2

from twophase.errors import CatalogError
from twophase.model import ObjectPath, OverwriteScope, Purpose
from twophase.spark import live
from twophase.spark.jvm.formats import has_source
from twophase.spark.jvm.writers import (
    StoredFacts,
    WriterFacts,
    qualified,
    quoted_partitions,
    stored_facts,
    without_layout,
    writer_facts,
)
from twophase.spark.native.definition import plain_property
from twophase.spark.routing import create_text
from twophase.spark.routing.ownership import Owner, Ruling
from twophase.spark.routing.targets import Target

if TYPE_CHECKING:
    from twophase.spark.routing.router import Router

#: The format of a writer that was told none, whatever the session's default; a catalog of ours makes no difference.
_PLAIN = "parquet"
_SPARKS_OWN = frozenset({_PLAIN, "orc", "csv", "json", "text", "avro", "jdbc"})

Save = Callable[[str], None]


def save_as_table(router: Router, writer: Any, save: Save, name: str) -> None:
    """``DataFrameWriter.saveAsTable`` with everything but the name told to the writer already."""
    facts = writer_facts(router.spark, writer._jwrite)
    ruling = _ruling_of_save(router, facts, name, writer._df)
    target = ruling.ours
    if target is None:
        if ruling.owner is not Owner.NOBODY:
            router.stays_outside(name)
        save(name)
        return
    if ruling.facts is not None and facts.mode == "Ignore":
        return  # the table is there: Spark then does not even look at the rows

    def append() -> None:
        # A layout that fits was checked above; Spark's check of it does not know a sorted bucket.
        with without_layout(router.spark, writer._jwrite):
            router.insert_cast(lambda: save(target.name), writer._df, target, None, by_name=True)

    def create() -> None:
        with quoted_partitions(router.spark, writer._jwrite):
            router.create(lambda: save(target.name), lambda: create_text.of_save(target.path, facts, writer._df.schema))

    def save_elsewhere() -> None:
        with _in_a_known_format(router, writer, target, facts):
            save(target.name)

    appends = ruling.facts is not None and facts.mode == "Append"
    run = (append if appends else create) if target.spliced else save_elsewhere
    router.run(run, options={target.path: facts.options}, instead=_stock(target, lambda: save(name)))


@contextmanager
def _in_a_known_format(router: Router, writer: Any, target: Target, facts: WriterFacts) -> Iterator[None]:
    """Leave a writer's format out where only the catalog knows it: Spark looks for its data source in any case.

    Raises
    ------
    CatalogError
        Neither Spark nor the catalog knows it.
    """
    name = facts.source.lower()
    if name in _SPARKS_OWN:
        yield
        return
    known = target.catalog.capabilities.providers
    if name not in known:
        if not has_source(router.spark, facts.source):
            raise CatalogError(
                f"{target.name} was not written: neither Spark nor catalog {target.catalog.name} has a format "
                f"{facts.source}; nothing was started.",
                path=target.path,
                hint=f"Leave format(...) out{''.join(f', or write format({one!r})' for one in sorted(known))}.",
            )
        yield
        return
    try:
        yield writer.format(_PLAIN)
    finally:
        writer.format(facts.source)


def _ruling_of_save(router: Router, facts: WriterFacts, name: str, df: Any) -> Ruling:
    """Whose a ``saveAsTable`` is; it may write a table that is there, or make one."""
    parts = router.parts(name)
    ruling = router.ownership.of_existing(parts, views=False) if parts else Ruling(Owner.SPARK)
    target, existing = ruling.target, ruling.facts
    if not parts or target is None or not target.spliced:
        return ruling
    if existing is not None and facts.mode == "Ignore":
        return Ruling(Owner.OURS, target, existing)
    if existing is not None and existing.provider is None:  # a view, which Spark drops or refuses
        return Ruling(Owner.SPARK if facts.mode == "Overwrite" else Owner.NOBODY, target, existing)
    if existing is not None and facts.mode == "Append":
        if _appends(router, ruling, facts, df):
            return ruling
        if router.targets.staged_definition(target) is not None:  # Spark would look at the table as it was
            problem = f"its format, columns or layout are not those of {target.path} as this transaction has left it"
            router.unprotected(problem, hint="Append what fits that")
        return Ruling(Owner.SPARK, target, existing)
    purpose = Purpose.CREATE_OR_REPLACE_TABLE_AS if facts.mode == "Overwrite" else Purpose.CREATE_TABLE_AS
    made = router.ownership.of_new(parts, facts.source)
    return made if made.ours and router.offers(target, purpose) else Ruling(Owner.SPARK, target)


def _appends(router: Router, ruling: Ruling, facts: WriterFacts, df: Any) -> bool:
    """Whether the rows fit the table as Spark's own ``saveAsTable`` demands; it refuses what does not."""
    target, existing = ruling.ours, ruling.facts
    if target is None or existing is None or not router.offers(target, Purpose.INSERT_INTO):
        return False
    if router.targets.names.short_name(facts.source) != existing.provider:
        return False
    wanted = tuple(column.lower() for column in facts.partition_columns or ())
    if wanted != tuple(column.lower() for column in existing.partition_columns):
        return False
    stored = _stored(router, target)
    is_there = facts.path is None or qualified(router.spark, facts.path) == stored.location
    same_layout = stored.bucketing == facts.bucketing and _same_clustering(router, facts, stored)
    return _same_columns(router, stored.columns, df.columns) and same_layout and is_there


def _stored(router: Router, target: Target) -> StoredFacts:
    """The table that rows are appended to: as the surrounding transaction has made it, else as it is published."""
    made = router.targets.redefined(target)
    if made is None:
        return stored_facts(router.spark, router.handle.jvm.session_table(target.path.database, target.path.name))
    buckets, clustering = made.bucketing, made.clustering_columns
    return StoredFacts(
        tuple(made.schema.names),
        (buckets.count, buckets.columns, buckets.sort_columns) if buckets else None,
        json.dumps([list(path) for path in clustering]) if clustering else None,
        qualified(router.spark, made.location) if made.location else None,
    )


def _same_columns(router: Router, stored: Sequence[str], given: Sequence[str]) -> bool:
    """Whether each column of the table is given, once."""
    if len(stored) != len(given) or sorted(stored) == sorted(given):
        return len(stored) == len(given)
    # What is left to Spark it must refuse, or it would run unprotected: Spark's own rule tells which names are one.
    is_one = router.targets.names.same_name
    return all(sum(is_one(name, other) for other in given) == 1 for name in stored)


def _same_clustering(router: Router, facts: WriterFacts, stored: StoredFacts) -> bool:
    """Whether both say the same ``CLUSTER BY``: letter for letter, as Spark compares them."""
    if facts.clustering_columns is None or stored.clustering is None:
        return facts.clustering_columns is None and stored.clustering is None
    wanted = [list(router.parts(column) or ()) for column in facts.clustering_columns]
    return bool(wanted == json.loads(stored.clustering))


def insert_into(router: Router, writer: Any, insert: Save, name: str) -> None:
    """``DataFrameWriter.insertInto`` with its mode told to the writer already."""
    parts = router.parts(name)
    ruling = router.ownership.of_existing(parts) if parts else Ruling(Owner.SPARK)
    target, existing = ruling.ours, ruling.facts
    facts = writer_facts(router.spark, writer._jwrite) if target and existing else None
    if target is None or existing is None or facts is None or not _inserts(router, target, facts):
        if ruling.owner is not Owner.NOBODY:
            router.stays_outside(name)
        insert(name)
        return
    scope = router.targets.carried_scope(existing, {}, {}) if facts.mode == "Overwrite" else None
    overwritten = scope or (OverwriteScope() if facts.mode == "Overwrite" else None)

    def run() -> None:
        if scope:
            writer.mode("append")
        try:
            with nullcontext() if target.spliced else _in_a_known_format(router, writer, target, facts):
                router.insert_cast(lambda: insert(target.name), writer._df, target, overwritten, by_name=False)
        finally:
            writer.mode(facts.mode.lower())

    scopes = {target.path: scope} if scope else {}
    router.run(run, scopes, instead=_stock(target, lambda: insert(name)))


def _inserts(router: Router, target: Target, facts: WriterFacts) -> bool:
    if not target.spliced:
        return True
    purpose = Purpose.INSERT_OVERWRITE if facts.mode == "Overwrite" else Purpose.INSERT_INTO
    # With partitionBy Spark refuses it.
    return facts.partition_columns is None and router.offers(target, purpose)


def _stock(target: Target, run: Callable[[], None]) -> Callable[[], None] | None:
    """The way past us: there is none where the name that the job wrote is in our own catalog."""
    return run if target.spliced else None


class RoutedWriter(DataFrameWriterV2):
    """Spark's ``DataFrameWriterV2``, which learns only at its last call what it is to do.

    What the job tells it is told to Spark's writer at once, so that Spark refuses what is wrong, and kept, to be told
    again to a writer of the table in the twophase catalog where the last call is one of ours.
    """

    def __init__(self, router: Router, df: Any, table: str) -> None:
        super().__init__(df, table)
        self._router = router
        self._table = table
        self._told: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._provider: str | None = None
        self._options: dict[str, Any] = {}

    # -- what it is told -----------------------------------------------------------------------------------------

    def using(self, provider: str) -> DataFrameWriterV2:
        self._provider = provider
        return self._tell("using", provider)

    def option(self, key: str, value: Any) -> DataFrameWriterV2:
        return self.options(**{key: value})

    def options(self, **options: Any) -> DataFrameWriterV2:
        from pyspark.sql.utils import to_str

        self._options.update({key: to_str(value) for key, value in options.items() if value is not None})
        return self._tell("options", **options)

    def tableProperty(self, property: str, value: str) -> DataFrameWriterV2:  # noqa: N802
        return self._tell("tableProperty", property, value)

    def partitionedBy(self, col: Any, *cols: Any) -> DataFrameWriterV2:  # noqa: N802
        return self._tell("partitionedBy", col, *cols)

    def clusterBy(self, col: str, *cols: str) -> DataFrameWriterV2:  # noqa: N802
        return self._tell("clusterBy", col, *cols)

    def _tell(self, method: str, *args: Any, **kwargs: Any) -> DataFrameWriterV2:
        getattr(DataFrameWriterV2, method)(self, *args, **kwargs)
        self._told.append((method, args, kwargs))
        return self

    # -- what it does --------------------------------------------------------------------------------------------

    def create(self) -> None:
        self._make("create", Purpose.CREATE_TABLE_AS)

    def replace(self) -> None:
        self._make("replace", Purpose.REPLACE_TABLE_AS)

    def createOrReplace(self) -> None:  # noqa: N802
        self._make("createOrReplace", Purpose.CREATE_OR_REPLACE_TABLE_AS)

    def append(self) -> None:
        self._write("append", Purpose.INSERT_INTO)

    def overwrite(self, condition: Any) -> None:
        self._write("overwrite", Purpose.INSERT_OVERWRITE, condition)

    def overwritePartitions(self) -> None:  # noqa: N802
        self._write("overwritePartitions", Purpose.INSERT_OVERWRITE)

    @live.carried()
    def _make(self, method: str, purpose: Purpose) -> None:
        router = self._router
        parts = router.parts(self._table)
        target = router.ownership.of_new(parts, self._provider).ours if parts else None
        self._run(method, target if target and self._offers(target, purpose) else None)

    @live.carried()
    def _write(self, method: str, purpose: Purpose, *args: Any) -> None:
        router = self._router
        parts = router.parts(self._table)
        ruling = router.ownership.of_existing(parts) if parts else Ruling(Owner.SPARK)
        target, existing = ruling.ours, ruling.facts
        if ruling.owner is Owner.NOBODY:
            getattr(DataFrameWriterV2, method)(self, *args)  # Spark says that there is no such table.
        elif target is None or existing is None or not self._offers(target, purpose):
            self._run(method, None, *args)
        elif method == "overwritePartitions":
            scope = OverwriteScope(dynamic=bool(existing.partition_columns))
            self._run("append", target, scopes={target.path: scope})
        else:
            self._run(method, target, *args)

    def _offers(self, target: Target, purpose: Purpose) -> bool:
        return not target.spliced or self._router.offers(target, purpose)

    def _run(
        self, method: str, target: Target | None, *args: Any, scopes: dict[ObjectPath, OverwriteScope] | None = None
    ) -> None:
        def stock() -> None:
            getattr(DataFrameWriterV2, method)(self, *args)

        if target is None:
            self._router.stays_outside(self._table)
            stock()
            return

        def routed() -> None:
            writer = DataFrameWriterV2(self._df, target.name)
            for told, told_args, told_kwargs in self._told:
                if told == "tableProperty" and target.spliced:
                    told_args = (plain_property(told_args[0]), *told_args[1:])
                getattr(writer, told)(*told_args, **told_kwargs)
            getattr(writer, method)(*args)

        def create() -> None:
            self._router.create(routed, lambda: self._as_text(target))

        creates = target.spliced and method in ("create", "createOrReplace")
        run = create if creates else routed
        self._router.run(run, scopes, options={target.path: self._options}, instead=_stock(target, stock))

    def _as_text(self, target: Target) -> str | None:
        told = {method: columns for method, columns, _ in self._told}
        layout = (told.get("partitionedBy", ()), told.get("clusterBy", ()))
        return create_text.of_write_to(target.path, self._provider, *layout, self._df.schema)
