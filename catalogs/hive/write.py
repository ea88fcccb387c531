"""One write of one table, as used by its staging and its publisher."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from twophase.catalogs.files import Entry, Files
from twophase.catalogs.hive import steps
from twophase.catalogs.hive.calls import PublishCalls
from twophase.catalogs.hive.definitions import SERDE_PROVIDER, is_redacted, to_definition, to_table, with_secrets
from twophase.catalogs.hive.hidden import HiddenTables
from twophase.catalogs.hive.metastore import Metastore
from twophase.catalogs.hive.paths import TablePaths
from twophase.catalogs.hive.state import INSERT, WriteState
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import MANAGED, HiveTable
from twophase.errors import CatalogError, WriteConflictError
from twophase.failpoints import step
from twophase.model import Level, ObjectPath, TableDefinition
from twophase.transactions import failures


class TableWrite:
    """The state of a write with the store that it works on.

    Parameters
    ----------
    store : HiveStore
    state : WriteState
    definition : TableDefinition, optional
        The live definition, including secrets; by default the state's, from which they were removed.
    planned : HiveTable, optional
        The table as it was when the write was planned, if this process has just done so.
    options : mapping of str to str, optional
        Options of an insert for the files that it writes, beyond the table's own.
    """

    def __init__(
        self,
        store: HiveStore,
        state: WriteState,
        definition: TableDefinition | None = None,
        planned: HiveTable | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.planned = planned
        self.store = store
        self.state = state
        self.hidden = HiddenTables(store, state.path.database, state.transaction_id, state.ordinal)
        self.calls = PublishCalls()
        #: The staged files, where a list names them; None until it is written or read.
        self.listed: list[Entry] | None = None
        self._live = definition
        self._options = options or {}
        self._is_announced = False

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def metastore(self) -> Metastore:
        return self.store.metastore

    @property
    def files(self) -> Files:
        return self.store.files

    @property
    def path(self) -> ObjectPath:
        return self.state.path

    @property
    def database(self) -> str:
        return self.state.path.database

    @property
    def paths(self) -> TablePaths:
        """Paths of the table, which distinguish its own directories from a user's LOCATION."""
        return TablePaths(self.files, lambda: self.state.default_location)

    @property
    def definition(self) -> TableDefinition:
        """The table after the publish.

        Raises
        ------
        CatalogError
            It needs secrets that only the statement's process had, and no hidden table of ours stores them.
        """
        if self._live is not None:
            return self._live
        stored = self._with_secrets(self.state.definition)
        if is_redacted(stored):
            raise CatalogError(
                f"The options of {self.path} hold secrets, which are never written down: they ended with the process.",
                path=self.path,
                transaction_id=self.state.transaction_id,
                hint="Run the statement again.",
            )
        return stored

    def _with_secrets(self, stored: TableDefinition) -> TableDefinition:
        found = self.hidden.find_own("table") if is_redacted(stored) else None
        return stored if found is None else with_secrets(stored, to_definition(found))

    @property
    def written(self) -> TableDefinition:
        """The definition by which the rows are written: with the options of their statement. A SerDe has its own."""
        definition = self.definition
        if not self._options or definition.provider == SERDE_PROVIDER:
            return definition
        said = {key.lower() for key in self._options}
        kept = {key: value for key, value in definition.options.items() if key.lower() not in said}
        return replace(definition, options={**kept, **self._options})

    def table(
        self,
        *,
        name: str | None = None,
        kind: str = MANAGED,
        location: str | None = None,
        definition: TableDefinition | None = None,
    ) -> HiveTable:
        """The table after the publish, for the metastore, with our stamp; by default over the version."""
        path = ObjectPath.of(self.database, name or self.path.name)
        found = to_table(path, definition or self.definition, kind=kind, location=location or self.state.version)
        return found.with_stamp(self.state.transaction_id)

    def current(self) -> HiveTable | None:
        """Load the table's current state from the metastore."""
        return self.store.find(self.path)

    # -- changes of the state ------------------------------------------------------------------------------------

    def update(self, **changes: Any) -> None:
        """Change the state."""
        self.state = replace(self.state, **changes)

    def update_own(self, **changes: Any) -> None:
        """Change the publisher's own state."""
        self.state = self.state.with_own(**changes)

    def reach(self, level: Level, reason: str | None = None) -> None:
        """Record the level that the publish guarantees, with a reason for the user if it is not atomic."""
        self.update(level=level, level_reason=reason)

    def step(self, name: str) -> AbstractContextManager[None]:
        """The failpoint of one step."""
        return step(steps.POINTS[self.state.publisher.recipe][name])

    def conflict(self, why: str) -> WriteConflictError:
        """Return the error of a conflict with another writer."""
        return failures.changed_meanwhile(self.path, self.state.transaction_id, why)

    # -- caches of the session -----------------------------------------------------------------------------------

    def announce(self, *, counted: bool = True, seen: HiveTable | None = None) -> None:
        """Invalidate the session's caches, so that it sees the new state.

        Parameters
        ----------
        counted : bool
            Whether the table may have statistics, which would be those of its old rows.
        seen : HiveTable, optional
            The table as loaded during the publish, if it was.
        """
        self._is_announced = True
        before = self.state.before
        if before is not None and before.tracked and self.state.partition_columns:
            self.files.touch(before.location)  # See HiveCatalog.table_version.
        self.metastore.changed(
            self.database, self.path.name, written=self.state.effect == INSERT, counted=counted, seen=seen
        )

    def announce_end(self, *, defines: bool) -> None:
        """Invalidate the session's caches at the end of the write, if still needed.

        Parameters
        ----------
        defines : bool
            Whether the table has a new definition, which has no statistics yet.
        """
        if self.state.effect != INSERT or not self._is_announced:
            self.metastore.changed(self.database, self.path.name, written=True, counted=not defines)
