"""Optional interface of a catalog whose tables can be kept as they are, for a named savepoint."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from twophase.catalog.base import Catalog, TwoPhaseCatalogTable
from twophase.catalog.reading import ReadSource
from twophase.model import ObjectPath, TableDefinition


class SupportsSavepoints(Catalog):
    """A catalog that can keep states of its tables under a named savepoint, and give them back.

    What is kept is described by a document: a small plain JSON object, stored on the timeline. It is planned and
    recorded before anything is kept, so that :meth:`forget_kept` finds whatever a crash has left.
    """

    def tables_to_keep(self, database: str) -> list[ObjectPath]:
        """Return the tables of a database that a savepoint of it contains: all of them, but no views.

        Parameters
        ----------
        database : str
            Its name, unquoted.

        Raises
        ------
        DatabaseNotExistError
            It does not exist.
        """
        return [ObjectPath.of(*database.split("."), name) for name in self.list_tables(database)]

    @abstractmethod
    def plan_kept(self, path: ObjectPath, savepoint: str, name: str, *, copies: bool = False) -> Mapping[str, Any]:
        """Return the document of the present state of a table. Nothing is kept yet, and nothing is changed.

        Parameters
        ----------
        path : ObjectPath
        savepoint : str
            The savepoint's id, by which what is kept for it is recognized as its own. Letters, digits and underscores.
        name : str
            The savepoint's name, which may be any text.
        copies : bool
            Whether rows may be copied if the store cannot keep them otherwise.

        Returns
        -------
        mapping
            Without secrets.

        Raises
        ------
        TableNotExistError
            It does not exist.
        AtomicityNotSupportedError
            The store cannot keep it; or it can only by a copy, which was not asked for.
        """

    @abstractmethod
    def keep(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Keep the present state of a table, whatever is written to it, altered, or removed from now on. Idempotent.

        No transaction publishes to the table meanwhile.

        Parameters
        ----------
        document : mapping
            From :meth:`plan_kept`.

        Returns
        -------
        mapping
            The document from now on.

        Raises
        ------
        CatalogError
            It cannot be kept; :meth:`forget_kept` removes what there is of it.
        """

    @abstractmethod
    def forget_kept(self, document: Mapping[str, Any]) -> None:
        """Remove what is kept, also if only a part was or nothing. Idempotent; the table itself is not changed.

        Parameters
        ----------
        document : mapping
            From :meth:`plan_kept` or :meth:`keep`.

        Raises
        ------
        CatalogError
            It cannot be removed now.
        """

    @abstractmethod
    def kept_definition(self, document: Mapping[str, Any]) -> TableDefinition:
        """Return the definition that the kept table had.

        Parameters
        ----------
        document : mapping
            From :meth:`keep`.

        Raises
        ------
        CatalogError
            What was kept is no longer there.
        """

    @abstractmethod
    def read_kept(self, document: Mapping[str, Any]) -> ReadSource:
        """Return the source of the kept rows.

        Parameters
        ----------
        document : mapping
            From :meth:`keep`.

        Raises
        ------
        CatalogError
            What was kept is no longer there, or Spark cannot read it without its table.
        """

    def write_kept(self, participant: TwoPhaseCatalogTable, document: Mapping[str, Any]) -> bool:
        """Stage the kept rows for a participant that replaces or creates the table, instead of its ``write``.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            Begun, of this catalog, with the definition from :meth:`kept_definition`.
        document : mapping
            From :meth:`keep`.

        Returns
        -------
        bool
            False if the rows must be read by :meth:`read_kept` and written; then nothing was staged.

        Raises
        ------
        CatalogError
            What was kept is no longer there.
        """
        return False
