"""Names are found where a statement has them, and nowhere else."""

from __future__ import annotations

import tracemalloc

import pytest

from twophase.spark.routing.ddl import changes, dropped_tables
from twophase.spark.routing.rewrite import concerns_us
from twophase.spark.routing.tokens import leading_words, places, splice, tokens


def found(text: str) -> list[str]:
    return [text[place.start : place.stop] for place in places(list(tokens(text)))]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("INSERT INTO t SELECT 1", ["t"]),
        ("insert into table t select 1", ["t"]),
        ("INSERT OVERWRITE TABLE db.t PARTITION (p) SELECT 1", ["db.t"]),
        ("INSERT INTO table SELECT 1", ["table"]),
        ("INSERT WITH SCHEMA EVOLUTION INTO t SELECT 1", ["t"]),
        ("INSERT INTO /* a /* nested */ b */ db -- line\n . t VALUES (1)", ["db -- line\n . t"]),
        ("CREATE TABLE t AS SELECT 'INSERT INTO x'", ["t"]),
        ('CREATE TABLE IF NOT EXISTS `a``b`.`c.d` AS SELECT "INSERT INTO x"', ["`a``b`.`c.d`"]),
        ("CREATE OR REPLACE TABLE t AS SELECT 1", ["t"]),
        ("REPLACE TABLE t AS SELECT 1", ["t"]),
        (r"INSERT INTO t VALUES ('it\'s INSERT INTO x'), (r'\'), ('INSERT INTO y')", ["t"]),
        ("FROM s INSERT INTO a SELECT 1 INSERT OVERWRITE b SELECT 2", ["a", "b"]),
        ("INSERT INTO ünïcode.`表😀` SELECT '😀'", ["ünïcode.`表😀`"]),
        ("INSERT INTO IDENTIFIER(:db || '.t(') SELECT 1", ["IDENTIFIER(:db || '.t(')"]),
        ("EXECUTE IMMEDIATE 'INSERT INTO t' || x USING 1", ["'INSERT INTO t' || x"]),
        ("SELECT /*+ BROADCAST(a) */ 1", []),
        ("CREATE VIEW v AS SELECT 1", []),
        ("INSERT INTO", []),
        ("INSERT INTO a.", []),
        ("'unclosed INSERT INTO t", ["t"]),
        ("/* unclosed INSERT INTO t", []),
        ("$$INSERT INTO t$$", []),
    ],
)
def test_a_name_is_found_where_it_is_written(text: str, names: list[str]) -> None:
    assert found(text) == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  \n SELECT *", ("SELECT",)),
        ("-- comment\nselect x", ("SELECT", "X")),
        ("/* a /* b */ c */ ((SELECT *))", ("SELECT",)),
        ("-- goes on \\\nINSERT", ()),
        ("", ()),
        ("1", ("1",)),
    ],
)
def test_the_first_words_stand_past_comments_and_brackets(text: str, words: tuple[str, ...]) -> None:
    assert leading_words(text, 2) == words


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "(SELECT 1)",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "FROM t SELECT a",
        "EXPLAIN INSERT INTO t SELECT 1",
        "CACHE TABLE t AS SELECT 1",
        "CREATE TEMPORARY VIEW v AS SELECT 1",
        "CREATE OR REPLACE VIEW v AS SELECT 1",
        "DROP TABLE t",
        "DELETE FROM t",
        "MERGE INTO t USING s ON 1 = 1 WHEN NOT MATCHED THEN INSERT *",
        "SHOW TABLES",
        "SET a = b",
        "",
    ],
)
def test_a_statement_that_writes_no_table_costs_no_parse(text: str) -> None:
    assert not concerns_us(text)


@pytest.mark.parametrize(
    "unit",
    ["'{}'", '"{}"', "r'{}'", "`{}`", "/* {} */", "-- {}\n", "$${}$$"],
    ids=["single", "double", "raw", "name", "bracketed", "comment", "dollar"],
)
@pytest.mark.parametrize(
    "inside", ["x", "\\'", "''", "DROP TABLE partition "], ids=["plain", "escaped", "doubled", "ddl"]
)
def test_what_is_long_costs_no_memory_beside_itself(unit: str, inside: str) -> None:
    text = f"SELECT {unit.format(inside * (1_000_000 // len(inside)))} AS a"
    tracemalloc.start()
    try:
        for _ in tokens(text):
            pass
        assert tracemalloc.get_traced_memory()[1] < 5 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("quote", ["'", '"', "`", "$$"])
def test_the_first_words_are_told_without_a_look_at_a_long_literal(quote: str) -> None:
    text = f"SELECT {quote}{'x' * 1_000_000}{quote}"
    tracemalloc.start()
    try:
        assert leading_words(text, 4) == ("SELECT",)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_spans_are_replaced_from_the_end() -> None:
    assert splice("a b c", [(0, 1, "xx"), (4, 5, ""), (2, 2, "y")]) == "xx yb "


@pytest.mark.parametrize(
    ("text", "verb", "names"),
    [
        ("DROP TABLE IF EXISTS a.b PURGE", "DROP TABLE", ("a", "b")),
        ("alter table t add column x int", "ALTER TABLE", ("t",)),
        ("TRUNCATE TABLE t PARTITION (p = 1)", "TRUNCATE TABLE", ("t",)),
        ("LOAD DATA INPATH '/table x' OVERWRITE INTO TABLE t", "LOAD DATA", ("t",)),
        ("DROP SCHEMA s CASCADE", "DROP SCHEMA", ("s",)),
        ("DROP TABLE IDENTIFIER('t')", "DROP TABLE", None),
    ],
)
def test_a_change_is_told_from_its_text(text: str, verb: str, names: tuple[str, ...] | None) -> None:
    change = changes(text)
    assert change is not None
    assert (change.verb, change.names) == (verb, names)


def test_what_changes_no_table_is_no_change() -> None:
    assert changes("DROP VIEW v") is None
    assert changes("SELECT 1") is None


def test_a_script_tells_every_table_that_it_may_drop() -> None:
    script = "BEGIN DROP TABLE a; IF 1 = 1 THEN DROP TABLE IF EXISTS b.c; END IF; SELECT 'DROP TABLE d'; END"
    assert dropped_tables(script) == [("a",), ("b", "c")]
