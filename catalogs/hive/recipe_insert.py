"""INSERT INTO, and INSERT OVERWRITE of the partitions that its rows fall into: how they are published, the rows tell.

Which files came of the statement, and where they go, is known when its job has ended. Then one of these is chosen:

======================  ==============================================  ==========================================
what came of it         how it is published                             what it costs
======================  ==============================================  ==========================================
one file                one rename into the table's (or partition's)    always the same
                        directory
several files           one rename of a directory with all of them,     always the same
                        for ``append = directory``
several files           a new version: links to what is there, and a    grows with the files that are there
                        switch of the pointer
several files, where    one rename after the other, with a list that    always the same; level 2
many are there, or no   takes them back
links can be made
======================  ==============================================  ==========================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from twophase.catalogs.files import data_entries, data_files, refuse_untried
from twophase.catalogs.hive import flattening, linking
from twophase.catalogs.hive.definitions import FILE_PROVIDERS, is_recursive
from twophase.catalogs.hive.linking import CannotLinkError
from twophase.catalogs.hive.metastore import HiveTable
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.catalogs.hive.recipe_append import MoveAppend
from twophase.catalogs.hive.recipe_move import MoveInsert
from twophase.catalogs.hive.recipe_partitions import PointerPartitions
from twophase.catalogs.hive.recipe_pointer import PointerAppend
from twophase.errors import AtomicityNotSupportedError
from twophase.model import Outcome, Purpose
from twophase.reading import ReadSource

#: How an append may be published: see the table above. What is not said goes by the number of files.
APPENDS = ("directory", "links", "files")
#: Property of a table with its own way.
APPEND_PROPERTY = "twophase.append"
#: So many files get one more name each at most: a hundred milliseconds or two, and as many entries of a directory.
LINKED_FILES = 2000


class Insert(HiveParticipant):
    """Stages the rows, then becomes the participant that publishes them.

    The document says which one that is: whoever restores it gets that one.
    """

    recipe: ClassVar[str] = "pointer"
    _chosen: HiveParticipant | None = None

    @property
    def chosen(self) -> HiveParticipant:
        """The one that publishes what is staged."""
        if self._chosen is None:
            table = self.check_unchanged()
            self._adopt()
            self._become(self._way(table))
        assert self._chosen is not None
        return self._chosen

    def _become(self, kind: type[HiveParticipant]) -> None:
        self.document |= {"class": kind.__name__, "recipe": kind.recipe}
        chosen = kind(self.hive, self.document, self._live)
        chosen.document = self.document
        chosen._made, chosen._called = self._made, self._called
        self._chosen = chosen

    # -- the choice ----------------------------------------------------------------------------------------------

    def _way(self, table: HiveTable) -> type[HiveParticipant]:
        if table.partitioned:
            return self._way_into_partitions(table)
        files = data_files(self.files.list(self.version))
        if len(files) <= 1 and self._mode != "links":
            return MoveAppend
        if self._goes_by_directory(table):
            return self._way_by_directory(str(table.location))
        return PointerAppend if self._links(table, [str(table.location)]) else MoveAppend

    def _way_by_directory(self, location: str) -> type[HiveParticipant]:
        flattens = flattening.is_due(self.files, location) and self.files.can_link(location, self.version)
        self.document["flattens" if flattens else "gathered"] = True
        return PointerAppend if flattens else MoveAppend

    def _way_into_partitions(self, table: HiveTable) -> type[HiveParticipant]:
        columns, root = table.partition_columns, str(table.location)
        new = self.new_keys(columns)
        there = self.within_reach(table, new)
        allowed = self.hive.environment.allows_untested_storage
        refuse_untried(self.path, *(part.location for part in there.values()), allowed=allowed)
        places = self.hive.places(self.path)
        if not all(places.is_partitions(part.location, key, columns, root) for key, part in there.items()):
            self._refuse_to_build()
            return MoveInsert  # To the user's own place.
        if self.purpose is not Purpose.INSERT_INTO:
            return PointerPartitions
        if self._is_alone_in_its_partition(new, there):
            return MoveAppend
        linked = self._links(table, [part.location for part in there.values()])
        if not linked:
            self._refuse_to_build()
        return PointerPartitions if linked else MoveAppend

    def _is_alone_in_its_partition(self, new: Mapping[Any, str], there: Mapping[Any, Any]) -> bool:
        """Whether one file goes to one partition that is there, and nothing of this transaction builds on it."""
        alone = bool(self.document["alone"]) and self._mode != "links"
        return alone and len(there) == len(new) == 1 and len(data_files(self.files.list(self.version))) == 1

    @property
    def _mode(self) -> str | None:
        found: str | None = self.document.get("append")
        return found

    def _goes_by_directory(self, table: HiveTable) -> bool:
        recursive = is_recursive(table.options)
        if self._mode not in ("directory", None) or (self._mode is None and not recursive):
            return False
        if table.partition_columns or table.provider not in FILE_PROVIDERS or table.bucketing is not None:
            return False
        return recursive or self._is_flat(str(table.location))

    def _is_flat(self, location: str) -> bool:
        """Whether a directory holds no rows below it, which Spark would read from then on."""
        return not any("/" in entry.name for entry in data_entries(self.files.list(location)))

    def _links(self, table: HiveTable, kept: list[str]) -> bool:
        """Whether what is kept gets one more name each in the new version."""
        if self._mode == "files" or not all(self.files.can_link(place, self.version) for place in kept):
            return False
        return sum(len(data_files(self.files.list(place))) for place in kept) <= LINKED_FILES

    def _refuse_to_build(self) -> None:
        if self.document["base"] is not None:
            raise AtomicityNotSupportedError(
                f"{self.path} was already written in this transaction, and its files stay at one location: a second "
                "statement cannot build on the first.",
                path=self.path,
                hint="Commit the first statement before, or write both with one UNION ALL.",
            )

    def _adopt(self) -> None:
        """Rows that an earlier statement of the transaction appended to the table are published by this one."""
        base = self.document.get("adopts")
        if base is None:
            return
        with self.step("link"):
            own = set(linking.own_rows(self.files, base))
            linking.link_tree(self.files, base, self.version, own.__contains__, self.transaction_id)

    # -- what the chosen one does --------------------------------------------------------------------------------

    def prepare(self) -> None:
        try:
            self.chosen.prepare()
        except CannotLinkError:
            # No more names for a file (a full link count), or none at all on this filesystem: not the user's trouble.
            self._refuse_to_build()
            linking.take_links_out(self.files, self.version)
            self.document["gathered"] = self.document.pop("flattens", False)
            self._become(MoveAppend)
            self.chosen.prepare()

    def commit(self) -> None:
        self.chosen.commit()

    def outcome(self) -> Outcome:
        return super().outcome() if self._chosen is None else self._chosen.outcome()

    def abort(self) -> None:
        if self._chosen is None:
            super().abort()
        else:
            self._chosen.abort()

    def finish(self) -> None:
        self.chosen.finish()

    def compensate(self) -> bool:
        return self.chosen.compensate()

    def read_source(self) -> ReadSource | None:
        return self.chosen.read_source()

    def left_behind(self) -> list[str]:
        return super().left_behind() if self._chosen is None else self._chosen.left_behind()

    @property
    def shares_appends(self) -> bool:
        return self.chosen.shares_appends

    def reservation_scope(self) -> frozenset[str] | None:
        return self.chosen.reservation_scope()
