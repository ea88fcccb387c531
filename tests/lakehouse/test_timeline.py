"""A timeline in the database of the Iceberg catalog: its row and the pointers move in one SQL transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.forked import check_fork
from tests.lakehouse import statements
from tests.lakehouse.conftest import make_lake
from tests.lakehouse.places import NAME, Lake, ordered
from tests.lakehouse.readers import Readers
from tests.lakehouse.statements import ROWS, SCHEMA, run, table
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.errors import CatalogError, TransactionInDoubt
from twophase.model import ObjectPath, Outcome, Purpose, TableDefinition
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.timeline.engines import same_database
from twophase.timeline.owners import Lease
from twophase.timeline.timeline import Timeline
from twophase.transactions.coordinator import Coordinator
from twophase.transactions.transaction import Transaction

COMMITTING, COMPLETED = TransactionState.COMMITTING, TransactionState.COMPLETED
CREATE, INSERT = Purpose.CREATE_TABLE_AS, Purpose.INSERT_INTO
ONE, OTHER = ObjectPath.of("shop", "daily"), ObjectPath.of("shop", "weekly")

Coordinate = Callable[[str], Coordinator]


@pytest.fixture
def coordinate(catalog: LakehouseCatalog) -> Iterator[Coordinate]:
    """Makes a coordinator with its timeline at a URL."""
    catalog.create_database("shop")
    made: list[Coordinator] = []

    def make(url: str) -> Coordinator:
        made.append(Coordinator(Timeline(url), {NAME: catalog}.__getitem__, name="job"))
        return made[-1]

    yield make
    for coordinator in made:
        coordinator.close()


def stage(transaction: Transaction, catalog: LakehouseCatalog, path: ObjectPath, purpose: Purpose = CREATE) -> None:
    participant = transaction.stage(catalog, path, TableDefinition(SCHEMA), purpose=purpose)
    assert participant is not None
    transaction.begin_participant(participant)
    transaction.write(participant, table(ROWS))
    transaction.prepare_participant(participant)


Seen = list[tuple[TransactionState, set[ParticipantState], int | None]]


def states_before_the_record(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """What the timeline says when the coordinator is about to record that all is published; and the commit number."""
    seen: Seen = []
    record = Timeline.record

    def look(self: Timeline, lease: Lease, state: TransactionState, **more: object) -> None:
        if state is COMPLETED:
            found = self.transaction(lease.transaction_id)
            assert found is not None
            seen.append((found.state, {participant.state for participant in found.participants}, found.number))
        record(self, lease, state, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Timeline, "record", look)
    return seen


@pytest.mark.promise(
    "iceberg-sql",
    "with the timeline in the same database, its row and the commit number are part of the transaction that publishes",
)
@pytest.mark.parametrize("paths", [(ONE,), (ONE, OTHER)], ids=["one table", "two tables"])
def test_the_row_moves_with_the_pointers(
    lake: Lake,
    catalog: LakehouseCatalog,
    coordinate: Coordinate,
    paths: tuple[ObjectPath, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = coordinate(lake.uri)
    seen = states_before_the_record(monkeypatch)
    for purpose in (CREATE, INSERT):
        transaction = coordinator.begin()
        for path in paths:
            stage(transaction, catalog, path, purpose)
        transaction.commit()
    numbers = [number for *_, number in seen]
    assert seen == [(COMPLETED, {ParticipantState.PUBLISHED}, number) for number in numbers]
    assert None not in numbers and numbers == sorted(set(numbers))
    for path in paths:
        found = lake.table(path)
        assert found is not None
        assert len(found) == 2 * len(ROWS)
    assert coordinator.recover() == []


#: What SQLite calls ``synchronous = EXTRA``; its default is at most FULL, 2.
_EXTRA = 3


@pytest.mark.promise("power-cut", "a publish to an Iceberg catalog in SQL is durable, whatever the role is set to")
def test_a_publish_is_durable_whatever_the_role_is_set_to(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    in_file = lake.uri.startswith("sqlite")
    ask, durable = ("PRAGMA synchronous", _EXTRA) if in_file else ("SHOW synchronous_commit", "on")
    catalog = lake.catalog(uri=lake.uri if in_file else f"{lake.uri}?options=-csynchronous_commit%3Doff")
    catalog.create_database("shop")
    store: Any = catalog.store
    record, found = store._record_published, []

    def look(connection: sa.Connection, moves: Any) -> None:
        found.append(connection.exec_driver_sql(ask).scalar_one())
        record(connection, moves)

    monkeypatch.setattr(store, "_record_published", look)
    run(catalog, ONE)
    assert found == [durable]
    catalog.close()


def test_a_publish_does_not_wait_for_ever_for_a_session_that_holds_its_table(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    lake = make_lake("postgresql", request, tmp_path)
    catalog = lake.catalog(uri=f"{lake.uri}?options=-clock_timeout%3D100ms")
    catalog.create_database("shop")
    run(catalog, ONE)
    participant = statements.stage(catalog, ONE, INSERT)
    engine = sa.create_engine(lake.uri)
    with engine.connect() as other:
        other.exec_driver_sql("SELECT * FROM iceberg_tables FOR UPDATE")
        with pytest.raises(CatalogError, match=r"lock timeout.*shop.*Another session holds.*pg_stat_activity"):
            participant.commit()
    engine.dispose()
    assert participant.outcome() is Outcome.NOT_PUBLISHED
    participant.commit()
    participant.finish()
    assert len(lake.table(ONE) or ()) == 2 * len(ROWS)
    catalog.close()


def test_a_forked_child_neither_uses_nor_closes_its_parents_connections(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    catalog = make_lake("postgresql", request, tmp_path).catalog()
    store: Any = catalog.store

    def server_process() -> int:
        with store._begin(read_only=True) as connection:
            return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())

    check_fork(catalog, server_process)


def test_an_open_insert_records_no_secret_of_the_table(
    catalog: LakehouseCatalog, coordinate: Coordinate, tmp_path: Path
) -> None:
    coordinator = coordinate(f"sqlite:///{tmp_path / 'timeline.db'}")
    properties = {"connector.api.token": "hunter2secret", "write.parquet.compression-codec": "snappy"}
    run(catalog, ONE, properties=properties)
    transaction = coordinator.begin()
    stage(transaction, catalog, ONE, INSERT)
    found = coordinator.timeline.transaction(transaction.id)
    assert found is not None
    (document,) = [participant.document for participant in found.participants]
    assert document["properties"]["write.parquet.compression-codec"] == "snappy"
    assert "hunter2secret" not in repr(document)
    transaction.commit()
    assert catalog.load_table(ONE).properties["connector.api.token"] == "hunter2secret"


def test_a_timeline_elsewhere_follows(
    lake: Lake, catalog: LakehouseCatalog, coordinate: Coordinate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = states_before_the_record(monkeypatch)
    transaction = coordinate(f"sqlite:///{tmp_path / 'timeline.db'}").begin()
    stage(transaction, catalog, ONE)
    transaction.commit()
    assert seen == [(COMMITTING, {ParticipantState.PREPARED}, None)]


def test_the_row_waits_for_the_other_catalogs_of_a_transaction(
    lake: Lake, catalog: LakehouseCatalog, readers: Readers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver killed between the two publishes must not be found as completed."""
    elsewhere = Lake(f"sqlite:///{tmp_path / 'other.db'}", tmp_path / "other")
    other = elsewhere.catalog()
    other.name = "other"
    for each in (catalog, other):
        each.create_database("shop")
    coordinator = Coordinator(Timeline(lake.uri), {NAME: catalog, "other": other}.__getitem__, name="job")
    seen = states_before_the_record(monkeypatch)
    transaction = coordinator.begin()
    stage(transaction, catalog, ONE)
    stage(transaction, other, ONE)
    transaction.commit()
    assert seen == [(COMMITTING, {ParticipantState.PREPARED}, None)]
    coordinator.close()
    other.close()
    readers.assert_alike(elsewhere)


