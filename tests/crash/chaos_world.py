"""The world of the chaos catalogs."""

from __future__ import annotations

from tests.crash.scenario import Rows
from tests.crash.scenarios import CHAOS
from tests.crash.worlds import World
from twophase.catalog import Catalog, Environment
from twophase.testing.chaos import ChaosCatalog


class ChaosWorld(World):
    """Four chaos catalogs over four files; the first one groups, the last two cannot undo."""

    scenarios = CHAOS

    def open_catalogs(self) -> dict[str, Catalog]:
        options = {
            "one": {},
            "two": {"group_publish": "false"},
            "three": {"group_publish": "false", "compensate": "false"},
            "tied": {"group_publish": "false", "compensate": "false"},
        }
        return {
            name: ChaosCatalog(name, {"file": str(self.directory / f"{name}.json"), **more}, Environment())
            for name, more in options.items()
        }

    def rows(self, table: str) -> Rows | None:
        catalog = self.catalogs[table.split(".")[0]]
        assert isinstance(catalog, ChaosCatalog)
        if not catalog.table_exists(self.path(table)):
            return None
        return sorted((tuple(row.values()) for row in catalog.rows(self.path(table))), key=repr)
