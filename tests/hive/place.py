"""A Hive catalog without Spark: a metastore in a file, a timeline, and the commands that users run over both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.crash.file_metastore import FileMetastore
from tests.crash.frames import ArrowFrame
from twophase.catalog import Environment
from twophase.catalogs.hive import HiveCatalog
from twophase.model import ObjectPath, Purpose, TableDefinition, Transform
from twophase.timeline.timeline import Timeline
from twophase.transactions.clean import Cleaned, clean
from twophase.transactions.coordinator import Coordinator
from twophase.transactions.transaction import Transaction

ROWS = pa.table({"id": [1, 2]})
PATH = ObjectPath.of("default", "t")


class Named(FileMetastore):
    """A metastore in a file that tells who it is; another file holds other tables over the same warehouse."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory, f"{name}.json")
        self._name = name

    @property
    def identity(self) -> str:
        return f"derby:/{self._name}"


class Place:
    """One warehouse, one timeline, and a metastore by name."""

    def __init__(self, directory: Path, retention: float = 0.0) -> None:
        self.directory = directory
        self.timeline = Timeline(f"sqlite:///{directory / 'timeline.db'}")
        self.retention = retention

    @property
    def database(self) -> Path:
        """The directory of the database ``default``."""
        return self.directory / "warehouse" / "default.db"

    def catalog(self, metastore: str = "job") -> HiveCatalog:
        environment = Environment()
        environment.session_metastore = self.metastore(metastore)
        environment.warehouse = str(self.directory / "warehouse")
        environment.retention = self.retention
        return HiveCatalog("hive", {}, environment)

    def metastore(self, name: str = "job") -> FileMetastore:
        return Named(self.directory, name)

    def coordinator(self, metastore: str = "job") -> Coordinator:
        return Coordinator(self.timeline, {"hive": self.catalog(metastore)}.__getitem__, name="job", wait_seconds=0.0)

    def write(
        self,
        metastore: str = "job",
        *,
        path: ObjectPath = PATH,
        rows: pa.Table = ROWS,
        purpose: Purpose = Purpose.CREATE_TABLE_AS,
        by: Sequence[str] = (),
        prepare: bool = True,
    ) -> Transaction:
        tx = self.coordinator(metastore).begin()
        partitioning = tuple(Transform.identity(column) for column in by)
        definition = TableDefinition(rows.schema, provider="parquet", partitioning=partitioning)
        participant = tx.stage(self.catalog(metastore), path, definition, purpose=purpose)
        assert participant is not None
        tx.begin_participant(participant)
        tx.write(participant, ArrowFrame(rows))
        if prepare:
            tx.prepare_participant(participant)
        return tx

    def rows(self, metastore: str = "job", table: str = "t") -> Any:
        return self.metastore(metastore).rows("default", table)

    def clean(self, metastore: str = "job") -> list[Cleaned]:
        """``twophase clean``."""
        return clean(self.coordinator(metastore), [self.catalog(metastore)])
