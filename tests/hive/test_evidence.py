"""``twophase clean`` removes what is proven to be unneeded, and nothing because a listing does not show who uses it."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.hive.place import ROWS, Place
from twophase.catalogs.files import Files, Root, is_below, same
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.tables import EXTERNAL, HiveTable
from twophase.catalogs.location_identity import Identities
from twophase.errors import CatalogError
from twophase.model import ObjectPath, Purpose
from twophase.transactions.clean import Cleaned

PARTED = pa.table({"id": [1, 2], "k": ["a", "b"]})
TWO = ObjectPath.of("default", "u")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def external(place: Place, name: str, location: Path) -> None:
    """An EXTERNAL table that stock Spark made."""
    location.mkdir(parents=True, exist_ok=True)
    place.metastore().create_table(HiveTable("default", name, EXTERNAL, ROWS.schema, "parquet", f"file:{location}"))


def removed(found: list[Cleaned]) -> list[str]:
    assert not [entry for entry in found if entry.failed], found
    return [entry.leftover.location for entry in found if entry.removed]


def hide(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a metastore does that shows a user only a part of its tables."""
    monkeypatch.setattr(type(place.metastore()), "list_tables", lambda *_: [])


# -- a live table is never removed -----------------------------------------------------------------------------------


@pytest.mark.promise("clean", "a live version stays, however its warehouse is spelled and whoever runs `clean`")
@pytest.mark.parametrize("by", [[], ["k"]], ids=["plain", "partitioned"])
@pytest.mark.parametrize("spelling", ["link", "hidden"])
def test_a_live_version_stays_however_its_warehouse_is_spelled_and_whoever_looks(
    place: Place, monkeypatch: pytest.MonkeyPatch, by: list[str], spelling: str
) -> None:
    rows = PARTED if by else ROWS
    place.write(rows=rows, by=by).commit()
    place.write(rows=rows.slice(0, 1), purpose=Purpose.INSERT_INTO, by=by).commit()
    if spelling == "link":
        (place.directory / "alias").symlink_to(place.database)
        external(place, "ext", place.directory / "alias" / "ext")
    else:
        hide(place, monkeypatch)
    found = place.clean()
    monkeypatch.undo()
    assert len(place.rows()) == 3
    assert all("is not to be seen from here" in str(entry.reason) for entry in found if not entry.removed)
    assert [entry.removed for entry in place.clean()] == []
    assert len(place.rows()) == 3


