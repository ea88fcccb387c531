"""The interface of the publishers: each prepares, publishes, undoes and finishes one way of writing a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, TypeVar

from twophase.catalog.reading import ReadSource
from twophase.catalogs.files import Files, join, same
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.displaced import displaced_by
from twophase.catalogs.hive.metastore import Metastore
from twophase.catalogs.hive.replaced import Nothing, Replaced
from twophase.catalogs.hive.staging import Staging
from twophase.catalogs.hive.state import CREATE, INSERT, REPLACE, WriteState
from twophase.catalogs.hive.superseded import Superseded
from twophase.catalogs.hive.tables import HiveTable
from twophase.catalogs.hive.target import Target
from twophase.catalogs.hive.write import TableWrite
from twophase.errors import CatalogError
from twophase.model import Outcome
from twophase.redaction import logger
from twophase.timeline.records import name_error

_log = logger("twophase")
_Manifest = TypeVar("_Manifest")


class Publisher(ABC):
    """Base class of the publishers, which make staged rows visible.

    Parameters
    ----------
    write : TableWrite
    target : Target, optional
        The table that the write changes.
    """

    #: Whether Hadoop's ``_SUCCESS`` file is published as well, for readers that look for it.
    keeps_mark: ClassVar[bool] = False
    #: Whether the publish points an existing table at the version. A remote metastore may execute a dead driver's call
    #: after recovery has rolled the statement back, leaving a table without files; not every metastore supports the
    #: fence, and none supports it for partitions.
    changes_table: ClassVar[bool] = False
    #: Whether :meth:`fence` can make a delayed call fail.
    fences: ClassVar[bool] = False
    #: Whether the publish call can give the table new columns, too.
    carries_columns: ClassVar[bool] = False
    #: Whether it stages anything, which a rollback removes.
    stages: ClassVar[bool] = True
    #: What a publish leaves, in a sentence.
    result: ClassVar[str] = "its rows are there"

    def __init__(self, write: TableWrite, target: Target | None = None) -> None:
        self.write = write
        self.staging = Staging(write)
        self.target = target or Target(write)
        self.superseded = Superseded(write)
        #: The table that has the name until the publish, and that the same transaction drops, or gives another one.
        self.displaced = displaced_by(write)

    @property
    def state(self) -> WriteState:
        return self.write.state

    @property
    def files(self) -> Files:
        return self.write.files

    @property
    def metastore(self) -> Metastore:
        return self.write.metastore

    @property
    def notes_files(self) -> bool:
        """Whether ``prepare`` records the names of the staged files, for a compensation: a single publish has none."""
        return not self.state.autocommit and self.state.effect in (CREATE, REPLACE, INSERT)

    @property
    def shown(self) -> str:
        """The directory where readers find the version after the publish."""
        return self.state.version

    @property
    def defines(self) -> bool:
        """Whether the publish gives the table a new definition, which has no statistics yet."""
        return self.state.effect != INSERT

    @property
    def renames_files(self) -> bool:
        """Whether the staged files are renamed by their names, so that no committer needs to rename them before."""
        return False

    # -- before the decision -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Create the staging directory. Idempotent."""
        self.staging.begin()

    @abstractmethod
    def prepare(self) -> None:
        """Check that the publish will succeed, do all that can precede it, and record its guarantee. Idempotent."""

    @property
    def shares_appends(self) -> bool:
        """Whether other appends may be published between the last ``prepare`` and ``publish``."""
        return False  # The publish points at a version that holds the old files, too: another append would be lost.

    def reservation_scope(self) -> frozenset[str] | None:
        """Partitions that the publish changes; None for the whole table."""
        return None

    def replaced_state(self) -> Replaced | None:
        """State that the publish replaces, after the last ``prepare``; None if the publish ends it."""
        return Nothing() if self.state.effect == CREATE else None

    # -- after the decision --------------------------------------------------------------------------------------

    @abstractmethod
    def publish(self) -> None:
        """Make the rows visible. Idempotent."""

    def fence(self) -> None:
        """Make a dead driver's delayed call fail, where that is possible. Idempotent."""
        stamp = None if self.state.before is None else self.state.before.stamp
        if stamp is not None:
            with self.write.step("fence"):
                self.metastore.fence_table(self.write.database, self.write.path.name, stamp)

    def undo(self) -> None:
        """Undo everything but the staged files, before these are removed. Idempotent."""
        with self.write.step("undo"):
            self.write.hidden.drop_helpers()

    def finish(self) -> None:
        """Clean up after the publish. Idempotent."""
        try:
            with self.write.step("supersede"):
                self.supersede()
            with self.write.step("drop_hidden"):
                self.write.hidden.drop_helpers()
        finally:
            # The rows are published, whatever could not be cleaned up: this session must not read the old ones.
            self.write.announce_end(defines=self.defines)

    def supersede(self) -> None:
        """Mark the replaced directories as superseded."""
        self.superseded.mark_table()

    def compensate(self) -> bool:
        """Undo a publish unless another writer has changed the table since; return False if that is impossible."""
        return False

    def refuse_changed(self) -> None:
        """Refuse to undo a publish if writers outside twophase have changed its files: their rows would be lost.

        Raises
        ------
        CatalogError
            They have; it names the files.
        """
        if changed := self.staging.changed_by_others(self.shown):
            raise self.staging.changed(changed, "it keeps what was published")

    def required(self, manifest: _Manifest | None) -> _Manifest:
        """Return a manifest, which ``prepare`` has written.

        Raises
        ------
        CatalogError
            It is missing.
        """
        if manifest is None:
            raise CatalogError(
                f"The manifest of {self.write.path} is missing in {self.state.version}.",
                transaction_id=self.state.transaction_id,
            )
        return manifest

    # -- the outcome ---------------------------------------------------------------------------------------------

    def is_ours(self, table: HiveTable | None) -> bool:
        """Whether the table is in the state that this write publishes."""
        return table is not None and same(table.location, self.state.version)

    def outcome(self) -> Outcome:
        """Whether the write was published."""
        try:
            if self.is_published():
                return Outcome.PUBLISHED
            self._require_seen()
        except Exception as error:  # the store is unreachable: unknown, and the coordinator keeps everything
            _log.warning(
                "Whether transaction %s has published %s could not be learned: %s",
                *(self.state.transaction_id, self.write.path, error),
            )
            return Outcome.UNKNOWN
        return Outcome.NOT_PUBLISHED

    def _require_seen(self) -> None:
        """Refuse to learn anything from files of which none is to be seen, neither the table's nor what was staged.

        Raises
        ------
        CatalogError
            Their file system is not mounted, say.
        """
        if not self.stages or self.files.exists(self.state.version):
            return
        table = self.write.current()
        if table is not None and not self.files.exists(str(table.location)):
            raise CatalogError(
                f"The table's directory {table.location} is not there.",
                hint="Mount its file system, and run the recovery again.",
            )

    def is_published(self) -> bool:
        """Whether the write was published; raises whatever the store raises if it is unreachable."""
        return self.is_ours(self.write.current()) or self.is_marked()

    def is_marked(self) -> bool:
        """Whether marker files record the publish; another writer may have replaced the table since."""
        marks = (layout.SUPERSEDED_FILE, layout.PUBLISHED_FILE)
        return any(self.files.exists(join(self.state.version, mark)) for mark in marks)

    def was_published(self) -> bool:
        """Whether the staged files belong to the table.

        Raises
        ------
        CatalogError
            It cannot be determined.
        """
        try:
            return self.is_published()
        except Exception as error:
            raise CatalogError(
                f"The metastore of {self.write.store.name} does not say if {self.write.path} was published: nothing "
                f"was removed. {name_error(error)}",
                path=self.write.path,
                transaction_id=self.state.transaction_id,
                left_behind=[self.state.version],
            ) from error

    def has_arrived(self) -> bool:
        """Whether a delayed call of a rolled-back driver has taken effect: the table is what that call published.

        Checked after each step that stops later calls from taking effect, and before files are removed or moved.
        """
        if self.metastore.ends_with_driver or not self.was_published():
            return False
        self.finish()
        if not self.write.calls.none_was_made:
            _log.warning(
                "%s was published by a call of transaction %s that the metastore carried out late: %s, whatever is "
                "recorded of the transaction.",
                self.write.path,
                self.state.transaction_id,
                self.result,
            )
        return True

    def is_staged(self) -> bool:
        """Whether the version to be published exists."""
        return self.staging.is_owned()

    def check_staged(self) -> None:
        """Refuse to publish a version that an abort or ``clean`` has removed."""
        self.staging.require(self.is_staged())

    def read_source(self) -> ReadSource | None:
        """Source of the staged rows for a later statement of the transaction; None if there is none."""
        return self.staging.read_source()

    def leftovers(self) -> list[str]:
        """Paths that would remain if the process crashed now."""
        return self.staging.leftovers()
