"""Rows on their way into a database: every way stores the same, and nobody waits for a partition that is computed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.jdbc.conftest import make_place
from tests.jdbc.places import Place, ordered
from tests.jdbc.statements import ROWS, offer, read, table
from twophase.catalogs.jdbc import JdbcCatalog, copying, infile
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
    target, names = ObjectPath.of("public", name), [f'"{column}" {kind}' for column, kind in columns.items()]
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


@pytest.mark.parametrize("kind", ["int", "text", "uuid", "date", "timestamptz", "numeric", "inet"])
def test_an_array_of_arrays_is_not_read_as_one(catalog: JdbcCatalog, postgresql: Place, kind: str) -> None:
    path = ObjectPath.of("public", f"arrays_of_{kind}")
    filled = f"SELECT array_fill(CAST(NULL AS {kind}), ARRAY[2, 2]) AS a"
    postgresql.execute(f"CREATE TABLE {postgresql.name(path)} AS {filled}")
    with pytest.raises(pa.ArrowException):
        read(catalog, path)
    postgresql.execute(f"DROP TABLE {postgresql.name(path)}")


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us")])
def test_a_time_that_the_database_cannot_hold_is_reported(
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


# -- MariaDB and MySQL -------------------------------------------------------------------------------------------------

#: One column for each type that goes by LOAD DATA, with what is special to it.
MYSQL_KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tinyint(1)": (pa.bool_(), [True, False]),
    "tinyint": (pa.int8(), [-128, 127, 0]),
    "smallint": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1]),
    "bigint": (pa.int64(), [-(2**63), 2**63 - 1]),
    "bigint unsigned": (pa.uint64(), [2**64 - 1, 0]),
    "float": (pa.float32(), [-0.0, 0.1, 3e38, 1e-45, 16777217.0]),
    "double": (pa.float64(), [-0.0, 0.1, 1e308, 2.2250738585072014e-308, 1 / 7, 123456789.123456789]),
    "decimal(38,30)": (pa.decimal128(38, 30), [Decimal("1E-30"), Decimal("-99999999.9"), Decimal(0)]),
    "decimal(38,0)": (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(-1)]),
    "longtext": (
        pa.string(),
        ["", "NULL", "\\N", "\\", "\\\\N", "a\tb\r\nc\n", "\t", "\n", "\\t", "\0", "a\0b\\0", "'\"`", "é\U0001f600"],
    ),
    "varchar(20)": (pa.large_string(), ["", " pad ", "ä\\", "x\x1ay\bz"]),
    "mediumtext": (pa.string(), ["x\\\t\n" * 300_000]),
    "longblob": (pa.binary(), [b"", b"\0\xff\\N\t\n", bytes(range(256))]),
    "binary(3)": (pa.binary(3), [b"\0\0\0", b"\\N\n"]),
    "date": (pa.date32(), [-354_285, 0, -1, 2_932_896]),
    "datetime(6)": (pa.timestamp("us"), [-30_610_224_000_000_000, 253_402_300_799_999_999, 0, 1]),
    "timestamp(6)": (pa.timestamp("us", "UTC"), [1_000_001, 2_147_483_646_999_999]),
    "time(6)": (pa.time64("us"), [0, 1, 86_399_999_999]),
}


@pytest.fixture
def mariadb(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place("mariadb", request, tmp_path)


@pytest.fixture
def maria(mariadb: Place) -> Iterator[JdbcCatalog]:
    made = mariadb.catalog()
    yield made
    made.close()


def _into_maria(catalog: JdbcCatalog, place: Place, name: str, columns: dict[str, str], batches: Any) -> int:
    """Load into a new table, in a transaction; the number of rows."""
    database = catalog.store.database
    kinds = [f"{database.quote(column)} {kind} NULL" for column, kind in columns.items()]
    place.execute(f"DROP TABLE IF EXISTS {name}")
    place.execute(f"CREATE TABLE {name} ({', '.join(kinds)}) CHARACTER SET utf8mb4")
    with catalog.store.begin("twophase") as connection:
        return database.load(connection, ObjectPath.of("twophase", name), columns, batches)


@pytest.fixture
def only_inserts(mariadb: Place) -> Iterator[None]:
    """The server takes no LOAD DATA LOCAL."""
    mariadb.execute("SET GLOBAL local_infile = OFF")
    yield
    mariadb.execute("SET GLOBAL local_infile = ON")


def _way(catalog: JdbcCatalog, rows: pa.Table, columns: dict[str, str]) -> str:
    with catalog.store.begin("twophase") as connection:
        driver = connection.connection.driver_connection
        return "infile" if infile.takes(driver, rows.schema, columns) else "insert"


def _maria_rows() -> tuple[dict[str, str], pa.Table]:
    most = max(len(values) for _, values in MYSQL_KINDS.values())
    arrays = [pa.array([*values, *[None] * (most + 1 - len(values))], kind) for kind, values in MYSQL_KINDS.values()]
    columns = {f"{number} a\\`%s": kind for number, kind in enumerate(MYSQL_KINDS)}
    return columns, pa.Table.from_arrays(arrays, names=list(columns))


def _stored(place: Place, name: str, columns: dict[str, str]) -> list[Any]:
    values = ", ".join(f"HEX(`{column.replace('`', '``')}`)" for column in columns)
    floats = ", ".join(f"CAST(`{column.replace('`', '``')}` AS CHAR)" for column in columns)
    return ordered(place.execute(f"SELECT {values}, {floats} FROM {name}"))


def test_load_data_and_insert_store_the_same(
    mariadb: Place, maria: JdbcCatalog, request: pytest.FixtureRequest
) -> None:
    columns, rows = _maria_rows()
    assert _way(maria, rows, columns) == "infile"
    assert _into_maria(maria, mariadb, "by_infile", columns, rows.to_batches(max_chunksize=5)) == rows.num_rows
    request.getfixturevalue("only_inserts")
    assert _way(maria, rows, columns) == "insert"
    assert _into_maria(maria, mariadb, "by_insert", columns, rows.to_batches(max_chunksize=5)) == rows.num_rows
    assert _stored(mariadb, "by_infile", columns) == _stored(mariadb, "by_insert", columns)
    for name in ("by_infile", "by_insert"):
        mariadb.execute(f"DROP TABLE {name}")


@pytest.mark.parametrize("size", [1, 1000, 10**9])
def test_rows_become_text_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(infile, "_PIECE_BYTES", size)
    rows = pa.table({"a": ["x\ty", None, "\\"] * 100, "b": range(300)})
    made = list(infile.texts(rows.slice(10, 280).to_batches(), "MariaDB"))
    told = [f"{a}\t{b}" for a, b in zip(["x\\ty", "\\N", "\\\\"] * 100, range(300), strict=True)][10:290]
    assert b"".join(bytes(text) for _, text in made).decode() == "".join(f"{line}\n" for line in told)
    assert sum(count for count, _ in made) == 280
    assert len(made) == (280 if size == 1 else 1 if size == 10**9 else len(made))


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("varchar(3)", pa.array(["four"]), "too long|truncated"),
        ("tinyint", pa.array([128], pa.int64()), "Out of range"),
        ("int unsigned", pa.array([-1], pa.int64()), "Out of range"),
        ("decimal(3,1)", pa.array([Decimal("1000.0")]), "Out of range"),
        ("float", pa.array([1e300]), "Out of range"),
        ("varchar(9) CHARACTER SET latin1", pa.array(["\U0001f600"]), "Incorrect string"),
        ("varbinary(2)", pa.array([b"abc"]), "too long|truncated"),
        ("timestamp(6)", pa.array([0], pa.timestamp("us", "UTC")), "Incorrect datetime|Out of range"),
    ],
)
@pytest.mark.parametrize("way", ["infile", "insert"])
def test_a_value_that_does_not_fit_is_an_error_and_no_row_stays(
    mariadb: Place, maria: JdbcCatalog, request: pytest.FixtureRequest, column: str, value: pa.Array, why: str, way: str
) -> None:
    if way == "insert":
        request.getfixturevalue("only_inserts")
    rows = pa.table({"v": value})
    assert _way(maria, rows, {"v": column}) == way
    fitting = pa.table({"v": pa.nulls(1, value.type)}).to_batches()
    with pytest.raises(CatalogError, match=why):
        _into_maria(maria, mariadb, "narrow", {"v": column}, [*fitting, *rows.to_batches(), *fitting])
    assert mariadb.execute("SELECT count(*) FROM narrow") == [(0,)]
    mariadb.execute("DROP TABLE narrow")


def test_what_is_only_rounded_is_no_error(mariadb: Place, maria: JdbcCatalog) -> None:
    """An INSERT would round it, too."""
    rows = pa.table({"v": [Decimal("1.25")]})
    assert _into_maria(maria, mariadb, "rounded", {"v": "decimal(3,1)"}, rows.to_batches()) == 1
    assert mariadb.execute("SELECT v FROM rounded") == [(Decimal("1.3"),)]
    mariadb.execute("DROP TABLE rounded")


def test_rows_that_end_in_an_error_leave_none_and_the_connection_is_good(mariadb: Place, maria: JdbcCatalog) -> None:
    database, batch = maria.store.database, pa.record_batch({"v": [1, 2]})
    mariadb.execute("CREATE TABLE broken (v bigint)")

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch
        yield batch
        raise ArithmeticError("the user's own")

    with maria.store.engine("twophase").connect() as connection:
        with pytest.raises(ArithmeticError, match="the user's own"), connection.begin():
            database.load(connection, ObjectPath.of("twophase", "broken"), {"v": "bigint"}, rows())
        with connection.begin():
            assert database.run(connection, "SELECT count(*) FROM broken").all() == [(0,)]
    mariadb.execute("DROP TABLE broken")


@pytest.mark.parametrize(
    ("kind", "column"),
    [(pa.bool_(), "bit(1)"), (pa.string(), "date"), (pa.string(), "set('a','b')"), (pa.int64(), "year(4)")],
)
def test_a_column_that_reads_texts_differently_goes_by_insert(
    maria: JdbcCatalog, kind: pa.DataType, column: str
) -> None:
    rows = pa.schema([("a", pa.int64()), ("b", kind)]).empty_table()
    assert _way(maria, rows, {"a": "bigint", "b": column}) == "insert"


@pytest.mark.parametrize(("setting", "value"), [("local_infile", "OFF"), ("wsrep_load_data_splitting", "ON")])
def test_a_server_that_takes_no_rows_or_would_cut_them_gets_inserts(
    mariadb: Place, maria: JdbcCatalog, setting: str, value: str
) -> None:
    rows = pa.table({"v": [1]})
    (before,) = mariadb.execute(f"SELECT @@GLOBAL.{setting}")[0]
    assert _way(maria, rows, {"v": "bigint"}) == "infile"
    mariadb.execute(f"SET GLOBAL {setting} = {value}")
    try:
        assert _way(maria, rows, {"v": "bigint"}) == "insert"
    finally:
        mariadb.execute(f"SET GLOBAL {setting} = {before}")


def test_rows_that_come_slowly_are_waited_for(mariadb: Place) -> None:
    (before,) = mariadb.execute("SELECT @@GLOBAL.net_read_timeout")[0]
    mariadb.execute("SET GLOBAL net_read_timeout = 1")

    def rows() -> Iterator[pa.RecordBatch]:
        for value in (1, 2):
            yield pa.record_batch({"v": [value]})
            time.sleep(1.5)

    catalog = mariadb.catalog()
    try:
        assert _into_maria(catalog, mariadb, "slow", {"v": "bigint"}, rows()) == 2
    finally:
        catalog.close()
        mariadb.execute(f"SET GLOBAL net_read_timeout = {before}")
    mariadb.execute("DROP TABLE slow")


def test_no_server_gets_a_file_of_ours(maria: JdbcCatalog, mariadb: Place, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("1\n")
    mariadb.execute("CREATE TABLE thief (v bigint)")
    connection = maria.store.engine("twophase").raw_connection()
    with pytest.raises(RuntimeError, match="local_infile"):
        connection.cursor().execute(f"LOAD DATA LOCAL INFILE '{secret}' INTO TABLE thief")
    connection.invalidate()
    assert mariadb.execute("SELECT count(*) FROM thief") == [(0,)]
    mariadb.execute("DROP TABLE thief")
