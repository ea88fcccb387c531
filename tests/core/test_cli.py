"""The command line without Spark: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.core.bench import Bench, in_doubt, path, run_shape, write
from tests.core.test_conflicts import in_thread, waits
from twophase.cli import commands
from twophase.cli.statements import split
from twophase.errors import TransactionInDoubt
from twophase.model import Isolation
from twophase.spark.routing.tokens import tokens
from twophase.timeline.owners import clock
from twophase.timeline.timeline import Timeline
from twophase.transactions.conflict_policy import WoundWait
from twophase.transactions.coordinator import Coordinator


@dataclass
class Handle:
    """What the commands need of an attached session."""

    coordinator: Coordinator
    catalogs: dict[str, Any]

    @property
    def timeline(self) -> Any:
        return self.coordinator.timeline


@pytest.fixture
def run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command over the bench's catalogs instead of a Spark session's."""

    def session(_: commands.Context, *, recovers: bool = True) -> Handle:
        coordinator = bench.coordinator("twophase")
        if recovers:
            coordinator.recover()
        return Handle(coordinator, dict(bench.catalogs))

    monkeypatch.setattr(commands.Context, "session", session)

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(commands.main, [*words, "--timeline", bench.url])

    return invoke


def document(result: Result) -> Any:
    return json.loads(result.stdout)


def abandon(bench: Bench, table: str = "t", *, name: str = "app") -> str:
    tx = bench.coordinator(name).begin()
    write(tx, bench.catalogs["one"], table)
    return tx.id


def test_the_timeline_lists_who_what_when_and_the_level(bench: Bench, run: Any) -> None:
    tx = run_shape(bench, "several", user="ann", application="etl")
    result = run("timeline")
    assert result.exit_code == 0
    for word in (tx.id, "COMPLETED", "ann etl", "one.default.t", "two.default.u"):
        assert word in result.stdout
    (row,) = document(run("timeline", "--output", "json"))["transactions"]
    assert (row["id"], row["state"], row["level"]) == (tx.id, "COMPLETED", "REVERSIBLE")
    assert document(run("timeline", "--open", "--output", "json")) == {"transactions": []}


def test_locks_lists_who_holds_what_and_who_waits_for_whom(bench: Bench, run: Any) -> None:
    holder, waiting = [bench.coordinator(user=name).begin(Isolation.SNAPSHOT) for name in ("ann", "bob")]
    assert "Nothing is locked." in run("locks").stdout
    table = (bench.catalogs["one"], path("t"))
    holder.lock(table, "append")
    ended = in_thread(lambda: waiting.lock(table))
    waits(bench.coordinator().timeline, waiting)
    held, waits_for = document(run("locks", "--output", "json"))["locks"]
    assert (held["transaction_id"], held["mode"], held["waiting_since"]) == (holder.id, "append", None)
    assert (waits_for["transaction_id"], waits_for["waits_for"]) == (waiting.id, [holder.id])
    text = run("locks").stdout
    for word in ("one.default.t", "ann", "bob", holder.id, "waits since"):
        assert word in text
    text = run("show", waiting.id).stdout
    for word in ("snapshot 0", "Waits for", f"for {holder.id}"):
        assert word in text
    assert document(run("show", holder.id, "--output", "json"))["locks"] == [held]
    holder.abort()
    assert ended() is None


def test_show_and_timeline_tell_who_was_wounded_by_whom(bench: Bench, run: Any) -> None:
    old, young = [bench.coordinator().begin(conflict=WoundWait(), first_begun=clock() - age) for age in (9, 1)]
    table = (bench.catalogs["one"], path("t"))
    young.lock(table)
    old.lock(table)
    assert f"wounded by {old.id}" in run("timeline").stdout
    shown = run("show", young.id).stdout
    for word in ("Wounded by", old.id, "needed table one.default.t"):
        assert word in shown
    assert document(run("show", young.id, "--output", "json"))["wounded_by"] == old.id
    young.abort()


