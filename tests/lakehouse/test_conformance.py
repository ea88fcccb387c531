"""The lakehouse catalog passes the conformance suite, over a database of each kind, a Hive Metastore, REST, and S3."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.crash.lakehouse_worlds import LakeInBucket
from tests.lakehouse.conftest import make_lake, own_schema
from tests.lakehouse.places import Lake, Row
from tests.lakehouse.readers import Readers, two_read_alike
from tests.servers import Server
from tests.storage.objects import Objects
from twophase.catalog import Catalog
from twophase.catalog import TwoPhaseCatalogTable as Participant
from twophase.catalogs.lakehouse.store import ABORTED, PUBLISHED, STAGED
from twophase.model import Capabilities, ObjectPath, Purpose
from twophase.testing.conformance import CatalogConformance, Driver, FreshProcess


class LakehouseConformance(CatalogConformance):
    moments = 4  # The crash matrix tries each step.
    kind: str
    capabilities = Capabilities(
        purposes=frozenset(Purpose),
        partitioning=frozenset({"identity", "bucket", "truncate", "years", "months", "days", "hours"}),
        alter_database=True,
        rename_table=True,
        alter_table=True,
        read=True,
        group_publish=True,
        own_types=True,
        compensate=True,
        delete=True,
        providers=frozenset({"iceberg"}),
    )

    @pytest.fixture
    def lake(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
        with make_lake(self.kind, request, tmp_path).kept_open() as lake:
            yield lake

    @pytest.fixture
    def catalog(self, lake: Lake) -> Any:
        catalog = lake.catalog()
        yield catalog
        catalog.close()

    @pytest.fixture
    def fresh_catalog(self, lake: Lake) -> Callable[[], Catalog]:
        return lake.catalog

    @pytest.fixture
    def read_rows(self, lake: Lake) -> Callable[[ObjectPath], list[Row]]:
        return lake.rows

    @pytest.fixture
    def fresh_process(self, lake: Lake) -> FreshProcess | None:
        return FreshProcess("tests.lakehouse.places:open_lakehouse", lake.options())

    def records(self, catalog: Catalog) -> set[str]:
        """Files of the warehouse that are records of participants."""
        return set()

    @pytest.fixture(autouse=True)
    def is_read_alike(self, lake: Lake, database: str) -> Iterator[None]:
        """Before its database is dropped with what is left there."""
        yield
        two_read_alike(lake)

    @pytest.fixture(autouse=True)
    def nothing_is_left(self, lake: Lake, database: str, catalog: Catalog) -> Iterator[None]:
        """After each test every file belongs to a table, to a dropped one, or to a leftover that names it."""
        yield
        root = f"{lake.root}/"
        named = [leftover.location.partition("#")[0].removeprefix(root) for leftover in catalog.leftovers()]
        dropped = [table.location.removeprefix(root) for table in catalog.store.dropped()]  # type: ignore[attr-defined]
        keys = [name.rpartition("/")[2] for name in named]
        left = {
            file
            for file in lake.orphans() - self.records(catalog)
            if not file.startswith((*dropped, *named)) and not any(key in file.replace("-", "") for key in keys)
        }
        assert left == set()

    def assert_nothing_left(self, driver: Driver, participant: Participant) -> None:
        assert participant.left_behind() == []


class TestSQLite(LakehouseConformance):
    kind = "sqlite"

    @pytest.fixture(autouse=True)
    def is_read_alike(self, lake: Lake, readers: Readers, database: str) -> Iterator[None]:
        """By Spark, too: the files do not depend on where the catalog of them is."""
        yield
        readers.assert_alike(lake)


class TestPostgreSQL(LakehouseConformance):
    another_store = True
    kind = "postgresql"

    @pytest.fixture
    def lake(self, postgresql: Server, tmp_path: Path) -> Iterator[Lake]:
        with Lake(own_schema(postgresql.url), tmp_path / "warehouse").kept_open() as lake:
            yield lake


@pytest.mark.exhaustive
class TestOnAnObjectStore(LakehouseConformance):
    """Its files are on a server with the API of S3."""

    @pytest.fixture
    def lake(self, s3: Server, tmp_path: Path) -> Iterator[Lake]:
        Objects(s3, "conformance.test")
        place = Path("conformance.test") / tmp_path.name
        with LakeInBucket(f"sqlite:///{tmp_path}/lake.db", place, s3.url).kept_open() as lake:
            yield lake


class OneByOne(LakehouseConformance):
    """An Iceberg catalog that changes one table at a time, with records in files."""

    capabilities = replace(LakehouseConformance.capabilities, group_publish=False)

    def records(self, catalog: Catalog) -> set[str]:
        found = catalog.store.records((STAGED, PUBLISHED, ABORTED), time.time() + 1)  # type: ignore[attr-defined]
        return {f".twophase/staged/{record.participant.replace('/', '-')}.json" for record in found}


class TestHiveMetastore(OneByOne):
    another_store = True
    kind = "hive_metastore"


class TestRest(OneByOne):
    another_store = True
    kind = "rest"
