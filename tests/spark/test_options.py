"""Wrong configuration is refused before anything happens, with the nearest right word."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, cast

import pytest

from twophase.catalog import Catalog, Environment
from twophase.errors import ConfigurationError
from twophase.spark import catalog_kinds, options, spark_defaults
from twophase.testing.chaos import ChaosCatalog

CHAOS = "twophase.testing.chaos:ChaosCatalog"


def test_without_configuration_a_hive_catalog_serves_unprefixed_names() -> None:
    found = options.read({})

    assert [c.name for c in found.catalogs] == ["hive"]
    assert found.session_catalog == "hive"
    assert (found.policy, found.retention, found.timeline) == ("required", 86_400.0, None)


def test_none_turns_the_session_catalog_off() -> None:
    found = options.read({"spark.twophase.session.catalog": "none"})

    assert (found.catalogs, found.session_catalog) == ((), None)


def test_the_default_hive_catalog_takes_options_of_its_own() -> None:
    found = options.read({"spark.sql.catalog.hive.recipe": "rename"})

    assert found.catalogs[0].options == {"recipe": "rename"}


def test_a_foreign_catalog_named_hive_keeps_its_name() -> None:
    found = options.read({"spark.sql.catalog.hive": "com.example.Catalog", "spark.sql.catalog.hive.url": "x"})

    assert [c.name for c in found.catalogs] == ["twophase_hive"]
    assert found.session_catalog == "twophase_hive"
    assert found.catalogs[0].options == {}


def test_catalogs_are_found_by_kind_and_by_dotted_path() -> None:
    found = options.read(
        {
            "spark.sql.catalog.lake": CHAOS,
            "spark.sql.catalog.lake.seed": "1",
            "spark.sql.catalog.old": "twophase.hive",
            "spark.sql.catalog.other": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.other.type": "hadoop",
            "spark.twophase.session.catalog": "old",
        }
    )

    assert {c.name: c.options for c in found.catalogs} == {"lake": {"seed": "1"}, "old": {}}
    assert found.session_catalog == "old"


class Forgetful(ChaosCatalog):
    """A plugin of an older interface."""

    def two_phase_create_table(  # type: ignore[override]
        self, path: Any, definition: Any, *, purpose: Any, ignore_if_exists: Any = False, is_streaming_mode: Any = False
    ) -> Any: ...


class Uninherited(ChaosCatalog):
    """A plugin that has the methods of an interface, and not the interface."""

    def read_source_as_of(self, path: Any, *, version: Any = None, timestamp: Any = None) -> Any: ...


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"spark.sql.catalog.x": "twophase.hvie"}, "Did you mean twophase.hive"),
        ({"spark.sql.catalog.x": "twophase.hive", "spark.sql.catalog.x.recipee": "1"}, "Did you mean recipe?"),
        ({"spark.sql.catalog.x": "no.such.module:Catalog"}, "cannot be imported"),
        ({"spark.sql.catalog.x": "twophase.testing.chaos:Nothing"}, "cannot be imported"),
        ({"spark.sql.catalog.x": "pathlib:Path"}, "not a subclass of twophase.Catalog"),
        ({"spark.sql.catalog.spark_catalog": "twophase.hive"}, "never replaced"),
        ({"spark.sql.catalog.Lake": CHAOS, "spark.sql.catalog.lake": CHAOS}, "Two catalogs have one name"),
        (
            {"spark.twophase.atomicty": "required"},
            "There is no option spark.twophase.atomicty. Did you mean atomicity?",
        ),
        ({"spark.twophase.atomicity": "prefered"}, "Did you mean preferred?"),
        ({"spark.twophase.fsync": "off"}, "Known: false, true."),
        ({"spark.sql.catalog.x": "Twophase.Hive"}, "Did you mean twophase.hive"),
        ({"spark.sql.catalog.x": "two_phase.jdbc"}, "Did you mean twophase.jdbc"),
        ({"spark.sql.catalog.x": " twophase.jdbc"}, "Did you mean twophase.jdbc"),
        ({"spark.sql.catalog.x": "jdbc"}, "Did you mean twophase.jdbc"),
        ({"spark.sql.catalog.x": "..relative:Catalog"}, "cannot be imported"),
        ({"spark.sql.catalog.a.b": "twophase.jdbc"}, "the name of a catalog has no dot"),
        ({"spark.sql.catalog.": "twophase.hive"}, "can be no catalog"),
        ({"spark.sql.catalog.Global_Temp": CHAOS}, "can be no catalog"),
        ({"spark.Twophase.atomicity": "preferred"}, "Did you mean spark.twophase.atomicity?"),
        ({"spark.two_phase.Timeline": "x"}, "Did you mean spark.twophase.timeline?"),
        ({"spark.twophase.session.catalog": ""}, "session.catalog is ''"),
        ({"spark.twophase.retention": "a week"}, "no duration"),
        ({"spark.twophase.retention": "-1d"}, "no duration"),
        ({"spark.twophase.lease": "0"}, "more than 0"),
        ({"spark.twophase.lease": "9" * 400}, "more than a hundred years"),
        ({"spark.sql.catalog.hvie.recipe": "rename"}, "Did you mean spark.sql.catalog.hive.recipe?"),
        ({"spark.sql.catalog.Hive.recipe": "rename"}, "Did you mean spark.sql.catalog.hive.recipe?"),
        ({"spark.sql.catalog.lake": CHAOS, "spark.sql.catalog.lak.seed": "1"}, "Did you mean spark.sql.catalog.lake"),
        ({"spark.twophase.session.catalog": "lak", "spark.sql.catalog.lake": CHAOS}, "Did you mean lake?"),
        ({"spark.sql.catalog.x": "twophase.catalog:Catalog", "spark.sql.catalog.x.file": "a"}, "implement"),
        ({"spark.sql.catalog.x": f"{__name__}:Forgetful"}, "does not take context."),
        (
            {"spark.sql.catalog.x": f"{__name__}:Uninherited"},
            "has read_source_as_of without inheriting twophase.catalog.SupportsTimeTravel",
        ),
        (
            {"spark.sql.catalog.x": "examples.sqlite_plugin.SqliteCatalog"},
            "spark.sql.catalog.x = examples.sqlite_plugin:SqliteCatalog",
        ),
        (
            {"spark.twophase.session.catalog": "hive", "spark.sql.catalog.hive": "com.example.Catalog"},
            "foreign catalog",
        ),
    ],
)
def test_a_mistake_is_named_with_the_nearest_right_word(configuration: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        options.read(configuration)

    assert message in str(caught.value)


class Raises(ChaosCatalog):
    """A plugin that cannot be made."""

    def __init__(self, *_: object) -> None:
        raise RuntimeError("no disk, password=hush")


@pytest.mark.parametrize(("kind", "words"), [(Catalog, "abstract"), (Raises, "RuntimeError: no disk")])
def test_a_plugin_that_cannot_be_made_is_refused_with_its_name(kind: type[Catalog], words: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"Catalog lake cannot be made.*{words}") as caught:
        options.made(options.CatalogOptions("lake", kind), cast(Environment, None))
    assert "hush" not in str(caught.value)


def test_a_plugin_whose_module_raises_is_refused_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('no licence')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=r"spark\.sql\.catalog\.x .*RuntimeError: no licence"):
        options.read({"spark.sql.catalog.x": "broken_plugin:Catalog"})


def test_a_kind_that_two_packages_offer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("hive", f"{module}:Hive", catalog_kinds.ENTRY_POINTS) for module in ("one", "two")]
    monkeypatch.setattr(catalog_kinds, "entry_points", lambda **_: points)
    with pytest.raises(ConfigurationError, match=r"several packages offer .* one:Hive, two:Hive"):
        options.read({"spark.sql.catalog.x": "twophase.hive"})


def test_options_of_what_may_be_another_catalog_are_left_alone() -> None:
    found = options.read(
        {"spark.sql.catalog.hive2.url": "x", "spark.sql.catalog.other.recipe": "rename", "spark.sql.catalog.h.i": "1"}
    )

    assert {c.name: c.options for c in found.catalogs} == {"hive": {}}


def test_secrets_do_not_show_in_the_representation() -> None:
    found = options.read({"spark.sql.catalog.lake": CHAOS, "spark.sql.catalog.lake.password": "hush"})

    assert "hush" not in repr(found)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30s", 30), ("15m", 900), ("12 h", 43_200), ("1d", 86_400), ("0.5d", 43_200)]
)
def test_durations_are_read_in_their_units(text: str, seconds: float) -> None:
    assert options.read({"spark.twophase.retention": text}).retention == seconds


def test_the_timeline_has_a_default_place_only_on_a_local_warehouse() -> None:
    assert str(options.default_timeline("file:/data/ware%20house")) == "/data/ware house/.twophase/timeline.db"
    assert str(options.default_timeline("/data/warehouse")) == "/data/warehouse/.twophase/timeline.db"
    with pytest.raises(ConfigurationError, match=r"spark\.twophase\.timeline"):
        options.default_timeline("s3a://bucket/warehouse")


@pytest.mark.parametrize(
    ("url", "is_file"),
    [
        (None, True),
        ("sqlite:////d/t.db", True),
        ("sqlite+pysqlite:////d/t.db", True),
        ("postgresql+psycopg://h/d", False),
    ],
)
def test_a_timeline_in_a_file_is_of_one_machine_unless_the_user_says_that_there_is_no_other(
    url: str | None, is_file: bool
) -> None:
    place = {"spark.twophase.timeline": url} if url else {}
    assert options.read(place).has_local_timeline is is_file
    assert not options.read({**place, "spark.twophase.timeline.local": "allow"}).has_local_timeline


# -- the timeline's password -------------------------------------------------------------------------------------------


def test_the_password_of_the_timeline_comes_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_PLACE", "hunter2")
    (tmp_path / "secret").write_text("hunter3\n")
    place = {"spark.twophase.timeline": "postgresql+psycopg://ann@host/db"}
    found = options.read({**place, "spark.twophase.timeline.password_env": "SECRET_PLACE"})
    assert found.timeline_password == "hunter2"
    assert "hunter2" not in repr(found)
    in_file = {"spark.twophase.timeline.password_file": str(tmp_path / "secret")}
    assert options.read({**place, **in_file}).timeline_password == "hunter3"
    for wrong in (
        {"spark.twophase.timeline.password_env": "SECRET_PLACE"},
        {**place, **in_file, "spark.twophase.timeline.password_env": "SECRET_PLACE"},
        {**place, "spark.twophase.timeline.password_env": "NOT_SET"},
        {**place, "spark.twophase.timeline.password_file": str(tmp_path / "none")},
    ):
        with pytest.raises(ConfigurationError, match=r"password") as caught:
            options.read(wrong)
        assert "hunter" not in str(caught.value)


def test_a_password_in_a_url_is_warned_of_without_repeating_it(caplog: pytest.LogCaptureFixture) -> None:
    conf = {
        "spark.twophase.timeline": "postgresql+psycopg://ann:hunter2@host/db",
        "spark.sql.catalog.pg": "twophase.jdbc",
        "spark.sql.catalog.pg.url": "postgresql+psycopg://ann:hunter2@host/db",
        "spark.sql.catalog.mine": "twophase.jdbc",
        "spark.sql.catalog.mine.url": "postgresql+psycopg://ann@host/db",
    }
    options.warn_of_passwords(options.read(conf))
    told = [record.getMessage() for record in caplog.records]
    assert [text.split()[0] for text in told] == ["spark.twophase.timeline", "spark.sql.catalog.pg.url"]
    assert "hunter2" not in caplog.text
    assert "spark.sql.catalog.pg.password_env" in told[1]


def test_sparks_defaults_are_read_as_spark_reads_them() -> None:
    text = (
        "# spark.a 0\n"
        "\n"
        "  ! spark.a 0 \\\n"
        "spark.a  1\n"
        "spark.b=two words  \n"
        "spark.c : jdbc:x=y#z\n"
        "spark.d one,\\\n"
        "    two\n"
        "spark.e C:\\\\dir\\u00e9\\:\\t.\n"
        "spark.f\n"
        "other.g 1\n"
        "spark.a\t3"
    )

    assert spark_defaults.parsed(text) == {
        "spark.a": "3",
        "spark.b": "two words",
        "spark.c": "jdbc:x=y#z",
        "spark.d": "one,two",
        "spark.e": "C:\\diré:\t.",
        "spark.f": "",
    }
