"""What ``twophase clean`` may remove: what nobody needs any more, of ours, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lakehouse.places import Lake, ordered
from tests.lakehouse.statements import ROWS, run, stage
from twophase.catalog import TableChange
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.errors import CatalogError, TransactionAborted
from twophase.model import ObjectPath, Outcome, Purpose

INSERT, OVERWRITE = Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE


@pytest.fixture
def catalog(lake: Lake) -> Iterator[LakehouseCatalog]:
    """One for which every retention has ended."""
    made = lake.catalog()
    made.environment.retention = -1.0
    yield made
    made.close()


def clean(catalog: LakehouseCatalog) -> list[str]:
    """Remove all residues, each twice; their kinds."""
    found = catalog.residues()
    for residue in (*found, *found):
        catalog.remove_residue(residue)
    assert catalog.residues() == []
    return sorted(residue.kind for residue in found)


def test_old_snapshots_go_with_the_files_that_only_they_needed(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    run(catalog, path)
    run(catalog, path, INSERT, [(3, "three")])
    run(catalog, path, OVERWRITE, [(4, "four")])
    run(catalog, path, INSERT, [(5, "five")])
    before = len(lake.files())
    assert "version" in clean(catalog)
    assert len(lake.load(path).metadata.snapshots) == 1
    assert ordered(lake.rows(path)) == [(4, "four"), (5, "five")]
    assert len([file for file in lake.files() if file.endswith(".parquet")]) == 2
    assert len(lake.files()) < before


def test_nothing_goes_before_its_retention_ends(lake: Lake, path: ObjectPath, catalog: LakehouseCatalog) -> None:
    run(catalog, path)
    run(catalog, path, OVERWRITE)
    catalog.environment.retention = 3600.0
    assert catalog.residues() == []
    catalog.drop_table(path)
    assert catalog.residues() == []


def test_what_a_tag_or_a_branch_names_stays(catalog: LakehouseCatalog, lake: Lake, path: ObjectPath) -> None:
    run(catalog, path)
    with lake.iceberg() as other:
        table = other.load_table(tuple(path.to_document()))
        table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "kept").commit()  # type: ignore[union-attr]
    run(catalog, path, OVERWRITE, [(9, "nine")])
    clean(catalog)
    kept = lake.load(path)
    tagged = kept.scan(snapshot_id=kept.metadata.refs["kept"].snapshot_id).to_arrow()
    assert ordered([tuple(row.values()) for row in tagged.to_pylist()]) == ROWS
    assert len(kept.metadata.snapshots) == 2


def test_snapshots_of_other_engines_are_left_alone(catalog: LakehouseCatalog, lake: Lake, path: ObjectPath) -> None:
    run(catalog, path)
    with lake.iceberg() as other:
        table = other.load_table(tuple(path.to_document()))
        table.append(table.scan().to_arrow())
        table.append(table.scan().to_arrow())
    clean(catalog)
    assert len(lake.load(path).metadata.snapshots) == 2
    assert len(lake.rows(path)) == 8


def test_the_files_of_a_dropped_table_go_and_only_those(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    run(catalog, path)
    location = lake.load(path).metadata.location
    catalog.drop_table(path)
    run(catalog, path, rows=[(7, "again")])
    assert lake.load(path).metadata.location != location
    assert Path(location.removeprefix("file://")).exists()
    assert "version" in clean(catalog)
    assert not Path(location.removeprefix("file://")).exists()
    assert lake.rows(path) == [(7, "again")]


def test_a_dropped_table_that_another_engine_registered_again_is_kept(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    run(catalog, path)
    location = lake.metadata_location(path)
    catalog.drop_table(path)
    with lake.iceberg() as other:
        other.register_table((path.database, "back"), location)
    (residue,) = [found for found in catalog.residues() if found.kind == "version"]
    with pytest.raises(CatalogError, match="again"):
        catalog.remove_residue(residue)
    assert ordered(lake.rows(ObjectPath.of(path.database, "back"))) == ROWS


def test_what_was_published_long_ago_is_still_known_by_its_snapshot(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    done = run(catalog, path)
    assert clean(catalog) == ["metadata"]
    assert done.outcome() is Outcome.PUBLISHED
    done.abort()
    assert ordered(lake.rows(path)) == ROWS


def test_what_clean_has_removed_is_never_published(catalog: LakehouseCatalog, lake: Lake, path: ObjectPath) -> None:
    run(catalog, path)
    zombie = stage(catalog, path, INSERT, [(9, "zombie")])
    assert "staging" in clean(catalog)
    with pytest.raises(TransactionAborted, match="gone"):
        zombie.commit()
    assert zombie.outcome() is Outcome.NOT_PUBLISHED
    assert ordered(lake.rows(path)) == ROWS
    assert lake.orphans() == set()


def test_the_doctor_tells_of_a_table_whose_metadata_is_gone(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    run(catalog, path)
    assert catalog.check() == []
    Path(lake.metadata_location(path).removeprefix("file://")).unlink()
    fresh = lake.catalog()
    (told,) = fresh.check()
    assert "missing" in told
    assert str(path) in told
    fresh.drop_table(path)
    assert not fresh.table_exists(path)
    fresh.close()


def test_an_expired_snapshot_does_not_take_rows_that_are_still_needed(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    run(catalog, path)
    for number in range(5):
        run(catalog, path, INSERT, [(number, f"round {number}")])
    clean(catalog)
    assert len(lake.rows(path)) == 7


def test_old_metadata_files_go_where_the_table_wants_that(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    wanted = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "2"}
    run(catalog, path, properties=wanted)
    for number in range(3):
        run(catalog, path, INSERT, [(number, f"round {number}")])
    catalog.alter_table(path, [TableChange("set_property", (), {"key": "a", "value": "1"})])
    dead = stage(catalog, path, INSERT, [(9, "nine")])
    dead.commit()
    lake.catalog().restore(dead.document).finish()
    kept = {file for file in lake.files() if file.endswith(".metadata.json")}
    assert len(kept) == 3
    assert kept <= lake.reachable()
    assert len(lake.rows(path)) == 6


def test_old_metadata_files_stay_where_nobody_asked(catalog: LakehouseCatalog, lake: Lake, path: ObjectPath) -> None:
    run(catalog, path, properties={"write.metadata.previous-versions-max": "1"})
    for number in range(3):
        run(catalog, path, INSERT, [(number, f"round {number}")])
    assert len([file for file in lake.files() if file.endswith(".metadata.json")]) == 4
