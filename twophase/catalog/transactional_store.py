"""The questions that a plugin for a transactional store answers: how to connect, to create and read a table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from twophase.catalog.housekeeping import SupportsCleaning
from twophase.catalog.staged_changes import SupportsGroupPublish
from twophase.catalog.staged_rows import StagedRows
from twophase.errors import DatabaseNotExistError
from twophase.model import Capabilities, ObjectPath, Purpose, TableDefinition


@dataclass(frozen=True)
class StoredTable:
    """A table as it is stored.

    Attributes
    ----------
    definition : TableDefinition
    version : str
        The last stamp of the table. If it can be written outside twophase, also include something that changes with
        those writes: otherwise their rows may be overwritten unnoticed.
    """

    definition: TableDefinition
    version: str


class TransactionalStore(SupportsGroupPublish, SupportsCleaning):
    """The questions that a plugin author answers about a store; :class:`TransactionalCatalog` makes a catalog of it.

    In all of them, ``db`` is the object that :meth:`transaction` yields, a path is in its canonical form, and its
    database exists. If one of them raises, the transaction is rolled back.

    Attributes
    ----------
    staging : str
        A directory that is shared by the driver and all executors, and not used for anything else; set it in
        ``__init__``. Rows are staged there as Parquet files until they are published.
    folds_case : bool
        Whether ``T`` and ``t`` are the same name in the store; all names are then passed in lower case.
    """

    capabilities = Capabilities(purposes=frozenset(Purpose), read=True, group_publish=True)
    folds_case: bool = False
    staging: str

    # -- what the author answers ---------------------------------------------------------------------------------

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """Open the store and begin a transaction; commit it at the end of the block, or roll it back on an error.

        Two conflicting transactions must not both commit: use the store's strictest isolation level, or a lock. A new
        transaction is opened on each call, in several processes, and must wait for concurrent ones.

        Returns
        -------
        context manager
            Yields ``db``, whatever the other methods need.
        """

    @abstractmethod
    def databases(self, db: Any) -> Iterable[str]:
        """List the names of all databases.

        Parameters
        ----------
        db : Any
        """

    @abstractmethod
    def add_database(self, db: Any, database: str) -> None:
        """Create a database that does not exist yet.

        Parameters
        ----------
        db : Any
        database : str

        Raises
        ------
        CatalogError
            The store does not support the name.
        """

    @abstractmethod
    def remove_database(self, db: Any, database: str) -> None:
        """Drop an existing, empty database.

        Parameters
        ----------
        db : Any
        database : str
        """

    @abstractmethod
    def tables(self, db: Any, database: str) -> Iterable[str]:
        """List the names of the tables of a database.

        Parameters
        ----------
        db : Any
        database : str
        """

    @abstractmethod
    def find(self, db: Any, path: ObjectPath) -> StoredTable | None:
        """Look a table up.

        Parameters
        ----------
        db : Any
        path : ObjectPath

        Returns
        -------
        StoredTable or None
            None if it does not exist.
        """

    @abstractmethod
    def make(self, db: Any, path: ObjectPath, definition: TableDefinition) -> None:
        """Create an empty table that does not exist yet; store its definition, including comment and properties.

        Parameters
        ----------
        db : Any
        path : ObjectPath
        definition : TableDefinition
            Without OPTIONS.

        Raises
        ------
        CatalogError
            The store does not support the table; :meth:`validate` should raise this earlier, before rows are written.
        """

    @abstractmethod
    def remove(self, db: Any, path: ObjectPath) -> None:
        """Drop an existing table.

        Parameters
        ----------
        db : Any
        path : ObjectPath
        """

    @abstractmethod
    def clear(self, db: Any, path: ObjectPath) -> None:
        """Delete all rows of a table.

        Parameters
        ----------
        db : Any
        path : ObjectPath
        """

    @abstractmethod
    def fill(self, db: Any, path: ObjectPath, rows: StagedRows) -> None:
        """Add staged rows to a table.

        Parameters
        ----------
        db : Any
        path : ObjectPath
        rows : StagedRows
            As Parquet files, for a store that loads them itself, and as Arrow batches.
        """

    @abstractmethod
    def stamp(self, db: Any, path: ObjectPath, version: str) -> None:
        """Store the version of a table: :meth:`find` returns it until the next one is stored.

        Parameters
        ----------
        db : Any
        path : ObjectPath
        version : str
            A new version for each change made through this catalog.
        """

    @abstractmethod
    def is_recorded(self, db: Any, key: str) -> bool:
        """Return whether :meth:`record` has stored this key.

        Parameters
        ----------
        db : Any
        key : str
        """

    @abstractmethod
    def record(self, db: Any, key: str) -> None:
        """Permanently record that the statement with this key is published.

        Parameters
        ----------
        db : Any
        key : str
        """

    @abstractmethod
    def records(self, db: Any) -> Iterable[str]:
        """List all keys that :meth:`record` has stored.

        Parameters
        ----------
        db : Any
        """

    @abstractmethod
    def forget(self, db: Any, key: str) -> None:
        """Delete a key that :meth:`record` has stored and that is no longer needed. Idempotent.

        Parameters
        ----------
        db : Any
        key : str
        """

    @abstractmethod
    def scan(self, path: ObjectPath, schema: pa.Schema) -> Callable[[], Iterator[pa.RecordBatch]]:
        """Make a callable that reads a table on an executor.

        Parameters
        ----------
        path : ObjectPath
        schema : pyarrow.Schema
            The columns to read, at least one.

        Returns
        -------
        callable
            Pickled, and called on the executor without arguments; yields the rows in batches of this schema. Use
            ``functools.partial`` with a function of the plugin's module, which the executors must be able to import.
        """

    def validate(self, path: ObjectPath, definition: TableDefinition) -> None:
        """Raise if the store does not support a table's name or the type of a column.

        Parameters
        ----------
        path : ObjectPath
        definition : TableDefinition

        Raises
        ------
        CatalogError
        """

    # -- names ---------------------------------------------------------------------------------------------------

    def canonical(self, path: ObjectPath) -> ObjectPath:
        if not self.folds_case:
            return path
        return ObjectPath(tuple(part.lower() for part in path.namespace), path.name.lower())

    def _has(self, db: Any, database: str) -> bool:
        return self._folded(database) in {self._folded(known) for known in self.databases(db)}

    def _folded(self, name: str) -> str:
        return name.lower() if self.folds_case else name

    def require_database(self, db: Any, database: str) -> None:
        """Raise if a database does not exist.

        Parameters
        ----------
        db : Any
        database : str

        Raises
        ------
        DatabaseNotExistError
        """
        if not self._has(db, database):
            raise DatabaseNotExistError.of(database, self.name)
