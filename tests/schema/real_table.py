"""A table of a store beside its model: the same changes of both, and the same answers."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import event
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

import twophase
from tests.schema.second_readers import SECOND_READERS
from tests.schema.table_model import KINDS, Column, Step, TableModel, as_text, literal, ordered
from twophase.errors import ConcurrentSchemaEvolutionError, TwoPhaseError, WriteConflictError

#: Where the tables of a store are, if not in the session.
PLACES = {"lake": "lake.changes.", "lite": "lite.main.", "pg": "pg.public.", "maria": "maria.twophase."}
#: How the tables of a session are made, with their columns and a query of no rows that has them.
MADE = {
    "ids": "USING parquet TBLPROPERTIES ('twophase.field_ids' = 'true') {query}",
    "names": "{columns} USING parquet",
    "orc": "{columns} USING orc",
}
_INSERT: Step = ("insert", 0, 0, 0)


def name_in(store: str) -> str:
    """A new name in a store."""
    return f"{PLACES.get(store, '')}t_{uuid.uuid4().hex[:8]}"


class RealTable:
    """A table of a store, and what its model says of it.

    Parameters
    ----------
    spark : SparkSession
    store : str
    columns : sequence of Column, optional
        Those of the model, if not its usual ones.
    """

    def __init__(self, spark: SparkSession, store: str, columns: Sequence[Column] = ()) -> None:
        self.spark, self.name, self._store = spark, name_in(store), store
        self.model = TableModel(list(columns)) if columns else TableModel()
        # Spark's filter on a field of a NULL struct loses rows of ORC files, in any table and session.
        self.model.has_null_structs = store != "orc"
        self.taken = self.tried = 0
        nulls = [f"CAST(NULL AS {one.type}) AS {one.quoted}" for one in self.model.columns]
        query = f"AS SELECT {', '.join(nulls)} WHERE false"
        described = f"({', '.join(f'{one.quoted} {one.type}' for one in self.model.columns)})"
        spark.sql(f"CREATE TABLE {self.name} {MADE.get(store, '{columns}').format(columns=described, query=query)}")

    def take(self, step: Step, *, in_a_block: bool = False) -> None:
        """Take a step in both; one that the store refuses has changed nothing."""
        found = self.model.step(self.name, step)
        if found is None:
            return
        statement, after = found
        self.tried += 1
        try:
            self.spark.sql(statement)
        except (TwoPhaseError, PySparkException) as refused:
            assert in_a_block or not statement.startswith("INSERT"), refused
        else:
            self.model, self.taken = after, self.taken + 1
        self.check(step[1])

    def take_beside(self, step: Step) -> None:
        """Stage rows in a block while another writer takes a step: they land by their ids, or there is a conflict."""
        found = self.model.step(self.name, ("insert", *step[1:]))
        assert found is not None
        statement, after = found
        staged = after.rows[len(self.model.rows) :]
        try:
            with ThreadPoolExecutor(1) as other, twophase.transaction(self.spark):
                self.spark.sql(statement)
                self.model.highest_value = after.highest_value
                other.submit(self.take, (KINDS[step[3] % len(KINDS)], *step[1:])).result()
        except (WriteConflictError, ConcurrentSchemaEvolutionError):
            event(f"a conflict in {self._store}")
        else:
            self.model.rows = [*self.model.rows, *staged]
        self.check(step[1])

    def check(self, which: int) -> None:
        """Compare all rows, and those that a filter on one of the fields keeps."""
        model = self.model
        assert _names(self.spark.table(self.name).schema) == model.names()
        assert self.read() == model.seen()
        leaves = model.leaves()
        expression, kind, values = leaves[which % len(leaves)]
        if any(column.fields for column in model.columns):
            assert self.read(expression) == ordered([(value,) for value in values])
        assert self.read("*", f"{expression} IS NULL") == model.seen([value is None for value in values])
        known = next((value for value in values if value is not None), None)
        if known is not None:
            sql = next(sql for sql, value in (literal(kind, n) for n in range(model.highest_value)) if value == known)
            assert self.read("*", f"{expression} = {sql}") == model.seen([value == known for value in values])

    def read(self, columns: str = "*", where: str = "true") -> list[tuple[Any, ...]]:
        """Rows of the table."""
        return as_text(self.spark.sql(f"SELECT {columns} FROM {self.name} WHERE {where}").collect())

    def drop(self) -> None:
        """Drop it when a second reader has read the same."""
        if self._store in SECOND_READERS:
            assert as_text(SECOND_READERS[self._store](self.spark, self.name)) == self.model.seen()
        self.spark.sql(f"DROP TABLE {self.name}")


def changed_in_a_block(spark: SparkSession, store: str, steps: Sequence[Step], *, creates: bool) -> None:
    """Take all steps in a block, some of which it takes back.

    Parameters
    ----------
    spark : SparkSession
    store : str
    steps : sequence of Step
    creates : bool
        Whether the table is one of the block; another one has rows that were there before.
    """
    if not creates:
        table = RealTable(spark, store)
        table.take(_INSERT)
    with twophase.transaction(spark):
        if creates:
            table = RealTable(spark, store)
        table.take(_INSERT, in_a_block=True)
        kept = None
        for step in steps:
            if step[0] == "savepoint":
                spark.sql("SAVEPOINT mark")
                kept = table.model
            elif step[0] == "rollback" and kept is not None:
                spark.sql("ROLLBACK TO mark")
                table.model = kept
                table.check(step[1])
            else:
                table.take(step, in_a_block=True)
    table.check(0)
    table.drop()
    event(f"{table.taken} of {table.tried} changes of {store} in a block")


def _names(data_type: DataType) -> list[Any]:
    if isinstance(data_type, ArrayType):
        return _names(data_type.elementType)
    if isinstance(data_type, MapType):
        return _names(data_type.valueType)
    fields = data_type.fields if isinstance(data_type, StructType) else []
    return [(field.name, _names(field.dataType)) for field in fields]


def changed(spark: SparkSession, store: str, steps: list[Step], columns: Sequence[Column] = ()) -> None:
    """Take all steps in a new table of a store.

    Parameters
    ----------
    spark : SparkSession
    store : str
    steps : list of Step
    columns : sequence of Column, optional
    """
    table = RealTable(spark, store, columns)
    for step in steps:
        if step[0] == "beside":
            table.take_beside(step)
        else:
            table.take(step)
    table.drop()
    event(f"{table.taken} of {table.tried} changes of {store}")
