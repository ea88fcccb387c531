"""What is asked of a timeline of so many transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from benchmarks.scale.measure import Row, alone
from twophase import ObjectPath, Purpose, TableDefinition
from twophase.testing.chaos import ChaosCatalog
from twophase.timeline.timeline import Timeline
from twophase.transactions.clean import clean
from twophase.transactions.coordinator import Coordinator

_SCHEMA = pa.schema([("a", pa.int64())])


def beside_transactions(directory: Path, counts: list[int], rounds: int) -> Iterator[Row]:
    """One transaction, the list of the last ones, and ``clean``."""
    for count in counts:
        place = directory / f"timeline_{count}"
        place.mkdir()
        url = f"sqlite:///{place}/timeline.db"
        catalog: Any = ChaosCatalog("chaos", {"directory": str(place), "store": str(place)}, _environment())
        coordinator = Coordinator(Timeline(url), lambda _, catalog=catalog: catalog, name="bench")
        _run(coordinator, catalog, "first")
        _fill(url, count)
        beside = f"{count:,} transactions"

        def transaction(number: int, coordinator: Coordinator = coordinator, catalog: Any = catalog) -> None:
            _run(coordinator, catalog, f"t{number + 9}")

        def last(_: int, timeline: Timeline = coordinator.timeline) -> None:
            timeline.transactions(limit=20)

        def cleaned(_: int, coordinator: Coordinator = coordinator, catalog: Any = catalog) -> None:
            clean(coordinator, [catalog])

        yield alone("a transaction without Spark", beside, transaction, rounds)
        yield alone("timeline: the last 20", beside, last, rounds)
        yield alone("clean, nothing to do", beside, cleaned, 1, warm=0)
        coordinator.close()


def _environment() -> Any:
    from twophase.catalog import Environment

    return Environment()


def _run(coordinator: Coordinator, catalog: Any, name: str) -> None:
    transaction = coordinator.begin()
    path, definition = ObjectPath.of("default", name), TableDefinition(_SCHEMA)
    participant = transaction.stage(catalog, path, definition, purpose=Purpose.CREATE_TABLE_AS)
    assert participant is not None
    transaction.begin_participant(participant)
    transaction.write(participant, pa.table({"a": [1]}, schema=_SCHEMA))
    transaction.commit()


def _fill(url: str, count: int) -> None:
    """Copies of the transaction that is there, with other ids and ever older."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        names = [column["name"] for column in sa.inspect(connection).get_columns("twophase_transactions")]
        of_participant = [column["name"] for column in sa.inspect(connection).get_columns("twophase_participants")]
        numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        older = {name: f"{name} - i" for name in ("created", "decided", "finished")}
        for table, key, columns in (
            ("twophase_transactions", "id", names),
            ("twophase_participants", "transaction_id", of_participant),
        ):
            values = ", ".join(f"{key} || '-' || i" if c == key else older.get(c, f'"{c}"') for c in columns)
            quoted = ", ".join(f'"{c}"' for c in columns)
            if count:
                connection.exec_driver_sql(f"INSERT INTO {table} ({quoted}) {numbers} SELECT {values} FROM {table}, n")
    engine.dispose()
