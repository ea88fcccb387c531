"""What is written down holds no secret: the timeline's errors, the log, the options of tables."""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Iterator

import pytest

from tests.core.bench import Bench, in_doubt, write
from twophase.catalogs.jdbc import options as jdbc
from twophase.catalogs.lakehouse import options as lakehouse
from twophase.errors import TransactionInDoubt
from twophase.hooks import JobStatusHook
from twophase.hooks.statement import Statement
from twophase.redaction import is_secret, logger, redact
from twophase.timeline import engines
from twophase.timeline.records import describe_error

SECRET = "hunter2"

TEXTS = [
    "cannot connect to postgresql://ann:hunter2@host/db",
    "cannot connect to postgresql://ann:pa/hunter2@host/db",
    "cannot connect to postgresql://ann:p@hunter2@host/db",
    "cannot connect to mysql://ann@corp:hunter2@host/db",
    "cannot connect to redis://:hunter2@host",
    "cannot connect to jdbc:oracle:thin:scott/hunter2@host:1521/x",
    "login failed: password=hunter2, try again",
    "login failed: password='my dog hunter2', try again",
    'login failed: user=ann password="a b hunter2" host=h',
    "login failed: password='it''s hunter2'",
    "login failed: password='an open end hunter2",
    "login failed: password={a b;hunter2}",
    r"answer: {\"password\": \"my hunter2\"}",
    "login failed: password == 'a hunter2'",
    "login failed: password: b'a hunter2'",
    "OPTIONS (dbtable 't', password 'my hunter2')",
    "OPTIONS ('password' 'hunter2')",
    "CREATE USER ann IDENTIFIED BY 'my hunter2'",
    "passphrase=hunter2",
    "ssl.key.passphrase: hunter2",
    "pass=hunter2",
    "dbPass = hunter2",
    "https://account.blob.core.windows.net/c?sv=2020&sig=hunter2&se=1",
    "https://bucket.s3.amazonaws.com/x?X-Amz-Credential=hunter2&X-Amz-Signature=hunter2",
    "https://bucket.s3.amazonaws.com/x?X-Amz-Signature=hunter2",
    "Authorization: Bearer hunter2",
    '"authorization": "Basic hunter2"',
    "Authorization: hunter2 and more",
    "sent with bearer hunter2",
    "fs.s3a.secret.key -> hunter2",
    "fs.azure.account.key.store.dfs.core.windows.net: hunter2",
    "AccountName=a;AccountKey=hunter2;EndpointSuffix=x",
    "SharedAccessKey=hunter2",
    "apiKeyId=hunter2",
    'Missing grant; "secret_key": "hunter2"',
    "AWS access-key: hunter2",
    "token = hunter2",
    "pat=hunter2",
    "'bearer': 'hunter2'",
    "hmac: hunter2",
    "salt = 'hunter2'",
    "aws.session=hunter2",
    "fs.aws_session -> hunter2",
    "dsn=ann/hunter2@host:1521/x",
    "dsn='ann/hunter2@host'",
    "-----BEGIN RSA PRIVATE KEY-----hunter2-----END RSA PRIVATE KEY-----",
    r"key file: -----BEGIN PRIVATE KEY-----\nMIIE\nhunter2 and the rest was cut",
    "rejected dapi0123456789abcdefhunter2",
    "rejected ghp_0123456789abcdefhunter2",
    "rejected github_pat_0123456789abcdefhunter2",
    "rejected glpat-0123456789abcdefhunter2",
    "rejected xoxb-0123456789-abcdefhunter2",
    "rejected AKIA0123456789hunter2",
    "rejected eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.hunter2",
    "POST https://hooks.slack.com/services/T00/B00/hunter2 failed",
    "POST https://discord.com/api/webhooks/1/hunter2 failed",
    "POST https://corp.webhook.office.com/webhookb2/hunter2 failed",
]


@pytest.mark.parametrize("text", TEXTS)
def test_an_error_that_is_written_down_holds_no_secret(text: str) -> None:
    error = RuntimeError(text)
    assert SECRET not in (describe_error(error) or "")
    assert str(error) == text, "the user's own error is untouched"


