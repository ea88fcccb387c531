"""Optional interfaces of a catalog whose tables and databases can be altered."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from twophase.catalog.base import Catalog, TwoPhaseCatalogTable
from twophase.catalog.schema_versions import SchemaVersion, TableSchema
from twophase.catalog.services import Rewrite, TableChange
from twophase.model import ObjectPath, TableDefinition


class SupportsAlterDatabase(Catalog):
    """A catalog whose databases can be altered."""

    @abstractmethod
    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        """Atomically set properties of a database (including ``comment``), and remove those that are None.

        Parameters
        ----------
        database : str
            Its name, unquoted.
        changes : mapping of str to str or None
            New values by name; None removes a property. Other properties are left unchanged.

        Raises
        ------
        DatabaseNotExistError
            It does not exist.
        CatalogError
            The catalog does not support the change; nothing was changed.
        """


class SupportsRename(Catalog):
    """A catalog that can rename its tables."""

    @abstractmethod
    def rename_table(self, path: ObjectPath, new_path: ObjectPath) -> None:
        """Rename a table within the catalog.

        Parameters
        ----------
        path : ObjectPath
            The table.
        new_path : ObjectPath
            Its new name; it may be in another database if the store supports that.

        Raises
        ------
        TableNotExistError
            ``path`` does not exist.
        TableAlreadyExistsError
            ``new_path`` already exists.
        AtomicityNotSupportedError
            The capability ``rename_table`` is not declared.
        """


class SupportsEvolution(Catalog):
    """A catalog of session tables whose columns can change in ways that Spark itself refuses."""

    @abstractmethod
    def evolves(self, path: ObjectPath, *, only_if_evolved: bool) -> bool:
        """Return whether :meth:`SupportsAlter.alter_table` changes the columns of a table instead of Spark.

        Parameters
        ----------
        path : ObjectPath
            It need not exist.
        only_if_evolved : bool
            Whether that is so only for a table with field ids, or with names that its files have for other columns.
        """


class SupportsAlter(Catalog):
    """A catalog that supports ``ALTER TABLE``."""

    @abstractmethod
    def alter_table(self, path: ObjectPath, changes: Iterable[TableChange]) -> None:
        """Apply changes to a table atomically.

        Parameters
        ----------
        path : ObjectPath
        changes : iterable of TableChange
            In the order in which to apply them.

        Raises
        ------
        TableNotExistError
            It does not exist.
        CatalogError
            The catalog does not support one of the changes; none was applied.
        """


class SupportsRewrite(SupportsAlter):
    """A catalog in which some changes of ``ALTER TABLE`` are a replacement of the table by its own rows."""

    @abstractmethod
    def plan_rewrite(self, path: ObjectPath, changes: Sequence[TableChange]) -> Rewrite | None:
        """Return the replacement that makes the changes; nothing is changed yet.

        Parameters
        ----------
        path : ObjectPath
        changes : sequence of TableChange
            As in :meth:`SupportsAlter.alter_table`: all of them are made, or none.

        Returns
        -------
        Rewrite or None
            None if :meth:`SupportsAlter.alter_table` makes the changes, or refuses them.

        Raises
        ------
        TableNotExistError
            It does not exist.
        CatalogError
            A change is not possible, even so.
        """


class SupportsFieldIds(Catalog):
    """A catalog with tables whose columns can have field ids."""

    @abstractmethod
    def table_schema(self, path: ObjectPath) -> TableSchema | None:
        """Return the columns of a table, with their ids if they have any.

        Parameters
        ----------
        path : ObjectPath

        Returns
        -------
        TableSchema or None
            None if the rules of schema evolution do not know them.

        Raises
        ------
        TableNotExistError
            It does not exist.
        """

    def written_schemas(self, path: ObjectPath) -> list[tuple[float, TableSchema]]:
        """Return what the files of a table tell of its earlier columns.

        Parameters
        ----------
        path : ObjectPath

        Returns
        -------
        list of tuple
            Each schema with which files were written, the oldest first, and since when, in seconds since the epoch.
        """
        return []


class SupportsSchemaHistory(Catalog):
    """A catalog that knows the earlier schemas of its tables."""

    @abstractmethod
    def schema_versions(self, path: ObjectPath) -> list[SchemaVersion]:
        """Return the versions of a table's schema, the oldest first; each with what is known of it.

        Parameters
        ----------
        path : ObjectPath

        Raises
        ------
        TableNotExistError
            It does not exist.
        """

    def schema_id_as_of(self, path: ObjectPath, commit: str) -> int | None:
        """Return the id of the schema that a commit was written with; None if there is no such commit any more.

        A catalog overrides this whose commits are more than those that began a version.

        Parameters
        ----------
        path : ObjectPath
        commit : str
            In the store's own terms, or the id of the transaction that made it.

        Raises
        ------
        TableNotExistError
            It does not exist.
        """
        known = (v for v in self.schema_versions(path) if commit in (v.commit, v.transaction_id))
        return next((version.schema.schema_id for version in known), None)


#: Option of one insert whose rows may bring columns and wider types; a catalog gets it with the rows' definition.
MERGE_SCHEMA = "mergeSchema"
#: Table property: ``true`` gives every insert that option.
MERGES_SCHEMA = "twophase.merge_schema"


class SupportsSchemaOnWrite(Catalog):
    """A catalog with tables whose schema can evolve with the rows of an insert.

    Where a single insert says so, its definition has the option :data:`MERGE_SCHEMA`: its columns are then matched by
    name, whatever :meth:`accepts_any_schema` says of the table.
    """

    @abstractmethod
    def accepts_any_schema(self, definition: TableDefinition) -> bool:
        """Return whether a table accepts rows with additional columns; columns are then matched by name.

        Parameters
        ----------
        definition : TableDefinition
            The table's definition, from :meth:`load_table`.
        """


def accepts_any_schema(catalog: Catalog, definition: TableDefinition) -> bool:
    """Return whether a table accepts rows with additional columns; see :class:`SupportsSchemaOnWrite`."""
    if not isinstance(catalog, SupportsSchemaOnWrite):
        return False
    return merges_always(definition.properties) or catalog.accepts_any_schema(definition)


def merges_always(properties: Mapping[str, str]) -> bool:
    """Return whether a table's properties let every insert bring columns."""
    return properties.get(MERGES_SCHEMA, "false").lower() == "true"


class SupportsColumnDefaults(Catalog):
    """A catalog that supports column defaults.

    An ``ALTER TABLE`` in the transaction that makes a table gives its columns defaults, too: then the fields of its
    definition have them in Spark's SQL (``CURRENT_DEFAULT``), NULL where an old table's default is dropped.
    """

    @abstractmethod
    def column_defaults(self, path: ObjectPath, staged: TwoPhaseCatalogTable | None = None) -> Mapping[str, str | None]:
        """Return the values for columns that an insert omits, or sets to ``DEFAULT``.

        Parameters
        ----------
        path : ObjectPath
        staged : TwoPhaseCatalogTable, optional
            The participant of the same transaction for this table, if any.

        Returns
        -------
        mapping of str to str or None
            For each column, a constant in Spark's SQL; None if the store computes the default during the publish. The
            rows then have an additional column, :data:`~twophase.model.WAITING`, with the names of the columns that
            are still to be computed. For a column without an entry Spark uses NULL, if the column is nullable.
        """
