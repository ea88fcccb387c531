"""What is written without Spark is read alike by Spark, PyIceberg and iceberg-rust; so it is after each evolution."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.lakehouse.places import ordered
from tests.lakehouse.shop import Shop
from tests.lakehouse.statements import run
from twophase.catalog import TableChange
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.model import OverwriteScope, Purpose, Transform

KIND = "sqlite"
CREATE, INSERT, OVERWRITE = Purpose.CREATE_TABLE_AS, Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE
REPLACE = Purpose.REPLACE_TABLE_AS

UTC = datetime.UTC
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1]),
    "bigint": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float": (pa.float32(), [0.5, float("inf")]),
    "double": (pa.float64(), [1e308, -0.25]),
    "decimal": (pa.decimal128(38, 4), [Decimal("9" * 34 + ".9999"), Decimal("-0.0001")]),
    "date": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "timestamp_ntz": (
        pa.timestamp("us"),
        [datetime.datetime(1500, 1, 1, 1), datetime.datetime(2026, 3, 8, 2, 30, 0, 7)],
    ),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [datetime.datetime(1969, 12, 31, 23, 59, tzinfo=UTC), datetime.datetime(2026, 11, 1, 6, 30, tzinfo=UTC)],
    ),
    "string": (pa.string(), ["", "größe 🦆"]),
    "binary": (pa.binary(), [b"", b"\x00\xff"]),
    "array": (pa.list_(pa.int64()), [[], [1, None]]),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
}


@pytest.fixture
def catalog(shop: Shop) -> Iterator[LakehouseCatalog]:
    """A catalog beside the session's: another process, for all that it knows."""
    made = shop.lake.catalog()
    yield made
    made.close()


def seen(shop: Shop) -> list[Any]:
    """What all three read: another process has written."""
    shop.sql("REFRESH TABLE @t")
    return shop.rows("t")


def column(name: str, kind: pa.DataType) -> dict[str, Any]:
    return {"field": pa.schema([(name, kind)])}


@pytest.mark.parametrize("kind", TYPES)
def test_every_type(shop: Shop, catalog: LakehouseCatalog, kind: str) -> None:
    arrow, values = TYPES[kind]
    schema = pa.schema([("id", pa.int64()), ("v", arrow)])
    rows = list(enumerate([*values, None]))
    run(catalog, shop.path("t"), CREATE, rows, schema)
    run(catalog, shop.path("t"), INSERT, rows[:1], schema)
    found = seen(shop)
    assert [row[0] for row in found] == [0, 0, 1, 2]
    if not pa.types.is_nested(arrow):
        assert found == ordered([*rows, rows[0]])


BY_PART = (Transform.identity("part"),)
PARTITIONINGS = [
    (),
    BY_PART,
    (Transform("bucket", ("id",), (4,)),),
    (Transform("truncate", ("name",), (1,)), Transform("days", ("at",))),
]


@pytest.mark.parametrize("partitioning", PARTITIONINGS, ids=lambda found: "+".join(t.name for t in found) or "none")
def test_after_each_evolution(shop: Shop, catalog: LakehouseCatalog, partitioning: tuple[Transform, ...]) -> None:
    path = shop.path("t")
    schema = pa.schema([("id", pa.int32()), ("part", pa.string()), ("name", pa.string()), ("at", pa.timestamp("us"))])
    noon = datetime.datetime(2026, 5, 1, 12)
    rows: list[tuple[Any, ...]] = [
        (1, "a", "one", noon),
        (2, "b", "two", None),
        (3, None, None, noon.replace(year=1900)),
    ]
    run(catalog, path, CREATE, rows, schema, partitioning=partitioning)
    assert seen(shop) == ordered(rows)

    def evolve(*changes: TableChange, row: tuple[Any, ...]) -> None:
        """Change the schema, look, add a row, and look again."""
        nonlocal schema
        catalog.alter_table(path, changes)
        assert seen(shop) == ordered(rows)
        schema = catalog.load_table(path).schema
        run(catalog, path, INSERT, [row], schema)
        rows.append(row)
        assert seen(shop) == ordered(rows)

    rows[:] = [(*row, None) for row in rows]
    evolve(TableChange("add_column", ("more",), column("more", pa.int32())), row=(4, "a", "four", noon, 7))
    evolve(
        TableChange("update_column_type", ("more",), column("more", pa.int64())),
        TableChange("rename_column", ("more",), {"name": "most"}),
        row=(5, "c", "five", None, 2**40),
    )
    rows[:] = [(row[0], row[4], *row[1:4]) for row in rows]
    evolve(TableChange("move_column", ("most",), {"position": "after:id"}), row=(6, None, "a", "six", noon))
    rows[:] = [(row[0], *row[2:]) for row in rows]
    evolve(TableChange("drop_column", ("most",)), row=(7, "b", "seven", noon))
    rows[:] = [(*row, None) for row in rows]  # A column of an old name is a new one.
    evolve(TableChange("add_column", ("most",), column("most", pa.string())), row=(8, "b", "eight", None, "x"))

    scope = OverwriteScope(dynamic=partitioning == BY_PART)
    run(catalog, path, OVERWRITE, [(9, "b", "nine", noon, "y")], schema, overwrite=scope)
    rows = [row for row in rows if scope.dynamic and row[1] != "b"] + [(9, "b", "nine", noon, "y")]
    assert seen(shop) == ordered(rows)

    run(catalog, path, REPLACE, [("10", 1.5)], pa.schema([("id", pa.string()), ("share", pa.float64())]))
    assert seen(shop) == [("10", 1.5)]
