"""Recipe ``append``: new rows are renamed into the directory where the table, or its partition, is now.

One rename of one file, or of one directory that holds all files, is the whole publish: it costs the same whatever the
table holds, any number of writers may do it at once, and no other version of the table comes of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from twophase.catalogs.files import base_name, is_hidden, join, same
from twophase.catalogs.hive import layout, linking
from twophase.catalogs.hive.definitions import RECURSIVE, is_recursive
from twophase.catalogs.hive.linking import CannotLinkError
from twophase.catalogs.hive.metastore import HiveTable
from twophase.catalogs.hive.partitions import Key
from twophase.catalogs.hive.recipe_move import MoveInsert, Moves
from twophase.catalogs.hive.writing import written_as_files
from twophase.failpoints import declare
from twophase.reading import ReadSource

STEPS = (
    *("manifest", "gather", "look_below", "file_in", "mark", "add_partitions", "read"),
    *("retire", "drop_hidden", "undo", "put_back", "restore", "remove_staging", "hidden_table", "fence"),
)
declare(*(f"hive.append.{name}" for name in STEPS))


class MoveAppend(MoveInsert):
    """INSERT INTO a managed table; the rows go to where it is when they are published."""

    recipe: ClassVar[str] = "append"
    _is_shown = False

    def prepare(self) -> None:
        table = self.check_unchanged()
        if self.moves is None or not self._is_for(table):
            keys = sorted(self.new_keys(table.partition_columns)) if table.partitioned else []
            self.document["goes_to"] = self._goes_to(table, keys)
            self.plan(table)
        self.set_level(*self.reached())

    def _is_for(self, table: HiveTable) -> bool:
        """Whether the files go where the table, or each partition of theirs, is now."""
        then = self.document["goes_to"]
        now = self._goes_to(table, [tuple(key) for key, _ in then] if table.partitioned else [])
        return all(same(one, other) or one == other for (_, one), (_, other) in zip(then, now, strict=True))

    def _goes_to(self, table: HiveTable, keys: list[Key]) -> list[list[Any]]:
        if not table.partitioned:
            return [[[], str(table.location)]]
        there = self.registered(table, keys)
        return [[list(key), there[key].location if key in there else None] for key in keys]

    @property
    def gathered(self) -> str | None:
        """The directory of all rows, whose one rename publishes them; None where each file is renamed."""
        if not self.document.get("gathered"):
            return None
        return join(self.version, layout.version_name(self.transaction_id, int(self.document["ordinal"])))

    def planned(self, table: HiveTable) -> Moves:
        rows = self.gathered
        if rows is None:
            return super().planned(table)
        self.check_reachable([str(table.location)])
        with self.step("gather"):
            self._gather(rows)
        if not is_recursive(table.options):
            # Before the directory comes: nobody would read it. Until then there is none.
            with self.step("look_below"):
                self.metastore.set_option(self.database, self.path.name, RECURSIVE, "true")
        return Moves([], [(rows, join(str(table.location), base_name(rows)))], [], [], [])

    def _gather(self, rows: str) -> None:
        self.files.make_directory(rows)
        for entry in self.files.list(self.version, recursive=False):
            if entry.is_file and not is_hidden(entry.name):
                self.files.move(join(self.version, entry.name), join(rows, entry.name))

    def roots(self, table: HiveTable) -> Iterator[str]:
        yield from super().roots(table)
        # What went to a place that the table has left since is taken back, too.
        places = self.hive.places(self.path)
        yield from (place for _, place in self.document["goes_to"] if place and places.is_tables(place))

    def publish(self, table: HiveTable) -> None:
        if not self._is_for(table):
            raise self.conflict("another writer published it meanwhile")
        super().publish(table)
        if not (table.partitioned or table.stamp is None or self.metastore.ends_with_driver):
            # Who looked before the rename, with a timeline of its own, and replaces the table now, is refused.
            with self.step("fence"):
                self.metastore.fence_table(self.database, self.path.name, table.stamp)
        now = None if table.partitioned else self.current()
        if not table.partitioned and (now is None or not self._is_for(now)):
            # Somebody who is not on the timeline has pointed the table elsewhere: rows that nobody reads are no rows.
            self.undo()
            raise self.conflict("another writer published it meanwhile")

    # -- reading inside the transaction --------------------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        place, table = join(self.version, "_read"), self.current()
        if table is None or table.partitioned or not self._shown(str(table.location), place):
            return None
        if written_as_files(self.definition):
            return ReadSource("files", provider=self.definition.provider, location=place, definition=self.definition)
        return self.overlay({}, place)

    def _shown(self, there: str, place: str) -> bool:
        """Give the files that are there and the new ones one more name each, side by side; False where none can be.

        Once: what others publish later would mix with what was read before.
        """
        if self._is_shown:
            return True
        with self.step("read"):
            try:
                for source in (there, self.gathered or self.version):
                    linking.link_tree(self.files, source, place, linking.keep_all, self.transaction_id)
            except CannotLinkError:
                return False
        self._is_shown = True
        return True
