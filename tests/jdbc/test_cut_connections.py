"""The connection dies before, during or after the publish; the server is restarted; what is told is what is there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests import servers
from tests.forked import check_fork
from tests.jdbc.conftest import make_place
from tests.jdbc.places import Place, open_jdbc, ordered
from tests.jdbc.proxy import MOMENTS, CuttingProxy
from tests.jdbc.statements import ROWS, SCHEMA, stage, table
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.errors import CatalogError, TransactionAborted, TransactionInDoubt
from twophase.model import ObjectPath, Outcome, Purpose, TableDefinition
from twophase.protocol.states import TransactionState
from twophase.timeline.timeline import Timeline
from twophase.transactions.coordinator import Coordinator

#: What makes the publish final, in each database's words.
FINAL = {"postgresql": b"COMMIT", "mariadb": b"RENAME TABLE"}


@pytest.fixture(params=["postgresql", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place(request.param, request, tmp_path)


@pytest.fixture
def proxy(place: Place) -> Iterator[CuttingProxy]:
    url = sa.engine.make_url(place.url)
    with CuttingProxy(str(url.host), int(url.port or 0)) as running:
        yield running


@pytest.fixture
def cut_off(place: Place, proxy: CuttingProxy) -> Iterator[JdbcCatalog]:
    """A catalog whose connections go through the proxy."""
    url = sa.engine.make_url(place.url).set(host="127.0.0.1", port=proxy.port)
    if place.kind == "mariadb":
        url = url.update_query_dict({"ssl_disabled": "true"})  # The proxy reads what passes.
    catalog = open_jdbc(**{**place.options(), "url": url.render_as_string(hide_password=False)})
    yield catalog
    catalog.close()


def write(catalog: JdbcCatalog, path: ObjectPath, directory: Path) -> tuple[str, TransactionState]:
    """One transaction under a real coordinator: what its caller was told, and what the timeline says."""
    timeline = f"sqlite:///{directory / 'timeline.db'}"
    coordinator = Coordinator(Timeline(timeline), lambda _: catalog, name="cut")
    transaction = coordinator.begin()
    participant = transaction.stage(catalog, path, TableDefinition(SCHEMA), purpose=Purpose.CREATE_OR_REPLACE_TABLE_AS)
    assert participant is not None
    transaction.begin_participant(participant)
    transaction.write(participant, table(ROWS))
    transaction.prepare_participant(participant)
    try:
        transaction.commit()
        told = "published"
    except TransactionInDoubt:
        told = "in doubt"
    except TransactionAborted:
        told = "rolled back"
    record = coordinator.timeline.transaction(transaction.id)
    coordinator.close()
    assert record is not None
    return told, record.state


@pytest.mark.promise("in-doubt", "a database connection that dies on the publish is reported truthfully")
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_outcome_of_a_connection_that_dies_on_the_publish_is_reported_truly(
    place: Place, path: ObjectPath, cut_off: JdbcCatalog, proxy: CuttingProxy, moment: str, tmp_path: Path
) -> None:
    old = stage(cut_off, path, rows=[(0, "old")])
    old.commit()
    old.finish()
    _cut_the_publish(cut_off, proxy, place, moment)
    told, state = write(cut_off, path, tmp_path)
    assert proxy.cuts == 1, "The connection was never cut: the test proves nothing."
    expected = {"published": ROWS, "rolled back": [(0, "old")]}
    assert told == ("published" if moment == "after" else "rolled back")
    assert ordered(place.rows(path)) == ordered(expected[told])
    assert state is (TransactionState.COMPLETED if told == "published" else TransactionState.ROLLED_BACK)


def _cut_the_publish(catalog: JdbcCatalog, proxy: CuttingProxy, place: Place, moment: str) -> None:
    """Arm the proxy inside the publish: earlier statements commit, too."""
    from twophase import failpoints

    failpoints.arm("jdbc.publish", lambda _: proxy.cut(FINAL[place.kind], moment), nth=1)


@pytest.mark.promise("in-doubt", "a database server that is gone: nothing is removed, and its return tells the outcome")
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_server_that_is_gone_is_in_doubt_and_answers_after_its_return(kind: str) -> None:
    """It is killed between the decision and the publish, and started again on its data."""
    start = servers.postgresql if kind == "postgresql" else servers.mariadb
    with start() as server:
        place = Place(kind, server.url)
        if kind == "mariadb":
            place.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")  # Our servers spare it elsewhere.
        catalog = place.catalog(connect_timeout="2")
        path = ObjectPath.of("public" if kind == "postgresql" else "twophase", "restarted")
        participant = stage(catalog, path)
        # SIGQUIT is PostgreSQL's own word for "at once"; SIGKILL would leave its children running.
        os.kill(server.process.pid, signal.SIGQUIT if kind == "postgresql" else signal.SIGKILL)
        server.process.wait(30)
        with pytest.raises(CatalogError, match="answered"):
            participant.commit()
        assert participant.outcome() is Outcome.UNKNOWN
        with pytest.raises(CatalogError, match="nothing was removed"):
            participant.abort()
        with servers.again(server):
            restored = catalog.restore(participant.document)
            assert restored.outcome() is Outcome.NOT_PUBLISHED
            restored.commit()
            restored.finish()
            assert ordered(place.rows(path)) == ROWS
            assert place.hidden(path.database) == []
        catalog.close()


@pytest.mark.promise("contexts", "a forked child that ends closes no connection of its parent to a database")
def test_a_forked_child_neither_uses_nor_closes_its_parents_connections(place: Place) -> None:
    ask = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT connection_id()"}[place.kind]
    catalog = place.catalog()

    def server_process() -> int:
        with catalog.store.begin("public" if place.kind == "postgresql" else "twophase", read_only=True) as connection:
            return int(connection.exec_driver_sql(ask).scalar_one())

    check_fork(catalog, server_process)
