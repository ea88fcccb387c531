"""Recovery judges a transaction by the database that it wrote to, and by no other one of the same name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.jdbc.conftest import make_place
from tests.jdbc.places import Place
from tests.jdbc.statements import run, stage
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.errors import ConfigurationError
from twophase.model import ObjectPath, Outcome, Purpose


def _copy(document: dict[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(document))
    return copied


@pytest.fixture
def dev(place: Place, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Another database of the same kind, with the same names in it."""
    if place.kind == "sqlite":
        (tmp_path / "dev").mkdir()
        return make_place("sqlite", request, tmp_path / "dev")
    url = sa.engine.make_url(place.url)
    if not place.execute("SELECT 1 FROM pg_database WHERE datname = 'dev'"):
        place.execute("CREATE DATABASE dev")
    return Place(place.kind, url.set(database="dev").render_as_string(hide_password=False))


@pytest.mark.promise("identity", "a transaction of another database is refused and left as it is")
@pytest.mark.parametrize("place", ["sqlite", "postgresql"], indirect=True)
def test_a_transaction_of_another_database_is_refused_and_left_as_it_is(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, dev: Place
) -> None:
    done = stage(catalog, path)
    other = dev.catalog()
    other.create_database(path.database)
    run(other, ObjectPath.of(path.database, "its_own"))
    with pytest.raises(ConfigurationError, match="Nothing was touched"):
        other.restore(_copy(done.document))
    done.commit()
    done.finish()
    assert catalog.restore(_copy(done.document)).outcome() is Outcome.PUBLISHED
    other.drop_database(path.database, cascade=True)
    other.close()


@pytest.mark.promise(
    "identity",
    "a database that does not know what was decided does not say that it was not published",
)
def test_a_database_that_knows_nothing_of_what_was_decided_does_not_say_that_it_was_not_published(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    """It may be a copy that is older than the transaction."""
    done = stage(catalog, path)
    early = _copy(done.document)
    del early["prepared"]
    done.commit()
    done.finish()
    published = place.name(ObjectPath.of(path.database, "__twophase_published"))
    place.execute(f"DELETE FROM {published} WHERE participant LIKE '{done.transaction_id}%'", path.database)
    assert catalog.restore(_copy(done.document)).outcome() is Outcome.UNKNOWN
    assert catalog.restore(early).outcome() is Outcome.NOT_PUBLISHED


def test_a_document_of_an_earlier_release_is_recovered(place: Place, catalog: JdbcCatalog, path: ObjectPath) -> None:
    run(catalog, path)
    staged = stage(catalog, path, Purpose.INSERT_OVERWRITE, [(3, "three")])
    old = _copy(staged.document)
    del old["store"], old["prepared"]
    old["seen"]["version"] = [1, "job-1/0", 1.5]
    heir = catalog.restore(old)
    heir.commit()
    heir.finish()
    assert heir.outcome() is Outcome.PUBLISHED
    assert place.rows(path) == [(3, "three")]