def test_a_live_version_stays_whose_transaction_the_timeline_has_forgotten(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = place.write()
    tx.commit()
    assert place.timeline.prune(-60.0, limit=10) == 1
    assert place.timeline.transaction(tx.id) is None
    hide(place, monkeypatch)
    (found,) = place.clean()
    assert "is not to be seen from here" in str(found.reason)
    monkeypatch.undo()
    assert place.rows() == [(1,), (2,)]


def test_what_is_live_is_found_so_once_more_before_it_is_removed(place: Place) -> None:
    dead = place.write(prepare=False)
    (leftover,) = place.catalog().leftovers()
    (place.directory / "alias").symlink_to(place.database)
    version = Path(leftover.location.removeprefix("file:"))
    external(place, "ext", place.directory / "alias" / version.relative_to(place.database))
    with pytest.raises(CatalogError, match="in use by a table"):
        place.catalog().remove_leftover(leftover)
    assert version.is_dir()
    place.metastore().drop_table("default", "ext")
    dead.abort()


def test_a_version_that_is_reached_by_another_name_service_is_known_by_its_tail() -> None:
    from twophase.catalogs.hive.references import References

    used = References(["hdfs://nameservice/wh/.twophase/t/job-1-0/k=1", "viewfs://c/wh/.twophase/u/job-2-0"])
    for directory in ("hdfs://nn1:9000/wh/.twophase/t/job-1-0", "hdfs://nn1:9000/wh/.twophase/u/job-2-0"):
        assert used.hold(directory)
    for directory in ("hdfs://nn1:9000/wh/.twophase/t/job-1-0/k=2", "hdfs://nn1:9000/wh/.twophase/t/job-3-0"):
        assert not used.hold(directory)


def test_a_version_of_which_a_part_is_live_stays(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write(rows=PARTED, by=["k"]).commit()
    place.write(rows=PARTED, purpose=Purpose.INSERT_INTO, by=["k"]).commit()
    place.write(rows=PARTED.slice(0, 1), purpose=Purpose.INSERT_OVERWRITE, by=["k"]).commit()
    before = place.rows()
    hide(place, monkeypatch)
    place.clean()
    monkeypatch.undo()
    assert place.rows() == before


def test_a_table_of_another_database_is_in_use_too(place: Place) -> None:
    place.write().commit()
    place.metastore().create_database("other", {}, ignore_if_exists=True)
    before = place.metastore().get_table("default", "t")
    assert before is not None
    old = str(before.location).removeprefix("file:")
    place.write(purpose=Purpose.REPLACE_TABLE_AS).commit()
    place.metastore().create_table(HiveTable("other", "kept", EXTERNAL, ROWS.schema, "parquet", f"file:{old}"))
    assert place.clean() == []
    assert place.metastore().rows("other", "kept") == [(1,), (2,)]


def test_the_metastore_is_read_as_often_for_many_leftovers_as_for_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(rows=PARTED, by=["k"]).commit()
    place.write(path=TWO).commit()
    store, asked = type(place.metastore()), []
    plain = store.get_table
    monkeypatch.setattr(
        store, "get_table", lambda self, *names, **how: asked.append(names) or plain(self, *names, **how)
    )
    counts = []
    for leftovers in (1, 6):
        for _ in range(leftovers):
            place.write(path=TWO, purpose=Purpose.REPLACE_TABLE_AS).commit()
        asked.clear()
        assert len(removed(place.clean())) == leftovers
        counts.append(len(asked))
    assert counts[0] == counts[1]


def test_what_was_replaced_goes(place: Place) -> None:
    place.write(rows=PARTED, by=["k"]).commit()
    for _ in range(2):
        place.write(rows=PARTED, purpose=Purpose.INSERT_OVERWRITE, by=["k"]).commit()
    place.write(path=TWO).commit()
    place.write(path=TWO, purpose=Purpose.REPLACE_TABLE_AS).commit()
    assert removed(place.clean())
    assert (len(place.rows()), place.rows(table="u")) == (2, [(1,), (2,)])
    assert place.clean() == []
    # One root and one version of each table.
    left = [entry for entry in (place.database / ".twophase").glob("*/*") if list(entry.rglob("*.parquet"))]
    assert len(left) == 2


class KilledError(BaseException):
    """The process ends here."""


def cleans_until(place: Place, moment: int) -> bool:
    """Run ``clean``, which is killed before it removes its ``moment``-th file or directory; whether it was."""
    counted = itertools.count(1)

    def dying(remove: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **options: Any) -> None:
            if next(counted) == moment:
                raise KilledError
            remove(*args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("unlink", "rmdir"):
            patch.setattr(os, name, dying(getattr(os, name)))
        try:
            place.clean()
        except KilledError:
            return True
    return False


@pytest.mark.promise("clean", "what a killed `clean` has begun to remove is removed by the next one")
def test_what_a_killed_clean_has_begun_to_remove_is_removed_by_the_next_one(tmp_path: Path) -> None:
    is_killed, moment = True, 0
    while is_killed:
        moment += 1
        place = Place(tmp_path / str(moment))
        place.write(rows=PARTED, by=["k"]).commit()
        for _ in range(2):
            place.write(rows=PARTED, purpose=Purpose.INSERT_OVERWRITE, by=["k"]).commit()
        is_killed = cleans_until(place, moment)
        place.clean()
        assert place.clean() == [], moment
        assert len(place.rows()) == 2
        left = [entry for entry in (place.database / ".twophase").glob("*/*") if list(entry.rglob("*.parquet"))]
        assert len(left) == 1, moment
    assert moment > 5


# -- marks are believed within their own directory --------------------------------------------------------------------


def ended(place: Place) -> str:
    """An id of an ended transaction, as it stands in every stamp."""
    tx = place.write()
    tx.commit()
    return tx.id


def mark(directory: Path, transaction_id: str, *names: str) -> None:
    document = {"transaction_id": transaction_id, "since": 1.0, "files": list(names)}
    (directory / layout.SUPERSEDED_FILE).write_text(json.dumps(document))


@pytest.fixture
def trap(place: Place) -> Path:
    """A directory that ``clean`` looks at, beside an EXTERNAL table of somebody else."""
    trap = place.directory / "theirs" / ".twophase" / "x" / "y"
    trap.mkdir(parents=True)
    external(place, "bait", place.directory / "theirs" / "bait")
    return trap


def clean_up(place: Place, trap: Path) -> None:
    place.clean()


def drop(place: Place, trap: Path) -> None:
    layout.remove_superseded(Files(), f"file:{trap}")


@pytest.mark.promise("clean", "no name in a marker leads out of its directory")
@pytest.mark.parametrize("remove", [clean_up, drop])
def test_no_name_in_a_mark_leads_out_of_its_directory(
    place: Place, trap: Path, remove: Callable[[Place, Path], Any]
) -> None:
    (place.directory / "victim").write_text("mine")
    (place.directory / "dir").mkdir()
    (place.directory / "dir" / "victim").write_text("mine")
    (trap / "link").symlink_to(place.directory / "dir")
    (trap / "file-link").symlink_to(place.directory / "victim")
    (trap / "a").mkdir()
    for name in ("own", "a/own"):
        (trap / name).write_text("theirs")
    absolute = str(place.directory / "victim")
    names = ("../../../../victim", "link/victim", "a/../../../../../victim", absolute, "\0", "own", "a/own", "./own")
    mark(trap, ended(place), *names, "file-link")
    remove(place, trap)
    assert (place.directory / "victim").read_text() == "mine"
    assert (place.directory / "dir" / "victim").read_text() == "mine"
    # What is its own goes, a link as the file that it is.
    assert [entry.name for entry in trap.iterdir()] == ["link"]


def test_no_link_leads_clean_to_another_directory(place: Place, trap: Path) -> None:
    foreign = place.directory / "foreign"
    foreign.mkdir()
    (foreign / "precious").write_text("mine")
    mark(foreign, ended(place), "precious")
    (trap / "v").symlink_to(foreign)
    (trap.parent / "z").symlink_to(foreign)
    (place.database / "t2").symlink_to(foreign)
    assert removed(place.clean()) == []
    assert {entry.name for entry in foreign.iterdir()} == {"precious", layout.SUPERSEDED_FILE}


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a file another user's: for real as root, else as the file system would tell it."""
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        return
    plain = Files.owner
    given = f"file:{path}"
    monkeypatch.setattr(Files, "owner", lambda self, at: 65534 if at == given else plain(self, at))


@pytest.mark.promise("clean", "a marker of another user than the directory's owner is not believed")
def test_a_mark_of_another_user_than_the_directorys_owner_is_not_believed(
    place: Place, trap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trap / "own").write_text("theirs")
    mark(trap, ended(place), "own")
    give_away(trap / layout.SUPERSEDED_FILE, monkeypatch)
    (found,) = place.clean()
    assert (found.removed, found.reason) == (False, layout.UNTRUSTED)
    with pytest.raises(CatalogError, match="is neither of the user who owns the directory"):
        layout.remove_superseded(Files(), f"file:{trap}")
    give_away(trap, monkeypatch)
    assert removed(place.clean()) == [f"file:{trap}"]


# -- one directory, however it is spelled ------------------------------------------------------------------------------


def test_local_directories_are_compared_by_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "wh" / "t").mkdir(parents=True)
    for name, target in (("alias", "wh"), ("deep", "wh/t"), ("loop", "pool"), ("pool", "loop"), ("gone", "away")):
        (tmp_path / name).symlink_to(tmp_path / target)
    at = lambda name: f"file:{tmp_path}/{name}"  # noqa: E731
    assert same(at("wh/t"), f"{tmp_path}/alias/t")
    assert same(at("wh/new/x"), f"file://{tmp_path}/alias/new/x")
    assert not same(at("wh/t"), at("wh/new"))
    assert is_below(at("deep/new"), at("wh"))
    assert is_below(at("alias/t"), at("wh/t"))
    assert not is_below(at("alias/t"), at("wh/t/x"))
    assert not is_below(at("loop/x"), at("wh"))
    assert not same(at("gone"), at("wh"))
    assert (Root(at("wh")).name_of(at("alias/t/k=1")), Root(at("wh")).name_of(at("other"))) == ("t/k=1", None)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://b/x", "s3a://b/x/"),
        ("s3n://b/x//y", "S3A://b/x/y"),
        ("hdfs://nn/x", "hdfs://NN:8020/x"),
        ("webhdfs://nn:9870/x", "hdfs://nn/x"),
        ("abfs://c@a.dfs.core.windows.net/x", "wasbs://c@a.blob.core.windows.net/x"),
    ],
)
def test_remote_directories_are_compared_by_what_their_scheme_stands_for(one: str, other: str) -> None:
    assert same(one, other)
    assert is_below(one + "/p", other)
    assert not same(one, other.replace("x", "z"))


def test_many_references_are_compared_in_little_time(tmp_path: Path) -> None:
    (tmp_path / "wh").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "wh")
    from twophase.catalogs.hive.references import References

    began = time.process_time()
    used = References(f"file:{tmp_path}/alias/p/k={number}" for number in range(10_000))
    assert used.hold(f"file:{tmp_path}/wh/p/k=7")
    assert not any(used.hold(f"file:{tmp_path}/wh/q/k={number}") for number in range(1_000))
    assert time.process_time() - began < 2.0
    assert Identities().key(f"file:{tmp_path}/wh") == Identities().key(f"file:{tmp_path}/alias")
