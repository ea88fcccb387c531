"""Create a table over its version: one metastore call creates it, or renames it to its final name."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from twophase.catalog.reading import ReadSource
from twophase.catalogs.hive.definitions import is_redacted
from twophase.catalogs.hive.publish.publisher import Publisher
from twophase.catalogs.hive.replaced import Replaced
from twophase.catalogs.hive.state import CreateState
from twophase.catalogs.hive.tables import MANAGED

#: Maximum number of data files the metastore may scan during the publish call (a millisecond or two).
FEW_FILES = 100


class _Progress(Enum):
    """Progress as known to this process; another process may be further along."""

    UNKNOWN = 0
    #: Prepared by this process, and not published yet by any process.
    PREPARED = 1
    PUBLISHED = 2


class CreateTable(Publisher):
    """CREATE TABLE AS SELECT.

    An unpartitioned table is created by one ``create_table`` with its LOCATION at the version, but only in a metastore
    that ends with the driver. A remote metastore may execute a dead driver's call after recovery has removed the staged
    files, leaving an empty table.

    In these cases the table is created under a hidden name, and renamed in one call:

    - It is partitioned: the hidden table gets all its partitions first.
    - Its options hold secrets: the metastore then stores them, and recovery does not need them.
    - A managed table takes two calls, or several tables are published: the metastore then checks the definition and
      scans the files before the decision.
    - The metastore is remote: a dead driver's delayed rename does not find the hidden table.

    A single table with few files does not need the hidden one.

    Where its transaction gives the table of the name another one, that table gets a hidden name first, if it has not
    got its new one yet.
    """

    fences: ClassVar[bool] = True
    _progress = _Progress.UNKNOWN

    @property
    def _own(self) -> CreateState:
        return self.state.of(CreateState)

    def begin(self) -> None:
        # The catalog has just checked that there is no such table.
        self.write.store.check_location(self.write.path, self.state.default_location, self.state.transaction_id)
        super().begin()

    def prepare(self) -> None:
        self._check_free()
        if self._own.hidden:
            self.write.update_own(at_once=self._can_create_at_once())
            self._progress = _Progress.PREPARED if self._own.at_once else _Progress.UNKNOWN
        self.staging.inherit()
        if not self._own.at_once:
            with self.write.step("register"):
                self.staging.register()
        self.write.reach(*self.displaced.level)

    def _check_free(self) -> None:
        store, location = self.write.store, self.state.default_location
        if not self.displaced:
            store.check_free(self.write.path, location, self.state.transaction_id, self.is_ours)
            return
        self.displaced.check(self.write.current())
        store.check_location(self.write.path, location, self.state.transaction_id)

    def replaced_state(self) -> Replaced:
        return self.displaced.replaced_state()

    def _can_create_at_once(self) -> bool:
        """Whether the publish creates the table by one short call, which is also the decision."""
        stored, store = self.state.definition, self.metastore
        if not (self.state.autocommit and store.ends_with_driver and store.creates_at_once(self.write.table())):
            return False
        if stored.partition_columns or is_redacted(stored):
            return False
        return self.staging.files()[0] <= FEW_FILES

    def publish(self) -> None:
        if self._progress is _Progress.PUBLISHED or self._was_published_elsewhere():
            return
        self.check_staged()
        self.displaced.make_way()
        with self.write.step("publish"):
            if self._own.at_once:
                self.metastore.create_table(self.write.table())
            else:
                self.write.hidden.show("table", self.write.path.name, kind=MANAGED)
        self._progress = _Progress.PUBLISHED
        if not self._own.at_once:  # Otherwise the session does not read this name yet; finish() announces it.
            self.write.announce()

    def _was_published_elsewhere(self) -> bool:
        """Whether another process, or an earlier attempt of this one, has published it."""
        first, self._progress = self._progress is _Progress.PREPARED, _Progress.UNKNOWN
        return not first and self.is_ours(self.write.current())

    def finish(self) -> None:
        if self._progress is not _Progress.PUBLISHED:
            own_files(self)
        super().finish()

    def fence(self) -> None:
        with self.write.step("fence"):
            self.displaced.fence()

    def undo(self) -> None:
        self.displaced.restore()
        super().undo()

    def compensate(self) -> bool:
        if not self.is_ours(self.write.current()):
            return False
        with self.write.step("restore"):
            self._take_back()
        self.displaced.restore()
        self._progress = _Progress.UNKNOWN
        self.write.announce()
        return True

    def _take_back(self) -> None:
        """Remove the table from its name, so that it can be published again."""
        if self._own.at_once:
            self.metastore.forget_table(self.write.database, self.write.path.name)
        else:
            self.write.hidden.hide(self.write.path.name, "table")

    def read_source(self) -> ReadSource | None:
        return self.staging.read_partitions()


def own_files(publisher: Publisher) -> None:
    """Complete a managed table after a crash between the calls: its files are removed when it is dropped."""
    write, now = publisher.write, publisher.write.current()
    if now is not None and publisher.is_ours(now) and now.kind != MANAGED:
        with write.step("own"):
            write.metastore.make_managed(write.database, write.path.name)