@pytest.mark.parametrize(
    "text",
    [
        "Table lake.sales.daily already exists.",
        "Cannot write the timeline sqlite:////tmp/x@y/timeline.db: disk I/O error.",
        "cannot reach hdfs://namenode:8020/warehouse/t",
        "Duplicate entry: Key (id)=(5) already exists",
        "primary key: id; 3 tests passed: all",
        "Left behind: /warehouse/.twophase/t/app-1-0",
        "the token expired",
        "cannot read /data/pat/salt/t, the path of user/table@branch",
        "patch: 3, pattern=x, assault: none, basalt=1",
        "no such key AKIA; dapi is down; sk-learn is missing",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "name",
    [
        *("password", "my.passphrase", "pass", "pwd", "dbPass", "client_secret", "oauthToken", "credentials", "sig"),
        *(
            "pat",
            "github.pat",
            "bearer",
            "hmac",
            "hmac.sha",
            "salt",
            "aws.session",
            "webhook",
            "slackWebhookUrl",
            "pem",
        ),
        *("apiKeyId", "APIKEY", "api_key", "fs.azure.account.key.store", "parquet.encryption.key.list", "sas", "auth"),
    ],
)
def test_an_option_with_the_name_of_a_secret_is_one(name: str) -> None:
    assert is_secret(name, "x")


def test_an_option_whose_value_holds_a_secret_is_one() -> None:
    assert is_secret("proxy", "http://ann:hunter2@host")
    assert is_secret("connection", "host=h;Password=hunter2")


@pytest.mark.parametrize(
    "name",
    [
        "header",
        "sep",
        "compression",
        "mapkey.delim",
        "primaryKey",
        "partition.keys",
        "dedup.key",
        "author",
        "signal",
        "path",
        "pattern",
        "basalt",
        "session.timezone",
    ],
)
def test_an_ordinary_option_is_no_secret(name: str) -> None:
    assert not is_secret(name, "x")


@pytest.mark.parametrize(
    ("name", "value"),
    [("token_count", "7"), ("pass_rate", "0.95"), ("keySize", "256"), ("key", ""), ("use.token", "true")],
)
def test_a_quantity_or_a_switch_is_no_secret(name: str, value: str) -> None:
    assert not is_secret(name, value)
    assert is_secret(name, "hunter2")
    assert is_secret("password", "123456")


# -- the log -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What a handler on the root logger writes, as an application has one."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger().addHandler(handler)
    yield text
    logging.getLogger().removeHandler(handler)


def boom(*_: object) -> None:
    raise RuntimeError("cannot reach postgresql://ann:hunter2@host/db")


@pytest.mark.promise("secrets", "the log holds no secret")
def test_an_outcome_that_could_not_be_learned_is_logged_without_its_secrets(
    bench: Bench, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = bench.coordinator().begin()
    participant = write(tx, bench.catalogs["one"], "t")
    bench.catalogs["one"].faults.add("publish", "lost_reply", 1)
    monkeypatch.setattr(participant, "outcome", boom)
    with pytest.raises(TransactionInDoubt):
        tx.commit()
    assert "Could not learn the outcome of one.default.t: cannot reach postgresql://ann:***@host/db" in log.getvalue()
    assert SECRET not in log.getvalue()


def test_a_recovery_that_fails_is_logged_without_its_secrets(
    bench: Bench, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = in_doubt(bench)
    monkeypatch.setattr(bench.catalogs["one"], "restore", boom)
    bench.coordinator().recover(transaction_id=tx.id)
    assert f"Could not recover transaction {tx.id}: cannot reach" in log.getvalue()
    assert SECRET not in log.getvalue()


def test_a_hook_that_fails_is_logged_with_its_stack_trace_and_without_its_secrets(
    bench: Bench, log: io.StringIO
) -> None:
    class Broken(JobStatusHook):
        def on_created(self, job: object) -> None:
            boom()

    tx = bench.coordinator().begin()
    statement = Statement(tx, write(tx, bench.catalogs["one"], "t"), hooks=[Broken()], autocommit=False)
    statement.start()
    statement.fail(RuntimeError("enough"))
    assert "Broken failed in on_created" in log.getvalue()
    assert "in boom" in log.getvalue()
    assert SECRET not in log.getvalue()


@pytest.mark.parametrize("password", ["p@hunter2", "p?hunter2", "p#@hunter2", "hunter2"])
def test_no_part_of_a_password_is_in_the_url_of_a_message(password: str) -> None:
    url = f"postgresql+psycopg://ann:{password}@host/d"
    assert SECRET not in engines.shown(engines.parsed(url))
    assert SECRET not in jdbc.read("c", {"url": url}).display_url
    assert SECRET not in lakehouse.read("c", {"uri": url, "warehouse": "/w"}, "").display_uri


def test_a_text_that_cannot_be_made_is_no_error_of_the_one_who_logs(log: io.StringIO) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    logger("twophase").warning("It failed: %s", Mute())
    assert "It failed" in log.getvalue()


def test_a_logged_record_can_be_sent_to_another_process(caplog: pytest.LogCaptureFixture) -> None:
    try:
        boom()
    except RuntimeError:
        logger("twophase").warning("It failed: %s", "password=hunter2", exc_info=True)
    (record,) = caplog.records
    assert SECRET.encode() not in pickle.dumps(record.__dict__)
