"""The grammar of the statements about transactions, without Spark."""

from __future__ import annotations

import pytest

from twophase.errors import TransactionStatementError
from twophase.model import Isolation
from twophase.spark.routing.tokens import tokens
from twophase.spark.routing.transaction_grammar import (
    Begin,
    BeginAtomic,
    Characteristics,
    Commit,
    CreateSavepoint,
    DropSavepoint,
    LockTable,
    Release,
    Restore,
    Rollback,
    Savepoint,
    SetTransaction,
    Show,
    TransactionStatement,
    statements_within,
    transaction_statement,
)

ALL = Characteristics(read_only=True, isolation=Isolation.SERIALIZABLE, conflict="wound_wait", wait=2.5)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("BEGIN TRANSACTION", Begin(Characteristics())),
        ("begin work;", Begin(Characteristics())),
        (" -- a comment\n/* another /* nested */ */ Start\tTransaction ; ; -- the end", Begin(Characteristics())),
        (
            "BEGIN TRANSACTION READ ONLY ISOLATION LEVEL SERIALIZABLE ON CONFLICT WOUND WAIT WAIT 2.5 SECONDS",
            Begin(ALL),
        ),
        (
            "START TRANSACTION WAIT 2.5 SECOND, ON CONFLICT wound/* */wait, isolation level serializable, read only",
            Begin(ALL),
        ),
        ("BEGIN TRANSACTION READ WRITE WAIT 0 SECONDS", Begin(Characteristics(read_only=False, wait=0.0))),
        (
            "BEGIN TRANSACTION ISOLATION LEVEL READ COMMITTED",
            Begin(Characteristics(isolation=Isolation.READ_COMMITTED)),
        ),
        ("BEGIN TRANSACTION ISOLATION LEVEL SNAPSHOT", Begin(Characteristics(isolation=Isolation.SNAPSHOT))),
        *(
            (f"BEGIN TRANSACTION ON CONFLICT {words}", Begin(Characteristics(conflict=name)))
            for words, name in {
                "FIRST COMMITTER WINS": "first_committer_wins",
                "WAIT DIE": "wait_die",
                "FAIL": "fail",
            }.items()
        ),
        ("CREATE SAVEPOINT s FOR DATABASE a", CreateSavepoint("s", ("a",))),
        (
            "create savepoint `a b` for schema a, lake.`d b`, table x, y, database c keep 30 days with copies;",
            CreateSavepoint("a b", ("a", "lake.`d b`", "c"), ("x", "y"), 30 * 86_400.0, True),
        ),
        ("CREATE SAVEPOINT s FOR TABLE a.b.c KEEP 1 WEEK", CreateSavepoint("s", (), ("a.b.c",), 7 * 86_400.0)),
        ("CREATE SAVEPOINT s FOR TABLE t KEEP 1.5 HOURS", CreateSavepoint("s", (), ("t",), 5400.0)),
        ("RESTORE TO SAVEPOINT s", Restore("s")),
        ("RESTORE TABLE a, b.c TO SAVEPOINT s;", Restore("s", (), ("a", "b.c"))),
        ("RESTORE DATABASE a, TABLE b TO SAVEPOINT s KEEP NEW TABLES", Restore("s", ("a",), ("b",), True)),
        ("DROP SAVEPOINT s", DropSavepoint("s")),
        ("SHOW SAVEPOINTS", Show("SAVEPOINTS")),
        ("COMMIT", Commit()),
        ("COMMIT WORK;", Commit()),
        ("commit transaction", Commit()),
        ("ROLLBACK", Rollback()),
        ("ROLLBACK WORK", Rollback()),
        ("ROLLBACK TRANSACTION;", Rollback()),
        ("ROLLBACK TO s", Rollback("s")),
        ("ROLLBACK WORK TO SAVEPOINT `a b`", Rollback("a b")),
        ("ROLLBACK TO savepoint", None),
        ("SAVEPOINT s", Savepoint("s")),
        ("SAVEPOINT `with ``quotes``; and -- dashes`;", Savepoint("with `quotes`; and -- dashes")),
        ("SAVEPOINT 1st", Savepoint("1st")),
        ("RELEASE s", Release("s")),
        ("RELEASE SAVEPOINT s", Release("s")),
        ("LOCK TABLE t", LockTable(("t",))),
        ("LOCK TABLE a, lake . db.`b.c` IN APPEND MODE", LockTable(("a", "lake . db.`b.c`"), "append")),
        ("LOCK TABLE t IN WRITE MODE NOWAIT", LockTable(("t",), "write", nowait=True)),
        ("LOCK TABLE t NOWAIT;", LockTable(("t",), "write", nowait=True)),
        ("SET TRANSACTION READ ONLY", SetTransaction(Characteristics(read_only=True))),
        ("SHOW TRANSACTIONS", Show("TRANSACTIONS")),
        ("SHOW LOCKS", Show("LOCKS")),
        ("BEGIN ATOMIC SELECT 1; END", BeginAtomic("BEGIN        SELECT 1; END")),
        (
            "begin /* ATOMIC */ atomic\nSELECT 'atomic'; END",
            BeginAtomic("begin /* ATOMIC */       \nSELECT 'atomic'; END"),
        ),
    ],
)
def test_each_statement_is_read_whatever_its_case_comments_and_order(
    text: str, statement: TransactionStatement | None
) -> None:
    if statement is None:
        with pytest.raises(TransactionStatementError, match="the name of a savepoint"):
            transaction_statement(text)
    else:
        assert transaction_statement(text) == statement


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SELECT 1",
        "BEGIN",
        "BEGIN SELECT 1; END",
        "BEGIN transaction: LOOP LEAVE transaction; END LOOP; END",
        "BEGIN atomic: BEGIN END; END",
        "BEGIN `TRANSACTION`",
        "(COMMIT)",
        "`COMMIT`",
        "'COMMIT'",
        "-- COMMIT",
        "/* COMMIT",
        "START x",
        "LOCK DATABASE d",
        "SET transaction = 1",
        "SET TRANSACTION.x = 1",
        "SET TRANSACTION",
        "SET TRANSACTION;",
        "SHOW TABLES",
        "SHOW `LOCKS`",
        "committed",
        "CREATE TABLE savepoint AS SELECT 1",
        "DROP TABLE savepoint",
        "RESTORE TABLE t TO VERSION AS OF 3",
        "RESTORE t TO SAVEPOINT s",
    ],
)
def test_what_only_looks_like_one_is_left_to_spark(text: str) -> None:
    assert transaction_statement(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("COMMIT FOO", "COMMIT is followed by FOO where WORK, TRANSACTION or the end of the statement is expected"),
        ("COMMIT\n  WORK AND CHAIN", r"by AND where the end of the statement is expected \(line 2, position 7\)"),
        ("ROLLBACK WORK TRANSACTION", "by TRANSACTION where TO or the end of the statement"),
        ("ROLLBACK TO", "by the end of the statement where the name of a savepoint"),
        ("ROLLBACK TO 's'", "by 's' where the name of a savepoint"),
        ("SAVEPOINT 12", "by 12 where the name of a savepoint"),
        ("SAVEPOINT ``", "the name of a savepoint"),
        ("SAVEPOINT `s", "by `s where the name of a savepoint"),
        ("SAVEPOINT a.b", "by . where the end of the statement"),
        ("RELEASE SAVEPOINT", "the name of a savepoint"),
        ("COMMIT; SELECT 1", "by SELECT where the end of the statement"),
        ("BEGIN TRANSACTION WAIT banana SECONDS", "by banana where a number of seconds"),
        ("BEGIN TRANSACTION WAIT 5 MINUTES", "by MINUTES where SECONDS or SECOND"),
        ("BEGIN TRANSACTION WAIT -1 SECONDS", "by - where a number of seconds"),
        ("BEGIN TRANSACTION ISOLATION LEVEL x", "by x where READ COMMITTED, SNAPSHOT or SERIALIZABLE"),
        ("BEGIN TRANSACTION ISOLATION LEVEL READ UNCOMMITTED", "by UNCOMMITTED where COMMITTED is expected"),
        ("BEGIN TRANSACTION ISOLATION SNAPSHOT", "by SNAPSHOT where LEVEL"),
        ("BEGIN TRANSACTION ON CONFLICT WAIT 5 SECONDS", "by 5 where DIE"),
        ("BEGIN TRANSACTION READ ONLY READ WRITE", "at most once"),
        ("BEGIN TRANSACTION READ", "where ONLY or WRITE"),
        ("BEGIN TRANSACTION NAME x", "by NAME where READ, ISOLATION LEVEL, ON CONFLICT, WAIT or the end"),
        ("START TRANSACTION WAIT ? SECONDS", "START takes no parameters"),
        ("SAVEPOINT :name", "SAVEPOINT takes no parameters"),
        ("LOCK TABLE", "the name of a table"),
        ("LOCK TABLE a,", "the name of a table"),
        ("LOCK TABLE a IN SHARE MODE", "by SHARE where APPEND or WRITE"),
        ("LOCK TABLE a IN WRITE", "where MODE"),
        ("SET TRANSACTION LEVEL", "SET is followed by LEVEL"),
        ("CREATE SAVEPOINT", "the name of a savepoint"),
        ("CREATE SAVEPOINT s DATABASE a", "by DATABASE where FOR is expected"),
        ("CREATE SAVEPOINT s FOR a", "by a where DATABASE, SCHEMA or TABLE is expected"),
        ("CREATE SAVEPOINT s FOR DATABASE a, TABLE", "the name of a table"),
        ("CREATE SAVEPOINT s FOR DATABASE a KEEP", "a number of days"),
        ("CREATE SAVEPOINT s FOR DATABASE a KEEP 3 MOONS", "by MOONS where SECONDS, MINUTES"),
        ("CREATE SAVEPOINT s FOR DATABASE a b", r"by b where \., ,, KEEP, WITH COPIES or the end of the statement"),
        ("DROP SAVEPOINT s, t", "by , where the end of the statement"),
        ("RESTORE TABLE TO SAVEPOINT s", "by SAVEPOINT where TO is expected"),
        ("RESTORE TO SAVEPOINT", "the name of a savepoint"),
        ("RESTORE DATABASE a TO SAVEPOINT s KEEP 3 DAYS", "by KEEP where KEEP NEW TABLES or the end"),
        ("SHOW LOCKS LIKE 'a'", "by LIKE where the end of the statement"),
    ],
)
def test_nonsense_is_refused_with_its_place_and_what_is_allowed(text: str, words: str) -> None:
    with pytest.raises(TransactionStatementError, match=words) as refused:
        transaction_statement(text)
    assert "nothing was started" in str(refused.value)
    assert refused.value.hint is not None
    assert "Its syntax is: " in refused.value.hint


