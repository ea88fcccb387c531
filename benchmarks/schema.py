"""What the schema rules cost on wide and on nested schemas: ``python benchmarks/schema.py [fields ...]``.

Each figure is the best of several runs. The last column is the cost per field of the largest schema against that of
the next smaller one: about 1 means that the cost is linear.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from twophase.schema import (
    AddField,
    Change,
    ChangeType,
    DropField,
    RebaseSchemaConflictResolutionStrategy,
    RenameField,
    Schema,
    SimpleSchemaConflictResolutionStrategy,
    apply_changes,
    assign_ids,
    from_json,
    merge_schemas,
    plan_read,
    reconcile,
    to_arrow,
    to_json,
)

SIZES = (10, 1_000, 10_000)
BRANCH = 10


def flat(fields: int) -> Schema:
    """One level."""
    return assign_ids(pa.schema([(f"column_{i}", pa.int32()) for i in range(fields)]))


def nested(fields: int) -> Schema:
    """Structs of ten fields, lists of structs among them, as deep as it takes."""
    level = [pa.field(f"leaf_{i}", pa.int32()) for i in range(max(fields * (BRANCH - 1) // BRANCH, 1))]
    depth = 0
    while len(level) > BRANCH:
        groups = [level[i : i + BRANCH] for i in range(0, len(level), BRANCH)]
        types = [pa.struct(group) for group in groups]
        level = [pa.field(f"group_{depth}_{i}", pa.list_(t) if i % 5 == 4 else t) for i, t in enumerate(types)]
        depth += 1
    return assign_ids(pa.schema(level))


def some_changes(schema: Schema, share: int, offset: int) -> list[Change]:
    """A change of one leaf in so many, and as many new columns as a hundredth of the fields."""
    leaves = [node.id for node in schema.walk() if node.leaf is not None][offset::share]
    changes: list[Change] = []
    for i, leaf in enumerate(leaves):
        name = schema.by_id(leaf).name
        kinds = (ChangeType(leaf, pa.int64()), RenameField(leaf, f"{name}_renamed"), DropField(leaf))
        changes.append(kinds[i % (3 if schema.parent_of(leaf) is None else 2)])
    return [*changes, *(AddField(f"new_{offset}_{i}", pa.int32()) for i in range(1 + len(schema.field_ids) // 100))]


def _by_path(schema: Schema, change: Change) -> Change:
    path = getattr(change, "path", None)
    return replace(change, path=schema.path_of(path)) if isinstance(path, int) else change  # type: ignore[call-arg]


def best(run: Callable[[], object], seconds: float = 0.6) -> float:
    """Processor seconds of the fastest of at least three runs, without the garbage collector, as ``timeit`` does it."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    gc.disable()
    try:
        while len(times) < 3 or (time.perf_counter() < end and len(times) < 200):
            start = time.process_time()
            run()
            times.append(time.process_time() - start)
    finally:
        gc.enable()
        gc.collect()
    return min(times)


def measures(schema: Schema) -> dict[str, float]:
    """Seconds for each operation on one schema."""
    theirs, ours = some_changes(schema, 7, 0), some_changes(schema, 7, 3)
    table, writer = apply_changes(schema, theirs), apply_changes(schema, ours)
    one, by_path = ours[:1], [_by_path(schema, change) for change in theirs]
    plan = plan_read(schema, table)
    rebase, simple = RebaseSchemaConflictResolutionStrategy(), SimpleSchemaConflictResolutionStrategy()
    arrow, text = pa.schema(list(to_arrow(writer))), to_json(schema)
    return {
        "apply one change": best(lambda: apply_changes(schema, one)),
        "apply a change to each 7th leaf": best(lambda: apply_changes(schema, theirs)),
        "the same, named by paths": best(lambda: apply_changes(schema, by_path)),
        "merge: plan a read": best(lambda: plan_read(schema, table)),
        "merge: schema to open with": best(lambda: merge_schemas(schema, table)),
        "merge: Spark expressions": best(plan.spark_expressions),
        "reconcile a write": best(lambda: reconcile(schema, arrow)),
        "conflict: RFC-82": best(lambda: simple.resolve(schema, schema, writer)),
        "conflict: rebase": best(lambda: rebase.resolve(schema, table, writer)),
        "write and read the document": best(lambda: from_json(to_json(from_json(text)))),
    }


def main(sizes: tuple[int, ...]) -> None:
    """Measure and print."""
    console = Console()
    for make in (flat, nested):
        figures = {size: measures(make(size)) for size in sizes}
        table = Table(title=f"{make.__name__} schemas, milliseconds")
        table.add_column("operation")
        for size in sizes:
            table.add_column(f"{size:,} fields", justify="right")
        table.add_column(f"per field, {sizes[-1]:,} against {sizes[-2]:,}", justify="right")
        for name in figures[sizes[0]]:
            cells = [f"{figures[size][name] * 1e3:,.2f}" for size in sizes]
            ratio = figures[sizes[-1]][name] / sizes[-1] / (figures[sizes[-2]][name] / sizes[-2])
            table.add_row(name, *cells, f"{ratio:.2f}")
        console.print(table)


if __name__ == "__main__":
    main(tuple(int(argument.replace(",", "")) for argument in sys.argv[1:]) or SIZES)
