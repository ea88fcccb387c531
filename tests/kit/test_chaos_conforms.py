"""The chaos catalog passes the suite that it is there to exercise: in memory, and in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from twophase.catalog import Catalog, Environment
from twophase.model import Capabilities, ObjectPath, Purpose
from twophase.testing.chaos import ChaosCatalog
from twophase.testing.conformance import CatalogConformance, FreshProcess


def open_chaos(**options: str) -> ChaosCatalog:
    """A catalog that shares nothing in memory with another one over the same store."""
    return ChaosCatalog("chaos", options, Environment())


class TestChaosInAFile(CatalogConformance):
    moments = 10
    capabilities = Capabilities(
        purposes=frozenset(Purpose),
        partitioning=frozenset({"identity"}),
        alter_database=True,
        rename_table=True,
        alter_table=True,
        read=True,
        group_publish=True,
        compensate=True,
    )

    @pytest.fixture
    def options(self, tmp_path: Path) -> dict[str, str]:
        return {
            "file": str(tmp_path / "store.json"),
            "directory": str(tmp_path / "files"),
            "password": "the-password-of-the-chaos-catalog",
        }

    @pytest.fixture
    def catalog(self, options: dict[str, str]) -> ChaosCatalog:
        return open_chaos(**options)

    @pytest.fixture
    def fresh_catalog(self, options: dict[str, str]) -> Callable[[], Catalog]:
        return lambda: open_chaos(**options)

    @pytest.fixture
    def read_rows(self, options: dict[str, str]) -> Callable[[ObjectPath], list[tuple[object, ...]]]:
        return lambda path: [tuple(row.values()) for row in open_chaos(**options).rows(path)]

    @pytest.fixture
    def fresh_process(self, options: dict[str, str]) -> FreshProcess | None:
        return FreshProcess("twophase.testing.chaos:ChaosCatalog", {"name": "chaos", "options": options})


class TestChaosInMemoryThatOffersLittle(TestChaosInAFile):
    """What is not declared is refused: the same suite over a catalog that declares next to nothing."""

    capabilities = Capabilities(
        purposes=frozenset({Purpose.CREATE_TABLE_AS, Purpose.INSERT_OVERWRITE}),
        partitioning=frozenset({"identity"}),
        alter_database=True,
        rename_table=True,
        alter_table=True,
    )

    @pytest.fixture
    def options(self, tmp_path: Path) -> dict[str, str]:
        return {
            "store": str(tmp_path),
            "purposes": "create_table_as,insert_overwrite",
            "group_publish": "false",
            "compensate": "false",
        }

    @pytest.fixture
    def fresh_process(self) -> None:
        return None