def test_options_are_taken_before_a_command_and_behind_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*words: str) -> Any:
        return document(CliRunner().invoke(commands.main, words))

    tx = run_shape(bench, "single")
    nowhere = "sqlite:////nowhere/timeline.db"
    for words in (
        ("--timeline", bench.url, "--output", "json", "timeline"),
        ("--output=text", "--timeline", nowhere, "timeline", "--timeline", bench.url, "--output", "json"),
        ("-c", f"spark.twophase.timeline={bench.url}", "timeline", "-c", "a=b", "--output", "json"),
    ):
        assert [row["id"] for row in asked(*words)["transactions"]] == [tx.id]
    monkeypatch.setenv("TWOPHASE_TIMELINE", bench.url)
    assert len(asked("timeline", "--output", "json")["transactions"]) == 1
    for place in (0, 1):
        words = ["timeline", "--output", "json"]
        words[place:place] = ["--timeline", nowhere]
        assert asked(*words)["error"]["kind"] == "TimelineError"


def test_show_prints_all_of_one_transaction(bench: Bench, run: Any) -> None:
    tx = in_doubt(bench)
    result = run("show", tx.id)
    assert result.exit_code == 0
    assert "IN_DOUBT" in result.stdout
    shown = document(run("show", tx.id, "--output", "json"))
    assert shown["participants"][0]["path"] == ["default", "t"]
    assert shown["owner"]["pid"] == os.getpid()
    assert "document" not in shown["participants"][0]


def test_show_of_an_unknown_transaction_fails_with_words(bench: Bench, run: Any) -> None:
    run_shape(bench, "single")
    result = run("show", "nosuch", "--output", "json")
    assert result.exit_code == 1
    assert document(result)["error"]["kind"] == "ConfigurationError"
    assert "twophase timeline" in document(result)["error"]["hint"]


def test_a_timeline_that_is_not_there_fails_with_words_on_stderr(run: Any) -> None:
    result = CliRunner().invoke(commands.main, ["timeline", "--timeline", "sqlite:////nowhere/timeline.db"])
    assert result.exit_code == 1
    assert "no timeline at /nowhere/timeline.db" in result.stderr.replace("\n", " ")


def test_recover_carries_the_dead_to_their_end(bench: Bench, run: Any) -> None:
    transaction_id = abandon(bench)
    result = run("recover", "--output", "json")
    assert result.exit_code == 0
    (recovered,) = document(result)["recovered"]
    assert (recovered["id"], recovered["found"], recovered["state"]) == (transaction_id, "INFLIGHT", "ROLLED_BACK")
    assert "nothing to recover" in run("recover").stdout


def test_recover_of_one_transaction_leaves_the_others_as_they_are(bench: Bench, run: Any) -> None:
    """An operator may have to decide about them first."""
    one, other = abandon(bench, name="twophase"), abandon(bench, "u", name="twophase")
    (recovered,) = document(run("recover", other, "--output", "json"))["recovered"]
    assert (recovered["found"], recovered["state"]) == ("INFLIGHT", "ROLLED_BACK")
    assert document(run("show", one, "--output", "json"))["state"] == "INFLIGHT"


