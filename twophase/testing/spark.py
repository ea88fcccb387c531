"""Tests of a catalog by statements in a real Spark session: the last chapter of the suite, which needs Java.

It is a separate class, so that the others can be used without Java; a catalog is useless without Spark, so run it
before you release one::

    from twophase.testing import SparkConformance

    class TestMyCatalogInSpark(SparkConformance):
        capabilities = TestMyCatalog.capabilities

        @pytest.fixture(scope="module")
        def spark(self, tmp_path_factory): ...       # -> an attached session that has the catalog

        @pytest.fixture
        def name(self): return "mystore"             # the catalog's name in it
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

import twophase
from twophase.model import Capabilities, Purpose

__all__ = ["SparkConformance"]

Rows = list[tuple[Any, ...]]


class SparkConformance:
    """The effect of a job's statements on a catalog's tables, as tests.

    It needs a fixture ``spark``, of any scope: an attached session that has the catalog. Override the fixture ``name``,
    the catalog's name in that session, and the attribute ``capabilities``.
    """

    #: As in the rest of the suite: no statement is run without a declared capability.
    capabilities: ClassVar[Capabilities] = Capabilities()

    @pytest.fixture
    def name(self) -> str:
        """The name of the catalog in that session."""
        raise NotImplementedError("Override the fixture `name`.")

    @pytest.fixture
    def database(self, spark: Any, name: str) -> Iterator[str]:
        """A separate database for each test, with the catalog's name as prefix."""
        database = f"{name}.conformance_{uuid.uuid4().hex[:12]}"
        spark.sql(f"CREATE DATABASE {database}")
        yield database
        spark.sql(f"DROP DATABASE IF EXISTS {database} CASCADE")

    @pytest.fixture
    def table(self, spark: Any, database: str) -> str:
        """A table with two rows, if the catalog can create one."""
        table = f"{database}.target"
        if self._can(Purpose.CREATE_TABLE_AS):
            spark.sql(f"CREATE TABLE {table} AS SELECT * FROM VALUES (1L, 'old'), (2L, 'old') AS t(id, name)")
        return table

    def _can(self, *purposes: Purpose) -> bool:
        return self.capabilities.read and self.capabilities.purposes.issuperset(purposes)

    def _rows(self, spark: Any, table: str) -> Rows:
        return sorted(tuple(row) for row in spark.table(table).collect())

    def test_a_table_is_created_listed_and_read(self, spark: Any, database: str, table: str) -> None:
        if not self._can(Purpose.CREATE_TABLE_AS):
            return
        assert self._rows(spark, table) == [(1, "old"), (2, "old")]
        assert [row.tableName for row in spark.sql(f"SHOW TABLES IN {database}").collect()] == ["target"]
        assert spark.sql(f"SELECT count(*) FROM {table}").first()[0] == 2
        assert [row.name for row in spark.sql(f"SELECT name FROM {table} WHERE id = 2").collect()] == ["old"]
        spark.sql(f"DROP TABLE {table}")
        assert not spark.catalog.tableExists(table)

    def test_a_table_that_is_there_is_no_error_where_the_statement_says_so(self, spark: Any, table: str) -> None:
        if not self._can(Purpose.CREATE_TABLE_AS):
            return
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} AS SELECT 9L AS id, 'new' AS name")
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table}_new AS SELECT 9L AS id, 'new' AS name")
        assert (self._rows(spark, table), self._rows(spark, f"{table}_new")) == (
            [(1, "old"), (2, "old")],
            [(9, "new")],
        )
        with pytest.raises(Exception, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
            spark.sql(f"CREATE TABLE {table} AS SELECT 9L AS id, 'new' AS name")

    def test_a_table_is_replaced_by_a_query_of_itself(self, spark: Any, table: str) -> None:
        if not self._can(Purpose.CREATE_TABLE_AS, Purpose.CREATE_OR_REPLACE_TABLE_AS, Purpose.REPLACE_TABLE_AS):
            return
        spark.sql(f"CREATE OR REPLACE TABLE {table} AS SELECT id + 10 AS id, name, true AS more FROM {table}")
        assert self._rows(spark, table) == [(11, "old", True), (12, "old", True)]
        spark.sql(f"REPLACE TABLE {table} AS SELECT id FROM {table} WHERE id > 11")
        assert self._rows(spark, table) == [(12,)]

    def test_rows_are_added(self, spark: Any, table: str) -> None:
        if not self._can(Purpose.CREATE_TABLE_AS, Purpose.INSERT_INTO):
            return
        spark.sql(f"INSERT INTO {table} VALUES (3, 'new'), (4, NULL)")
        spark.sql(f"INSERT INTO {table} (name, id) SELECT name, id + 10 FROM {table} WHERE id < 3")
        spark.table(table).filter("id = 3").writeTo(table).append()
        expected = [(1, "old"), (2, "old"), (3, "new"), (3, "new"), (11, "old"), (12, "old")]
        assert self._rows(spark, f"{table}") != []
        assert sorted(row for row in map(tuple, spark.table(table).collect()) if row[1] is not None) == expected
        assert spark.sql(f"SELECT count(*) FROM {table} WHERE name IS NULL").first()[0] == 1

    def test_rows_are_overwritten_by_a_query_of_the_table(self, spark: Any, table: str) -> None:
        if not self._can(Purpose.CREATE_TABLE_AS, Purpose.INSERT_OVERWRITE):
            return
        spark.sql(f"INSERT OVERWRITE {table} SELECT id * 100, 'new' FROM {table}")
        assert self._rows(spark, table) == [(100, "new"), (200, "new")]

    def test_a_query_that_fails_leaves_everything_as_it_was(self, spark: Any, database: str, table: str) -> None:
        if not self._can(Purpose.CREATE_TABLE_AS, Purpose.INSERT_INTO):
            return
        failing = "SELECT id, CAST(raise_error('the user fails') AS STRING) AS name FROM range(3)"
        for statement in (f"INSERT INTO {table} {failing}", f"CREATE TABLE {database}.other AS {failing}"):
            with pytest.raises(Exception, match="the user fails"):
                spark.sql(statement)
        assert self._rows(spark, table) == [(1, "old"), (2, "old")]
        assert not spark.catalog.tableExists(f"{database}.other")

    def test_the_statements_of_a_block_are_published_together(self, spark: Any, database: str, table: str) -> None:
        """A later statement reads the staged rows of an earlier one; a second one on a table builds on the first."""
        if not self._can(Purpose.CREATE_TABLE_AS, Purpose.INSERT_INTO):
            return
        with twophase.transaction(spark) as tx:
            spark.sql(f"CREATE TABLE {database}.first AS SELECT 5L AS id, 'new' AS name")
            spark.sql(f"INSERT INTO {table} SELECT * FROM {database}.first")
            spark.sql(f"INSERT INTO {table} VALUES (6, 'new')")
            assert spark.sql(f"SELECT count(*) FROM {table}").first()[0] == 4
        assert tx.state.name == "COMPLETED"
        assert self._rows(spark, f"{database}.first") == [(5, "new")]
        assert self._rows(spark, table) == [(1, "old"), (2, "old"), (5, "new"), (6, "new")]

    def test_a_block_that_fails_leaves_nothing(self, spark: Any, database: str, table: str) -> None:
        if not self._can(Purpose.CREATE_TABLE_AS, Purpose.INSERT_INTO):
            return
        with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
            spark.sql(f"CREATE TABLE {database}.first AS SELECT 5L AS id")
            spark.sql(f"INSERT INTO {table} VALUES (6, 'new')")
            raise ZeroDivisionError
        assert self._rows(spark, table) == [(1, "old"), (2, "old")]
        assert not spark.catalog.tableExists(f"{database}.first")

    def test_a_comment_and_properties_are_described(self, spark: Any, database: str) -> None:
        if not self._can(Purpose.CREATE_TABLE_AS):
            return
        spark.sql(f"CREATE TABLE {database}.team COMMENT 'daily' TBLPROPERTIES ('team' = 'sales') AS SELECT 1 AS id")
        facts = {row.col_name: row.data_type for row in spark.sql(f"DESCRIBE EXTENDED {database}.team").collect()}
        assert facts["Comment"] == "daily"
        assert "team=sales" in facts["Table Properties"]

    def test_columns_of_odd_names_are_written_and_read(self, spark: Any, database: str) -> None:
        if not self._can(Purpose.CREATE_TABLE_AS):
            return
        spark.sql(f"CREATE TABLE {database}.odd AS SELECT 1 AS `a.b`, 2 AS `c d`, 3 AS `e``f`")
        assert self._rows(spark, f"{database}.odd") == [(1, 2, 3)]
