"""The part of a catalog without the two-phase write: its databases, its tables, and reading them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from twophase.catalog.reading import ReadSource
from twophase.catalog.services import Environment
from twophase.errors import AtomicityNotSupportedError, DatabaseNotExistError
from twophase.model import Capabilities, ObjectPath, TableDefinition


class CatalogMetadata(ABC):
    """Databases and tables of a store: what :class:`~twophase.catalog.base.Catalog` has besides the two-phase write."""

    #: Supported options, with one line of help each; any other option is rejected by name.
    known_options: ClassVar[Mapping[str, str]] = {}

    def __init__(self, name: str, options: Mapping[str, str], environment: Environment) -> None:
        self.name = name
        self.options = dict(options)
        self.environment = environment

    def __repr__(self) -> str:
        # Options may contain secrets.
        return f"<{type(self).__name__} {self.name!r}>"

    def __reduce__(self) -> Any:
        raise TypeError("A catalog holds connections and secrets and cannot be pickled; pickle the participant.")

    # -- what it can do ------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The declared capabilities; anything not declared is refused, and the conformance suite checks this."""

    # -- databases -----------------------------------------------------------------------------------------------

    @abstractmethod
    def list_databases(self) -> list[str]:
        """Names of all databases, sorted.

        Returns
        -------
        list of str
            Unquoted, as spelled by the store.

        Raises
        ------
        CatalogError
            The store cannot be queried.
        """

    @abstractmethod
    def database_exists(self, database: str) -> bool:
        """Return whether the database exists.

        Parameters
        ----------
        database : str
            Its name, unquoted; the levels of a namespace are joined by dots, as in :attr:`ObjectPath.database`.

        Raises
        ------
        CatalogError
            The store cannot be queried.
        """

    @abstractmethod
    def create_database(
        self, database: str, *, ignore_if_exists: bool = False, properties: Mapping[str, str] | None = None
    ) -> None:
        """Create a database.

        Parameters
        ----------
        database : str
            Its name, unquoted.
        ignore_if_exists : bool
            An existing database is not an error and is left unchanged.
        properties : mapping of str to str, optional
            ``comment``, ``location`` and any other properties from Spark's ``CREATE NAMESPACE``.

        Raises
        ------
        DatabaseAlreadyExistsError
            It exists and ``ignore_if_exists`` is False.
        CatalogError
            The store does not support the name or a property; nothing was created.
        """

    @abstractmethod
    def drop_database(self, database: str, *, ignore_if_not_exists: bool = False, cascade: bool = False) -> None:
        """Drop a database.

        Parameters
        ----------
        database : str
            Its name, unquoted.
        ignore_if_not_exists : bool
            A missing database is not an error.
        cascade : bool
            Drop its tables too.

        Raises
        ------
        DatabaseNotExistError
            It does not exist and ``ignore_if_not_exists`` is False.
        CatalogError
            It is not empty and ``cascade`` is False.
        """

    def load_database(self, database: str) -> dict[str, str]:
        """Load the properties of a database (``comment``, ``location``, ...).

        Parameters
        ----------
        database : str
            Its name, unquoted.

        Returns
        -------
        dict of str to str
            Empty if the store does not support database properties.

        Raises
        ------
        DatabaseNotExistError
            It does not exist.
        """
        if not self.database_exists(database):
            raise DatabaseNotExistError.of(database, self.name)
        return {}

    # -- tables --------------------------------------------------------------------------------------------------

    def canonical(self, path: ObjectPath) -> ObjectPath:
        """Return the canonical form of a name: two paths name the same table if their canonical forms are equal.

        A store that folds case overrides this. Reservations, and the statements of one transaction, compare tables by
        their canonical names.

        Parameters
        ----------
        path : ObjectPath
            As the user wrote it; the table need not exist.
        """
        return path

    @abstractmethod
    def list_tables(self, database: str) -> list[str]:
        """Names of the tables of a database, sorted; staging tables are never included.

        Parameters
        ----------
        database : str
            Its name, unquoted.

        Raises
        ------
        DatabaseNotExistError
            The database does not exist.
        """

    @abstractmethod
    def table_exists(self, path: ObjectPath) -> bool:
        """Return whether the table exists and is published; False if its database does not exist.

        Parameters
        ----------
        path : ObjectPath

        Raises
        ------
        CatalogError
            The store cannot be queried.
        """

    @abstractmethod
    def load_table(self, path: ObjectPath) -> TableDefinition:
        """Load the definition of a published table.

        Parameters
        ----------
        path : ObjectPath

        Returns
        -------
        TableDefinition
            As stored, including properties that the store adds.

        Raises
        ------
        TableNotExistError
            It does not exist.
        """

    @abstractmethod
    def create_table(self, path: ObjectPath, definition: TableDefinition, *, ignore_if_exists: bool = False) -> None:
        """Create an empty table.

        Parameters
        ----------
        path : ObjectPath
        definition : TableDefinition
            Schema, layout and properties.
        ignore_if_exists : bool
            An existing table is not an error and is left unchanged.

        Raises
        ------
        TableAlreadyExistsError
            It exists and ``ignore_if_exists`` is False.
        DatabaseNotExistError
            Its database does not exist.
        CatalogError
            The store does not support the name, a type or the layout; nothing was created.
        """

    @abstractmethod
    def drop_table(self, path: ObjectPath, *, ignore_if_not_exists: bool = False, purge: bool = False) -> None:
        """Drop a table.

        Parameters
        ----------
        path : ObjectPath
        ignore_if_not_exists : bool
            A missing table is not an error.
        purge : bool
            Bypass the trash, if the store has one (``DROP TABLE ... PURGE``).

        Raises
        ------
        TableNotExistError
            It does not exist and ``ignore_if_not_exists`` is False.
        """

    def read_source(self, path: ObjectPath) -> ReadSource:
        """Return the source from which Spark reads the published table.

        Parameters
        ----------
        path : ObjectPath

        Returns
        -------
        ReadSource
            A format with its options and paths. It may contain credentials: never log it.

        Raises
        ------
        TableNotExistError
            It does not exist.
        """
        raise AtomicityNotSupportedError(f"Catalog {self.name} offers no reads through Spark.", path=path)

    def table_version(self, path: ObjectPath) -> Any:
        """Return an identifier of the table's published state; no other state of the table ever has the same one.

        A transaction records the version of each table that it reads, and refuses to overwrite a table whose version
        has changed since. It is therefore called often and must be cheap. If it is uncertain whether rows have changed,
        return a new version.

        Parameters
        ----------
        path : ObjectPath

        Returns
        -------
        Any
            Plain JSON, compared for equality; None if the table does not exist or the store cannot provide a version.

        Raises
        ------
        CatalogError
            The store cannot be queried.
        """
        return None

    def table_versions(self, paths: Sequence[ObjectPath]) -> list[Any]:
        """Return :meth:`table_version` of several tables; override it if the store finds them faster together.

        Parameters
        ----------
        paths : sequence of ObjectPath

        Returns
        -------
        list
            In the order of the paths.

        Raises
        ------
        CatalogError
            The store cannot be queried.
        """
        return [self.table_version(path) for path in paths]

    # -- housekeeping --------------------------------------------------------------------------------------------

    def check(self) -> list[str]:
        """Return the problems that ``twophase doctor`` should report.

        Returns
        -------
        list of str
            One sentence per problem, including the remedy; empty if there is no problem. No secrets.
        """
        return []

    def close(self) -> None:
        """Release connections. Idempotent."""