def test_recover_without_anything_dead_does_not_start_spark(
    bench: Bench, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_shape(bench, "single")
    monkeypatch.setattr(commands.Context, "session", lambda _, **__: pytest.fail("it started Spark"))
    assert run("recover").exit_code == 0


def test_recover_leaves_the_living_alone_and_says_so(bench: Bench, run: Any) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    result = run("recover", tx.id)
    assert result.exit_code == 1
    assert "alive" in result.stdout
    tx.commit()


def test_a_doubt_exits_with_three_until_it_is_resolved(bench: Bench, run: Any) -> None:
    tx = in_doubt(bench)
    result = run("recover", tx.id)
    assert result.exit_code == 3
    assert "one.default.t" in result.stdout
    bench.catalogs["one"].faults.clear()
    assert run("recover", tx.id).exit_code == 0


@pytest.mark.parametrize(("word", "state"), [("committed", "COMPLETED"), ("rolled-back", "ROLLED_BACK")])
def test_an_operator_decides_where_the_store_cannot_answer(bench: Bench, run: Any, word: str, state: str) -> None:
    tx = in_doubt(bench)
    result = run("recover", tx.id, "--assume", word, "--output", "json")
    assert result.exit_code == 0
    assert document(result)["recovered"][0]["state"] == state


def test_assume_needs_one_transaction(run: Any) -> None:
    assert run("recover", "--assume", "committed").exit_code == 2


def test_clean_lists_in_a_dry_run_and_removes_without(bench: Bench, run: Any) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    bench.catalogs["one"].faults.add("abort", "error", 1)
    tx.abort()
    (leftover,) = document(run("clean", "--dry-run", "--output", "json"))["leftovers"]
    assert (leftover["transaction_id"], leftover["removed"]) == (tx.id, False)
    assert "would be removed" in run("clean", "--dry-run").stdout
    assert run("clean").exit_code == 0
    assert bench.staged() == []


@pytest.mark.parametrize("words", [("clean", "--dry-run"), ("doctor",), ("show-schema", "one.default.t")])
def test_a_command_that_only_looks_recovers_nothing(bench: Bench, run: Any, words: tuple[str, ...]) -> None:
    transaction_id = abandon(bench, name="twophase")
    run(*words)
    assert document(run("show", transaction_id, "--output", "json"))["state"] == "INFLIGHT"


def test_doctor_reports_each_problem_with_what_to_do(bench: Bench, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tx = in_doubt(bench)

    def session(_: commands.Context, **__: Any) -> Any:
        raise RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")

    monkeypatch.setattr(commands.Context, "session", session)
    result = run("doctor", "--output", "json")
    assert result.exit_code == 1
    text = json.dumps(document(result))
    assert "Install Java 17 or newer" in text
    assert f"twophase recover {tx.id}" in text


def test_errors_in_doubt_exit_with_three(bench: Bench, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def session(_: commands.Context, **__: Any) -> Any:
        raise TransactionInDoubt("It is not known.", transaction_id="app-1", hint="twophase recover app-1")

    monkeypatch.setattr(commands.Context, "session", session)
    result = run("sql", "-e", "SELECT 1", "--output", "json")
    assert result.exit_code == 3
    assert document(result)["error"]["transaction_id"] == "app-1"


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (["recover", "--assume", "committed", "--output", "json"], "UsageError", "--assume needs the ID"),
        (["recover", "--assume", "perhaps", "--output=json"], "BadParameter", "perhaps"),
        (["timeline", "--output", "json", "--nosuch"], "NoSuchOption", "--nosuch"),
        (["timeline", "--output", "json", "--conf", "novalue"], "BadParameter", "key=value"),
        (["show", "--output", "json"], "MissingParameter", "ID"),
        (["sql", "--output", "json"], "UsageError", "-e or --file"),
        (["sql", "--wait", "1s", "-e", "SELECT 1", "--output", "json"], "UsageError", "--wait belongs to --together"),
        (["sql", "--together", "--isolation", "x", "-e", "SELECT 1", "--output", "json"], "BadParameter", "snapshot"),
        (["nosuch", "--output", "json"], "", "No such command"),
    ],
)
def test_wrong_usage_is_json_where_json_was_asked_for(words: list[str], kind: str, said: str) -> None:
    result = CliRunner().invoke(commands.main, words)
    assert result.exit_code == 2
    error = document(result)["error"]
    assert said in error["message"]
    assert error["kind"] == (kind or error["kind"])
    assert "Usage: " in error["hint"]
    assert result.stderr == ""


def test_wrong_usage_is_reported_to_people_on_stderr() -> None:
    result = CliRunner().invoke(commands.main, ["recover", "--assume", "committed"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--assume needs the ID" in result.stderr


def test_help_is_no_error_whatever_the_output() -> None:
    result = CliRunner().invoke(commands.main, ["sql", "--output", "json", "--help"])
    assert result.exit_code == 0
    assert "those before it stay" in " ".join(result.stdout.split())


def test_an_interrupt_makes_one_json_document(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def session(_: commands.Context, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands.Context, "session", session)
    result = run("clean", "--output", "json")
    assert result.exit_code == 1
    assert document(result)["error"]["kind"] == "KeyboardInterrupt"


def test_an_error_that_looks_like_markup_is_shown_as_it_is(bench: Bench, run: Any) -> None:
    tx = bench.coordinator().begin()
    write(tx, bench.catalogs["one"], "t")
    tx.abort(RuntimeError("Unable to read [/data/in] of [bold]job"))
    for result in (run("show", tx.id), run("show", tx.id, "--output", "json")):
        assert result.exit_code == 0
        assert "Unable to read [/data/in] of [bold]job" in result.stdout


def test_what_clean_could_not_remove_is_listed_beside_what_it_removed(bench: Bench, run: Any) -> None:
    catalog = bench.catalogs["one"]
    catalog.faults.add("abort", "error")
    catalog.faults.add("remove_leftover", "error", 1)
    for name in ("t", "u"):
        tx = bench.coordinator().begin()
        write(tx, catalog, name)
        tx.abort()
    result = run("clean", "--output", "json")
    assert result.exit_code == 1
    assert sorted(leftover["removed"] for leftover in document(result)["leftovers"]) == [False, True]


def test_a_configuration_of_the_wrong_form_is_wrong_usage(run: Any) -> None:
    assert run("timeline", "--conf", "novalue").exit_code == 2


def test_a_misspelled_option_is_refused_where_no_session_is_started_either(run: Any) -> None:
    result = run("timeline", "--conf", "spark.twophase.retenton=1h")
    assert result.exit_code == commands.FAILED
    assert "There is no option spark.twophase.retenton" in result.stderr and "retention" in result.stderr


def test_the_installed_command_reads_its_timeline_from_the_environment(bench: Bench) -> None:
    tx = run_shape(bench, "single")
    done = subprocess.run(
        [sys.executable, "-m", "twophase.cli", "timeline", "--output", "json"],
        env={**os.environ, "TWOPHASE_TIMELINE": bench.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["transactions"][0]["id"] == tx.id
    assert bench.catalogs["one"].table_exists(path("t"))


@pytest.mark.parametrize("folder", ["SPARK_CONF_DIR", "SPARK_HOME"])
@pytest.mark.parametrize("entry", ["spark.twophase.timeline", "spark.sql.warehouse.dir"])
def test_the_timeline_of_sparks_defaults_is_read_where_no_session_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str, folder: str
) -> None:
    """A command that took the default place instead would answer from another timeline."""
    file = tmp_path / ".twophase" / "timeline.db"
    file.parent.mkdir()
    Timeline(f"sqlite:///{file}").close()
    value = f"sqlite:///{file}" if entry == "spark.twophase.timeline" else tmp_path
    conf = tmp_path / ("conf" if folder == "SPARK_HOME" else "")
    conf.mkdir(exist_ok=True)
    (conf / "spark-defaults.conf").write_text(f"# of the cluster\n{entry}   {value}\n")
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv(folder, str(tmp_path))
    monkeypatch.delenv("TWOPHASE_TIMELINE", raising=False)

    result = CliRunner().invoke(commands.main, ["timeline", "--output", "json"])
    assert (result.exit_code, document(result)["transactions"]) == (commands.DONE, [])
    given = CliRunner().invoke(commands.main, ["timeline", "--conf", f"{entry}={value}/elsewhere"])
    assert (given.exit_code, "elsewhere" in given.stderr) == (commands.FAILED, True)


def parses(script: str) -> bool:
    """Like a parser of scripts: each BEGIN, IF and LOOP has an END."""
    words = [token.word for token in tokens(script)]
    return 2 * words.count("END") == 2 * words.count("BEGIN") + words.count("IF") + words.count("LOOP")


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("", []),
        (" ; -- nothing ;\n;", []),
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1;\n-- two; or three\nSELECT ';' ;", ["SELECT 1", "SELECT ';' "]),
        (
            "BEGIN TRANSACTION; INSERT INTO a SELECT 1; COMMIT;",
            ["BEGIN TRANSACTION", "INSERT INTO a SELECT 1", "COMMIT"],
        ),
        ("begin work; rollback", ["begin work", "rollback"]),
        ("BEGIN; COMMIT", ["BEGIN", "COMMIT"]),
        ("BEGIN SELECT 1; SELECT 2; END; SELECT 3", ["BEGIN SELECT 1; SELECT 2; END", "SELECT 3"]),
        (
            "BEGIN ATOMIC IF true THEN SELECT 'END;'; END IF; BEGIN SELECT 2; END; END; COMMIT",
            ["BEGIN ATOMIC IF true THEN SELECT 'END;'; END IF; BEGIN SELECT 2; END; END", "COMMIT"],
        ),
        ("BEGIN transaction: LOOP SELECT 1; END LOOP; END; SELECT 2", None),
        ("SELECT 1; BEGIN SELECT 2; SELECT 3", ["SELECT 1", "BEGIN SELECT 2; SELECT 3"]),
        ('SELECT `a;b`; SELECT "c\\";d"', ["SELECT `a;b`", 'SELECT "c\\";d"']),
    ],
)
def test_a_file_is_split_into_statements_and_scripts(text: str, statements: list[str] | None) -> None:
    expected = [text.rpartition(";")[0], "SELECT 2"] if statements is None else statements
    assert [found.strip() for found in split(text, parses)] == [found.strip() for found in expected]