@pytest.mark.parametrize(
    ("script", "within"),
    [
        ("BEGIN COMMIT; END", "COMMIT (line 1, position 6)"),
        ("BEGIN\n IF true THEN\n  SAVEPOINT s; END IF; END", "SAVEPOINT (line 3, position 2)"),
        ("BEGIN SELECT ';'; BEGIN TRANSACTION; END", "BEGIN TRANSACTION (line 1, position 18)"),
        ("BEGIN BEGIN ATOMIC SELECT 1; END; END", "BEGIN ATOMIC (line 1, position 6)"),
        ("BEGIN l: LOOP ROLLBACK; END LOOP; END", "ROLLBACK (line 1, position 14)"),
        ("BEGIN SELECT 'x; COMMIT'; /* ; COMMIT */ SELECT commit FROM t; END", None),
        ("BEGIN DECLARE commit INT; SET commit = 1; SELECT 1 AS rollback; END", None),
    ],
)
def test_a_statement_about_transactions_is_found_inside_a_script(script: str, within: str | None) -> None:
    assert next(statements_within(script), None) == within


def test_tokens_are_separated_as_by_sparks_lexer() -> None:
    text = r"""a.b 'it''s \' ;' "x\"y" r'\' `q``;` 1.5 2x $tag$ ; 'x $tag$ -- end ;
    /* ; */ ; 'open"""
    assert [token.text for token in tokens(text)] == [
        "a", ".", "b", "'it'", r"'s \' ;'", r'"x\"y"', r"r'\'", "`q``;`", "1.5", "2x", "$tag$ ; 'x $tag$", ";", "'open",
    ]  # fmt: skip


def test_a_long_statement_costs_as_much_as_it_is_long() -> None:
    """No token is tried again from each of its characters."""
    for text in ("SAVEPOINT " + "`" + "a" * 1_000_000, "COMMIT '" + "\\'" * 500_000, "COMMIT $a$" + "$b" * 500_000):
        with pytest.raises(TransactionStatementError):
            transaction_statement(text)


@pytest.mark.parametrize(
    "script",
    [
        "BEGIN DECLARE transaction INT; SET transaction = 5; END",
        "BEGIN SELECT CASE WHEN a THEN commit ELSE rollback END FROM t; END",
    ],
)
def test_names_and_settings_in_a_script_are_no_statements_about_transactions(script: str) -> None:
    assert [*statements_within(script)] == []
    assert [*statements_within(script.replace("END FROM", "END; COMMIT; SELECT 1 FROM").replace("= 5", "READ ONLY"))]
