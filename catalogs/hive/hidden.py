"""The hidden tables of one write: helpers in the metastore that are never listed and belong to no user."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from twophase.catalogs.hive import layout
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import EXTERNAL, PLACEHOLDER, HiveTable
from twophase.errors import TableAlreadyExistsError


class HiddenTables:
    """The hidden tables of one write; drops only those that carry the transaction's stamp."""

    def __init__(self, store: HiveStore, database: str, transaction_id: str, ordinal: int) -> None:
        self._store = store
        self._database = database
        self._transaction_id = transaction_id
        self._ordinal = ordinal
        #: Names of the existing ones; None if another process may have created some: then the metastore is checked.
        self._made: set[str] | None = None

    def name(self, role: str) -> str:
        """Name of the hidden table of a role; the same in every process."""
        return layout.hidden_name(role, self._transaction_id, self._ordinal)

    def find(self, role: str) -> HiveTable | None:
        """Load the hidden table of a role; None if it does not exist."""
        return self._store.metastore.get_table(self._database, self.name(role))

    def find_own(self, role: str) -> HiveTable | None:
        """Load the hidden table of a role if it carries the transaction's stamp."""
        found = self.find(role)
        return found if found is not None and found.stamp == self._transaction_id else None

    def find_backup(self, role: str) -> HiveTable | None:
        """Load the user's table that has the hidden name of a role; None if it does not exist."""
        found = self.find(role)
        return None if found is None or PLACEHOLDER in found.properties else found

    def start(self) -> None:
        """Record that there are none yet: the write has just begun, in this process."""
        self._made = set()

    def make(self, role: str, table: HiveTable) -> None:
        """Create the hidden table of a role, replacing one of an earlier attempt."""
        self.drop(role)
        self.create(role, table)

    def create(self, role: str, table: HiveTable) -> None:
        """Create the hidden table of a role, which must not exist."""
        self._note(role)
        self._store.metastore.create_table(table)

    def hide(self, name: str, role: str, *, instead_of: str | None = None) -> None:
        """Rename a table to the hidden name of a role; ``instead_of`` is the stamp that it must still have."""
        self._note(role)
        metastore = self._store.metastore
        metastore.rename_table(self._database, name, self.name(role), kind=EXTERNAL, instead_of=instead_of)

    def show(self, role: str, name: str, *, kind: str) -> None:
        """Rename the hidden table of a role to its final name."""
        self._store.metastore.rename_table(self._database, self.name(role), name, kind=kind)
        if self._made is not None:
            self._made.discard(self.name(role))

    def take(self, role: str, location: str) -> None:
        """Take the hidden name of a role, so that a dead driver's delayed rename to it fails. Idempotent."""
        placeholder = HiveTable(
            self._database,
            self.name(role),
            EXTERNAL,
            pa.schema([("dropped", pa.string())]),
            provider="parquet",
            location=location,
            properties={PLACEHOLDER: "true"},
        ).with_stamp(self._transaction_id)
        with suppress(TableAlreadyExistsError):  # It has arrived, or is fenced off.
            self.create(role, placeholder)

    def _note(self, role: str) -> None:
        if self._made is not None:
            self._made.add(self.name(role))

    def drop(self, *roles: str) -> None:
        """Drop the metadata of the hidden tables of these roles. Idempotent."""
        for role in roles:
            if self._made is not None and self.name(role) not in self._made:
                continue
            if self.find_own(role) is not None:
                self._store.metastore.forget_table(self._database, self.name(role))

    def drop_helpers(self) -> None:
        """Drop all that are needed only until the publish has ended. Idempotent."""
        self.drop(*layout.HELPERS)
