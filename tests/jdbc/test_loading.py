"""Rows on their way into a database: every way stores the same, and nobody waits for a partition that is computed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.jdbc.conftest import make_place
from tests.jdbc.places import Place, ordered
from tests.jdbc.statements import ROWS, offer, table
from twophase.catalogs.jdbc import JdbcCatalog, copying
from twophase.catalogs.jdbc.database import Table
from twophase.catalogs.jdbc.loading import Loader
from twophase.errors import CatalogError
from twophase.model import ObjectPath, Purpose

#: The first and the last microsecond of Spark's.
_TIMES = [-62_135_596_800_000_000, 253_402_300_799_999_999]
_DIGITS = Context(prec=60)


def _decimals(precision: int, scale: int, chance: random.Random) -> list[Decimal | None]:
    """Bounds, powers of ten, and numbers with many zeros, which lie between the groups of four digits."""
    most = 10**precision - 1
    numbers = [
        0,
        most,
        -most,
        *(10**power for power in range(precision)),
        *(-(10**power) for power in range(precision)),
    ]
    for _ in range(100):
        numbers.append(sum(chance.choice([0, 0, 0, 1, 9]) * 10**power for power in range(precision)))
        numbers.append(chance.randint(-most, most) // 10 ** chance.randint(0, precision))
    return [None, *(Decimal(number).scaleb(-scale, context=_DIGITS) for number in numbers)]


#: One column for each type that goes as binary, with what is special to it.
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "smallint": (pa.int16(), [-(2**15), 2**15 - 1, 0, -1]),
    "integer": (pa.int32(), [-(2**31), 2**31 - 1, 0, -1]),
    "bigint": (pa.int64(), [-(2**63), 2**63 - 1, 0, -1]),
    "real": (pa.float32(), [float("nan"), float("inf"), float("-inf"), -0.0, 0.1, 1e38, 1e-45]),
    "double precision": (pa.float64(), [float("nan"), float("inf"), float("-inf"), -0.0, 0.1, 1e308, 5e-324]),
    "text": (pa.string(), ["", "NULL", '"', "\\N", "a\tb\r\nc", "ä\U0001f600", "x" * 70_000]),
    "character varying(20)": (pa.large_string(), ["", " pad ", "é"]),
    "bytea": (pa.binary(), [b"", b"\0\xff\\x00", bytes(range(256))]),
    "date": (pa.date32(), [0, -1, -719_162, 2_932_896, 10_957]),
    "timestamp with time zone": (pa.timestamp("us", "UTC"), [*_TIMES, 0, -1, 946_684_800_000_000]),
    "timestamp without time zone": (pa.timestamp("us"), [*_TIMES, 0, -1, 946_684_800_000_001]),
    "time without time zone": (pa.time64("us"), [0, 1, 86_399_999_999]),
}


@pytest.fixture
def postgresql(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place("postgresql", request, tmp_path)


@pytest.fixture
def catalog(postgresql: Place) -> Iterator[JdbcCatalog]:
    made = postgresql.catalog()
    yield made
    made.close()


def _load(catalog: JdbcCatalog, place: Place, name: str, columns: dict[str, str], rows: pa.Table) -> None:
    target, names = Table("public", name), [f'"{column}" {kind}' for column, kind in columns.items()]
    place.execute(f"DROP TABLE IF EXISTS {name}")
    place.execute(f"CREATE TABLE {name} ({', '.join(names)})")
    with catalog.store.begin("public") as connection:
        batches = rows.to_batches(max_chunksize=7)
        assert catalog.store.database.load(connection, target, columns, batches) == rows.num_rows


def _assert_both_ways_store_the_same(
    catalog: JdbcCatalog, place: Place, columns: dict[str, str], rows: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert copying.takes_binary(rows.schema, columns)
    _load(catalog, place, "by_binary", columns, rows)
    with monkeypatch.context() as without:
        without.setattr(copying, "takes_binary", lambda *_: False)
        _load(catalog, place, "by_csv", columns, rows)
    both = ["SELECT CAST(t AS text) FROM by_binary t", "SELECT CAST(t AS text) FROM by_csv t"]
    assert place.execute(" EXCEPT ALL ".join(both)) == place.execute(" EXCEPT ALL ".join(both[::-1])) == []
    assert place.execute("SELECT count(*) FROM by_binary") == [(rows.num_rows,)]
    for name in ("by_binary", "by_csv"):
        place.execute(f"DROP TABLE {name}")


def test_binary_and_csv_store_the_same(
    postgresql: Place, catalog: JdbcCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = max(len(values) for _, values in KINDS.values())
    arrays = [pa.array([*values, *[None] * (most + 1 - len(values))], kind) for kind, values in KINDS.values()]
    # Two columns may have names that differ in their case only, and a name may be no word.
    columns = {f'{"Aa"[number % 2]} {number // 2} "': kind for number, kind in enumerate(KINDS)}
    columns = {name.replace('"', ""): kind for name, kind in columns.items()}
    rows = pa.Table.from_arrays(arrays, names=list(columns))
    _assert_both_ways_store_the_same(catalog, postgresql, columns, rows, monkeypatch)


def test_decimals_of_every_width_are_exact(
    postgresql: Place, catalog: JdbcCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(4)
    kinds = [(precision, scale) for precision in (1, 4, 5, 9, 18, 19, 29, 38) for scale in range(0, precision + 1, 3)]
    columns = {f"d{number}": f"numeric({precision},{scale})" for number, (precision, scale) in enumerate(kinds)}
    values = [_decimals(precision, scale, chance) for precision, scale in kinds]
    most = max(map(len, values))
    arrays = [
        pa.array([*of_kind, *[None] * (most - len(of_kind))], pa.decimal128(*kind))
        for kind, of_kind in zip(kinds, values, strict=True)
    ]
    rows = pa.Table.from_arrays(arrays, names=list(columns))
    _assert_both_ways_store_the_same(catalog, postgresql, columns, rows, monkeypatch)


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.int64(), "integer"),
        (pa.int32(), "bigint"),
        (pa.string(), "character(5)"),
        (pa.list_(pa.int64()), "bigint[]"),
    ],
)
def test_a_column_of_another_type_goes_as_csv(catalog: JdbcCatalog, kind: pa.DataType, column: str) -> None:
    """The database converts texts, and takes no binary form but a type's own."""
    assert not copying.takes_binary(pa.schema([("a", pa.int64()), ("b", kind)]), {"a": "bigint", "b": column})


