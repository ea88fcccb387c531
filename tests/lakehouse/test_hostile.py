"""Bad input, wrong places and broken stores: told in words before any job starts, and nothing left."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.lakehouse.places import NAME, Lake, open_lakehouse, ordered
from tests.lakehouse.statements import ROWS, SCHEMA, offer, run, stage
from tests.unmounted import unmounted
from twophase import failpoints
from twophase.catalog import Environment, TableChange
from twophase.catalogs.lakehouse import LakehouseCatalog, manifests
from twophase.errors import CatalogError, ConfigurationError, TransactionAborted
from twophase.failpoints import FailpointError
from twophase.lru import LruCache
from twophase.model import BucketSpec, ObjectPath, Outcome, Purpose, TableDefinition, Transform
from twophase.timeline import sqlite_files

CREATE = Purpose.CREATE_TABLE_AS


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """One kind is enough here."""
    return Lake(f"sqlite:///{tmp_path / 'catalog.db'}", tmp_path / "warehouse")


@pytest.fixture(autouse=True)
def _calm() -> Iterator[None]:
    yield
    failpoints.disarm()


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"url": "sqlite:////x.db"}, "no option url"),
        ({"type": "glue"}, "glue"),
        ({"type": "rest"}, "https://"),
        ({"uri": "https://me:secret@host/catalog"}, "no user"),
        ({"uri": "https://host", "token_env": "NO_SUCH_VARIABLE_HERE"}, "NO_SUCH_VARIABLE_HERE"),
        ({"scope": "all"}, "scope"),
        ({"type": "hive"}, "thrift://"),
        ({"uri": "thrift://host"}, "thrift://"),
        ({"hive_locks": "false"}, "hive_locks"),
        ({"uri": "thrift://host:9083", "password": "x"}, "password"),
        ({"uri": "mysql://u@h/d"}, "mysql"),
        ({"uri": "sqlite://"}, "memory"),
        ({"uri": "::"}, "cannot be read"),
        ({"warehouse": "/a b?c"}, "character"),
        ({"commit_retries": "many"}, "whole number"),
        ({"init_catalog_tables": "maybe"}, "true or false"),
        ({"schema_conflicts": "win"}, "rfc-82"),
        ({"promotion": "lossy"}, "exact"),
        ({"s3.access-key-id": "me"}, "one is missing"),
        ({"s3.path-style-access": "maybe"}, "true or false"),
        ({"password_env": "NO_SUCH_VARIABLE_HERE"}, "NO_SUCH_VARIABLE_HERE"),
        ({"password_file": "/no/such/file"}, "cannot be read"),
        ({"password_env": "HOME", "password_file": "/no/such/file"}, "given twice"),
    ],
)
def test_a_wrong_option_is_named(lake: Lake, options: dict[str, str], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        open_lakehouse(**lake.options(**options))


def test_a_warehouse_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="warehouse"):
        LakehouseCatalog(NAME, {}, Environment())


@pytest.mark.parametrize("way", ["password_env", "password_file"])
def test_no_password_is_shown(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_PASSWORD", "s3cr3t")
    (tmp_path / "password").write_text("s3cr3t\n")
    uri = "postgresql://me@127.0.0.1:1/lake?connect_timeout=1"
    held = {"password_env": "LAKE_PASSWORD", "password_file": str(tmp_path / "password")}
    catalog = open_lakehouse(uri=uri, warehouse=str(tmp_path), **{way: held[way]})
    assert catalog.store.settings.url.password == "s3cr3t"
    with pytest.raises(CatalogError) as caught:
        catalog.list_databases()
    told = f"{caught.value} {catalog!r} {catalog.check()} {catalog.store.settings!r}"
    assert "s3cr3t" not in told
    assert "refused" in told
    catalog.close()


# -- names, types, layouts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["with.dot", " spaced", "line\nbreak", "n" * 256])
def test_a_name_that_other_engines_would_misread_is_refused(
    catalog: LakehouseCatalog, path: ObjectPath, name: str
) -> None:
    with pytest.raises(CatalogError, match="name"):
        offer(catalog, ObjectPath.of(path.database, name), CREATE)
    with pytest.raises(CatalogError, match="name"):
        catalog.create_database(name)


@pytest.mark.parametrize(
    ("definition", "word"),
    [
        (TableDefinition(pa.schema([("a.b", pa.int64())])), "dot"),
        (TableDefinition(pa.schema([("id", pa.int64()), ("ID", pa.int64())])), "two columns"),
        (TableDefinition(pa.schema([("x", pa.null())])), "cannot be"),
        (TableDefinition(pa.schema([("x", pa.duration("us"))])), "x"),
        (TableDefinition(SCHEMA, location="/elsewhere"), "LOCATION"),
        (TableDefinition(SCHEMA, bucketing=BucketSpec(4, ("id",))), "bucket"),
        (TableDefinition(SCHEMA, provider="orc"), "orc"),
        (TableDefinition(SCHEMA, properties={"format-version": "3"}), "version 2"),
        (TableDefinition(SCHEMA, options={"mergeschema": "true"}), "mergeschema"),
        (TableDefinition(SCHEMA, partitioning=(Transform("days", ("id",)),)), "days of id"),
        (TableDefinition(SCHEMA, partitioning=(Transform("bucket", ("id",), (0,)),)), "above 0"),
        (TableDefinition(SCHEMA, partitioning=(Transform("bucket", ("id", "name"), (4,)),)), "one column"),
        (TableDefinition(SCHEMA, partitioning=(Transform("zorder", ("id",)),)), "zorder"),
        (TableDefinition(SCHEMA, partitioning=(Transform.identity("nowhere"),)), "nowhere"),
    ],
)
def test_a_definition_that_iceberg_lacks_is_refused(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, definition: TableDefinition, word: str
) -> None:
    for attempt in (
        lambda: catalog.create_table(path, definition),
        lambda: catalog.two_phase_create_table(path, definition, purpose=CREATE),
    ):
        with pytest.raises(CatalogError, match=word):
            attempt()
    assert lake.files() == set()


# -- stores that are broken --------------------------------------------------------------------------------------------


def damage(lake: Lake, path: ObjectPath) -> None:
    Path(lake.metadata_location(path).removeprefix("file://")).write_text('{"format-version": 2}')


def lose(lake: Lake, path: ObjectPath) -> None:
    Path(lake.metadata_location(path).removeprefix("file://")).unlink()


@pytest.mark.parametrize(("harm", "word"), [(damage, "cannot be read"), (lose, "missing")])
def test_a_table_with_broken_metadata_is_reported_and_can_be_dropped(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, harm: Callable[[Lake, ObjectPath], None], word: str
) -> None:
    run(catalog, path)
    harm(lake, path)
    fresh = lake.catalog()
    for call in (fresh.load_table, fresh.read_source, lambda target: offer(fresh, target, Purpose.INSERT_INTO)):
        with pytest.raises(CatalogError, match=word):
            call(path)
    assert fresh.list_tables(path.database) == [path.name]
    fresh.drop_table(path)
    assert fresh.list_tables(path.database) == []
    fresh.close()


@pytest.mark.parametrize("what", ["snap-*.avro", "*-m0.avro"])
@pytest.mark.parametrize(("content", "word"), [(b"garbage" * 10, "cannot be read"), (None, "is missing")])
def test_a_broken_list_of_files_is_named_and_its_table_can_be_dropped(
    catalog: LakehouseCatalog,
    lake: Lake,
    path: ObjectPath,
    what: str,
    content: bytes | None,
    word: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(catalog, path)
    (broken,) = Path(lake.metadata_location(path).removeprefix("file://")).parent.glob(what)
    broken.unlink()
    if content is not None:
        broken.write_bytes(content)
    monkeypatch.setattr(manifests, "_lists", LruCache(1))
    fresh = lake.catalog()
    with pytest.raises(CatalogError, match=f"{re.escape(broken.name)} {word}"):
        reader = fresh.read_source(path).files
        assert reader is not None
        reader.plan(())
    fresh.drop_table(path, purge=True)
    assert fresh.list_tables(path.database) == []
    assert broken.parent.exists()
    fresh.close()


def test_a_database_without_the_tables_is_reported(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "empty.db").close()
    lake = Lake(f"sqlite:///{tmp_path / 'empty.db'}", tmp_path / "warehouse")
    catalog = lake.catalog(init_catalog_tables="false")
    with pytest.raises(CatalogError, match="init_catalog_tables"):
        catalog.list_databases()
    catalog.close()


def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database " * 100)
    catalog = Lake(f"sqlite:///{tmp_path / 'text.db'}", tmp_path / "warehouse").catalog()
    with pytest.raises(CatalogError, match="no SQLite database"):
        catalog.list_databases()
    assert len(catalog.check()) == 1
    catalog.close()


def test_a_catalog_of_another_layout_is_reported(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE iceberg_tables (name TEXT)")
    connection.execute("CREATE TABLE iceberg_namespace_properties (name TEXT)")
    connection.close()
    catalog = Lake(f"sqlite:///{tmp_path / 'other.db'}", tmp_path / "warehouse").catalog()
    with pytest.raises(CatalogError, match="no such column"):
        catalog.table_exists(ObjectPath.of("a", "b"))
    catalog.close()


@pytest.mark.parametrize("purpose", [CREATE, Purpose.INSERT_INTO])
def test_a_warehouse_that_cannot_be_written_leaves_nothing(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, purpose: Purpose
) -> None:
    run(catalog, path)
    target = path if purpose is Purpose.INSERT_INTO else ObjectPath.of(path.database, "new")
    participant = offer(catalog, target, purpose)
    participant.begin()
    blocked = Path(participant.place.data.removeprefix("file://"))
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("a file where a directory should be")  # For root, no directory is unwritable.
    with pytest.raises((CatalogError, OSError)):
        participant.write(pa.table({"id": [1], "name": ["x"]}))
    blocked.unlink()
    participant.abort()
    assert ordered(lake.rows(path)) == ROWS
    assert lake.orphans() == set()


def test_a_file_on_a_network_file_system_has_no_log_that_needs_the_memory_of_one_machine(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    modes = []
    for kind in ("ext4", "nfs4"):
        mounts.write_text(f"30 22 0:44 / {tmp_path} rw shared:2 - {kind} server:/export rw\n")
        monkeypatch.setattr(sqlite_files, "_MOUNTS", mounts)
        catalog = lake.catalog()
        catalog.create_database(kind)
        catalog.close()
        with closing(sqlite3.connect(tmp_path / "catalog.db")) as connection:
            modes += connection.execute("PRAGMA journal_mode").fetchone()
    assert modes == ["wal", "delete"]


# -- doubts ------------------------------------------------------------------------------------------------------------


def test_a_publish_whose_answer_was_lost_is_not_made_twice(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    run(catalog, path)
    failpoints.arm("lakehouse.publish", "lost_reply")
    participant = stage(catalog, path, Purpose.INSERT_INTO, [(3, "three")])
    with pytest.raises(ConnectionError):
        participant.commit()
    failpoints.disarm()
    assert participant.outcome() is Outcome.PUBLISHED
    participant.commit()
    participant.abort()
    assert ordered(lake.rows(path)) == [*ROWS, (3, "three")]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_try_that_failed_before_another_went_through_leaves_nothing(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, fresh: bool
) -> None:
    run(catalog, path)
    participant = stage(catalog, path, Purpose.INSERT_INTO, [(3, "three")])
    failpoints.arm("lakehouse.swap", "error")
    with pytest.raises(FailpointError):
        participant.commit()
    failpoints.disarm()
    again = catalog.restore(participant.document) if fresh else participant
    again.commit()
    again.finish()
    assert ordered(lake.rows(path)) == [*ROWS, (3, "three")]
    assert lake.orphans() == set()


def test_a_catalog_that_cannot_be_reached_is_no_answer(catalog: LakehouseCatalog, lake: Lake, path: ObjectPath) -> None:
    participant = stage(catalog, path)
    file = Path(str(lake.uri).removeprefix("sqlite:///"))
    catalog.close()
    hidden = file.with_suffix(".hidden")
    file.rename(hidden)
    file.mkdir()
    assert participant.outcome() is Outcome.UNKNOWN
    with pytest.raises(CatalogError, match="nothing was removed"):
        participant.abort()
    file.rmdir()
    hidden.rename(file)
    participant.commit()
    assert participant.outcome() is Outcome.PUBLISHED


# -- a warehouse that vanishes -----------------------------------------------------------------------------------------


@pytest.mark.promise(
    "iceberg-sql", "the pointer of a table does not move while its local warehouse is not mounted", detail=True
)
@pytest.mark.parametrize("when", ["stage", "publish", "both"])
def test_nothing_is_published_in_a_warehouse_that_was_not_mounted_meanwhile(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, when: str
) -> None:
    run(catalog, path)
    catalog.read_source(path)  # From now on its metadata and its manifest list are known.

    def insert() -> Any:
        return stage(catalog, path, Purpose.INSERT_INTO, [(3, "three")])

    def refused(participant: Any) -> None:
        with pytest.raises(TransactionAborted, match=rf"{path} was not changed: file://.* is gone"):
            participant.commit()

    participant = insert() if when == "publish" else None
    with unmounted(lake.warehouse):
        participant = participant or insert()
        if when != "stage":
            refused(participant)
    if when == "stage":
        refused(participant)
    participant.abort()
    assert ordered(lake.rows(path)) == ROWS
    assert lake.orphans() == set()
    run(catalog, path, Purpose.INSERT_INTO, [(3, "three")])
    assert ordered(lake.rows(path)) == [*ROWS, (3, "three")]


def test_no_table_is_changed_while_its_warehouse_is_not_mounted(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    run(catalog, path)
    change = TableChange("set_property", (), {"key": "kind", "value": "new"})
    with unmounted(lake.warehouse), pytest.raises(TransactionAborted, match="Is its file system mounted"):
        catalog.alter_table(path, [change])
    assert ordered(lake.rows(path)) == ROWS
    catalog.alter_table(path, [change])


# -- statistics --------------------------------------------------------------------------------------------------------


def bounds(lake: Lake, path: ObjectPath, column: str) -> tuple[Any, Any, int | None]:
    table = lake.load(path)
    (task,) = table.scan().plan_files()
    number = table.schema().find_field(column).field_id
    file = task.file
    return file.lower_bounds.get(number), file.upper_bounds.get(number), file.null_value_counts.get(number)


def test_bounds_are_told_only_where_every_row_group_tells_them(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's writer tells no bounds of a row group with a NaN; those of the others are not the file's."""
    schema = pa.schema([("x", pa.float64()), ("s", pa.string())])
    plain = pq.ParquetWriter.__init__

    def without_statistics_of_x(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **{**kwargs, "write_statistics": ["s"]})

    monkeypatch.setattr(pq.ParquetWriter, "__init__", without_statistics_of_x)
    run(catalog, path, rows=[(1.0, "a"), (2.0, None)], schema=schema)
    assert bounds(lake, path, "x") == (None, None, None)
    assert bounds(lake, path, "s") == (b"a", b"a", 1)
