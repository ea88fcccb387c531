"""Reads of a table as it was when a transaction began: that state, whoever reads it and when, or a refusal."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.jdbc.places import Place, ordered
from tests.jdbc.statements import ROWS, SCHEMA, run, stage
from tests.statements import table, transaction_id
from twophase.catalog import ReadSource
from twophase.catalog.snapshots import Change, OpenSnapshot
from twophase.catalogs.jdbc import JdbcCatalog, exported_snapshots
from twophase.catalogs.jdbc.participant import JdbcParticipant
from twophase.errors import SnapshotTooOldError, TableNotExistError
from twophase.model import ObjectPath, Purpose, TableDefinition, WriteContext

INSERT, OVERWRITE, REPLACE = Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE, Purpose.REPLACE_TABLE_AS
PUBLISHES = (INSERT, OVERWRITE, REPLACE)
OTHER_WRITERS = {
    "insert": "INSERT INTO {} VALUES (9, 'nine')",
    "update": "UPDATE {} SET name = 'nine' WHERE id = 1",
    "delete": "DELETE FROM {} WHERE id = 1",
    "add column": "ALTER TABLE {} ADD COLUMN more INT",
}


def change(participant: JdbcParticipant, number: int | None = 1) -> Change:
    """What the timeline records of a publish; of one that is pending, without a number."""
    appends = participant.purpose is INSERT
    return Change(participant.transaction_id, number, appends, before=participant.replaced_state())


def publish(participant: JdbcParticipant) -> None:
    participant.commit()
    participant.finish()


def rows(source: ReadSource) -> list[Any]:
    """The rows of a source, read as the executors do."""
    assert source.reader is not None and source.definition is not None
    parts = pickle.loads(pickle.dumps(source.reader.plan(source.definition.schema.names, [])))
    return ordered([tuple(row.values()) for part in parts for batch in part() for row in batch.to_pylist()])


def first_batch(source: ReadSource) -> Any:
    """What a query with LIMIT reads: it is stopped after its first rows."""
    assert source.reader is not None and source.definition is not None
    return next(iter(source.reader.plan(source.definition.schema.names, [])[0]()), None)


def refused(read: Callable[[], Any], path: ObjectPath) -> str:
    with pytest.raises(SnapshotTooOldError) as caught:
        read()
    assert f"shop.{path}" in str(caught.value) and "again" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("purpose", PUBLISHES, ids=lambda purpose: purpose.value)
def test_what_was_planned_is_read_or_refused(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, purpose: Any
) -> None:
    run(catalog, path)
    source = catalog.read_source_before(path, [])
    assert source.version == catalog.table_version(path)
    assert rows(source) == rows(catalog.read_source_before(path, [], source.version)) == ROWS
    published = stage(catalog, path, purpose, [(3, "three")])
    assert rows(source) == rows(catalog.read_source_before(path, [change(published, None)], source.version)) == ROWS
    publish(published)
    assert refused(lambda: rows(source), path)
    for number in (1, None):
        found = refused(lambda n=number: catalog.read_source_before(path, [change(published, n)]), path)
        assert published.transaction_id in found
    assert refused(lambda: catalog.read_source_before(path, [], source.version), path)


@pytest.mark.parametrize("other_writer", OTHER_WRITERS)
def test_what_other_programs_change_meanwhile_is_not_read(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, other_writer: str
) -> None:
    run(catalog, path)
    source = catalog.read_source_before(path, [])
    place.execute(OTHER_WRITERS[other_writer].format(place.name(path)), path.database)
    assert refused(lambda: rows(source), path)
    assert refused(lambda: catalog.read_source_before(path, [], source.version), path)


def test_a_table_that_is_dropped_or_made_meanwhile(catalog: JdbcCatalog, path: ObjectPath) -> None:
    with pytest.raises(TableNotExistError):
        catalog.read_source_before(path, [])
    pending = stage(catalog, path)
    with pytest.raises(TableNotExistError):
        catalog.read_source_before(path, [change(pending, None)])
    publish(pending)
    for number in (None, 1):
        with pytest.raises(TableNotExistError):
            catalog.read_source_before(path, [change(pending, number)])
    source = catalog.read_source_before(path, [])
    catalog.drop_table(path)
    assert refused(lambda: rows(source), path)
    assert refused(lambda: catalog.read_source_before(path, [], source.version), path)


@pytest.mark.parametrize("place", ["postgresql", "mariadb"], indirect=True)  # SQLite's file is one state for a reader.
def test_a_table_that_is_replaced_just_before_a_part_reads_it(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(catalog, path)
    reading = place.catalog(external_writes="ignore")  # A look at the rows would keep the table from being replaced.
    source = reading.read_source_before(path, [])
    keep = type(catalog.store.database).keep_for_reading
    replaced = stage(catalog, path, REPLACE, [(3, "three")])

    def late(*arguments: Any) -> None:
        publish(replaced)
        keep(*arguments)

    monkeypatch.setattr(type(catalog.store.database), "keep_for_reading", late)
    assert refused(lambda: first_batch(source), path)
    reading.close()


def test_with_its_own_rows_a_transaction_reads_those_that_were_there(catalog: JdbcCatalog, path: ObjectPath) -> None:
    run(catalog, path)
    context = WriteContext(transaction_id(), pins_reads=True)
    own = catalog.two_phase_create_table(path, TableDefinition(SCHEMA), purpose=INSERT, context=context)
    assert isinstance(own, JdbcParticipant)
    own.begin()
    own.write(table([(3, "three")]))
    own.prepare()
    source = own.read_source()
    assert source is not None
    assert rows(source) == [*ROWS, (3, "three")]
    run(catalog, path, INSERT, [(4, "four")])
    assert refused(lambda: rows(source), path)
    own.prepare()
    publish(own)
    assert len(rows(catalog.read_source(path))) == 4


def test_a_view_is_read_as_it_was(place: Place, catalog: JdbcCatalog, path: ObjectPath) -> None:
    run(catalog, path)
    view = ObjectPath.of(path.database, "seen")
    place.execute(f"CREATE VIEW {place.name(view)} AS SELECT * FROM {place.name(path)}", path.database)
    source = catalog.read_source_before(view, [])
    assert rows(source) == ROWS
    assert catalog.table_version(view) == source.version
    assert rows(catalog.read_source_before(view, [], source.version)) == ROWS
    run(catalog, path, INSERT, [(3, "three")])
    if place.kind != "postgresql":
        assert refused(lambda: rows(source), view)


# -- snapshots that PostgreSQL keeps -----------------------------------------------------------------------------------

in_postgresql = pytest.mark.parametrize("place", ["postgresql"], indirect=True)


@pytest.fixture
def snapshot(catalog: JdbcCatalog) -> Iterator[Callable[[], OpenSnapshot]]:
    """Opens snapshots, which are closed after the test."""
    made: list[OpenSnapshot] = []

    def open_one() -> OpenSnapshot:
        opened = catalog.open_snapshot()
        assert opened is not None
        made.append(opened)
        return opened

    yield open_one
    for opened in made:
        opened.close()


@pytest.mark.parametrize("place", ["sqlite", "mariadb"], indirect=True)
def test_other_databases_keep_none(catalog: JdbcCatalog) -> None:
    assert catalog.open_snapshot() is None


@in_postgresql
def test_a_kept_snapshot_is_read_in_spite_of_inserts_and_overwrites(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, snapshot: Callable[[], OpenSnapshot]
) -> None:
    other = ObjectPath.of(path.database, "other")
    view = ObjectPath.of(path.database, "seen")
    for each in (path, other):
        run(catalog, each)
    place.execute(f"CREATE VIEW {place.name(view)} AS SELECT * FROM {place.name(path)}", path.database)
    opened = snapshot()
    planned = opened.read_source_before(path, [])
    made = [stage(catalog, path, INSERT, [(3, "three")])]
    publish(made[0])
    for each in (path, other):
        place.execute(f"UPDATE {place.name(each)} SET name = 'x'", path.database)
    made.append(stage(catalog, path, OVERWRITE, [(4, "four")]))
    publish(made[1])
    changes = [change(published, number) for number, published in enumerate(made)]
    assert rows(planned) == rows(opened.read_source_before(path, changes, planned.version)) == ROWS
    assert rows(opened.read_source_before(other, [])) == rows(opened.read_source_before(view, [])) == ROWS
    later = snapshot()
    assert rows(later.read_source_before(path, changes[:0])) == [(4, "four")]
    assert made[0].transaction_id in refused(lambda: later.read_source_before(path, changes), path)
    assert refused(lambda: later.read_source_before(path, [], planned.version), path)


@in_postgresql
@pytest.mark.parametrize("split", [False, True], ids=["one part", "several parts"])
@pytest.mark.parametrize(
    "ddl",
    [
        None,
        "TRUNCATE {}",
        "DROP TABLE {}",
        "ALTER TABLE {} ALTER COLUMN name TYPE VARCHAR(9)",
        "ALTER TABLE {} RENAME COLUMN name TO title",
        "ALTER TABLE {} DROP COLUMN name; ALTER TABLE {} ADD COLUMN name TEXT",
        "ALTER TABLE {} RENAME TO elsewhere",
    ],
)
def test_a_table_that_is_replaced_after_a_snapshot_is_refused_and_never_empty(
    place: Place,
    catalog: JdbcCatalog,
    path: ObjectPath,
    snapshot: Callable[[], OpenSnapshot],
    ddl: str | None,
    split: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if split:
        monkeypatch.setattr("twophase.catalogs.jdbc.postgresql.PostgreSQL.cuts", lambda *_: ["id < 2", "id >= 2"])
    run(catalog, path)
    opened = snapshot()
    planned = opened.read_source_before(path, [])
    assert rows(planned) == ROWS
    replaced = stage(catalog, path, REPLACE, [(3, "three")])

    def replace() -> None:
        publish(replaced) if ddl is None else place.execute(ddl.replace("{}", place.name(path)), path.database)

    if not split:
        replace()
        assert refused(lambda: rows(planned), path)
    else:  # Between the first look at the table and the query.
        adopt = exported_snapshots._adopt
        monkeypatch.setattr(exported_snapshots, "_adopt", lambda *arguments: (replace(), adopt(*arguments)))
        assert refused(lambda: first_batch(planned), path)
        monkeypatch.undo()
    assert refused(lambda: opened.read_source_before(path, [change(replaced, 1)]), path)
    if ddl is not None:
        replaced.abort()


@in_postgresql
@pytest.mark.parametrize("keeps", [True, False], ids=["a snapshot", "none"])
def test_a_table_is_kept_while_a_part_reads_it(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, snapshot: Callable[[], OpenSnapshot], keeps: bool
) -> None:
    run(catalog, path)
    view = ObjectPath.of(path.database, "seen")
    place.execute(f"CREATE MATERIALIZED VIEW {place.name(view)} AS SELECT * FROM {place.name(path)}")
    reading = place.catalog(batch_rows="1")
    opened = reading.open_snapshot() if keeps else None
    for each in (path, view):
        source = opened.read_source_before(each, []) if opened else reading.read_source_before(each, [])
        assert source.reader is not None
        batches = source.reader.plan(["id"], [])[0]()
        next(iter(batches))
        name = place.name(each)
        held = place.execute(f"SELECT 1 FROM pg_locks WHERE relation = '{name}'::regclass AND mode = 'AccessShareLock'")
        assert held
        batches.close()
    if opened:
        opened.close()
    reading.close()


@in_postgresql
def test_a_view_with_another_query_is_not_the_view_of_the_snapshot(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, snapshot: Callable[[], OpenSnapshot]
) -> None:
    run(catalog, path)
    view = ObjectPath.of(path.database, "seen")
    query = f"CREATE OR REPLACE VIEW {place.name(view)} AS SELECT * FROM {place.name(path)}"
    place.execute(query)
    opened = snapshot()
    planned = opened.read_source_before(view, [])
    place.execute(f"{query} WHERE id > 1")
    assert refused(lambda: first_batch(planned), view)
    assert refused(lambda: opened.read_source_before(view, []), view)


@in_postgresql
def test_partitions_of_a_table_belong_to_it(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, snapshot: Callable[[], OpenSnapshot]
) -> None:
    name = place.name(path)
    place.execute(f"CREATE TABLE {name} (id BIGINT, name TEXT) PARTITION BY LIST (id)")
    for number, row in enumerate(ROWS, 1):
        part = place.name(ObjectPath.of(path.database, f"part_{number}"))
        place.execute(f"CREATE TABLE {part} PARTITION OF {name} FOR VALUES IN ({number})")
        place.execute(f"INSERT INTO {name} VALUES {row}")
    opened = snapshot()
    planned = opened.read_source_before(path, [])
    assert rows(planned) == ROWS
    place.execute(f"TRUNCATE {part}")
    assert refused(lambda: rows(planned), path)


@in_postgresql
@pytest.mark.timeout(25, func_only=True)  # Whoever waits for a connection waits longer.
def test_any_number_of_open_snapshots_blocks_no_reader_and_no_publish(
    catalog: JdbcCatalog, path: ObjectPath, snapshot: Callable[[], OpenSnapshot]
) -> None:
    run(catalog, path)
    opened = [snapshot() for _ in range(20)]
    run(catalog, path, INSERT, [(3, "three")])
    assert rows(catalog.read_source(path)) == [*ROWS, (3, "three")]
    assert rows(opened[-1].read_source_before(path, [])) == ROWS


@in_postgresql
def test_a_snapshot_that_the_database_has_lost_is_refused(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, snapshot: Callable[[], OpenSnapshot]
) -> None:
    run(catalog, path)
    closed, lost = snapshot(), snapshot()
    sources = [opened.read_source_before(path, []) for opened in (closed, lost)]
    closed.close()
    assert isinstance(lost, exported_snapshots.ExportedSnapshot)
    backend: Any = lost._connection.connection.driver_connection
    place.execute(f"SELECT pg_terminate_backend({backend.info.backend_pid})")
    for opened, source in zip((closed, lost), sources, strict=True):
        assert refused(lambda s=source: rows(s), path)
        assert refused(lambda o=opened: o.read_source_before(path, []), path)
    with pytest.raises(TableNotExistError):
        snapshot().read_source_before(ObjectPath.of(path.database, "nowhere"), [])
