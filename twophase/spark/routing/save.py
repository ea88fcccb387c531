"""``DataFrameWriter.saveAsTable``: before 4.2 Spark drops the table before there is a plan for the rules.

A table that is created or replaced is passed to Spark's own method under its full name in the twophase catalog. An
append to an existing one is left to Spark, whose plan is routed; so is a call that Spark refuses with its own error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from twophase.catalog.schema_changes import merges_always
from twophase.errors import CatalogError
from twophase.model import Purpose
from twophase.spark.jvm.formats import has_source
from twophase.spark.jvm.gateway import private_name
from twophase.spark.jvm.statements import TableFacts
from twophase.spark.jvm.writers import WriterFacts, qualified, quoted_partitions, writer_facts
from twophase.spark.routing.ownership import Owner, RoutingDecision
from twophase.spark.routing.router import Router
from twophase.spark.routing.targets import Target
from twophase.spark.write_hints import carrying_hints, merges_schema

#: The format of a writer that was given none, whatever the session's default; the same for a twophase catalog.
_PLAIN = "parquet"
_SPARKS_OWN = frozenset({_PLAIN, "orc", "csv", "json", "text", "avro", "jdbc"})

Save = Callable[[str], None]


def save_as_table(router: Router, writer: Any, save: Save, name: str) -> None:
    """Run ``saveAsTable`` of a writer that has been given everything but the name."""
    facts = writer_facts(router.session.jvm, writer._jwrite)
    routed = _routed(router, facts, name)
    target = routed.ours
    if routed.target is not None and routed.owner is Owner.NOT_FOUND:
        _run(router, routed.target, facts, lambda: save(name))
    elif target is None:
        router.stays_outside(name)
        save(name)
    elif not target.via_session_catalog:
        with _in_a_known_format(router, writer, target, facts.source):
            _run(router, target, facts, lambda: save(target.name))
    elif (
        routed.facts is not None and facts.mode != "Overwrite" and not _is_by_name(router, target, facts, routed.facts)
    ):
        if facts.mode != "Ignore":  # Spark then does not even read the rows.
            _run(router, target, facts, lambda: save(name))
    else:
        if routed.facts is not None and facts.mode == "Append" and router.targets.redefined(target) is not None:
            _require_fit(router, target, facts, writer._df.columns)
        with quoted_partitions(router.spark, writer._jwrite, facts.partition_columns):
            _run(router, target, facts, lambda: save(target.name), lambda: save(name))


def _is_by_name(router: Router, target: Target, facts: WriterFacts, table: TableFacts) -> bool:
    """Whether an existing session table is written under its full name in the twophase catalog."""
    if router.targets.redefined(target) is not None or _brings(facts):
        return True
    return facts.mode == "Append" and merges_always(table.properties)


def _brings(facts: WriterFacts) -> bool:
    return facts.mode == "Append" and merges_schema(facts.options)


def insert_into(router: Router, writer: Any, insert: Save, name: str) -> None:
    """Run ``DataFrameWriter.insertInto``: its plan is routed, but Spark needs a known format in any case."""
    with private_name("DataFrameWriter.source", router.spark):
        source = str(writer._jwrite.source())
    parts = router.parts(name) if source.lower() not in _SPARKS_OWN else None
    target = router.targets.resolve(parts, views=True) if parts else None
    is_named = target is not None and not target.via_session_catalog
    with _in_a_known_format(router, writer, target, source) if target and is_named else nullcontext():
        context = router.spark.sparkContext
        brings = merges_schema(writer_facts(router.session.jvm, writer._jwrite).options)
        with carrying_hints(context, {}, brings_columns=True) if brings else nullcontext():
            router.write(lambda: insert(name))


def _run(
    router: Router, target: Target, facts: WriterFacts, run: Callable[[], None], stock: Callable[[], None] | None = None
) -> None:
    options = {target.path: facts.options}
    with carrying_hints(
        router.spark.sparkContext,
        options,
        session_table=target.via_session_catalog,
        brings_columns=_brings(facts),
    ):
        router.write(run, instead=stock)


@contextmanager
def _in_a_known_format(router: Router, writer: Any, target: Target, source: str) -> Iterator[None]:
    """Clear a writer's format if only the catalog knows it: Spark looks for its data source in any case.

    Raises
    ------
    CatalogError
        Neither Spark nor the catalog knows it.
    """
    name = source.lower()
    if name in _SPARKS_OWN:
        yield
        return
    known = target.catalog.capabilities.providers
    if name not in known:
        if not has_source(router.spark, source):
            raise CatalogError(
                f"{target.name} was not written: neither Spark nor catalog {target.catalog.name} has a format "
                f"{source}; nothing was started.",
                path=target.path,
                hint=f"Leave format(...) out{''.join(f', or write format({one!r})' for one in sorted(known))}.",
            )
        yield
        return
    try:
        yield writer.format(_PLAIN)
    finally:
        writer.format(source)


def _routed(router: Router, facts: WriterFacts, name: str) -> RoutingDecision:
    """Decide the owner of a ``saveAsTable``, which may write an existing table or create one."""
    parts = router.parts(name)
    routed = router.ownership.of_existing(parts, views=False) if parts else RoutingDecision(Owner.SPARK)
    target, existing = routed.target, routed.facts
    if not parts or target is None or not target.via_session_catalog:
        return routed
    if existing is not None and existing.provider is None:  # a view, which Spark drops or refuses
        return RoutingDecision(Owner.SPARK if facts.mode == "Overwrite" else Owner.NOT_FOUND, target, existing)
    if existing is not None and facts.mode != "Overwrite":
        return routed
    purpose = Purpose.CREATE_OR_REPLACE_TABLE_AS if facts.mode == "Overwrite" else Purpose.CREATE_TABLE_AS
    made = router.ownership.of_new(parts, facts.source)
    return made if made.ours and router.supports(target, purpose) else RoutingDecision(Owner.SPARK, target)


def _require_fit(router: Router, target: Target, facts: WriterFacts, columns: Sequence[str]) -> None:
    """Refuse an append that does not fit a table created in this transaction: Spark would check its former state.

    Raises
    ------
    AtomicityNotSupportedError
    """
    made = router.targets.redefined(target)
    assert made is not None  # called for redefined tables only
    buckets = made.bucketing
    brings = _brings(facts) or merges_always(made.properties)  # The catalog compares the columns then.
    found = (
        router.targets.names.short_name(facts.source),
        _folded(facts.partition_columns or ()),
        facts.bucketing,
        [list(router.parts(column) or ()) for column in facts.clustering_columns or ()],
        None if brings else _folded(sorted(columns)),
    )
    wanted = (
        (made.provider or router.targets.default_provider()).lower(),
        _folded(column for t in made.partitioning if t.name != "cluster_by" for column in t.columns),
        (buckets.count, buckets.columns, buckets.sort_columns) if buckets else None,
        [list(path) for path in made.clustering_columns],
        None if brings else _folded(sorted(made.schema.names)),
    )
    location = qualified(router.spark, made.location) if made.location else None
    if found != wanted or (facts.path is not None and qualified(router.spark, facts.path) != location):
        router.unprotected(
            f"its format, columns or layout are not those of {target.path} as this transaction has left it",
            hint="Append what fits that",
        )


def _folded(names: Iterable[str]) -> list[str]:
    return [name.lower() for name in names]
