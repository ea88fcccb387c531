"""The example of FLIP-226 with Parquet files: ``python examples/schema_evolution.py``.

A column is dropped and another one of the same name is added.
No file is rewritten, and the old values do not come back.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from twophase.schema import (
    AddField,
    ChangeType,
    DirectoryHistoryStore,
    DropField,
    RenameField,
    Schema,
    SchemaHistory,
    assign_ids,
    to_arrow,
)
from twophase.schema.errors import SchemaError


def insert(table: Path, schema: Schema, *row: object) -> None:
    """Write a row with the current schema; the file's name contains the id of the schema."""
    arrow = to_arrow(schema)
    columns = [pa.array([value], field.type) for value, field in zip(row, arrow, strict=True)]
    pq.write_table(pa.table(columns, schema=arrow), table / f"data-{schema.schema_id}.parquet")


def show(table: Path, history: SchemaHistory, title: str) -> None:
    """Read all files under the current schema and print the rows."""
    print(f"\n{title}")
    for path in sorted(table.glob("data-*.parquet")):
        plan = history.read_plan(int(path.stem.removeprefix("data-")))
        for row in plan.project(pq.read_table(path, columns=plan.file_columns)).to_pylist():
            print(f"  {path.name}: " + ", ".join(f"{name}={value!r}" for name, value in row.items()))


def main() -> None:
    """Run the example."""
    with tempfile.TemporaryDirectory() as directory:
        table = Path(directory)
        history = SchemaHistory(DirectoryHistoryStore(table))
        schema = assign_ids(pa.schema([("a", pa.string()), ("b", pa.string()), ("c", pa.string())]))
        schema = history.record(schema, transaction_id="create", instant=1, based_on=None)
        insert(table, schema, "a1", "b1", "c1")
        show(table, history, "T(a, b, c), one row:")

        schema = history.evolve(schema, DropField("c"), transaction_id="drop", instant=2)
        show(table, history, "after DROP COLUMN c, its data is ignored:")

        schema = history.evolve(schema, AddField("c", pa.string()), transaction_id="add", instant=3)
        insert(table, schema, "a2", "b2", "c2")
        show(table, history, "after ADD COLUMN c and one more row - the old c1 does not come back:")

        changes = [RenameField("b", "amount"), AddField("count", pa.int32(), default=0)]
        schema = history.evolve(schema, changes, transaction_id="rename", instant=4)
        schema = history.evolve(schema, ChangeType("count", pa.int64()), transaction_id="widen", instant=5)
        insert(table, schema, "a3", "b3", "c3", 2**40)
        show(table, history, "after RENAME COLUMN b TO amount, ADD COLUMN count INT DEFAULT 0, and count to BIGINT:")

        print("\nWhat is refused says what would be allowed:")
        try:
            history.evolve(schema, ChangeType("count", pa.int32()), transaction_id="narrow", instant=6)
        except SchemaError as error:
            print(f"  {type(error).__name__}: {error}")

        print("\nThe history holds every version:")
        for version in history.versions():
            names = ", ".join(f"{node.name}#{node.id}" for node in version.schema or ())
            print(f"  schema {version.number} by {version.transaction_id}: {names}")


if __name__ == "__main__":
    main()
