"""One session and its agents for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.isolation.places import World, session


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A session over the stores that need no server, and over the module's ``SERVERS``."""
    fixtures = getattr(request.module, "SERVERS", {})
    servers = {name: request.getfixturevalue(fixture) for name, fixture in fixtures.items()}
    with session(tmp_path_factory.mktemp("isolation"), servers) as spark:
        made = World(spark)
        yield made
        made.close()
