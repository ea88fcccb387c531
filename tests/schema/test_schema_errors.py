"""Bad input: each a named error that says the path, both types, and what would be allowed."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import twophase.schema
from tests.schema.test_schema_apply import REFUSED, TABLE
from twophase.schema import (
    AddField,
    Field,
    Kind,
    Schema,
    apply_changes,
    assign_ids,
    diff,
    file_filter,
    from_arrow,
    from_json,
    plan_read,
    to_arrow,
    verify_file_schema,
)
from twophase.schema.changes import MoveField, Position
from twophase.schema.errors import (
    AmbiguousPathError,
    DefaultValueError,
    DuplicateFieldError,
    FieldIdError,
    KeyFieldError,
    LastFieldError,
    MoveError,
    NullabilityError,
    SchemaDocumentError,
    SchemaError,
    TypeChangeError,
    UnknownFieldError,
    UnsupportedTypeError,
)

INT = pa.int32()


def errors_made() -> Iterator[tuple[str, ast.Call]]:
    """Each place of the package that makes an error."""
    for file in sorted(Path(twophase.schema.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if file.name != "errors.py" and isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                name = node.func.id
                if name.endswith("Error") and name not in ("ValueError", "TypeError", "AttributeError"):
                    yield f"{file.name}:{node.lineno} {name}", node


def test_every_error_says_what_would_be_allowed_or_what_to_do() -> None:
    made = dict(errors_made())
    assert len(made) > 60
    silent = [where for where, call in made.items() if not {"allowed", "hint"} & {word.arg for word in call.keywords}]
    assert silent == []


def leaf(number: int, name: str) -> Field:
    return Field(number, name, leaf=INT)


def struct(number: int, name: str, *children: Field, kind: Kind = Kind.STRUCT) -> Field:
    return Field(number, name, kind, children=children)


def schema(*fields: Field, **facts: object) -> Schema:
    return Schema(fields, **facts)  # type: ignore[arg-type]


ONE = assign_ids(pa.schema([("a", INT), ("p", pa.struct([("x", INT)]))]))
OTHER = assign_ids(pa.schema([("q", pa.struct([("x", INT)])), ("b", INT)]))

#: What is wrong, how it is tried, the error, the path that it names, and both types.
BAD: dict[str, tuple[Callable[[], object], type[SchemaError], str | None, str | None, str | None]] = {
    "one id twice": (lambda: schema(leaf(1, "a"), struct(2, "p", leaf(1, "x"))), FieldIdError, "p.x", "int", "int"),
    "one id above and below": (lambda: schema(struct(1, "p", leaf(1, "x"))), FieldIdError, "p.x", "struct", "int"),
    "an id above the highest": (
        lambda: schema(struct(1, "p", leaf(9, "x")), highest_field_id=3),
        FieldIdError,
        "p.x",
        None,
        "int",
    ),
    "a struct without fields": (lambda: schema(struct(1, "p", struct(2, "q"))), LastFieldError, "p.q", "struct", None),
    "a list without element": (
        lambda: schema(struct(1, "p", struct(2, "l", leaf(3, "x"), kind=Kind.LIST))),
        SchemaError,
        "p.l",
        "list",
        None,
    ),
    "a map whose key is nullable": (
        lambda: schema(struct(1, "p", struct(2, "m", leaf(3, "key"), leaf(4, "value"), kind=Kind.MAP))),
        SchemaError,
        "p.m",
        "map",
        None,
    ),
    "a clash of names below": (
        lambda: schema(struct(1, "p", leaf(2, "x"), struct(3, "X", leaf(4, "y")))),
        DuplicateFieldError,
        "p.X",
        "int",
        "struct",
    ),
    "an empty name below": (lambda: schema(struct(1, "p", leaf(2, ""))), DuplicateFieldError, "p.``", None, "int"),
    "nesting that is too deep": (lambda: deep(101), SchemaError, ".".join("s" * 100), "struct", None),
    "a key twice": (lambda: schema(leaf(1, "a"), partition_keys=(1, 1)), KeyFieldError, "a", "int", None),
    "a key that is a struct": (
        lambda: schema(struct(1, "p", leaf(2, "x")), partition_keys=(1,)),
        KeyFieldError,
        "p",
        "struct",
        "a leaf",
    ),
    "a primary key that is nullable": (
        lambda: schema(struct(1, "p", leaf(2, "x")), primary_keys=(2,)),
        KeyFieldError,
        "p.x",
        "int",
        "int NOT NULL",
    ),
    "a key of an unknown id": (lambda: schema(leaf(1, "a"), partition_keys=(7,)), UnknownFieldError, "#7", None, None),
    "an unknown path": (lambda: ONE.find("p.z"), UnknownFieldError, "p.z", None, None),
    "an ambiguous path": (
        lambda: schema(leaf(1, "a.b"), struct(2, "a", leaf(3, "b"))).find("a.b"),
        AmbiguousPathError,
        "a.b",
        None,
        None,
    ),
    "a path that ends in the air": (lambda: ONE.find("p."), SchemaError, "p.", None, None),
    "a backtick that stays open": (lambda: ONE.find("`p"), SchemaError, "`p", None, None),
    "a new field named by an id": (lambda: apply_changes(ONE, AddField(5, INT)), SchemaError, "#5", None, "int"),
    "a place that is none": (
        lambda: apply_changes(ONE, MoveField("a", Position("beside", "p"))),
        MoveError,
        "a",
        None,
        None,
    ),
    "ids that a file swaps": (
        lambda: verify_file_schema(to_arrow(schema(struct(2, "p", leaf(1, "x")))), ONE),
        FieldIdError,
        "p.x",
        "int",
        "int",
    ),
    "a file of another table": (lambda: plan_read(OTHER, ONE), FieldIdError, "a", "struct", "int"),
    "versions of two tables": (lambda: diff(OTHER, ONE), SchemaError, "a", "struct", "int"),
    "a field in another struct": (
        lambda: diff(ONE, schema(leaf(1, "a"), struct(4, "q", leaf(3, "x")))),
        SchemaError,
        "q.x",
        "int",
        "int",
    ),
    "a default in metadata that is none": (
        lambda: from_arrow(pa.schema([pa.field("p", pa.struct([broken_default()]), metadata=identity(2))])),
        DefaultValueError,
        "p.x",
        "text",
        "int",
    ),
    "ids that clash in a document": (lambda: from_json(DOCUMENT % "1"), SchemaDocumentError, "b", "int", "int"),
    "a type that no field has in a document": (
        lambda: from_json(DOCUMENT.replace("int32", "int31") % "2"),
        SchemaDocumentError,
        "$.fields[0]",
        None,
        "int31",
    ),
    "a filter below a list": (
        lambda: file_filter(plan_read(TABLE, TABLE), [("l.element.x", "=", 1)]),
        SchemaError,
        "l.element.x",
        "int",
        "a leaf",
    ),
    "a filter with NULL": (
        lambda: file_filter(plan_read(TABLE, TABLE), [("p.x", "=", None)]),
        SchemaError,
        "p.x",
        "int",
        "null",
    ),
}
DOCUMENT = (
    '{"format":1,"schema_id":0,"highest_field_id":2,"primary_keys":[],"partition_keys":[],"fields":'
    '[{"id":1,"name":"a","type":"int32"},{"id":%s,"name":"b","type":"int32"}]}'
)


def identity(number: int) -> dict[str, str]:
    return {"PARQUET:field_id": str(number)}


def broken_default() -> pa.Field:
    return pa.field("x", INT, metadata={**identity(1), "twophase.initial_default": "one"})


def deep(levels: int) -> Schema:
    node = leaf(0, "x")
    for number in range(1, levels):
        node = struct(number, "s", node)
    return schema(node)


@pytest.mark.parametrize(("bad", "error", "path", "old", "new"), BAD.values(), ids=BAD)
def test_bad_input_is_named_with_path_types_and_a_way_out(
    bad: Callable[[], object], error: type[SchemaError], path: str | None, old: str | None, new: str | None
) -> None:
    with pytest.raises(error) as caught:
        bad()
    found = caught.value
    assert type(found) is error
    assert (found.field_path, found.old_type, found.new_type) == (path, old, new)
    assert found.allowed and all(found.allowed)
    assert str(pickle.loads(pickle.dumps(found))) == str(found)


#: Errors about one field, whose type the change would leave as it is or take away.
ONE_TYPE = (KeyFieldError, DuplicateFieldError)
BOTH_TYPES = (TypeChangeError, NullabilityError, DefaultValueError)


@pytest.mark.parametrize(("changes", "error"), [(case[1], case[2]) for case in REFUSED], ids=[c[0] for c in REFUSED])
def test_a_refused_change_says_what_would_be_allowed_and_the_types_that_it_is_about(
    changes: list[object], error: type[SchemaError]
) -> None:
    with pytest.raises(error) as caught:
        apply_changes(TABLE, changes)  # type: ignore[arg-type]
    assert caught.value.allowed
    if error in BOTH_TYPES:
        assert caught.value.old_type and caught.value.new_type
    elif error in ONE_TYPE:
        assert caught.value.old_type or caught.value.new_type
    elif error is UnsupportedTypeError:
        assert caught.value.old_type
