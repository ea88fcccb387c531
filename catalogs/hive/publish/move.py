"""Move files: rename the staged files, one by one, into the fixed directory of a table.

A manifest beside the staged files lists every rename before the first one is made, so that recovery either undoes all
of them or finds that all were made.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from twophase.catalog.reading import ReadSource
from twophase.catalogs.files import Files, data_entries, data_files, join, same
from twophase.catalogs.hive import hard_links, layout, renames
from twophase.catalogs.hive.definitions import SERDE_PROVIDER
from twophase.catalogs.hive.layout import MANIFEST_FILE, PUBLISHED_FILE, SUPERSEDED_FILE
from twophase.catalogs.hive.partition_plan import Key
from twophase.catalogs.hive.publish.publisher import Publisher
from twophase.catalogs.hive.replaced import Added, Replaced, added_files
from twophase.catalogs.hive.state import MoveState
from twophase.catalogs.hive.store import partitions_of
from twophase.catalogs.hive.tables import HivePartition, HiveTable
from twophase.errors import CatalogError
from twophase.model import Level, Purpose

Renames = list[tuple[str, str]]


@dataclass(frozen=True)
class Moves:
    """All renames of one publish, and its changes to the partitions in the metastore."""

    #: Old files and their backups.
    backups: Renames
    into: Renames
    adds: list[tuple[Key, str]]
    removes: list[tuple[Key, str]]
    #: Existing partitions whose files this publish may move.
    touched: list[Key] | None = None
    #: Files of others in the directories of new partitions: readers see them once there are the partitions.
    unlisted: list[str] = field(default_factory=list)

    def save(self, files: Files, version: str) -> None:
        """Write the manifest."""
        document = {
            "aside": self.backups,
            "into": self.into,
            "adds": [[list(key), location] for key, location in self.adds],
            "removes": [[list(key), location] for key, location in self.removes],
            "touched": self.touched,
            "unlisted": self.unlisted,
        }
        files.write_json(join(version, MANIFEST_FILE), document, waits=False)

    @classmethod
    def load(cls, files: Files, version: str) -> Moves | None:
        """Read the manifest; None if prepare has not written one."""
        found = files.read_document(join(version, MANIFEST_FILE), "into")
        if found is None:
            return None
        keyed = {name: [(tuple(key), location) for key, location in found[name]] for name in ("adds", "removes")}
        touched = found.get("touched")
        keys = None if touched is None else [tuple(key) for key in touched]
        backups, into = ([(source, target) for source, target in found[name]] for name in ("aside", "into"))
        return cls(backups, into, **keyed, touched=keys, unlisted=found.get("unlisted", []))

    def begun(self, files: Files) -> Moves:
        """The renames that were made, completely or in part, and must be undone."""
        into, backups = renames.begun(files, self.into), renames.begun(files, self.backups)
        there = set(files.existing(place for _, place in self.adds))
        adds = [(key, place) for key, place in self.adds if place in there]
        return Moves(backups, into, adds, self.removes, self.touched)

    @property
    def data_files(self) -> list[str]:
        """New files, without their checksum files."""
        return [target for _, target in self.into if not posixpath.basename(target).startswith(".")]


class MoveFiles(Publisher):
    """INSERT INTO and INSERT OVERWRITE in place: into an EXTERNAL table, or with the recipe ``rename``."""

    #: The manifest, once it was read or written.
    _moves: Moves | None = None

    @property
    def renames_files(self) -> bool:
        return True

    @property
    def notes_files(self) -> bool:
        return False  # The manifest names them, and an undo renames no others.

    # -- preparing -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        table = self.target.check_unchanged()
        if self._read() is None:
            self.plan(table)
        self.write.reach(*self.reached())

    def plan(self, table: HiveTable) -> None:
        """Write the manifest for the table's current state."""
        new = self.staging.partitions(table.partition_columns) if table.partition_columns else {}
        listed = self.target.within_reach(table, new) if table.partitioned else {}
        self.target.require_new(listed)
        with self.write.step("manifest"):
            moves = self.planned(table, new, listed)
            moves.save(self.files, self.state.version)
            self._moves = moves
            self.write.update_own(lands=moves.into[-1][1] if moves.into else None)

    @property
    def shares_appends(self) -> bool:
        return self.state.purpose is Purpose.INSERT_INTO

    def reservation_scope(self) -> frozenset[str] | None:
        return self.target.written_partitions(lambda: self.staging.partitions(self.state.partition_columns))

    def replaced_state(self) -> Replaced | None:
        moves = self.existing_moves
        if moves.backups or moves.removes:
            return None  # The old files are moved away.
        added, unlisted = added_files(moves.data_files), added_files(moves.unlisted)
        if added is None or unlisted is None:
            return None
        keys, old = tuple(key for key, _ in moves.adds), self.state.old
        definition = old.definition if self.state.brings else None
        return Added(self.target.directory, old.stamp, added, keys, unlisted, definition)

    @property
    def moves(self) -> Moves | None:
        """The manifest, as this step of the protocol has found it; None before prepare."""
        return self._moves or self._read()

    def _read(self) -> Moves | None:
        """Read the manifest at the start of a step: since the last one, another process may have removed it."""
        self._moves = Moves.load(self.files, self.state.version)
        return self._moves

    @property
    def existing_moves(self) -> Moves:
        """Same as :attr:`moves`, but it must exist."""
        return self.required(self.moves)

    def reached(self) -> tuple[Level, str | None]:
        """The level of this publish, and the reason if it is not the highest."""
        moves = self.existing_moves
        new = [location + "/" for _, location in moves.adds]
        only_new = all(any(target.startswith(root) for root in new) for target in moves.data_files)
        kind = self.files.kind(self.state.version)
        in_one_step = kind.shows_whole_files and len(moves.data_files) <= 1 and not moves.adds
        if not moves.backups and (only_new or in_one_step):
            return Level.ATOMIC, None
        way = "renamed in" if kind.atomic_rename_file else "copied in, and removed where they were staged,"
        return Level.REVERSIBLE, (
            f"The files of {self.write.path} stay at its location: {len(moves.data_files)} new ones are {way} "
            "one by one."
        )

    def planned(self, table: HiveTable, new: dict[Key, str], listed: dict[Key, HivePartition]) -> Moves:
        """The renames that publish the staged files.

        Parameters
        ----------
        table : HiveTable
        new : dict
            Partitions of the staged rows: key to directory name.
        listed : dict
            Existing partitions among these, and others that the statement changes.
        """
        places = {key: part.location for key, part in listed.items()}
        self.target.refuse_own_formats(table, {key: listed[key] for key in new if key in listed})
        root = str(table.location)
        homes = {name: places.get(key, join(root, name)) for key, name in new.items()}
        if table.partitioned:
            homes |= self._homes_apart(homes, {name: key for key, name in new.items() if key not in places})
        self.check_reachable([root, *homes.values()])
        backups, removes = self._old(table, places, new, homes)
        adds = [(key, homes[name]) for key, name in sorted(new.items()) if table.partitioned and key not in places]
        unlisted = [path for _, home in adds for path in self._listed(home)]
        return Moves(backups, list(self._renames(homes, root)), adds, removes, sorted(places), unlisted)

    def _homes_apart(self, homes: dict[str, str], added: dict[str, Key]) -> dict[str, str]:
        """Other directories for new partitions whose own hold replaced rows: these stay, for readers in flight."""
        marks = {name: join(homes[name], SUPERSEDED_FILE) for name in added}
        there = set(self.files.existing(marks.values()))
        apart = {name: self.state.empty_of(key) for name, key in added.items() if marks[name] in there}
        if apart:
            self.staging.stamp(self.state.empty)
        for place in apart.values():
            self.files.make_directory(place)
        return apart

    def _listed(self, directory: str) -> Iterator[str]:
        entries = self.files.list(directory, recursive=False)
        return (join(directory, entry.name) for entry in data_files(entries))

    def check_reachable(self, directories: list[str]) -> None:
        """Refuse to publish into a directory that a rename cannot reach."""
        for directory in directories:
            if not self.files.can_move(self.state.version, directory):
                raise CatalogError(
                    f"{self.write.path} was not written: {directory} is on another filesystem than "
                    f"{self.state.version}, and no rename goes from one to the other.",
                    path=self.write.path,
                    transaction_id=self.state.transaction_id,
                    hint="Write to that directory by its path, or move the partition.",
                )

    def _locations(self, table: HiveTable, changed: list[tuple[Key, str]]) -> dict[Key, str]:
        """Locations in the metastore of those of the given partitions that exist."""
        return self.target.locations(table, [key for key, _ in changed])

    def _renames(self, homes: dict[str, str], root: str) -> Iterator[tuple[str, str]]:
        """Renames of the data files, then of their checksum files."""
        staged = self.staging.rows_at
        entries = sorted(data_entries(self.staging.rows()), key=lambda entry: entry.base.startswith("."))
        targets = {}
        for entry in entries:
            directory, name = posixpath.split(entry.name)
            targets[entry.name] = join(homes.get(directory, join(root, directory) if directory else root), name)
        taken = set(self.files.existing(targets.values()))
        numbers = {directory: number for number, directory in enumerate(homes)}
        for entry_name, target in targets.items():
            if target in taken:  # By another partition's file, too, where two are in one place.
                home, name = posixpath.split(target)
                dot = "." if name.startswith(".") else ""  # A checksum stays hidden, and beside its file.
                number = numbers.get(posixpath.dirname(entry_name), 0)
                target = join(home, f"{dot}{self.state.transaction_id}-{number}-{name.removeprefix(dot)}")
            taken.add(target)
            yield join(staged, entry_name), target

    def _old(
        self, table: HiveTable, places: dict[Key, str], new: dict[Key, str], homes: dict[str, str]
    ) -> tuple[Renames, list[tuple[Key, str]]]:
        """Files that an overwrite backs up, and partitions that it leaves without rows."""
        added = self._emptied(table, {key: homes[name] for key, name in new.items() if key not in places})
        if self.state.purpose is not Purpose.INSERT_OVERWRITE and not added:
            return [], []
        if table.partitioned:
            replaced = {key: home for key, home in places.items() if self._replaced(table, key, key in new)}
            ended = sorted({**replaced, **added}.items())
            named = {home: layout.partition_name(key, table.partition_columns) for key, home in ended}
            backups = [pair for home, name in named.items() for pair in self._backup(home, name)]
            return backups, [(key, home) for key, home in sorted(replaced.items()) if key not in new]
        backups = self._backup(str(table.location), "all")
        if table.partition_columns and self.state.overwrite is not None:
            keep = hard_links.outside(self.state.overwrite, table.partition_columns, new)
            root = str(table.location).rstrip("/") + "/"
            backups = [pair for pair in backups if not keep(pair[0].removeprefix(root))]
        return backups, []

    def _emptied(self, table: HiveTable, added: dict[Key, str]) -> dict[Key, str]:
        """New partitions whose directories must hold nothing but the new rows: see docs/hive.md."""
        if not table.partitioned:
            return {}
        if self.state.purpose is Purpose.INSERT_OVERWRITE:
            return {key: home for key, home in added.items() if self._replaced(table, key, True)}
        return added if self._is_written_by_hive(table) else {}

    def _is_written_by_hive(self, table: HiveTable) -> bool:
        """Whether stock Spark writes the table like Hive, which replaces existing files when it adds a partition."""
        if table.provider != SERDE_PROVIDER:
            return False
        serde, conf = str(table.serde.get("serde", "")).lower(), self.write.store.conf
        kind = next((kind for kind in ("parquet", "orc") if kind in serde), None)
        settings = (f"convertMetastore{str(kind).capitalize()}", "convertInsertingPartitionedTable")
        return kind is None or any(conf.get(f"spark.sql.hive.{name}", "true").lower() == "false" for name in settings)

    def _replaced(self, table: HiveTable, key: Key, has_rows: bool) -> bool:
        if self.state.purpose is Purpose.INSERT_INTO:
            return False
        if self.state.overwrite is None:
            return True
        return hard_links.in_scope(self.state.overwrite, key, table.partition_columns, replaced=has_rows)

    def _backup(self, directory: str, name: str) -> Renames:
        self.target.check_replaced([directory])
        place = join(self.state.version, "_aside", name)
        return [
            (join(directory, entry.name), join(place, entry.name)) for entry in data_entries(self.files.list(directory))
        ]

    # -- publishing ----------------------------------------------------------------------------------------------

    def publish(self) -> None:
        seen = None
        if not self.is_marked():
            self._read()
            table = self.current()
            if not (self._all_there(table) or self._has_landed()):
                self._check_replaced()
                seen = self.move(self.target.require_unchanged(table))
        self.staging.mark_published(waits=False)
        self.write.announce(seen=seen)

    def current(self) -> HiveTable | None:
        """The table that a publish starts from."""
        return self.write.current()

    def _check_replaced(self) -> None:
        """Refuse if files were added to or removed from the overwritten directories, before our first rename."""
        moves = self.existing_moves
        if not moves.backups or renames.begun(self.files, [*moves.backups, *moves.into]):
            return
        self.target.check_replaced({posixpath.dirname(source) for source, _ in moves.backups})

    def _check_paths(self, moves: Moves, table: HiveTable | None) -> None:
        """Refuse a manifest that names paths outside its version and the table's directories.

        Raises
        ------
        CatalogError
            It does; or the table no longer exists for comparison, and another user wrote the manifest.
        """
        version = self.state.version
        if table is not None:
            new = [location for _, location in moves.adds]
            renames.check(self.files, version, self.roots(table), moves.into, moves.backups, new)
        elif (moves.into or moves.backups) and not renames.is_own(self.files, version):
            raise CatalogError(
                f"{self.write.path} was dropped meanwhile: what another user's transaction has renamed into its "
                "directory stays there.",
                path=self.write.path,
                transaction_id=self.state.transaction_id,
                left_behind=[target for _, target in moves.into],
            )

    def roots(self, table: HiveTable) -> Iterator[str]:
        """Directories that files are renamed into or from: the table's own first, which usually holds all of them."""
        yield str(table.location)
        moves = self.moves
        if not table.partitioned or moves is None:
            return
        yield self.state.empty
        if moves.touched is None:  # An older version of twophase wrote it.
            yield from (part.location for part in self.metastore.list_partitions(table))
        else:
            yield from (part.location for part in self.target.registered(table, moves.touched).values())

    def move(self, table: HiveTable) -> HiveTable:
        """Make the remaining renames, and add new partitions; return the table as it was loaded."""
        moves = self.existing_moves
        self._check_paths(moves, table)
        left = renames.pending(self.files, moves.into)
        self._check_rows(moves, left)
        for source, target in renames.pending(self.files, moves.backups):
            with self.write.step("back_up_file"):
                self.files.place(source, target)
        for source, target in left:
            with self.write.step("file_in"):
                self.files.place(source, target)
        # The old names, too: a file system without a journal might show one again, and clean would remove the file.
        self._persist_renames((place for pair in (*moves.backups, *moves.into) for place in pair), table)
        with self.write.step("add_partitions"):
            there = self._locations(table, moves.adds)
            # Of one that another writer has put elsewhere meanwhile, the metastore refuses a second one.
            missing = {key: location for key, location in moves.adds if not same(there.get(key), location)}
            self.metastore.add_partitions(table, partitions_of(table, missing))
        return table

    def _check_rows(self, moves: Moves, left: Renames) -> None:
        """Refuse to publish without rows that something has removed: neither staged nor where they are renamed to.

        Parameters
        ----------
        moves : Moves
        left : list of (str, str)
            Its renames that were not made, or not to their end.
        """
        waiting, rows = dict(left), set(moves.data_files)
        others = [pair for pair in moves.into if pair[0] not in waiting and pair[1] in rows]
        gone = len(others) - len(renames.begun(self.files, others)) if others else 0
        if gone:
            raise CatalogError(
                f"{self.write.path} was not published: {gone} of {len(rows)} staged files of it "
                f"{'is' if gone == 1 else 'are'} gone, neither in {self.state.version} nor in the table.",
                path=self.write.path,
                transaction_id=self.state.transaction_id,
                left_behind=[self.state.version],
                hint="Something else removes files there, such as a rule of the bucket. Run the statement again.",
            )

    def _persist_renames(self, renamed: Iterable[str], table: HiveTable) -> None:
        """Make renames survive a power failure, like the record of the transaction that follows."""
        self.files.persist_names(*renamed, below=str(table.location))

    def is_published(self) -> bool:
        if self.is_marked():
            return True
        self._read()
        return self._all_there(self.write.current()) or self._has_landed()

    def is_marked(self) -> bool:
        return self.files.exists(join(self.state.version, PUBLISHED_FILE))

    def _has_landed(self) -> bool:
        """Whether the files are at their final paths, and the staging directory has since been removed, or in part."""
        lands = self.state.of(MoveState).lands
        return lands is not None and self.moves is None and self.files.exists(lands)

    def _all_there(self, table: HiveTable | None) -> bool:
        """Whether the renames of the manifest have published the rows."""
        return self._are_made(table)

    def _are_made(self, table: HiveTable | None) -> bool:
        """Whether every rename of the manifest was made."""
        moves = self.moves
        if moves is None or table is None or not (moves.into or moves.backups):
            return False
        left = next(self.files.existing(source for source, _ in [*moves.into, *moves.backups]), None)
        if left is not None and not self._is_copied(moves):
            return False
        arriving = moves.into or moves.backups  # Without new rows, by the old ones: a DROP removes these, too.
        if len(renames.begun(self.files, arriving)) < len(arriving):
            return False
        return not moves.adds or {key for key, _ in moves.adds} <= set(self._locations(table, moves.adds))

    def _is_copied(self, moves: Moves) -> bool:
        """Whether the only rename has copied its file in one step: readers have it, though the old one is left."""
        copies = self.files.kind(self.state.version).atomic_copy_file
        is_one = len(moves.into) == 1 and not moves.backups
        return copies and is_one and self.files.are_copies(*moves.into[0])

    # -- afterwards ----------------------------------------------------------------------------------------------

    def undo(self) -> None:
        super().undo()
        moves, table = self._read(), self.write.current()
        if moves is None:
            return
        self._check_paths(moves.begun(self.files), table)
        with self.write.step("restore_files"):
            if table is not None and moves.adds:
                places = self._locations(table, moves.adds)
                ours = {key: place for key, place in moves.adds if places.get(key) == place and self._only_ours(place)}
                self.metastore.drop_partitions(table, partitions_of(table, ours))
            for pairs in (moves.into, moves.backups):
                for source, target in reversed(renames.begun(self.files, pairs)):
                    renames.take_back(self.files, source, target)
            self.target.was_restored()
            if table is not None:
                self._persist_renames((place for pair in [*moves.backups, *moves.into] for place in pair), table)
            for _, location in moves.adds:
                if self.files.exists(location):
                    self.files.remove_if_empty(location)

    def _only_ours(self, location: str) -> bool:
        """Whether a partition's directory holds only files of this write."""
        moves = self.existing_moves
        mine = {target for _, target in moves.into}
        return all(join(location, entry.name) in mine for entry in data_entries(self.files.list(location)))

    def supersede(self) -> None:
        moves = self.moves
        table = self.write.current() if moves is not None and moves.removes else None
        if moves is not None and table is not None:
            with self.write.step("drop_partitions"):
                self.metastore.drop_partitions(table, partitions_of(table, self._without_rows(table, moves.removes)))
        if self.state.of(MoveState).lands and (moves is None or (moves.into and not moves.backups)):
            self.staging.remove()  # All its files are in the table.
        else:
            layout.supersede(self.files, self.state.version, self.state.transaction_id)
            self.staging.remove_empty()

    def _without_rows(self, table: HiveTable, removed: list[tuple[Key, str]]) -> dict[Key, str]:
        """Those partitions that hold no rows: a late cleaning up finds what others have written since."""
        now = self._locations(table, removed)
        there = {key: place for key, place in removed if same(now.get(key), place)}
        return {key: place for key, place in there.items() if not any(data_entries(self.files.list(place)))}

    def compensate(self) -> bool:
        moves, table = self._read(), self.write.current()
        if moves is None or table is None or not self._can_be_undone(table):
            return False
        with self.write.step("restore"):
            places = self._locations(table, moves.removes)
            missing = {key: place for key, place in moves.removes if key not in places}
            self.metastore.add_partitions(table, partitions_of(table, missing))
        self.files.remove_file(join(self.state.version, PUBLISHED_FILE))
        self.undo()
        self.write.announce()
        return True

    def _can_be_undone(self, table: HiveTable) -> bool:
        return self.target.is_partitioned_alike(table) and self._are_made(table)

    def read_source(self) -> ReadSource | None:
        return None

    def leftovers(self) -> list[str]:
        moves = self.moves
        renamed = [] if moves is None else [target for _, target in renames.begun(self.files, moves.into)]
        return [*super().leftovers(), *renamed]
