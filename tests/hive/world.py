"""A Hive catalog over a real session, driven by hand: a participant's methods are called as the coordinator does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from twophase.catalog import Environment
from twophase.catalogs.hive import HiveCatalog
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.model import Level, ObjectPath, Outcome, OverwriteScope, Purpose, TableDefinition, Transform, WriteContext
from twophase.protocol.states import TransactionState
from twophase.spark import types
from twophase.spark.jvm.file_writer import SessionFileWriter
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.metastore.session import SessionMetastore
from twophase.spark.routing.table_writer import SessionTableWriter
from twophase.timeline.owners import this_process
from twophase.timeline.records import ParticipantRecord, ParticipantState
from twophase.timeline.timeline import Timeline
from twophase.transactions.clean import clean
from twophase.transactions.coordinator import Coordinator

Rows = list[tuple[Any, ...]]


@lru_cache(maxsize=1)
def jvm_of(spark: SparkSession) -> Jvm:
    """One for the catalogs of a session, as where it is attached: it remembers what takes long to find."""
    return Jvm(spark)


class World:
    """A session, its warehouse and a catalog over it."""

    def __init__(self, spark: SparkSession, warehouse: Path, options: Mapping[str, str] | None = None) -> None:
        self.spark = spark
        self.warehouse = warehouse
        self.environment = Environment()
        self.environment.session_metastore = SessionMetastore(spark, jvm_of(spark))
        self.environment.table_writer = SessionTableWriter(spark)
        self.environment.file_writer = SessionFileWriter(jvm_of(spark))
        self.environment.warehouse = str(warehouse)
        self.environment.conf = dict(spark.conf.getAll)
        self.catalog = HiveCatalog("hive", options or {}, self.environment)
        self.is_hive = spark.conf.get("spark.sql.catalogImplementation") == "hive"
        self._numbers = count(1)
        self._committed: set[str] = set()

    def with_options(self, **options: str) -> World:
        """The same session with another catalog."""
        other = World(self.spark, self.warehouse, options)
        other._numbers, other._committed = self._numbers, self._committed
        return other

    # -- participants --------------------------------------------------------------------------------------------

    def offer(
        self,
        table: str,
        df: DataFrame,
        purpose: Purpose = Purpose.CREATE_TABLE_AS,
        *,
        by: Sequence[str] = (),
        overwrite: OverwriteScope | None = None,
        base: HiveParticipant | None = None,
        transaction: str | None = None,
        database: str = "default",
        autocommit: bool = False,
        ordinal: int = 0,
        **facts: Any,
    ) -> HiveParticipant:
        """The participant of a statement; its document must be plain JSON."""
        definition = TableDefinition(
            types.to_arrow(df.schema.json()), partitioning=tuple(Transform.identity(column) for column in by), **facts
        )
        context = WriteContext(
            transaction or (base.transaction_id if base else f"test-{next(self._numbers):04d}"),
            ordinal if base is None else int(base.document["ordinal"]) + 1,
            overwrite,
            None if base is None else base.document,
            autocommit,
        )
        found = self.catalog.two_phase_create_table(
            ObjectPath.of(database, table), definition, purpose=purpose, context=context
        )
        assert isinstance(found, HiveParticipant)
        return found

    def reborn(self, participant: HiveParticipant) -> HiveParticipant:
        """The participant as a fresh process finds it on the timeline."""
        found = self.catalog.restore(json.loads(json.dumps(participant.document)))
        assert isinstance(found, HiveParticipant)
        return found

    def stage(
        self, table: str, df: DataFrame, purpose: Purpose = Purpose.CREATE_TABLE_AS, **facts: Any
    ) -> HiveParticipant:
        """Up to the decision."""
        participant = self.offer(table, df, purpose, **facts)
        participant.begin()
        participant.write(df)
        participant.prepare()
        return participant

    def run(
        self, table: str, df: DataFrame, purpose: Purpose = Purpose.CREATE_TABLE_AS, **facts: Any
    ) -> HiveParticipant:
        """A whole statement: each step twice, and by another process, as recovery may do."""
        participant = self.offer(table, df, purpose, **facts)
        participant.begin()
        participant.begin()
        participant.write(df)
        participant.prepare()
        participant.prepare()
        assert participant.outcome() is Outcome.NOT_PUBLISHED
        participant.commit()
        self._committed.add(participant.transaction_id)
        other = self.reborn(participant)
        assert other.outcome() is Outcome.PUBLISHED
        other.commit()
        other.finish()
        self.reborn(participant).finish()
        assert other.outcome() is Outcome.PUBLISHED
        other.abort()
        return participant

    def together(self, *tables: str, database: str = "default", locations: Path | None = None) -> Level | None:
        """Create tables in one transaction; the level that it had."""
        df = self.sql("SELECT 1L AS id")
        with TemporaryDirectory() as directory, closing(self._coordinator(directory)) as coordinator:
            tx = coordinator.begin()
            self._committed.add(tx.id)
            for table in tables:
                definition = TableDefinition(
                    types.to_arrow(df.schema.json()), location=None if locations is None else str(locations / table)
                )
                path = ObjectPath.of(database, table)
                participant = tx.stage(self.catalog, path, definition, purpose=Purpose.CREATE_TABLE_AS)
                assert participant is not None
                tx.begin_participant(participant)
                tx.write(participant, df)
                tx.prepare_participant(participant)
            tx.commit()
            record = coordinator.timeline.transaction(tx.id)
        assert record is not None
        return record.level

    def undone(self, participant: HiveParticipant) -> bool:
        """Compensate what was published; its transaction ends as rolled back."""
        self._committed.discard(participant.transaction_id)
        return participant.compensate()

    def clean(self, *, retention: float = 0.0, live: frozenset[str] = frozenset()) -> list[str]:
        """Run ``twophase clean``, over a timeline that knows how each transaction ended.

        Parameters
        ----------
        retention : float
        live : frozenset of str
            Transactions that have not ended.

        Returns
        -------
        list of str
            Kinds of what was removed, sorted.
        """
        before, self.environment.retention = self.environment.retention, retention
        try:
            with TemporaryDirectory() as directory, closing(self._coordinator(directory)) as coordinator:
                for transaction in {leftover.transaction_id for leftover in self.catalog.leftovers()}:
                    self._record(coordinator.timeline, transaction, transaction in live)
                found = clean(coordinator, [self.catalog])
        finally:
            self.environment.retention = before
        assert not [entry for entry in found if entry.failed], found
        return sorted(entry.leftover.kind for entry in found if entry.removed)

    def _coordinator(self, directory: str) -> Coordinator:
        timeline = Timeline(f"sqlite:///{directory}/timeline.db")
        return Coordinator(timeline, {self.catalog.name: self.catalog}.__getitem__, name="test")

    def _record(self, timeline: Timeline, transaction: str, is_live: bool) -> None:
        participant = ParticipantRecord(
            0, self.catalog.name, ObjectPath.of("default", "t"), Purpose.INSERT_INTO, ParticipantState.STAGED
        )
        facts: dict[str, Any] = {
            "coordinator": "test",
            "owner": replace(this_process(), host="elsewhere"),
            "user": "",
            "application": "",
        }
        lease = timeline.begin(transaction, participant, seconds=3600.0, **facts)
        if not is_live:
            committed = transaction in self._committed
            timeline.record(lease, TransactionState.COMPLETED if committed else TransactionState.ROLLED_BACK)
            timeline.finish(lease)

    # -- looking -------------------------------------------------------------------------------------------------

    def sql(self, text: str) -> DataFrame:
        return self.spark.sql(text)

    def rows(self, table: str) -> Rows:
        """All rows, in a fixed order, as stock Spark reads them."""
        return sorted((tuple(row) for row in self.spark.table(table).collect()), key=repr)

    def partitions(self, table: str) -> list[str]:
        return sorted(row[0] for row in self.sql(f"SHOW PARTITIONS {table}").collect())

    def hidden_tables(self) -> list[str]:
        """Staging tables of every database."""
        store = self.catalog.metastore
        return [n for d in store.list_databases() for n in store.list_tables(d) if n.startswith("__twophase")]

    def staged(self) -> list[str]:
        """Version directories on disk that no superseded mark explains and no table refers to."""
        return [leftover.location for leftover in self.catalog.leftovers() if leftover.kind == "staging"]

    def drop(self, *tables: str) -> None:
        for table in tables:
            self.sql(f"DROP TABLE IF EXISTS {table}")
            self.catalog.table_dropped(ObjectPath.of("default", table))


def files_of(directory: Path) -> set[str]:
    """Every file below a directory, by its relative name."""
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