def test_without_the_library_for_binary_all_goes_as_csv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "find_spec", lambda _: None)
    assert not copying.takes_binary(pa.schema([("a", pa.int64())]), {"a": "bigint"})


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us")])
def test_a_time_that_the_database_cannot_hold_is_told(
    postgresql: Place, catalog: JdbcCatalog, kind: pa.DataType
) -> None:
    least = -(2**31) if kind == pa.date32() else -(2**63)
    schema, path = pa.schema([("at", kind)]), ObjectPath.of("public", "too_early")
    participant = offer(catalog, path, Purpose.CREATE_TABLE_AS, schema)
    participant.begin()
    with pytest.raises(CatalogError, match="cannot be stored in PostgreSQL"):
        participant.write(pa.table({"at": pa.array([least], kind)}))
    participant.abort()
    assert participant.left_behind() == []


def test_in_a_database_with_one_writer_a_partition_is_computed_before_its_turn(tmp_path: Path) -> None:
    """Another session holds the only lock until all rows are there."""
    place = Place("sqlite", f"sqlite:///{tmp_path / 'shop.db'}")
    catalog, path = place.catalog(lock_timeout="1"), ObjectPath.of("main", "daily")
    participant = offer(catalog, path, Purpose.CREATE_TABLE_AS)
    participant.begin()
    task = Loader(catalog.store.settings, participant._load_target())
    engine = catalog.store.engine("main")
    with engine.connect() as other:
        transaction = other.begin()

        def computed() -> Iterator[pa.RecordBatch]:
            yield from table(ROWS).to_batches()
            transaction.rollback()

        assert task(0, computed()) == len(ROWS)
    participant.prepare()
    participant.commit()
    participant.finish()
    assert ordered(place.rows(path)) == ordered(ROWS)
    catalog.close()
