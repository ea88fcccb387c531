"""PyIceberg's UpdateSchema as a judge. Every disagreement is listed, with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import assign_fresh_schema_ids

from twophase.schema import (
    AddField,
    Change,
    ChangeNullability,
    ChangeType,
    DropField,
    Field,
    MoveField,
    RenameField,
    Schema,
    after,
    apply_changes,
    assign_ids,
    before,
    first,
    from_iceberg,
    to_iceberg,
    to_iceberg_document,
)
from twophase.schema.convert_iceberg import _read_leaf as read_leaf
from twophase.schema.errors import SchemaError, UnsupportedTypeError

POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])
BASE = assign_ids(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("a", pa.int32()),
            ("p", POINT),
            ("l", pa.list_(POINT)),
            ("m", pa.map_(pa.string(), POINT)),
        ]
    ),
    primary_keys=["id"],
)
ICEBERG_TYPES = (
    *("boolean", "int", "long", "float", "double", "decimal(9, 2)", "decimal(12, 2)", "decimal(12, 4)", "string"),
    *("binary", "fixed[16]", "uuid", "date", "time", "timestamp", "timestamptz"),
)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    path = tmp_path_factory.mktemp("iceberg")
    made = SqlCatalog("judge", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}")
    made.create_namespace("db")
    yield made
    made.engine.dispose()


def iceberg_type(name: str) -> Any:
    schema = to_iceberg(Schema((Field(1, "c", leaf=read_leaf(name, "c")),)))
    return schema.find_type("c")


def judge(catalog: Catalog, name: str, schema: Schema, change: Callable[[Any], Any]) -> Any:
    """What PyIceberg makes of a change; None where it refuses. Nothing is committed."""
    identifier = f"db.{name}"
    table = catalog.load_table(identifier) if catalog.table_exists(identifier) else None
    table = table or catalog.create_table(identifier, to_iceberg(schema))
    update = table.update_schema()
    try:
        change(update)
        return update._apply()
    except (ValueError, ValidationError):
        return None


def retype(name: str, target: Any, update: Any) -> None:
    update.update_column(name, field_type=target)


#: Type changes that PyIceberg lets through and that we refuse, with the reason.
LOOSER = {
    (
        "string",
        "binary",
    ): "bytes are no text: a reader that expects text fails, and the specification has no such promotion",
    ("binary", "string"): "not all bytes are text; the specification has no such promotion",
    ("fixed[16]", "uuid"): "no promotion of the specification; other engines refuse the file",
    (
        "decimal(9, 2)",
        "decimal(12, 4)",
    ): "the specification keeps the scale: the file's unscaled number would mean another value",
    ("decimal(12, 2)", "decimal(12, 4)"): "as above, and digits before the point are lost",
    ("decimal(12, 4)", "decimal(12, 2)"): "as above, and digits after the point are lost",
}


def test_the_exact_policy_and_pyiceberg_agree_on_every_pair_of_types_but_the_listed_ones(catalog: Catalog) -> None:
    disagreements = {}
    schema = Schema(tuple(Field(i, f"c{i}", leaf=read_leaf(name, "c")) for i, name in enumerate(ICEBERG_TYPES, 1)))
    for i, old in enumerate(ICEBERG_TYPES, 1):
        for new in ICEBERG_TYPES:
            if old == new:
                continue
            theirs = judge(catalog, "types", schema, partial(retype, f"c{i}", iceberg_type(new)))
            try:
                ours: Schema | None = apply_changes(schema, ChangeType(f"c{i}", read_leaf(new, "c")))
            except SchemaError:
                ours = None
            if (theirs is None) != (ours is None):
                disagreements[old, new] = "looser" if ours is None else "stricter"
    assert disagreements == dict.fromkeys(LOOSER, "looser")


AGREED: list[tuple[str, Change, Callable[[Any], Any]]] = [
    ("add", AddField("z", pa.int32()), lambda u: u.add_column("z", iceberg_type("int"))),
    ("add nested", AddField("p.z", pa.int32()), lambda u: u.add_column(("p", "z"), iceberg_type("int"))),
    (
        "add a struct",
        AddField("s", POINT),
        lambda u: u.add_column("s", to_iceberg(assign_ids(pa.schema([("s", POINT)]))).find_type("s")),
    ),
    ("drop", DropField("a"), lambda u: u.delete_column("a")),
    ("drop nested", DropField("p.x"), lambda u: u.delete_column("p.x")),
    ("drop below a list", DropField("l.element.x"), lambda u: u.delete_column("l.element.x")),
    ("rename", RenameField("a", "b"), lambda u: u.rename_column("a", "b")),
    ("rename below a map", RenameField("m.value.x", "z"), lambda u: u.rename_column("m.value.x", "z")),
    ("move first", MoveField("p", first()), lambda u: u.move_first("p")),
    ("move before", MoveField("l", before("a")), lambda u: u.move_before("l", "a")),
    ("move after, nested", MoveField("p.x", after("y")), lambda u: u.move_after("p.x", "p.y")),
    ("relax", ChangeNullability("p", True), lambda u: u.make_column_optional("p")),
    ("move across structs", MoveField("a", after("p.x")), lambda u: u.move_after("a", "p.x")),
    ("move onto itself", MoveField("a", after("a")), lambda u: u.move_after("a", "a")),
    ("unknown", DropField("zz"), lambda u: u.delete_column("zz")),
    ("drop of a key", DropField("id"), lambda u: u.delete_column("id")),
    ("NOT NULL unchecked", ChangeNullability("a", False), lambda u: u.update_column("a", required=True)),
    (
        "NOT NULL without default",
        AddField("z", pa.int32(), nullable=False),
        lambda u: u.add_column("z", iceberg_type("int"), required=True),
    ),
    ("drop of a map's value", DropField("m.value"), lambda u: u.delete_column("m.value")),
    ("drop of a map's key", DropField("m.key"), lambda u: u.delete_column("m.key")),
    ("drop of an element", DropField("l.element"), lambda u: u.delete_column("l.element")),
    ("a name that is taken", AddField("a", pa.int32()), lambda u: u.add_column("a", iceberg_type("int"))),
    ("struct to leaf", ChangeType("p", pa.int32()), lambda u: u.update_column("p", field_type=iceberg_type("int"))),
]

#: Changes on which the two disagree, with the reason.
DISAGREED: list[tuple[str, Change, Callable[[Any], Any], str]] = [
    (
        "rename of a key",
        RenameField("id", "key"),
        lambda u: u.rename_column("id", "key"),
        "FLIP-226 forbids it; Iceberg's identifier fields follow the id",
    ),
    (
        "a name in another case",
        AddField("A", pa.int32()),
        lambda u: u.add_column("A", iceberg_type("int")),
        "Spark cannot tell the two apart; Iceberg's names have cases",
    ),
    (
        "the last field of a struct",
        DropField("one.only"),
        lambda u: u.delete_column("one.only"),
        "Parquet cannot store a struct without fields",
    ),
]


@pytest.mark.parametrize(("change", "theirs"), [case[1:] for case in AGREED], ids=[case[0] for case in AGREED])
def test_pyiceberg_makes_the_same_of_a_change(catalog: Catalog, change: Change, theirs: Callable[[Any], Any]) -> None:
    judged = judge(catalog, "rules", BASE, theirs)
    try:
        ours: Schema | None = apply_changes(BASE, change)
    except SchemaError:
        ours = None
    assert (None if ours is None else ours.fields) == (None if judged is None else from_iceberg(judged).fields)


@pytest.mark.parametrize(("change", "theirs", "why"), [c[1:] for c in DISAGREED], ids=[c[0] for c in DISAGREED])
def test_what_only_we_refuse(catalog: Catalog, change: Change, theirs: Callable[[Any], Any], why: str) -> None:
    schema = apply_changes(BASE, AddField("one", pa.struct([("only", pa.int32())])))
    assert why
    assert judge(catalog, "disagreed", schema, theirs) is not None
    with pytest.raises(SchemaError):
        apply_changes(schema, change)


def test_a_new_table_is_numbered_as_pyiceberg_numbers_it() -> None:
    assert to_iceberg(BASE).as_struct() == assign_fresh_schema_ids(to_iceberg(BASE)).as_struct()


def test_pyicebergs_schema_round_trips() -> None:
    schema = Schema(
        (*BASE.fields, *(Field(100 + i, f"c{i}", leaf=read_leaf(n, "c")) for i, n in enumerate(ICEBERG_TYPES))),
        3,
        200,
        BASE.primary_keys,
    )
    back = from_iceberg(to_iceberg(schema), highest_field_id=200)
    assert back == schema
    assert to_iceberg_document(back) == to_iceberg_document(schema)


def test_types_that_the_judges_do_not_share_are_named() -> None:
    with pytest.raises(UnsupportedTypeError):
        to_iceberg(Schema((Field(1, "c", leaf=pa.int8()),)))
