"""Options as the fields of a model: what is refused, in which words, and what documentation learns of them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Annotated, Literal

import pytest

from twophase.config.settings import Count, Flag, Option, Seconds, Settings, Text, lower, option, secret
from twophase.errors import ConfigurationError

SECRET = "hunter2"


class Store(Settings):
    """The settings of a store."""

    url: str = option("", "where it is", repr=False)
    rows: Count = option(10_000, "rows in one batch")
    mode: Annotated[Literal["safe", "fast"], lower] = option("safe", "how it writes")
    tls: Flag = option(False, "an encrypted connection")
    wait: Seconds = option("30s", "how long it waits", alias="store.wait")
    schema_name: Text = option(None, "the schema", shown="the target's own")
    token: str | None = secret("token of the store", plain=False)


def test_types_and_defaults_are_those_of_the_fields() -> None:
    given = Store.read({"rows": " 5 ", "mode": "Fast", "tls": "TRUE", "store.wait": "2m", "schema_name": ""}, "shop")
    assert (given.rows, given.mode, given.tls, given.wait, given.schema_name) == (5, "fast", True, 120.0, None)
    assert (Store.read({}).rows, Store.read({}).wait, Store.read({}).catalog) == (10_000, 30.0, "")
    assert pickle.loads(pickle.dumps(given)) == given


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"row": "5"}, "Catalog shop: there is no option row. Did you mean rows?"),
        ({"rows": "many"}, "Catalog shop: the option rows is a whole number from 1 on, not 'many'."),
        ({"rows": "²"}, "not '²'"),
        ({"rows": "0"}, "not '0'"),
        ({"mode": "saff"}, "the option mode is safe or fast, not 'saff'. Did you mean safe?"),
        ({"tls": "yes"}, "the option tls is true or false, not 'yes'."),
        ({"store.wait": "soon"}, "the option store.wait is 'soon', which is no duration. Write a number and a unit"),
        ({"token": SECRET}, "there is no option token."),
        ({"token_env": "HOME", "token_file": "/f"}, "the token is given twice, by token_env and token_file."),
        ({"token_env": "NO_SUCH"}, "the environment variable NO_SUCH (option token_env) is not set."),
        ({"token_file": "/no/such"}, "the file /no/such (option token_file) cannot be read"),
        ({"catalog": "other"}, "there is no option catalog."),
    ],
)
def test_a_wrong_option_is_refused_with_its_name_and_the_right_one(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Store.read({"url": SECRET, **options}, "shop")
    assert words in str(caught.value)
    assert SECRET not in f"{caught.value}{caught.value.__cause__}"


def test_a_secret_is_read_from_a_variable_or_a_file_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_TOKEN", SECRET)
    (tmp_path / "token").write_text(SECRET + "\n")
    for options in ({"token_env": "STORE_TOKEN"}, {"token_file": str(tmp_path / "token")}):
        given = Store.read({"url": SECRET, **options})
        assert given.token == SECRET
        assert SECRET not in repr(given)


def test_documentation_is_made_from_the_fields() -> None:
    assert Store.options() == [
        Option("url", "text", "", "where it is"),
        Option("rows", "number", "10000", "rows in one batch"),
        Option("mode", "safe or fast", "safe", "how it writes"),
        Option("tls", "true or false", "false", "an encrypted connection"),
        Option("store.wait", "duration", "30s", "how long it waits"),
        Option("schema_name", "text", "the target's own", "the schema"),
        Option("token_env", "text", "", "environment variable that holds the token of the store"),
        Option("token_file", "text", "", "file that holds the token of the store"),
    ]
    assert Store.help()["rows"] == "rows in one batch (default: 10000)"
