"""The service-provider interface: what a catalog offers; what its participants promise is in the module beside it.

The shape is that of Flink's FLIP-305 (``Catalog.twoPhaseCreateTable`` and ``TwoPhaseCatalogTable``); the
*purpose* comes from what Flink shipped later, the rest from what Spark's staged tables need. This module
knows no store, no Spark and no JVM: a plugin author needs nothing else (and :mod:`twophase.testing`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from twophase.errors import AtomicityNotSupportedError, CatalogError
from twophase.model import (
    Capabilities,
    ObjectPath,
    Purpose,
    TableDefinition,
    WriteContext,
)
from twophase.participant import TwoPhaseCatalogTable
from twophase.reading import Deletion, Filter, ReadSource

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = [
    "Catalog",
    "Environment",
    "Residue",
    "TableChange",
    "TwoPhaseCatalogTable",
]


@dataclass(frozen=True)
class Residue:
    """Something that a transaction left in a store, and that ``twophase clean`` may remove.

    Attributes
    ----------
    kind : str
        ``staging``, ``version`` (a replaced version kept for readers in flight) or ``metadata``.
    location : str
        Path or table name, as an operator of that store would write it.
    size : int
        Bytes; -1 where the store cannot tell.
    transaction_id : str
        The transaction that made it, read from its owner stamp.
    since : float
        Seconds since the epoch when it came to be unneeded.
    kept : str or None
        Why it must be listed only, where the catalog knows a reason.
    holds_rows : bool
        Whether it may be what a committed transaction published; then it has its retention whatever refers to it now.
    unmarked : bool
        Whether nothing but its transaction says that it is unneeded: it is removed only if that was rolled back. What
        a committed one published may be in use where no listing shows it.
    """

    kind: str
    location: str
    size: int
    transaction_id: str
    since: float
    kept: str | None = None
    holds_rows: bool = False
    unmarked: bool = False


@dataclass(frozen=True)
class TableChange:
    """One change of ``ALTER TABLE``.

    Attributes
    ----------
    kind : str
        ``set_property``, ``remove_property``, ``set_comment``, ``add_column``, ``drop_column``, ``rename_column``,
        ``update_column_type``, ``update_column_comment``, ``update_column_nullability``, ``move_column``.
    path : tuple of str
        The column's path, one name a level; empty for changes of the table.
    arguments : mapping
        What the kind needs: ``key``/``value``, ``field`` (a one-field :class:`pyarrow.Schema`), ``name``,
        ``nullable``, ``comment``, ``position`` (``first`` or ``after:<name>``).
    """

    kind: str
    path: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Environment:
    """What the host of a catalog lends it. The Spark layer subclasses it; tests use it as it is.

    A catalog asks for what it needs by attribute and must answer with a clear error where it is ``None``.

    Attributes
    ----------
    session_metastore : object or None
        The Spark session's own metastore, behind :class:`twophase.catalogs.hive.metastore.Metastore`.
    table_writer : object or None
        Writes a DataFrame the way Spark's own ``INSERT`` would, for formats that ``DataFrameWriter.save``
        cannot write (bucketed tables, Hive SerDes); see :class:`twophase.catalogs.hive.metastore.TableWriter`.
    partition_runner : object or None
        Runs a function over each partition of a DataFrame on the executors, in Arrow batches; see
        :class:`twophase.spark.partitions.SparkPartitions`.
    parquet_writer : object or None
        Writes a DataFrame with Spark's own Parquet writer, with field ids; see
        :class:`twophase.spark.parquet.SparkParquet`.
    warehouse : str
        Root directory of the default database, as a URI or an absolute path.
    retention : float
        Seconds that replaced versions stay for readers in flight.
    fsync : bool
        Whether what is staged and published on this machine's file systems must survive a power cut.
    conf : mapping of str to str
        The session's Spark SQL configuration, read only.
    allows_untested_storage : bool
        Whether tables are written on file systems that were not tried, which are all but local ones.
    """

    session_metastore: Any = None
    table_writer: Any = None
    partition_runner: Any = None
    parquet_writer: Any = None
    warehouse: str = ""
    retention: float = 86_400.0
    fsync: bool = True
    conf: Mapping[str, str] = {}
    allows_untested_storage: bool = False

    def executor_problems(self, modules: Sequence[str]) -> list[str]:
        """Which of these modules the executors cannot import, in words with what to do; for :meth:`Catalog.check`.

        Parameters
        ----------
        modules : sequence of str
            Import names of what the catalog's tasks need.

        Returns
        -------
        list of str
            A sentence for each problem; empty when all can be imported, and where there are no executors.
        """
        return []

    def has_ended(self, transaction_id: str) -> bool | None:
        """Whether a transaction has ended, by the host's timeline.

        Parameters
        ----------
        transaction_id : str

        Returns
        -------
        bool or None
            None where nobody here knows the transaction: it may be open on another timeline.
        """
        return None


class Catalog(ABC):
    """A store of tables, as FLIP-305's ``Catalog``: databases, tables, and the two-phase write.

    Parameters
    ----------
    name : str
        The name under which the session knows it (``spark.sql.catalog.<name>``).
    options : mapping of str to str
        The options below that name, without the prefix. They may hold secrets: never log, pickle or store them.
    environment : Environment
        What the host lends.
    """

    #: Options that this catalog understands, with one line of help each; anything else is refused by name.
    known_options: ClassVar[Mapping[str, str]] = {}

    def __init__(self, name: str, options: Mapping[str, str], environment: Environment) -> None:
        self.name = name
        self.options = dict(options)
        self.environment = environment

    def __repr__(self) -> str:
        # Options may hold secrets.
        return f"<{type(self).__name__} {self.name!r}>"

    def __reduce__(self) -> Any:
        raise TypeError("A catalog holds connections and secrets and cannot be pickled; pickle the participant.")

    # -- what it can do ------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this catalog can do; everything not declared is refused, and the conformance suite checks that."""

    # -- databases -----------------------------------------------------------------------------------------------

    @abstractmethod
    def list_databases(self) -> list[str]:
        """Names of all databases, sorted.

        Returns
        -------
        list of str
            Unquoted, in the store's own spelling.

        Raises
        ------
        CatalogError
            The store cannot be asked.
        """

    @abstractmethod
    def database_exists(self, database: str) -> bool:
        """Whether the database exists.

        Parameters
        ----------
        database : str
            Its name, unquoted; levels of a namespace joined by dots, as in :attr:`ObjectPath.database`.

        Raises
        ------
        CatalogError
            The store cannot be asked.
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
            An existing database is no error and stays as it is.
        properties : mapping of str to str, optional
            ``comment``, ``location`` and whatever else Spark's ``CREATE NAMESPACE`` says.

        Raises
        ------
        DatabaseAlreadyExistsError
            It exists and ``ignore_if_exists`` is False.
        CatalogError
            A name or a property that this store cannot take; nothing was made.
        """

    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        """Set properties of a database (``comment`` among them), and remove those that are None; all or none.

        Parameters
        ----------
        database : str
            Its name, unquoted.
        changes : mapping of str to str or None
            New values by name; None removes. What is not named stays.

        Raises
        ------
        DatabaseNotExistError
            It does not exist.
        CatalogError
            Not possible here; nothing was changed.
        """
        raise AtomicityNotSupportedError(f"Catalog {self.name} cannot alter databases.", path=database)

    @abstractmethod
    def drop_database(self, database: str, *, ignore_if_not_exists: bool = False, cascade: bool = False) -> None:
        """Drop a database.

        Parameters
        ----------
        database : str
            Its name, unquoted.
        ignore_if_not_exists : bool
            A database that does not exist is no error.
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
        """Properties of a database (``comment``, ``location``, ...).

        Parameters
        ----------
        database : str
            Its name, unquoted.

        Returns
        -------
        dict of str to str
            Empty where the store keeps none.

        Raises
        ------
        DatabaseNotExistError
            It does not exist.
        """
        from twophase.errors import DatabaseNotExistError

        if not self.database_exists(database):
            raise DatabaseNotExistError(f"Database {database} does not exist in catalog {self.name}.", path=database)
        return {}

    # -- tables --------------------------------------------------------------------------------------------------

    def canonical(self, path: ObjectPath) -> ObjectPath:
        """The one spelling of a table's name here: two paths name the same table where these are equal.

        A store that folds case overrides it; reservations and the statements of one transaction go by it.

        Parameters
        ----------
        path : ObjectPath
            As the user wrote it; the table need not exist.
        """
        return path

    @abstractmethod
    def list_tables(self, database: str) -> list[str]:
        """Names of the tables of a database, sorted; never a staging table.

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
        """Whether the table exists and is published.

        Parameters
        ----------
        path : ObjectPath
            Its name; False where its database does not exist.

        Raises
        ------
        CatalogError
            The store cannot be asked.
        """

    @abstractmethod
    def load_table(self, path: ObjectPath) -> TableDefinition:
        """The definition of a published table.

        Parameters
        ----------
        path : ObjectPath

        Returns
        -------
        TableDefinition
            As the store keeps it, with the properties that the store adds.

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
            An existing table is no error and stays as it is.

        Raises
        ------
        TableAlreadyExistsError
            It exists and ``ignore_if_exists`` is False.
        DatabaseNotExistError
            Its database does not exist.
        CatalogError
            A name, a type or a layout that this store cannot take; nothing was made.
        """

    @abstractmethod
    def drop_table(self, path: ObjectPath, *, ignore_if_not_exists: bool = False, purge: bool = False) -> None:
        """Drop a table.

        Parameters
        ----------
        path : ObjectPath
        ignore_if_not_exists : bool
            A table that does not exist is no error.
        purge : bool
            Past the trash, where the store has one (``DROP TABLE ... PURGE``).

        Raises
        ------
        TableNotExistError
            It does not exist and ``ignore_if_not_exists`` is False.
        """

    def rename_table(self, path: ObjectPath, new_path: ObjectPath) -> None:
        """Rename a table within the catalog.

        Parameters
        ----------
        path : ObjectPath
            The table.
        new_path : ObjectPath
            Its new name; another database where the store can move it there.

        Raises
        ------
        TableNotExistError
            ``path`` does not exist.
        TableAlreadyExistsError
            ``new_path`` exists.
        AtomicityNotSupportedError
            The capability ``rename_table`` is not declared.
        """
        raise AtomicityNotSupportedError(f"Catalog {self.name} cannot rename tables.", path=path)

    def alter_table(self, path: ObjectPath, changes: Iterable[TableChange]) -> None:
        """Apply changes to a table, all or none.

        Parameters
        ----------
        path : ObjectPath
        changes : iterable of TableChange
            In the order in which they are to be made.

        Raises
        ------
        TableNotExistError
            It does not exist.
        CatalogError
            A change is not possible here; none was made.
        """
        raise AtomicityNotSupportedError(f"Catalog {self.name} cannot alter tables.", path=path)

    def read_source(self, path: ObjectPath) -> ReadSource:
        """How Spark reads the published table.

        Parameters
        ----------
        path : ObjectPath

        Returns
        -------
        ReadSource
            A format with its options and paths; may hold credentials: never log.

        Raises
        ------
        TableNotExistError
            It does not exist.
        """
        raise AtomicityNotSupportedError(f"Catalog {self.name} offers no reads through Spark.", path=path)

    def table_version(self, path: ObjectPath) -> Any:
        """What tells the state that a published table is in from every other one that it had or will have.

        A transaction remembers it of what it reads, and refuses to overwrite a table that has another one since. So it
        is asked often, and must be cheap. Where it is not certain whether rows changed, it says another one.

        Parameters
        ----------
        path : ObjectPath

        Returns
        -------
        Any
            Plain JSON, compared for equality; None where the table does not exist, or where this store cannot tell.

        Raises
        ------
        CatalogError
            The store cannot be asked.
        """
        return None

    def read_source_as_of(
        self, path: ObjectPath, *, version: str | None = None, timestamp: int | None = None
    ) -> ReadSource:
        """How Spark reads a state that the table had before.

        Parameters
        ----------
        path : ObjectPath
        version : str, optional
            What ``VERSION AS OF`` says: a snapshot, or a name of one.
        timestamp : int, optional
            What ``TIMESTAMP AS OF`` says, in microseconds since the epoch.

        Returns
        -------
        ReadSource
            As :meth:`read_source`.

        Raises
        ------
        TableNotExistError
            It does not exist.
        CatalogError
            It never had, or no longer has, such a state.
        """
        raise AtomicityNotSupportedError(f"Catalog {self.name} has no time travel.", path=path)

    #: Options of a read that have no effect here, in lower case: they say how fast to read, and not what.
    idle_read_options: ClassVar[frozenset[str]] = frozenset()

    def read_source_with(self, path: ObjectPath, options: Mapping[str, str]) -> ReadSource:
        """How Spark reads a table with the options of a read, which Spark itself does not apply here.

        Parameters
        ----------
        path : ObjectPath
        options : mapping of str to str
            Of ``spark.read.option(...).table(...)`` or ``SELECT ... FROM t WITH (...)``, without the idle ones; one
            at least.

        Returns
        -------
        ReadSource
            With the schema of :meth:`read_source`.

        Raises
        ------
        TableNotExistError
            It does not exist.
        CatalogError
            An option that this catalog does not know: none is passed over in silence.
        """
        raise CatalogError(f"There is no option {next(iter(options))} for a read of {path}.", path=path)

    def accepts_any_schema(self, definition: TableDefinition) -> bool:
        """Whether a table takes rows with columns that it does not have; their columns are found by name then.

        Parameters
        ----------
        definition : TableDefinition
            The table's own, from :meth:`load_table`.
        """
        return False

    def column_defaults(self, path: ObjectPath, staged: TwoPhaseCatalogTable | None = None) -> Mapping[str, str]:
        """What an insert writes into columns that it leaves out, or gives the word ``DEFAULT``.

        Parameters
        ----------
        path : ObjectPath
        staged : TwoPhaseCatalogTable, optional
            What the transaction has staged for the table.

        Returns
        -------
        mapping of str to str
            By column, a constant in Spark's SQL; without it Spark takes NULL, where the column has it.
        """
        return {}

    def plan_delete(self, path: ObjectPath, conditions: Sequence[Filter | None]) -> Deletion:
        """Tell which files a ``DELETE FROM ... WHERE`` has to replace; it changes nothing.

        Parameters
        ----------
        path : ObjectPath
        conditions : sequence of Filter or None
            All must hold for a row to be deleted; None for one that only Spark understands.

        Returns
        -------
        Deletion
            The files whose rows have to be written again, and the state of the table of which that is told.

        Raises
        ------
        TableNotExistError
            It does not exist.
        CatalogError
            Rows of this table cannot be deleted.
        """
        raise AtomicityNotSupportedError(f"Catalog {self.name} cannot delete rows.", path=path)

    # -- the two-phase write -------------------------------------------------------------------------------------

    @abstractmethod
    def two_phase_create_table(
        self,
        path: ObjectPath,
        definition: TableDefinition,
        *,
        purpose: Purpose,
        ignore_if_exists: bool = False,
        is_streaming_mode: bool = False,
        context: WriteContext | None = None,
    ) -> TwoPhaseCatalogTable | None:
        """Offer a participant for one statement. It stages nothing yet and changes nothing in the store.

        Parameters
        ----------
        path : ObjectPath
            The target.
        definition : TableDefinition
            Schema and properties: the new table's, or for an insert those of the rows.
        purpose : Purpose
            What the statement does.
        ignore_if_exists : bool
            For the CREATE purposes: an existing table is no error (the caller asks ``table_exists`` first).
        is_streaming_mode : bool
            True for an unbounded query; Hive then answers None, as in FLIP-305.
        context : WriteContext, optional
            Transaction id, ordinal and overwrite scope; made up for a stand-alone use when None.

        Returns
        -------
        TwoPhaseCatalogTable or None
            None where the catalog offers no two-phase write for this. The statement is then refused; under
            ``spark.twophase.atomicity=preferred`` stock Spark runs it, where it can: not for ``name.db.t``, whose
            only way is this catalog.

        Raises
        ------
        TableAlreadyExistsError
            For CREATE_TABLE_AS when the table exists.
        TableNotExistError
            For REPLACE_TABLE_AS and the inserts when it does not.
        DatabaseNotExistError
            The database does not exist.
        CatalogError
            Bad input: a name, a type, a partition column that this store cannot take.
        """

    @abstractmethod
    def restore(self, document: Mapping[str, Any]) -> TwoPhaseCatalogTable:
        """The participant of a document from the timeline, equal to the one that wrote it.

        Parameters
        ----------
        document : mapping
            As :attr:`TwoPhaseCatalogTable.document` was, after JSON.

        Returns
        -------
        TwoPhaseCatalogTable
            Bound to this catalog; the store was not asked and nothing was changed.

        Raises
        ------
        CatalogError
            A newer version wrote it, or it is of another store than this catalog's.
        """

    def group_key(self, participant: TwoPhaseCatalogTable) -> str | None:
        """Participants with the same key (not None) are published by one :meth:`publish_group`.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            One of this catalog's.

        Returns
        -------
        str or None
            None where it is published on its own.
        """
        return None

    def publish_group(self, participants: list[TwoPhaseCatalogTable]) -> None:
        """Publish several participants in one step; the same contract as :meth:`TwoPhaseCatalogTable.commit`.

        Parameters
        ----------
        participants : list of TwoPhaseCatalogTable
            All of one :meth:`group_key`; on a repetition also those that were published before.

        Raises
        ------
        TransactionAborted
            A definite refusal: none was published.
        Exception
            Anything else; the coordinator asks each one's :meth:`~TwoPhaseCatalogTable.outcome`.
        """
        raise NotImplementedError

    def compensate_group(self, participants: list[TwoPhaseCatalogTable]) -> bool:
        """Undo one :meth:`publish_group` in one step; the same contract as :meth:`TwoPhaseCatalogTable.compensate`.

        Parameters
        ----------
        participants : list of TwoPhaseCatalogTable
            All that were published in that step.

        Returns
        -------
        bool
            True when all tables are again as they were before; False where nothing was undone.

        Raises
        ------
        Exception
            It is not known whether it was undone; the coordinator asks each one's
            :meth:`~TwoPhaseCatalogTable.outcome`.
        """
        return False

    @property
    def publish_database(self) -> sa.URL | None:
        """The SQL database of which a publish is one transaction; None where it is none.

        A timeline in the same database gets its row in that transaction, by :meth:`publish_with_record`.
        """
        return None

    def publish_with_record(
        self, participants: list[TwoPhaseCatalogTable], record: Callable[[sa.Connection], None]
    ) -> None:
        """Publish one or several participants in one transaction of :attr:`publish_database`, and record it there.

        The same contract as :meth:`TwoPhaseCatalogTable.commit`. What was published before needs no record.

        Parameters
        ----------
        participants : list of TwoPhaseCatalogTable
            All that the transaction publishes.
        record : callable
            To be called with the connection inside the transaction that publishes; what it throws ends that
            transaction.

        Notes
        -----
        A writer that lost its lease is fenced off in the publish itself, not only before.
        """
        raise NotImplementedError

    # -- housekeeping --------------------------------------------------------------------------------------------

    def residues(self, *, live_transactions: frozenset[str] = frozenset()) -> list[Residue]:
        """What dead transactions left here, and versions past retention; only what carries our stamp.

        Called by ``twophase clean``, and by its ``--dry-run``; it changes nothing.

        Parameters
        ----------
        live_transactions : frozenset of str
            Transactions that must not be touched.

        Returns
        -------
        list of Residue
            Each with its size, its transaction and, where it must stay, the reason.
        """
        return []

    def remove_residue(self, residue: Residue) -> None:
        """Remove one of :meth:`residues`; checks its stamp again. Idempotent.

        Parameters
        ----------
        residue : Residue
            As :meth:`residues` told it, in this process.

        Raises
        ------
        CatalogError
            It could not be removed, or is no longer what it was; nothing else was touched.
        """
        raise NotImplementedError

    def remove_residues(self, residues: Sequence[Residue]) -> list[Exception | None]:
        """Remove several of :meth:`residues`: each as by :meth:`remove_residue`, which this calls where not overridden.

        A catalog whose look at what is still needed takes long can look once for all of them.

        Parameters
        ----------
        residues : sequence of Residue

        Returns
        -------
        list of Exception or None
            For each, in their order, why it is still there; None where it is gone.
        """
        return [self._why_left(residue) for residue in residues]

    def _why_left(self, residue: Residue) -> Exception | None:
        try:
            self.remove_residue(residue)
        except Exception as error:
            return error
        return None

    def table_dropped(self, path: ObjectPath) -> None:
        """The host dropped this table past the catalog: give the place that it held free again. Idempotent.

        Parameters
        ----------
        path : ObjectPath
            The name that it had.
        """

    def table_renamed(self, path: ObjectPath, new_path: ObjectPath) -> None:
        """The host renamed this table past the catalog: make sure that it finds the files. Idempotent.

        Parameters
        ----------
        path : ObjectPath
            The name that it had.
        new_path : ObjectPath
            The name that it has.
        """

    def partitions_sought(self, path: ObjectPath) -> None:
        """Somebody is about to look below a table's directory for partitions: what was replaced must not be found.

        Called before the host runs ``ADD PARTITION``, ``MSCK REPAIR TABLE``, ``RECOVER PARTITIONS`` or a rename of a
        partition past the catalog. Idempotent.

        Parameters
        ----------
        path : ObjectPath

        Raises
        ------
        CatalogError
            It cannot be removed; the host's statement does not run.
        """

    def moves_files(self, path: ObjectPath) -> bool:
        """Whether a write of this table puts its files elsewhere: whoever reads it by their place loses it then.

        Parameters
        ----------
        path : ObjectPath
        """
        return False

    def has_moved_files(self, path: ObjectPath) -> bool:
        """Whether earlier writes have put files of this table elsewhere already.

        Parameters
        ----------
        path : ObjectPath
        """
        return False

    def check(self) -> list[str]:
        """Problems that ``twophase doctor`` should tell.

        Returns
        -------
        list of str
            Each a sentence with what to do; empty when all is well. No secrets.
        """
        return []

    def close(self) -> None:
        """Release connections. Idempotent."""