@pytest.mark.promise("iceberg-sql", "a writer that lost its lease is fenced off by the publish itself")
def test_a_writer_that_lost_its_lease_is_fenced_off_by_the_publish_itself(
    lake: Lake, catalog: LakehouseCatalog, coordinate: Coordinate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It slept between its last look at the lease and the transaction that moves the pointer."""
    coordinator = coordinate(lake.uri)
    transaction = coordinator.begin()
    stage(transaction, catalog, ONE)
    publish = catalog.store.publish

    def taken_over(*arguments: object) -> None:
        engine = sa.create_engine(lake.uri, poolclass=sa.pool.NullPool)
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE twophase_transactions SET fencing = fencing + 1, lease_until = 0")
        publish(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(catalog.store, "publish", taken_over)
    with pytest.raises(TransactionInDoubt, match="taken over"):
        transaction.commit()
    monkeypatch.undo()
    assert lake.table(ONE) is None
    coordinator.recover()
    again = coordinator.begin()
    stage(again, catalog, ONE)
    again.commit()
    found = lake.table(ONE)
    assert found is not None
    assert ordered([tuple(row.values()) for row in found.to_pylist()]) == ordered(ROWS)
    assert lake.orphans() == set()


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("postgresql+psycopg://user@host:5432/one", True),
        ("postgresql://user:secret@host/one", True),
        ("postgresql://user@host/one?sslmode=require", False),
        ("postgresql://another@host/one", False),
        ("postgresql://user@host:5433/one", False),
        ("postgresql://user@elsewhere/one", False),
        ("postgresql://user@host/two", False),
        ("sqlite:///one", False),
    ],
)
def test_databases_of_servers_are_distinguished(other: str, same: bool) -> None:
    assert same_database(sa.make_url("postgresql+psycopg://user@host/one"), sa.make_url(other)) is same


def test_databases_are_distinguished(tmp_path: Path) -> None:
    timeline = Timeline(f"sqlite:///{tmp_path / 'one.db'}")
    for url, same in [
        (f"sqlite:///{tmp_path / 'sub' / '..' / 'one.db'}", True),
        (f"sqlite:///{tmp_path / 'two.db'}", False),
        ("postgresql://host/one", False),
    ]:
        assert timeline.is_in(sa.make_url(url)) is same
    assert not timeline.is_in(None)
    timeline.close()
