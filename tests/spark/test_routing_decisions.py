"""Which statement is whose, decided without a JVM: what a name means is asked of a resolver."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from twophase.model import ObjectPath, OverwriteScope, Purpose
from twophase.spark.jvm.statements import TableFacts
from twophase.spark.routing.commands import change_of
from twophase.spark.routing.decide import Decider, Unsupported, WriteNode
from twophase.spark.routing.ownership import Owner
from twophase.spark.routing.targets import Names, Target
from twophase.spark.routing.words import leading_words

PARQUET = TableFacts("parquet", ("p", "q"))


@dataclass
class World:
    """Tables of a session catalog ``db`` that is served, and a catalog ``lake`` that is asked by its name."""

    tables: Mapping[str, TableFacts] = field(default_factory=lambda: {"t": PARQUET, "x": TableFacts("xml", ())})
    staged: frozenset[str] = frozenset()
    partitions: tuple[Mapping[str, str | None], ...] = ()
    dynamic: bool = False
    brings: bool = False
    reason: tuple[str, str] | None = None
    format: str = "textfile"

    def resolve(self, parts: tuple[str, ...], *, views: bool = False, names: Names | None = None) -> Target | None:
        if parts[0] == "vendor" or (views and parts == ("view",)):
            return None
        catalog: Any = None
        is_named = parts[0] == "lake"
        return Target(
            catalog, "lake" if is_named else "hive", ObjectPath.of("db", parts[-1]), via_session_catalog=not is_named
        )

    def existing(self, target: Target) -> TableFacts | None:
        return self.tables.get(target.path.name)

    def is_staged(self, target: Target) -> bool:
        return target.path.name in self.staged

    def has_moved(self, target: Target) -> bool:
        return False

    def can_create(self, target: Target, provider: str | None) -> bool:
        return provider in (None, "parquet", "hive")

    def can_write(self, target: Target, facts: TableFacts | None) -> bool:
        return facts is not None and facts.provider == "parquet"

    def unsupported_reason(self, target: Target, purpose: Purpose | None) -> tuple[str, str] | None:
        return self.reason

    def carried_scope(
        self, facts: TableFacts, static: Mapping[str, str | None], options: Mapping[str, str]
    ) -> OverwriteScope | None:
        return OverwriteScope(dict(static), dynamic=True) if self.dynamic else None

    def partition_exists(self, target: Target, values: Mapping[str, str | None]) -> bool:
        return values in self.partitions

    def hive_format(self) -> str:
        return self.format


CREATE = WriteNode("create", "CreateTableAsSelect", ("n",))
INSERT = WriteNode("insert", "InsertIntoStatement", ("t",))
OVERWRITE = replace(INSERT, overwrite=True)


@pytest.mark.parametrize(
    ("node", "owner"),
    [
        (CREATE, Owner.OURS),
        (replace(CREATE, provider="xml"), Owner.SPARK),
        (replace(CREATE, parts=("vendor", "n")), Owner.SPARK),
        (replace(CREATE, parts=("lake", "db", "n"), provider="xml"), Owner.OURS),  # its catalog refuses it
    ],
)
def test_a_new_table_is_ours_by_its_name_and_format(node: WriteNode, owner: Owner) -> None:
    routed, decision = Decider(World()).create(node)
    assert routed.owner is owner
    assert (decision is not None) is (owner is Owner.OURS)


def test_a_row_format_gets_the_default_of_the_session_or_is_refused() -> None:
    node = replace(CREATE, provider="hive", delimited=True)
    decision = Decider(World()).create(node)[1]
    assert decision is not None
    assert decision.stored_as == "TEXTFILE"
    with pytest.raises(Unsupported, match="ROW FORMAT"):
        Decider(World(format="orc")).create(node)


@pytest.mark.parametrize(
    ("name", "owner"), [("t", Owner.OURS), ("x", Owner.SPARK), ("view", Owner.SPARK), ("no", Owner.NOT_FOUND)]
)
def test_an_insert_into_a_published_table_is_left_until_spark_has_analysed_it(name: str, owner: Owner) -> None:
    routed, decision = Decider(World()).write(replace(INSERT, parts=(name,)))
    assert routed.owner is owner
    assert decision is None


def test_an_insert_into_a_staged_table_or_one_of_a_named_catalog_or_with_columns_is_routed_by_name() -> None:
    world = World(staged=frozenset({"t"}))
    assert Decider(world).write(INSERT)[1] is not None
    assert Decider(World()).write(replace(INSERT, brings_columns=True))[1] is not None
    assert Decider(World()).write(replace(INSERT, parts=("lake", "db", "t")))[1] is not None
    assert Decider(world).write(replace(INSERT, replaces_rows=True))[1] is None


def test_a_dynamic_overwrite_says_what_it_replaces() -> None:
    decision = Decider(World(staged=frozenset({"t"}), dynamic=True)).write(OVERWRITE)[1]
    assert decision is not None
    assert decision.scope == OverwriteScope({}, dynamic=True)
    frame = WriteNode("write", "OverwritePartitionsDynamic", ("t",), overwrite=True)
    decision = Decider(World()).write(frame)[1]
    assert decision is not None
    assert decision.scope == OverwriteScope(dynamic=True)


@pytest.mark.parametrize(
    ("partition", "named", "fits"),
    [
        ({}, (), True),
        ({"p": "1"}, ("p", "q"), True),
        ({"P": "1", "q": "2"}, ("P", "q"), True),
        ({"q": "1"}, ("p", "q"), False),
        ({"p": "1"}, ("p",), False),
        ({"p": ""}, ("p", "q"), False),
    ],
)
def test_a_partition_clause_of_a_staged_table_is_one_that_spark_takes_of_its_own(
    partition: dict[str, str | None], named: tuple[str, ...], fits: bool
) -> None:
    node = replace(INSERT, partition=partition, partition_columns=named)
    decider = Decider(World(staged=frozenset({"t"})))
    if fits:
        assert decider.write(node)[1] is not None
    else:
        with pytest.raises(Unsupported, match="PARTITION"):
            decider.write(node)


def test_a_partition_clause_that_names_another_column_is_told_which_ones_there_are() -> None:
    node = replace(INSERT, partition={"day": "1"}, partition_columns=("day",))
    with pytest.raises(Unsupported, match="names day, which `t` is not partitioned by") as refused:
        Decider(World(staged=frozenset({"t"}))).write(node)
    assert refused.value.hint == "Name its partition columns: p, q"
    flat = World(tables={"t": TableFacts("parquet", ())}, staged=frozenset({"t"}))
    with pytest.raises(Unsupported, match="is not partitioned by") as refused:
        Decider(flat).write(node)
    assert refused.value.hint == "Leave PARTITION out"


def test_if_not_exists_writes_nothing_where_the_partition_is_there() -> None:
    partition: dict[str, str | None] = {"p": "1", "q": "2"}
    node = replace(OVERWRITE, partition=partition, partition_columns=("p", "q"), if_not_exists=True)
    for there in (False, True):
        world = World(partitions=(partition,) if there else ())
        target = world.resolve(("t",))
        assert target is not None
        assert Decider(world).insert(node, target, PARQUET) is not there
        decision = Decider(replace(world, staged=frozenset({"t"}))).write(node)[1]
        assert decision is not None
        assert decision.writes_nothing is there


def test_what_prevents_a_write_is_reported_with_what_helps() -> None:
    world = World(reason=("a query reads it", "Stop the query"))
    target = world.resolve(("t",))
    assert target is not None
    for decide in (
        lambda: Decider(world).create(CREATE),
        lambda: Decider(world).insert(INSERT, target, PARQUET),
        lambda: Decider(world).write(WriteNode("write", "AppendData", ("t",))),
    ):
        with pytest.raises(Unsupported, match="a query reads it") as caught:
            decide()
        assert caught.value.hint == "Stop the query"


def test_in_a_transaction_a_command_that_is_not_known_is_refused() -> None:
    assert change_of("SomethingNew", temporary=False) is not None
    assert change_of("DropTable", temporary=False) is not None
    assert change_of("CreateFunction", temporary=False) is not None
    assert change_of("CreateFunction", temporary=True) is None
    for node in ("ShowTables", "DescribeRelation", "SetCommand", "CacheTable", "CreateView"):
        assert change_of(node, temporary=False) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("insert into t", ("INSERT", "INTO")),
        ("  -- one\n /* two /* nested */ */ ((select *))", ("SELECT",)),
        ("/*+ hint */ select", ()),
        ("/* never closed", ()),
        ("SHOW\tTABLES IN x", ("SHOW", "TABLES")),
        ("", ()),
    ],
)
def test_the_first_words_of_a_statement_are_found_past_comments(text: str, expected: tuple[str, ...]) -> None:
    assert leading_words(text, 2) == expected


@pytest.mark.promise("routing", "a long statement costs no memory beyond itself")
@pytest.mark.parametrize("quote", ["'", '"', "`", "$$", "/*", "--"])
def test_a_long_statement_costs_no_memory(quote: str) -> None:
    text = f"SELECT {quote}{'x' * 1_000_000}{quote}"
    tracemalloc.start()
    try:
        assert leading_words(text, 2)[0] == "SELECT"
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
