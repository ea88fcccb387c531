"""The plugin of the examples passes the suite, and is as short as we say that a plugin can be."""

from __future__ import annotations

import ast
import sqlite3
import tokenize
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from examples import sqlite_plugin
from examples.sqlite_plugin import SqliteCatalog
from twophase import (
    Capabilities,
    Catalog,
    Environment,
    Leftover,
    ObjectPath,
    Outcome,
    Purpose,
    TableDefinition,
    TwoPhaseCatalogTable,
    WriteContext,
)
from twophase.errors import CatalogError, TransactionAborted, WriteConflictError
from twophase.testing import CatalogConformance, FreshProcess, LocalRunner
from twophase.timeline.timeline import Timeline
from twophase.transactions.clean import clean
from twophase.transactions.coordinator import Coordinator

quick_first_cases = True

#: As docs/plugins.md says.
MOST_LINES = 100


def open_plugin(file: str) -> SqliteCatalog:
    environment = Environment()
    environment.partition_runner = LocalRunner()
    return SqliteCatalog("lite", {"file": file}, environment)


class TestSqlitePlugin(CatalogConformance):
    moments = 30  # Each of them is tried on the mutants.
    capabilities = Capabilities(purposes=frozenset(Purpose), read=True, group_publish=True)

    @pytest.fixture
    def catalog(self, tmp_path: Path) -> SqliteCatalog:
        return open_plugin(str(tmp_path / "tables.db"))

    @pytest.fixture
    def fresh_catalog(self, tmp_path: Path) -> Callable[[], Catalog]:
        return lambda: open_plugin(str(tmp_path / "tables.db"))

    @pytest.fixture
    def fresh_process(self, tmp_path: Path) -> FreshProcess:
        return FreshProcess("tests.kit.test_plugin_conforms:open_plugin", {"file": str(tmp_path / "tables.db")})

    @pytest.fixture
    def read_rows(self, tmp_path: Path) -> Callable[[ObjectPath], list[tuple[Any, ...]]]:
        def rows(path: ObjectPath) -> list[tuple[Any, ...]]:
            with closing(sqlite3.connect(tmp_path / "tables.db")) as db:
                return db.execute(f"SELECT * FROM {sqlite_plugin.table_of(path)}").fetchall()

        return rows


def test_a_record_is_kept_until_its_transaction_has_ended(tmp_path: Path) -> None:
    """Recovery asks for it; after that ``twophase clean`` removes it, and the store does not grow."""
    catalog, path = open_plugin(str(tmp_path / "tables.db")), ObjectPath.of("default", "t")
    rows = pa.table({"id": [1]})
    participant = catalog.two_phase_create_table(path, TableDefinition(rows.schema), purpose=Purpose.CREATE_TABLE_AS)
    assert participant is not None
    for step in (participant.begin, lambda: participant.write(rows), participant.prepare, participant.persist):
        step()
    participant.commit()
    participant.finish()
    assert catalog.leftovers() == []
    ended = open_plugin(str(tmp_path / "tables.db"))
    ended.environment.has_ended = lambda _: True  # type: ignore[method-assign]
    (record,) = ended.leftovers()
    assert (record.kind, record.transaction_id) == ("metadata", participant.transaction_id)
    for _ in range(2):
        ended.remove_leftover(record)
    assert ended.leftovers() == []
    assert ended.table_exists(path)


def test_a_record_is_cleaned_only_after_the_retention(tmp_path: Path) -> None:
    """A timeline restored from a backup may not know yet that its transaction has ended: recovery then needs it."""
    catalog, path = open_plugin(str(tmp_path / "tables.db")), ObjectPath.of("default", "t")
    rows = pa.table({"id": [1]})
    coordinator = Coordinator(Timeline(f"sqlite:///{tmp_path / 'timeline.db'}"), lambda _: catalog, name="kit")
    transaction = coordinator.begin()
    catalog.environment.has_ended = lambda identity: identity == transaction.id  # type: ignore[method-assign]
    participant = transaction.stage(catalog, path, TableDefinition(rows.schema), purpose=Purpose.CREATE_TABLE_AS)
    assert participant is not None
    transaction.begin_participant(participant)
    transaction.write(participant, rows)
    transaction.commit()
    (kept,) = clean(coordinator, [catalog])
    assert (kept.removed, kept.reason) == (False, "its transaction was committed, and its retention has not ended")
    catalog.environment.retention = 0.0
    (removed,) = clean(coordinator, [catalog])
    assert removed.removed
    assert clean(coordinator, [catalog]) == []
    coordinator.close()


