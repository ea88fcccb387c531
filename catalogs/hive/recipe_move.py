"""INSERT into a table whose files stay where they are (EXTERNAL, or recipe ``rename``): renamed in one by one.

A manifest beside the staged files lists every rename before the first one is made, so that recovery takes all of them
back, or finds that all were made.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from twophase.catalogs.files import Files, data_entries, join
from twophase.catalogs.hive import layout, linking, renames
from twophase.catalogs.hive.definitions import SERDE_PROVIDER
from twophase.catalogs.hive.layout import MANIFEST_FILE, PUBLISHED_FILE
from twophase.catalogs.hive.metastore import HiveTable
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.catalogs.hive.partitions import Key
from twophase.errors import CatalogError
from twophase.failpoints import declare
from twophase.model import Level, Outcome, Purpose
from twophase.reading import ReadSource

declare(
    *(
        f"hive.rename.{name}"
        for name in ("manifest", "file_aside", "file_in", "add_partitions", "drop_partitions", "mark")
    )
)

Renames = list[tuple[str, str]]


@dataclass(frozen=True)
class Moves:
    """Every rename of one publish, and what the metastore is told."""

    aside: Renames
    into: Renames
    adds: list[tuple[Key, str]]
    removes: list[tuple[Key, str]]
    #: Partitions that are there and whose files this may move.
    touched: list[Key] | None = None

    def save(self, files: Files, version: str) -> None:
        document = {
            "aside": self.aside,
            "into": self.into,
            "adds": [[list(key), location] for key, location in self.adds],
            "removes": [[list(key), location] for key, location in self.removes],
            "touched": self.touched,
        }
        files.write_json(join(version, MANIFEST_FILE), document)

    @classmethod
    def load(cls, files: Files, version: str) -> Moves | None:
        found: Any = files.read_json(join(version, MANIFEST_FILE))
        if not isinstance(found, dict) or "into" not in found:
            return None
        keyed = {name: [(tuple(key), location) for key, location in found[name]] for name in ("adds", "removes")}
        touched = found.get("touched")
        keys = None if touched is None else [tuple(key) for key in touched]
        return cls([(a, b) for a, b in found["aside"]], [(a, b) for a, b in found["into"]], **keyed, touched=keys)

    def begun(self, files: Files) -> Moves:
        """What of it was made, wholly or in part: what there is to take back."""
        into, aside = ([pair for pair in pairs if files.exists(pair[1])] for pairs in (self.into, self.aside))
        adds = [(key, place) for key, place in self.adds if files.exists(place)]
        return Moves(aside, into, adds, self.removes, self.touched)

    @property
    def data_files(self) -> list[str]:
        """New files without their checksums."""
        return [target for _, target in self.into if not posixpath.basename(target).startswith(".")]


class MoveInsert(HiveParticipant):
    """INSERT INTO and INSERT OVERWRITE in place."""

    recipe: ClassVar[str] = "rename"

    # -- preparing -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        table = self.check_unchanged()
        if self.moves is None:
            self.plan(table)
        self.set_level(*self.reached())

    def plan(self, table: HiveTable) -> None:
        """Write the manifest for the table as it is now."""
        with self.step("manifest"):
            moves = self.planned(table)
            moves.save(self.files, self.version)
            self.document["lands"] = moves.into[-1][1] if moves.into else None

    @property
    def shares_appends(self) -> bool:
        return self.purpose is Purpose.INSERT_INTO

    def reservation_scope(self) -> frozenset[str] | None:
        return self.written_partitions()

    @property
    def moves(self) -> Moves | None:
        """The manifest; None before prepare."""
        return Moves.load(self.files, self.version)

    @property
    def existing_moves(self) -> Moves:
        moves = self.moves
        if moves is None:
            raise CatalogError(
                f"The manifest of {self.path} is missing in {self.version}.", transaction_id=self.transaction_id
            )
        return moves

    def reached(self) -> tuple[Level, str | None]:
        """The level of this publish, and why it is not 3."""
        moves = self.existing_moves
        new = [location + "/" for _, location in moves.adds]
        only_new = all(any(target.startswith(root) for root in new) for target in moves.data_files)
        if not moves.aside and (only_new or (len(moves.data_files) <= 1 and not moves.adds)):
            return Level.ATOMIC, None
        return Level.UNDONE, (
            f"The files of {self.path} stay at its location: "
            f"{len(moves.data_files)} new ones are renamed in one by one."
        )

    def planned(self, table: HiveTable) -> Moves:
        """The renames that publish what is staged."""
        columns = table.partition_columns
        new = self.new_keys(columns) if columns else {}
        listed = self.within_reach(table, new) if table.partitioned else {}
        places = {key: part.location for key, part in listed.items()}
        self.refuse_own_formats(table, {key: listed[key] for key in new if key in listed})
        root = str(table.location)
        homes = {name: places.get(key, join(root, name)) for key, name in new.items()}
        self.check_reachable([root, *homes.values()])
        aside, removes = self._old(table, places, new, homes)
        adds = [(key, homes[name]) for key, name in sorted(new.items()) if table.partitioned and key not in places]
        return Moves(aside, list(self._renames(homes, root)), adds, removes, sorted(places))

    def check_reachable(self, homes: list[str]) -> None:
        """Refuse to publish into a directory that a rename cannot reach."""
        for home in homes:
            if not self.files.can_move(self.version, home):
                raise CatalogError(
                    f"{self.path} was not written: {home} is on another filesystem than {self.version}, and no rename "
                    "goes from one to the other.",
                    path=self.path,
                    transaction_id=self.transaction_id,
                    hint="Write to that directory by its path, or move the partition.",
                )

    def _places(self, table: HiveTable, changed: list[tuple[Key, str]]) -> dict[Key, str]:
        """Where the metastore has those of some partitions that exist."""
        found = self.registered(table, [key for key, _ in changed])
        return {key: part.location for key, part in found.items()}

    def _renames(self, homes: dict[str, str], root: str) -> Iterator[tuple[str, str]]:
        """Data files first, checksums after them."""
        entries = sorted(data_entries(self.files.list(self.version)), key=lambda entry: entry.base.startswith("."))
        for entry in entries:
            directory, name = posixpath.split(entry.name)
            home = homes.get(directory, join(root, directory) if directory else root)
            target = join(home, name)
            if self.files.exists(target):
                target = join(home, f"{self.transaction_id}-{name}")
            yield join(self.version, entry.name), target

    def _old(
        self, table: HiveTable, places: dict[Key, str], new: dict[Key, str], homes: dict[str, str]
    ) -> tuple[Renames, list[tuple[Key, str]]]:
        """Files that an overwrite sets aside, and partitions that it leaves without rows."""
        added = self._emptied(table, {key: homes[name] for key, name in new.items() if key not in places})
        if self.purpose is not Purpose.INSERT_OVERWRITE and not added:
            return [], []
        if table.partitioned:
            replaced = {key: home for key, home in places.items() if self._replaced(table, key, key in new)}
            ended = sorted({**replaced, **added}.items())
            aside = [pair for key, home in ended for pair in self._aside(home, "-".join(key))]
            return aside, [(key, home) for key, home in sorted(replaced.items()) if key not in new]
        aside = self._aside(str(table.location), "")
        if table.partition_columns and self.scope is not None:
            keep = linking.outside(self.scope, table.partition_columns, new)
            root = str(table.location).rstrip("/") + "/"
            aside = [pair for pair in aside if not keep(pair[0].removeprefix(root))]
        return aside, []

    def _emptied(self, table: HiveTable, added: dict[Key, str]) -> dict[Key, str]:
        """New partitions in whose directories nothing but the new rows may be found: see docs/hive.md."""
        if not table.partitioned:
            return {}
        if self.purpose is Purpose.INSERT_OVERWRITE:
            return {key: home for key, home in added.items() if self._replaced(table, key, True)}
        return added if self._is_written_by_hive(table) else {}

    def _is_written_by_hive(self, table: HiveTable) -> bool:
        """Whether stock Spark writes the table as Hive does, which replaces what lies where it adds a partition."""
        if table.provider != SERDE_PROVIDER:
            return False
        serde, conf = str(table.serde.get("serde", "")).lower(), self.hive.conf
        kind = next((kind for kind in ("parquet", "orc") if kind in serde), None)
        settings = (f"convertMetastore{str(kind).capitalize()}", "convertInsertingPartitionedTable")
        return kind is None or any(conf.get(f"spark.sql.hive.{name}", "true").lower() == "false" for name in settings)

    def _replaced(self, table: HiveTable, key: Key, has_rows: bool) -> bool:
        if self.purpose is Purpose.INSERT_INTO:
            return False
        if self.scope is None:
            return True
        return linking.in_scope(self.scope, key, table.partition_columns, replaced=has_rows)

    def _aside(self, directory: str, label: str) -> Renames:
        self.check_replaced([directory])
        place = join(self.version, "_aside", layout.escape(label) if label else "all")
        return [
            (join(directory, entry.name), join(place, entry.name)) for entry in data_entries(self.files.list(directory))
        ]

    # -- publishing ----------------------------------------------------------------------------------------------

    def commit(self) -> None:
        if self.outcome() is not Outcome.PUBLISHED:
            table = self.check_unchanged()
            self.publish(table)
        self.mark_published()
        self.tell()

    def check_paths(self, moves: Moves, table: HiveTable | None) -> None:
        """Refuse to move what a manifest names elsewhere than in its version and where the table's files are.

        Raises
        ------
        CatalogError
            It does, or there is no table any more to tell, and another user wrote the manifest.
        """
        if table is not None:
            new = [location for _, location in moves.adds]
            renames.check(self.files, self.version, self.roots(table), moves.into, moves.aside, new)
        elif (moves.into or moves.aside) and not renames.is_own(self.files, self.version):
            raise CatalogError(
                f"{self.path} was dropped meanwhile: what another user's transaction has renamed into its directory "
                "stays there.",
                path=self.path,
                transaction_id=self.transaction_id,
                left_behind=[target for _, target in moves.into],
            )

    def roots(self, table: HiveTable) -> Iterator[str]:
        """Where the table's files are: its own directory first, which mostly holds all of them."""
        yield str(table.location)
        moves = self.moves
        if not table.partitioned or moves is None:
            return
        if moves.touched is None:  # An older version of twophase wrote it.
            yield from (part.location for part in self.metastore.list_partitions(table))
        else:
            yield from (part.location for part in self.registered(table, moves.touched).values())

    def publish(self, table: HiveTable) -> None:
        """Make the renames that were not made yet, and tell the metastore of new partitions."""
        moves = self.existing_moves
        self.check_paths(moves, table)
        for source, target in moves.aside:
            with self.step("file_aside"):
                self._move(source, target)
        for source, target in moves.into:
            with self.step("file_in"):
                self._move(source, target)
        self._persist_renames(moves, table)
        with self.step("add_partitions"):
            there = self._places(table, moves.adds)
            missing = {key: location for key, location in moves.adds if key not in there}
            self.metastore.add_partitions(table, self.hive.partitions_of(table, missing))

    def _persist_renames(self, moves: Moves, table: HiveTable) -> None:
        """Make the renames survive a power cut, as what is recorded of this transaction next does."""
        renamed = (place for pair in [*moves.aside, *moves.into] for place in pair)
        self.files.persist_names(*renamed, below=str(table.location))

    def _move(self, source: str, target: str) -> None:
        renames.make(self.files, source, target)

    def outcome(self) -> Outcome:
        try:
            done = self.files.exists(join(self.version, PUBLISHED_FILE)) or self._all_there() or self._has_landed()
        except Exception:  # an unreachable store is no answer
            return Outcome.UNKNOWN
        return Outcome.PUBLISHED if done else Outcome.NOT_PUBLISHED

    def _has_landed(self) -> bool:
        """Whether the files are where they should be, and what they were staged in is gone since."""
        lands = self.document.get("lands")
        return lands is not None and not self.files.exists(self.version) and self.files.exists(lands)

    def _all_there(self) -> bool:
        """Whether every rename of the manifest was made."""
        moves, table = self.moves, self.current()
        if moves is None or table is None or not (moves.into or moves.aside):
            return False
        if any(self.files.exists(source) for source, _ in [*moves.into, *moves.aside]):
            return False
        if not all(self.files.exists(target) for _, target in moves.into):
            return False
        return not moves.adds or {key for key, _ in moves.adds} <= set(self._places(table, moves.adds))

    # -- afterwards ----------------------------------------------------------------------------------------------

    def undo(self) -> None:
        super().undo()
        moves, table = self.moves, self.current()
        if moves is None:
            return
        self.check_paths(moves.begun(self.files), table)
        with self.step("put_back"):
            if table is not None and moves.adds:
                places = self._places(table, moves.adds)
                ours = {key: place for key, place in moves.adds if places.get(key) == place and self._only_ours(place)}
                self.metastore.drop_partitions(table, self.hive.partitions_of(table, ours))
            for source, target in [*reversed(moves.into), *reversed(moves.aside)]:
                renames.take_back(self.files, source, target)
            if table is not None:
                self._persist_renames(moves, table)
            for _, location in moves.adds:
                if self.files.exists(location):
                    self.files.remove_if_empty(location)

    def _only_ours(self, location: str) -> bool:
        """Whether a partition's directory holds nothing but files of this write."""
        moves = self.existing_moves
        mine = {target for _, target in moves.into}
        return all(join(location, entry.name) in mine for entry in data_entries(self.files.list(location)))

    def retire(self) -> None:
        moves, table = self.moves, self.current()
        if moves is not None and table is not None and moves.removes:
            with self.step("drop_partitions"):
                self.metastore.drop_partitions(table, self.hive.partitions_of(table, dict(moves.removes)))
        if moves is not None and moves.into and not moves.aside and self.document.get("lands"):
            self.remove_staging()  # All that was in it is in the table.
        else:
            layout.retire(self.files, self.version, self.transaction_id)

    def compensate(self) -> bool:
        moves, table = self.moves, self.current()
        if moves is None or table is None or not self._all_there():
            return False
        with self.step("restore"):
            places = self._places(table, moves.removes)
            missing = {key: place for key, place in moves.removes if key not in places}
            self.metastore.add_partitions(table, self.hive.partitions_of(table, missing))
        self.files.remove_file(join(self.version, PUBLISHED_FILE))
        self.undo()
        self.tell()
        return True

    def read_source(self) -> ReadSource | None:
        return None

    def left_behind(self) -> list[str]:
        moves = self.moves
        renamed = [] if moves is None else [target for _, target in moves.into if self.files.exists(target)]
        return [*super().left_behind(), *renamed]
