"""The transactions that the crash matrices run, by catalog, alone or two side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.crash.scenario import NEW, OLD, Scenario, Statement, named
from twophase.model import Isolation, OverwriteScope, Purpose

_OLD = tuple(OLD)
_CREATE, _REPLACE = Purpose.CREATE_TABLE_AS, Purpose.REPLACE_TABLE_AS
_INSERT, _OVERWRITE = Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE

_DROP, _ALTER = Purpose.DROP_TABLE, Purpose.ALTER_TABLE


def concurrent(one: str, other: str) -> list[Scenario]:
    """Two blocks side by side, over two tables."""
    before = {one: tuple(OLD), other: tuple(OLD)}
    overwrite = OverwriteScope()
    append, more = (Statement(one, Purpose.INSERT_INTO, rows) for rows in (tuple(NEW), ((7, "r"),)))
    write = Statement(one, Purpose.INSERT_OVERWRITE, overwrite=overwrite)
    rival = Statement(one, Purpose.INSERT_OVERWRITE, ((7, "r"),), overwrite=overwrite)
    elsewhere = replace(rival, table=other)
    snapshot, serializable = Isolation.SNAPSHOT, Isolation.SERIALIZABLE
    return [
        Scenario(
            "two blocks overwrite a table", (write,), {one: tuple(OLD)}, isolation=snapshot, rival=rival, conflicts=True
        ),
        Scenario(
            "two blocks overwrite a table, and the rows of both are merged",
            (write,),
            {one: tuple(OLD)},
            isolation=snapshot,
            rival=rival,
            merged=(*NEW, (7, "r")),
        ),
        Scenario(
            "a block reads what another one overwrites",
            (write,),
            before,
            isolation=snapshot,
            reads=other,
            rival=elsewhere,
        ),
        Scenario("two blocks append", (append,), {one: tuple(OLD)}, isolation=serializable, rival=more),
        Scenario(
            "a serializable block reads what another one overwrites",
            (write,),
            before,
            isolation=serializable,
            reads=other,
            rival=elsewhere,
            # The rival has read nothing: it comes after the block, and is published before it.
            conflicts=True,
        ),
    ]


def _dropping(catalog: str) -> list[Scenario]:
    """Blocks that drop a table of a catalog."""
    one, other = f"{catalog}.t", f"{catalog}.u"
    drop, create = Statement(one, _DROP), Statement(other, _CREATE)
    return [
        Scenario("drop", (drop,), {one: _OLD}),
        Scenario("insert then drop", (Statement(one, _INSERT), drop), {one: _OLD}),
        Scenario("create then drop", (create, Statement(other, _DROP), Statement(one, _INSERT)), {one: _OLD}),
        Scenario("drop and create", (drop, create), {one: _OLD}),
        Scenario("drop then create", (Statement(one, _DROP, anew=True), Statement(one, _CREATE)), {one: _OLD}),
        Scenario("another writer comes before the publish of a drop", (drop, create), {one: _OLD}, other_writer=other),
    ]


def _altering(catalog: str) -> list[Scenario]:
    """Blocks that alter a table of a catalog: an existing one, and one that they have created."""
    one, other = f"{catalog}.t", f"{catalog}.u"
    alter, more = Statement(one, _ALTER), Statement(one, _INSERT, ((9,),), narrow=True)
    return [
        Scenario("alter", (alter,), {one: _OLD}),
        Scenario("alter then insert", (alter, more), {one: _OLD}),
        Scenario("create then alter", (Statement(other, _CREATE), Statement(other, _ALTER), alter), {one: _OLD}),
        Scenario(
            "another writer comes before the publish of an alter",
            (alter, Statement(other, _CREATE), more),
            {one: _OLD},
            other_writer=other,
        ),
    ]


def _for_another(table: str, other: str) -> tuple[Statement, ...]:
    """The statements that drop a table, and give its name to another one."""
    return Statement(table, _DROP, anew=True), Statement(other, _DROP, renames=table)


def _renaming(catalog: str) -> list[Scenario]:
    """Blocks that rename a table of a catalog; the first one drops another table by the name that it gives to it."""
    one, other, third, fourth = (f"{catalog}.{name}" for name in "tuvw")
    rename = Statement(one, _DROP, renames=other)
    return [
        Scenario(
            "drop then rename",
            (*_for_another(one, other), Statement(third, _DROP, renames=fourth), Statement(fourth, _DROP)),
            {one: _OLD, other: tuple(NEW), third: _OLD},
        ),
        Scenario("another writer comes before the publish of a rename", (rename,), {one: _OLD}, other_writer=other),
    ]


def _exchanging(catalog: str, *more: Statement) -> list[Scenario]:
    """Blocks that give names that tables have left to others; in the first one more follows."""
    one, other, aside = (f"{catalog}.{name}" for name in "tuv")
    moves = [(one, aside), (other, one), (aside, other)]
    exchange = tuple(Statement(old, _DROP, renames=new) for old, new in moves)
    before = {one: _OLD, other: tuple(NEW)}
    return [
        Scenario("exchange names", (*exchange, *more), before),
        Scenario("another writer comes before the publish of an exchange", exchange, before, other_writer=aside),
    ]


def _replacing(catalog: str) -> Scenario:
    """A block that creates a table by a name that another one has left."""
    one, other = f"{catalog}.t", f"{catalog}.u"
    steps = (Statement(one, _DROP, renames=other), Statement(one, _CREATE), Statement(one, _INSERT, ((7, "r"),)))
    return Scenario("rename then create", steps, {one: _OLD})


def _with_rows(catalog: str) -> list[Scenario]:
    """Blocks that add rows to a table that they have renamed, overwrite it, or drop it."""
    one, other, third = (f"{catalog}.{name}" for name in "tuv")
    rename, insert = Statement(one, _DROP, renames=other), Statement(other, _INSERT)
    overwrite = Statement(other, _OVERWRITE, ((8, "z"),), overwrite=OverwriteScope())
    drop = (rename, Statement(third, _DROP, renames=one), Statement(other, _DROP))
    return [
        Scenario("rename then insert", (rename, insert, Statement(other, _INSERT, ((7, "r"),))), {one: _OLD}),
        Scenario("rename then overwrite", (rename, insert, overwrite, insert), {one: _OLD}),
        Scenario("rename then drop", drop, {one: _OLD, third: tuple(NEW)}),
    ]


def _with_databases(catalog: str) -> list[Scenario]:
    """Blocks that create and drop a database of a catalog."""
    database, inside = f"{catalog}.a.*", f"{catalog}.a.t"
    make, remove = (Statement(database, p, ()) for p in (Purpose.CREATE_DATABASE, Purpose.DROP_DATABASE))
    drop, before = (Statement(inside, _DROP), remove), {database: (), inside: _OLD}
    return [
        Scenario("create a database", (make, Statement(inside, _CREATE)), {}),
        Scenario("drop a database", drop, before),
        Scenario("another writer comes into a dropped database", drop, before, other_writer=f"{catalog}.a.u"),
    ]


def _returning(catalog: str) -> Scenario:
    """A block that is rolled back to a savepoint: without the rows, the table and the ALTER since then."""
    one, other, third = (f"{catalog}.{name}" for name in "tuv")
    undone = (
        Statement(one, _INSERT, ((7, "y"),), undone=True),
        Statement(one, _OVERWRITE, ((8, "z"),), overwrite=OverwriteScope(), undone=True),
        Statement(other, _ALTER, undone=True),
        Statement(third, _CREATE, undone=True),
    )
    return Scenario(
        "rolled back to a savepoint",
        (Statement(one, _INSERT, read=True), *undone, Statement(one, _INSERT, ((9, "z"),)), Statement(other, _INSERT)),
        {one: _OLD, other: _OLD},
    )


def _restoring(catalog: str, kept: Mapping[str, Any]) -> list[Scenario]:
    """Restores of tables of a catalog: changed, dropped and, where it can drop, made since."""
    one, other = f"{catalog}.t", f"{catalog}.u"
    back = Statement(one, Purpose.CREATE_OR_REPLACE_TABLE_AS, restores=True, **kept)
    return [
        Scenario("restore", (back,), {one: _OLD}),
        Scenario("restore two tables", (back, replace(back, table=other)), {one: _OLD, other: _OLD}),
    ]


CHAOS = named(
    [
        Scenario("create", (Statement("one.t", _CREATE),), {}),
        Scenario("replace", (Statement("one.t", _REPLACE),), {"one.t": _OLD}),
        Scenario("insert", (Statement("one.t", _INSERT),), {"one.t": _OLD}),
        Scenario(
            "overwrite",
            (Statement("one.t", _OVERWRITE, overwrite=OverwriteScope(dynamic=True), partitioned=True),),
            {"one.t": _OLD},
        ),
        Scenario("two catalogs", (Statement("one.t", _CREATE), Statement("two.t", _REPLACE)), {"two.t": _OLD}),
        Scenario("one group", (Statement("one.t", _CREATE), Statement("one.u", _INSERT)), {"one.u": _OLD}),
        Scenario(
            "three catalogs",
            (Statement("one.t", _INSERT), Statement("two.t", _CREATE), Statement("three.t", _OVERWRITE)),
            {"one.t": _OLD, "three.t": _OLD},
        ),
        Scenario("create then insert", (Statement("one.t", _CREATE), Statement("one.t", _INSERT, ((9, "z"),))), {}),
        Scenario(
            "one statement fails inside",
            (Statement("one.t", _CREATE), Statement("two.t", _INSERT, fails=True)),
            {"two.t": _OLD},
        ),
        Scenario(
            "another writer comes before the first publish", (Statement("one.t", _CREATE),), {}, other_writer="one.t"
        ),
        Scenario(
            "another writer comes before the second publish",
            (Statement("one.t", _REPLACE), Statement("two.t", _CREATE)),
            {"one.t": _OLD},
            other_writer="two.t",
        ),
        Scenario(
            "another writer comes after a group",
            (Statement("one.t", _REPLACE), Statement("one.u", _CREATE), Statement("three.t", _CREATE)),
            {"one.t": _OLD},
            other_writer="three.t",
        ),
        Scenario(
            "another writer comes and nobody can undo",
            (Statement("three.t", _REPLACE), Statement("tied.t", _CREATE)),
            {"three.t": _OLD},
            other_writer="tied.t",
        ),
        *concurrent("one.t", "two.u"),
        *_dropping("one"),
        Scenario(
            "another writer comes after a drop",
            (Statement("one.t", _DROP), Statement("two.t", _CREATE)),
            {"one.t": _OLD},
            other_writer="two.t",
        ),
        Scenario(
            "rolled back to a savepoint",
            (
                Statement("one.t", _INSERT),
                Statement("one.t", _INSERT, ((7, "y"),), undone=True),
                Statement("one.t", _OVERWRITE, ((8, "z"),), undone=True),
                Statement("two.u", _CREATE, undone=True),
                Statement("one.t", _INSERT, ((9, "z"),)),
            ),
            {"one.t": _OLD},
        ),
    ]
)

_STATIC, _DYNAMIC = OverwriteScope({"part": "b"}), OverwriteScope(dynamic=True)


def _one(name: str, purpose: Purpose, *, before: bool = True, **facts: Any) -> Scenario:
    return Scenario(name, (Statement("hive.t", purpose, **facts),), {"hive.t": _OLD} if before else {})


_CHANGED = (("3", "b"), ("4", "c"))
_MORE = ((3, 30, "b"), (4, 40, "c"))

#: What the recipe ``rename`` refuses.
HIVE_POINTER = named(
    [
        Scenario(
            "insert twice",
            (Statement("hive.t", _INSERT, read=True), Statement("hive.t", _INSERT, ((9, "z"),))),
            {"hive.t": _OLD},
        ),
        _one("insert files that bring a column", _INSERT, brings=1, rows=_MORE, scattered=True, append="files"),
        Scenario(
            "another writer comes after partitions with a new column",
            (Statement("hive.t", _INSERT, _MORE, partitioned=True, brings=1), Statement("hive.u", _CREATE)),
            {"hive.t": _OLD},
            other_writer="hive.u",
        ),
        _returning("hive"),
        *_restoring("hive", {"partitioned": True}),
        Scenario(
            "restore a dropped table",
            (Statement("hive.t", Purpose.CREATE_OR_REPLACE_TABLE_AS, partitioned=True, restores=True),),
            {},
        ),
    ]
)

HIVE = named(
    [
        _one("create", _CREATE, before=False),
        _one("create partitioned", _CREATE, before=False, partitioned=True),
        _one("create external", _CREATE, before=False, external=True),
        _one("create empty partitioned", _CREATE, before=False, partitioned=True, rows=()),
        _one("replace", _REPLACE),
        _one("replace with other columns", _REPLACE, schema_change=True, rows=_CHANGED),
        _one("replace partitioned", _REPLACE, partitioned=True),
        _one("replace partitioned with other columns", _REPLACE, partitioned=True, schema_change=True, rows=_CHANGED),
        _one("replace foreign", _REPLACE, foreign=True),
        _one("insert", _INSERT),
        _one("insert several files", _INSERT, scattered=True, append="links"),
        _one("insert a directory", _INSERT, scattered=True, append="directory"),
        _one("insert foreign", _INSERT, foreign=True),
        _one("insert external", _INSERT, external=True),
        _one("insert partitioned", _INSERT, partitioned=True),
        _one("insert foreign partitioned", _INSERT, partitioned=True, foreign=True),
        _one("insert external partitioned", _INSERT, partitioned=True, external=True),
        _one("insert new partition", _INSERT, partitioned=True, rows=((9, "z"),)),
        _one("overwrite", _OVERWRITE, overwrite=OverwriteScope()),
        _one("overwrite external", _OVERWRITE, overwrite=OverwriteScope(), external=True),
        _one("overwrite partitioned", _OVERWRITE, overwrite=OverwriteScope(), partitioned=True),
        _one("overwrite static partition", _OVERWRITE, overwrite=_STATIC, partitioned=True, rows=((3, "b"), (5, "b"))),
        _one("overwrite dynamic partitions", _OVERWRITE, overwrite=_DYNAMIC, partitioned=True),
        _one("overwrite foreign dynamic", _OVERWRITE, overwrite=_DYNAMIC, partitioned=True, foreign=True),
        _one("overwrite external dynamic", _OVERWRITE, overwrite=_DYNAMIC, partitioned=True, external=True),
        Scenario(
            "two tables",
            (Statement("hive.t", _CREATE, partitioned=True), Statement("hive.u", _REPLACE)),
            {"hive.u": _OLD},
        ),
        Scenario("create then insert", (Statement("hive.t", _CREATE), Statement("hive.t", _INSERT, ((9, "z"),))), {}),
        Scenario(
            "another writer comes after an insert",
            (Statement("hive.t", _INSERT), Statement("hive.u", _CREATE)),
            {"hive.t": _OLD},
            other_writer="hive.u",
        ),
        Scenario(
            "another writer comes before the second publish",
            (Statement("hive.t", _REPLACE), Statement("hive.u", _CREATE)),
            {"hive.t": _OLD},
            other_writer="hive.u",
        ),
        Scenario(
            "another writer comes after a create",
            (Statement("hive.t", _CREATE, partitioned=True), Statement("hive.u", _CREATE)),
            {},
            other_writer="hive.u",
        ),
        Scenario(
            "another writer comes after partitions",
            (Statement("hive.t", _REPLACE, partitioned=True), Statement("hive.u", _CREATE)),
            {"hive.t": _OLD},
            other_writer="hive.u",
            undone=False,
        ),
        Scenario(
            "another writer comes after an overwrite",
            (
                Statement("hive.t", _OVERWRITE, overwrite=_DYNAMIC, partitioned=True),
                Statement("hive.u", _CREATE),
            ),
            {"hive.t": _OLD},
            other_writer="hive.u",
        ),
        *concurrent("hive.t", "hive.u")[:3],
        *(scenario for scenario in _dropping("hive") if scenario.name != "drop and create"),
        _one("insert that brings a column", _INSERT, brings=1, rows=_MORE),
        _one("drop partitioned", _DROP, partitioned=True),
        _one("drop foreign", _DROP, foreign=True),
    ]
)


HIVE_DATABASES = named(
    [
        *_with_databases("hive"),
        Scenario(
            "another writer comes after a database",
            (*_with_databases("hive")[0].statements, Statement("hive.u", _CREATE)),
            {},
            other_writer="hive.u",
        ),
    ]
)

#: Undoes of a transaction.
HIVE_UNDOES = named(
    [
        Scenario(
            "undo",
            (Statement("hive.t", Purpose.CREATE_OR_REPLACE_TABLE_AS, _OLD), Statement("hive.u", _DROP)),
            {"hive.t": _OLD},
            undoes=(Statement("hive.t", _REPLACE), Statement("hive.u", _CREATE)),
        )
    ]
)

#: Of tables that exist before: what a block has made is altered by the statements that make tables.
HIVE_RENAMES = named(
    [
        *_renaming("hive"),
        *_exchanging("hive"),
        _replacing("hive"),
        Scenario(
            "another writer comes after an exchange",
            (
                Statement("hive.t", _DROP, renames="hive.s"),
                Statement("hive.u", _DROP, renames="hive.t"),
                Statement("hive.s", _DROP),
                Statement("hive.v", _CREATE),
            ),
            {"hive.t": _OLD, "hive.u": tuple(NEW)},
            other_writer="hive.v",
        ),
        Scenario(
            "another writer comes after a drop and a rename",
            (*_for_another("hive.t", "hive.u"), Statement("hive.v", _CREATE)),
            {"hive.t": _OLD, "hive.u": tuple(NEW)},
            other_writer="hive.v",
        ),
    ]
)

HIVE_ALTERS = named(
    [
        *(scenario for scenario in _altering("hive") if scenario.name != "create then alter"),
        Scenario(
            "another writer comes after an alter",
            (Statement("hive.t", _ALTER), Statement("hive.u", _CREATE)),
            {"hive.t": _OLD},
            other_writer="hive.u",
        ),
    ]
)


def _shop(name: str, purpose: Purpose, *, before: bool = True, **facts: Any) -> Scenario:
    return Scenario(name, (Statement("shop.t", purpose, **facts),), {"shop.t": _OLD} if before else {})


_WHOLE = OverwriteScope()

JDBC = named(
    [
        _shop("create", _CREATE, before=False),
        _shop("create empty", _CREATE, before=False, rows=()),
        _shop("replace", _REPLACE),
        _shop("replace with other columns", _REPLACE, schema_change=True, rows=_CHANGED),
        _shop("insert", _INSERT),
        _shop("overwrite", _OVERWRITE, overwrite=_WHOLE),
        Scenario("two tables", (Statement("shop.t", _CREATE), Statement("shop.u", _REPLACE)), {"shop.u": _OLD}),
        Scenario(
            "two inserts",
            (Statement("shop.t", _INSERT), Statement("shop.u", _OVERWRITE, overwrite=_WHOLE)),
            {"shop.t": _OLD, "shop.u": _OLD},
        ),
        Scenario("create and insert", (Statement("shop.t", _CREATE), Statement("shop.u", _INSERT)), {"shop.u": _OLD}),
        Scenario("create then insert", (Statement("shop.t", _CREATE), Statement("shop.t", _INSERT, ((9, "z"),))), {}),
        Scenario(
            "insert twice",
            (Statement("shop.t", _INSERT), Statement("shop.t", _INSERT, ((9, "z"),))),
            {"shop.t": _OLD},
        ),
        Scenario(
            "one statement fails inside",
            (Statement("shop.t", _CREATE), Statement("shop.u", _INSERT, fails=True)),
            {"shop.u": _OLD},
        ),
        Scenario("another writer comes before the publish", (Statement("shop.t", _CREATE),), {}, other_writer="shop.t"),
        Scenario(
            "another writer comes before the publish of two",
            (Statement("shop.t", _REPLACE), Statement("shop.u", _CREATE)),
            {"shop.t": _OLD},
            other_writer="shop.u",
        ),
        *concurrent("shop.t", "shop.u")[:3],
    ]
)


JDBC_SAVEPOINTS = named([_returning("shop")])

JDBC_DROPS = named(_dropping("shop"))

JDBC_RENAMES = named([*_renaming("shop"), *_exchanging("shop"), _replacing("shop")])

#: Where a rename and rows are one transaction of the database.
JDBC_RENAMES_WITH_ROWS = named(_with_rows("shop"))

JDBC_DATABASES = named(_with_databases("shop"))

#: New columns come last in a database.
JDBC_BRINGING = named(
    [
        _shop("insert that brings a column", _INSERT, brings=2, rows=((3, "b", 30), (4, "c", 40))),
        Scenario(
            "another writer comes before the publish of a new column",
            (Statement("shop.t", _INSERT, ((3, "b", 30),), brings=2), Statement("shop.u", _CREATE)),
            {"shop.t": _OLD},
            other_writer="shop.u",
        ),
    ]
)

JDBC_ALTERS = named(
    [
        Scenario("alter", (Statement("shop.t", _ALTER),), {"shop.t": _OLD}),
        Scenario(
            "another writer comes before the publish of an alter",
            (Statement("shop.t", _ALTER), Statement("shop.u", _CREATE)),
            {"shop.t": _OLD},
            other_writer="shop.u",
        ),
    ]
)


def _lake(name: str, purpose: Purpose, *, before: bool = True, **facts: Any) -> Scenario:
    return Scenario(name, (Statement("lake.t", purpose, **facts),), {"lake.t": _OLD} if before else {})


LAKEHOUSE = named(
    [
        _lake("create", _CREATE, before=False),
        _lake("create empty", _CREATE, before=False, rows=()),
        _lake("create partitioned", _CREATE, before=False, partitioned=True),
        _lake("replace", _REPLACE),
        _lake("replace with other columns", _REPLACE, schema_change=True, rows=_CHANGED),
        _lake("insert", _INSERT),
        _lake("insert that brings a column", _INSERT, brings=1, rows=_MORE),
        _lake("overwrite", _OVERWRITE, overwrite=_WHOLE),
        _lake("overwrite one partition", _OVERWRITE, overwrite=_STATIC, partitioned=True, rows=((3, "b"),)),
        _lake("overwrite partitions", _OVERWRITE, overwrite=_DYNAMIC, partitioned=True),
        Scenario("two tables", (Statement("lake.t", _CREATE), Statement("lake.u", _REPLACE)), {"lake.u": _OLD}),
        Scenario("create and insert", (Statement("lake.t", _CREATE), Statement("lake.u", _INSERT)), {"lake.u": _OLD}),
        Scenario("create then insert", (Statement("lake.t", _CREATE), Statement("lake.t", _INSERT, ((9, "z"),))), {}),
        Scenario(
            "overwrite then insert",
            (Statement("lake.t", _OVERWRITE, overwrite=_WHOLE), Statement("lake.t", _INSERT, ((9, "z"),))),
            {"lake.t": _OLD},
        ),
        Scenario(
            "insert then overwrite",
            (Statement("lake.t", _INSERT, ((9, "z"),)), Statement("lake.t", _OVERWRITE, overwrite=_WHOLE)),
            {"lake.t": _OLD},
        ),
        Scenario(
            "one statement fails inside",
            (Statement("lake.t", _CREATE), Statement("lake.u", _INSERT, fails=True)),
            {"lake.u": _OLD},
        ),
        Scenario("another writer comes before the publish", (Statement("lake.t", _CREATE),), {}, other_writer="lake.t"),
        Scenario(
            "another writer comes before the publish of two",
            (Statement("lake.t", _REPLACE), Statement("lake.u", _CREATE)),
            {"lake.t": _OLD},
            other_writer="lake.u",
        ),
        *concurrent("lake.t", "lake.u")[:3],
    ]
)

LAKEHOUSE_ALTERS = named(_altering("lake"))

LAKEHOUSE_SAVEPOINTS = named([_returning("lake")])

#: Of an Iceberg catalog in a SQL database.
LAKEHOUSE_DROPS = named([*_dropping("lake"), *_restoring("lake", {})])
LAKEHOUSE_RENAMES = named(
    [
        *_renaming("lake"),
        *_exchanging(
            "lake",
            Statement("lake.t", _INSERT),
            Statement("lake.t", _INSERT, ((7, "r"),)),
            Statement("lake.u", _DROP),
        ),
    ]
)
LAKEHOUSE_DATABASES = named(_with_databases("lake"))

#: With a second Iceberg catalog, in a database of its own: what the first one publishes in one step is undone in one.
TWO_LAKES = named(
    [
        Scenario("two lakes", (Statement("lake.t", _REPLACE), Statement("pond.u", _CREATE)), {"lake.t": _OLD}),
        Scenario(
            "another writer comes after three tables",
            (
                Statement("lake.t", _REPLACE),
                Statement("lake.u", _CREATE),
                Statement("lake.v", _INSERT),
                Statement("pond.w", _CREATE),
            ),
            {"lake.t": _OLD, "lake.v": _OLD},
            other_writer="pond.w",
        ),
        Scenario(
            "another writer comes after create then insert",
            (
                Statement("lake.t", _CREATE),
                Statement("lake.t", _INSERT, ((9, "z"),)),
                Statement("pond.u", _CREATE),
            ),
            {},
            other_writer="pond.u",
        ),
        Scenario(
            "another writer comes after an overwrite",
            (
                Statement("lake.t", _OVERWRITE, overwrite=_DYNAMIC, partitioned=True),
                Statement("pond.u", _CREATE),
            ),
            {"lake.t": _OLD},
            other_writer="pond.u",
        ),
        Scenario(
            "another writer comes after a drop and a rename",
            (
                *_for_another("lake.t", "lake.u"),
                Statement("lake.t", _INSERT),
                Statement("lake.w", _DROP, renames="lake.x"),
                Statement("lake.x", _DROP, anew=True),  # Without PURGE: it can be undone.
                Statement("pond.v", _CREATE),
            ),
            {"lake.t": _OLD, "lake.u": tuple(NEW), "lake.w": _OLD},
            other_writer="pond.v",
        ),
        Scenario(
            "another writer comes after a drop",
            (Statement("lake.t", _DROP), Statement("pond.u", _CREATE)),
            {"lake.t": _OLD},
            other_writer="pond.u",
        ),
    ]
)