def test_staged_rows_are_removed_however_the_staging_directory_is_written(tmp_path: Path) -> None:
    catalog, path = open_plugin(str(tmp_path / "tables.db")), ObjectPath.of("default", "t")
    catalog.staging += "//"
    staged(catalog, path, pa.table({"id": [1]}), Purpose.CREATE_TABLE_AS, WriteContext("tx"))
    (leftover,) = catalog.leftovers()
    for _ in range(2):
        catalog.remove_leftover(leftover)
    assert catalog.leftovers() == []


def test_nothing_is_removed_outside_the_staging_directory(tmp_path: Path) -> None:
    catalog = open_plugin(str(tmp_path / "tables.db"))
    for location in (tmp_path, tmp_path / "twophase-tx.0", Path(catalog.staging) / ".." / "twophase-tx.0"):
        location.mkdir(parents=True, exist_ok=True)
        with pytest.raises(CatalogError, match="is not below"):
            catalog.remove_leftover(Leftover("staging", str(location), -1, "tx", 0.0))
        assert location.exists()


@pytest.mark.parametrize(
    "other",
    [
        pa.schema([("name", pa.string()), ("id", pa.int64())]),
        pa.schema([("id", pa.int64()), ("name", pa.int32())]),
    ],
    ids=["other order", "other type"],
)
def test_rows_are_not_filled_into_other_columns(tmp_path: Path, other: pa.Schema) -> None:
    """Of a block that creates a table IF NOT EXISTS and inserts into it, where another writer creates it meanwhile."""
    catalog, path = open_plugin(str(tmp_path / "tables.db")), ObjectPath.of("default", "t")
    rows, base = pa.table({"id": [1], "name": ["a"]}), None
    for ordinal, purpose in enumerate((Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS, Purpose.INSERT_INTO)):
        participant = staged(catalog, path, rows, purpose, WriteContext("tx", ordinal, base=base))
        base = participant.document
    catalog.create_table(path, TableDefinition(other))
    with pytest.raises(WriteConflictError, match="other columns"):
        participant.commit()
    assert participant.outcome() is Outcome.NOT_PUBLISHED
    source = catalog.read_source(path)
    assert source.reader is not None
    assert [list(part()) for part in source.reader.plan(["id"], [])] == [[]]


def test_times_of_any_year_are_read_as_they_were_written(tmp_path: Path) -> None:
    catalog, path = open_plugin(str(tmp_path / "tables.db")), ObjectPath.of("default", "t")
    days = pa.array([-1_000_000, 0, 2_932_897, None], pa.int32())
    moments = pa.array([-(10**17), 0, 253_402_300_800_000_001, None], pa.int64())
    kinds = (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
    columns = (days, moments, moments)
    rows = pa.table({str(kind): values.cast(kind) for kind, values in zip(kinds, columns, strict=True)})
    staged(catalog, path, rows, Purpose.CREATE_TABLE_AS, WriteContext("tx")).commit()
    source = catalog.read_source(path)
    assert source.reader is not None
    parts = source.reader.plan(rows.schema.names, [])
    assert pa.Table.from_batches(batch for part in parts for batch in part()).equals(rows)


def test_no_table_is_published_into_a_database_that_was_dropped(tmp_path: Path) -> None:
    catalog, path = open_plugin(str(tmp_path / "tables.db")), ObjectPath.of("sales", "t")
    catalog.create_database("sales")
    participant = staged(catalog, path, pa.table({"id": [1]}), Purpose.CREATE_TABLE_AS, WriteContext("tx"))
    catalog.drop_database("sales")
    with pytest.raises(TransactionAborted, match="Database sales does not exist"):
        participant.commit()
    assert participant.outcome() is Outcome.NOT_PUBLISHED
    catalog.create_database("sales")
    assert catalog.list_tables("sales") == []


def staged(
    catalog: SqliteCatalog, path: ObjectPath, rows: pa.Table, purpose: Purpose, context: WriteContext
) -> TwoPhaseCatalogTable:
    definition = TableDefinition(rows.schema)
    participant = catalog.two_phase_create_table(path, definition, purpose=purpose, context=context)
    assert participant is not None
    participant.begin()
    participant.write(rows)
    participant.prepare()
    return participant


def code_lines(file: Path) -> int:
    """Lines that are neither blank, nor comments, nor docstrings."""
    text = file.read_text(encoding="utf-8")
    owners = (
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    )
    docs = [owner.body[0] for owner in owners if ast.get_docstring(owner)]
    said = {line for doc in docs for line in range(doc.lineno, (doc.end_lineno or doc.lineno) + 1)}
    empty = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    with file.open(encoding="utf-8") as source:
        tokens = [token for token in tokenize.generate_tokens(source.readline) if token.type not in empty]
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - said)


def test_a_whole_plugin_has_at_most_a_hundred_lines_of_code() -> None:
    assert code_lines(Path(sqlite_plugin.__file__)) <= MOST_LINES
