"""Over another lake of the same name nothing is recovered: that it does not know a transaction is no answer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lakehouse.places import NAME, Lake
from tests.lakehouse.statements import ROWS, SCHEMA, table
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.catalogs.lakehouse.participant import LakehouseParticipant
from twophase.errors import ConfigurationError, TimelineError
from twophase.model import ObjectPath, Purpose, TableDefinition
from twophase.protocol.states import TransactionState
from twophase.timeline.timeline import Timeline
from twophase.transactions.coordinator import Coordinator, Recovered
from twophase.transactions.transaction import Transaction

PATH = ObjectPath.of("shop", "daily")


class Place:
    """Two lakes that a session would call by one name, and a timeline."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.opened: list[LakehouseCatalog | Coordinator] = []

    def lake(self, which: str) -> Lake:
        return Lake(f"sqlite:///{self.directory / which}.db", self.directory / "warehouse")

    def catalog(self, which: str) -> LakehouseCatalog:
        made = self.lake(which).catalog()
        made.create_database("shop", ignore_if_exists=True)
        self.opened.append(made)
        return made

    def coordinator(self, catalog: LakehouseCatalog) -> Coordinator:
        made = Coordinator(Timeline(f"sqlite:///{self.directory / 'line.db'}"), {NAME: catalog}.__getitem__, name="job")
        self.opened.append(made)
        return made

    def recover(self, which: str) -> Recovered:
        (found,) = self.coordinator(self.catalog(which)).recover()
        return found

    def close(self) -> None:
        for each in reversed(self.opened):
            each.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def prepared(place: Place, which: str) -> tuple[Coordinator, Transaction]:
    catalog = place.catalog(which)
    coordinator = place.coordinator(catalog)
    transaction = coordinator.begin()
    found = transaction.stage(catalog, PATH, TableDefinition(SCHEMA), purpose=Purpose.CREATE_TABLE_AS)
    assert found is not None
    transaction.begin_participant(found)
    transaction.write(found, table(ROWS))
    transaction.prepare_participant(found)
    return coordinator, transaction


def published_and_killed(place: Place, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is published, and the timeline does not say so."""
    coordinator, transaction = prepared(place, which)
    record = Timeline.record

    def killed(self: Timeline, lease: object, state: TransactionState, **facts: object) -> None:
        if state is not TransactionState.COMMITTING:
            raise TimelineError("It is gone.")
        record(self, lease, state, **facts)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Timeline, "record", killed)
        transaction.commit()
    coordinator.ended(transaction.id)


@pytest.mark.promise("identity", "recovery over another lakehouse leaves all as it is")
def test_recovery_over_another_lake_leaves_all_as_it_is(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(place, "development")[1].abort()
    published_and_killed(place, "production", monkeypatch)
    answer = place.recover("development")
    assert "in another store" in str(answer.note)
    assert answer.state is TransactionState.COMMITTING
    assert place.recover("production").state is TransactionState.COMPLETED
    assert len(place.lake("production").rows(PATH)) == len(ROWS)


@pytest.mark.promise("identity", "what an older copy of a lakehouse does not know is unknown")
def test_what_an_older_copy_of_the_lake_does_not_know_is_not_known(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the same identity, and never heard of the transaction."""
    prepared(place, "production")[1].abort()
    place.close()
    shutil.copy(place.directory / "production.db", place.directory / "copy.db")
    published_and_killed(place, "production", monkeypatch)
    assert place.recover("copy").state is TransactionState.IN_DOUBT
    assert place.recover("production").state is TransactionState.COMPLETED


def test_a_document_of_an_earlier_version_names_no_lake_and_is_recovered(place: Place) -> None:
    coordinator, transaction = prepared(place, "production")
    (member,) = transaction.participants
    document = {key: value for key, value in member.document.items() if key != "store"}
    restored = place.catalog("production").restore(document)
    restored.commit()
    assert restored.outcome().name == "PUBLISHED"
    coordinator.ended(transaction.id)


def test_a_rest_catalog_is_told_by_its_uri_and_warehouse(place: Place) -> None:
    """Nothing is asked of a server."""
    document = dict(prepared(place, "production")[1].participants[0].document)
    document["store"] = "https://one/catalog lake file:///warehouse"
    for uri, warehouse, is_theirs in [
        ("https://one/catalog/", "/warehouse", True),
        ("https://two/catalog", "/warehouse", False),
        ("https://one/catalog", "/other", False),
    ]:
        catalog = LakehouseCatalog(NAME, {"uri": uri, "warehouse": warehouse}, place.catalog("production").environment)
        if is_theirs:
            assert isinstance(catalog.restore(document), LakehouseParticipant)
        else:
            with pytest.raises(ConfigurationError, match="another store"):
                catalog.restore(document)
