"""The service-provider interface: what a catalog offers and what a participant promises.

The shape is that of Flink's FLIP-305 (``Catalog.twoPhaseCreateTable`` and ``TwoPhaseCatalogTable``); the
*purpose* comes from what Flink shipped later, the rest from what Spark's staged tables need. This module
knows no store, no Spark and no JVM: a plugin author needs nothing else (and :mod:`twophase.testing`).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from twophase.errors import AtomicityNotSupportedError, CatalogError
from twophase.model import (
    Capabilities,
    Level,
    ObjectPath,
    Outcome,
    Purpose,
    TableDefinition,
    WriteContext,
)
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
    """

    kind: str
    location: str
    size: int
    transaction_id: str
    since: float
    kept: str | None = None
    holds_rows: bool = False


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
    conf : mapping of str to str
        The session's Spark SQL configuration, read only.
    """

    session_metastore: Any = None
    table_writer: Any = None
    partition_runner: Any = None
    parquet_writer: Any = None
    warehouse: str = ""
    retention: float = 86_400.0
    conf: Mapping[str, str] = {}

    def executor_problems(self, modules: Sequence[str]) -> list[str]:
        """Which of these modules the executors cannot import, in words with what to do; for :meth:`Catalog.check`."""
        return []


class TwoPhaseCatalogTable(ABC):
    """One participant: a table (or the rows of an insert) that is staged, then committed or aborted.

    The whole state is :attr:`document`, a plain JSON document that names no connection and no secret. It is
    written to the timeline before :meth:`begin`, and whenever a method changed it, so that a fresh process can
    carry on: ``catalog.restore(document)`` gives an equal participant. What :meth:`prepare` changes is written
    together with the decision: an :meth:`abort` before it has the document as it was before :meth:`prepare`, as
    after a death in the middle of it. Pickling keeps the document only; :meth:`bind` gives an unpickled
    participant its catalog back.

    Order of calls: ``begin`` → ``write`` → ``prepare`` → ``commit`` → ``finish``, or ``abort`` at any moment
    before something was published. Each method but ``write`` is idempotent: recovery may repeat it, may itself be
    killed in the middle, and may run twice at once in two processes.

    Notes
    -----
    Source of the idea: ``TwoPhaseCatalogTable{beginTransaction, commit, abort}`` of FLIP-305.
    """

    def __init__(self, catalog: Catalog, document: Mapping[str, Any]) -> None:
        self._catalog: Catalog | None = catalog
        self.document: dict[str, Any] = copy.deepcopy(dict(document))

    # -- identity ------------------------------------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog:
        """The live catalog behind this participant.

        Raises
        ------
        CatalogError
            The participant was unpickled and not yet bound.
        """
        if self._catalog is None:
            raise CatalogError(
                f"The participant for {self.path} is not bound to a catalog: call bind(catalog) first.", path=self.path
            )
        return self._catalog

    @property
    def path(self) -> ObjectPath:
        """The table that this participant writes."""
        return ObjectPath.from_document(self.document["path"])

    @property
    def purpose(self) -> Purpose:
        """What the statement does to the table."""
        return Purpose(self.document["purpose"])

    @property
    def transaction_id(self) -> str:
        """The transaction; each thing that is staged or published carries it as its owner stamp."""
        return str(self.document["transaction_id"])

    def bind(self, catalog: Catalog) -> TwoPhaseCatalogTable:
        """Give an unpickled participant its catalog back, and return it."""
        self._catalog = catalog
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"document": copy.deepcopy(self.document)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._catalog = None
        self.document = copy.deepcopy(dict(state["document"]))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.purpose.name} {self.path} of {self.transaction_id}>"

    # -- the contract --------------------------------------------------------------------------------------------

    @abstractmethod
    def begin(self) -> None:
        """Make the staging area. Called by the coordinator after the document is on the timeline; idempotent.

        Raises
        ------
        CatalogError
            The staging area cannot be made, or the target is not free (``TableAlreadyExistsError``, a foreign
            directory): nothing may be left.
        """

    @abstractmethod
    def write(self, df: Any) -> None:
        """Write the rows of ``df`` to the staging area, with Spark's executors. Called once, on the statement's thread.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
            The query's rows; the column order is that of the definition. The driver must never collect it.

        Raises
        ------
        Exception
            The user's own Spark error, unchanged.
        """

    @abstractmethod
    def prepare(self) -> None:
        """Validate everything that can be validated before the decision: after this, ``commit`` is expected to work.

        Called by the coordinator when the query has finished, once more where that was interrupted; idempotent. It sets
        :attr:`level`.

        Raises
        ------
        WriteConflictError
            The target is no longer what it was at ``begin``; ``TableAlreadyExistsError`` where it was free then.
        CatalogError
            Anything else that would make the publish fail. The transaction is rolled back.
        """

    @abstractmethod
    def commit(self) -> None:
        """Publish. Called by the coordinator only after the decision is durable, and again by recovery; idempotent.

        Any exception means that the outcome is **unknown** until :meth:`outcome` was asked: an implementation never
        cleans up in here. A target already published by this transaction is success.

        Raises
        ------
        TransactionAborted
            A definite refusal; :meth:`outcome` then answers ``NOT_PUBLISHED``.
        Exception
            Anything else; the coordinator asks :meth:`outcome`.
        """

    @abstractmethod
    def outcome(self) -> Outcome:
        """Ask the store whether this participant was published, by the transaction's owner stamp.

        Called by the coordinator after each :meth:`commit` that raised, a few times while the answer is ``UNKNOWN``,
        and by recovery before it decides; at any time, also long after the publish. It changes nothing.

        Returns
        -------
        Outcome
            ``PUBLISHED``, ``NOT_PUBLISHED`` or ``UNKNOWN``; ``UNKNOWN`` where the store cannot be reached.
            It never raises for a store that cannot be reached; what it raises all the same counts as ``UNKNOWN``. While
            nothing but that is answered, nobody publishes, removes or undoes anything: the transaction is in doubt.
        """

    @abstractmethod
    def abort(self) -> None:
        """Remove what this participant staged, and nothing else. Idempotent.

        Called when the participant was not published (the coordinator has made sure). Spark calls its own abort even
        when commit threw: an implementation must not remove anything that a published table refers to. Recovery calls
        it again, in another process, as long as it raises.

        Raises
        ------
        Exception
            Something could not be removed, or may not be while the store does not answer. That changes no outcome:
            what :meth:`left_behind` names is recorded on the timeline, told to the user, and tried again by
            ``twophase clean``.
        """

    def finish(self) -> None:
        """Tidy up after the publish (mark replaced versions for retention, drop helper objects). Idempotent.

        A failure in here changes no outcome; it is recorded on the timeline as left behind.
        """

    def compensate(self) -> bool:
        """Undo a publish, where the published pointer is unchanged since; used when a later participant is refused.

        Called by the coordinator and by recovery, more than once where it was cut off; idempotent.

        Returns
        -------
        bool
            True when the table is again as it was before; False where that cannot be done: in doubt, too.

        Raises
        ------
        Exception
            It is not known whether it was undone: the coordinator asks :meth:`outcome`, and unless that answers
            ``NOT_PUBLISHED``, the transaction is in doubt.
        """
        return False

    @property
    def level(self) -> Level:
        """What the publish of this participant guarantees (valid after :meth:`prepare`)."""
        return Level(self.document.get("level", Level.ATOMIC))

    @property
    def level_reason(self) -> str | None:
        """Why the level is below 3, in words for the user; None at level 3."""
        return self.document.get("level_reason")

    def read_source(self) -> ReadSource | None:
        """How a later statement of the same transaction reads what this one staged; None where it cannot."""
        return None

    def left_behind(self) -> list[str]:
        """What would remain if the process died now: paths and tables, for error messages."""
        return []


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
        """Names of all databases, sorted."""

    @abstractmethod
    def database_exists(self, database: str) -> bool:
        """Whether the database exists."""

    @abstractmethod
    def create_database(
        self, database: str, *, ignore_if_exists: bool = False, properties: Mapping[str, str] | None = None
    ) -> None:
        """Create a database.

        Raises
        ------
        DatabaseAlreadyExistsError
            It exists and ``ignore_if_exists`` is False.
        """

    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        """Set properties of a database (``comment`` among them), and remove those that are None; all or none.

        Raises
        ------
        DatabaseNotExistError
        CatalogError
            Not possible here; nothing was changed.
        """
        raise AtomicityNotSupportedError(f"Catalog {self.name} cannot alter databases.", path=database)

    @abstractmethod
    def drop_database(self, database: str, *, ignore_if_not_exists: bool = False, cascade: bool = False) -> None:
        """Drop a database.

        Raises
        ------
        DatabaseNotExistError
            It does not exist and ``ignore_if_not_exists`` is False.
        CatalogError
            It is not empty and ``cascade`` is False.
        """

    def load_database(self, database: str) -> dict[str, str]:
        """Properties of a database (``comment``, ``location``, ...).

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
        """
        return path

    @abstractmethod
    def list_tables(self, database: str) -> list[str]:
        """Names of the tables of a database, sorted; never a staging table.

        Raises
        ------
        DatabaseNotExistError
            The database does not exist.
        """

    @abstractmethod
    def table_exists(self, path: ObjectPath) -> bool:
        """Whether the table exists and is published."""

    @abstractmethod
    def load_table(self, path: ObjectPath) -> TableDefinition:
        """The definition of a published table.

        Raises
        ------
        TableNotExistError
            It does not exist.
        """

    @abstractmethod
    def create_table(self, path: ObjectPath, definition: TableDefinition, *, ignore_if_exists: bool = False) -> None:
        """Create an empty table.

        Raises
        ------
        TableAlreadyExistsError
            It exists and ``ignore_if_exists`` is False.
        DatabaseNotExistError
            Its database does not exist.
        """

    @abstractmethod
    def drop_table(self, path: ObjectPath, *, ignore_if_not_exists: bool = False, purge: bool = False) -> None:
        """Drop a table.

        Raises
        ------
        TableNotExistError
            It does not exist and ``ignore_if_not_exists`` is False.
        """

    def rename_table(self, path: ObjectPath, new_path: ObjectPath) -> None:
        """Rename a table within the catalog.

        Raises
        ------
        TableNotExistError, TableAlreadyExistsError
        AtomicityNotSupportedError
            The capability ``rename_table`` is not declared.
        """
        raise AtomicityNotSupportedError(f"Catalog {self.name} cannot rename tables.", path=path)

    def alter_table(self, path: ObjectPath, changes: Iterable[TableChange]) -> None:
        """Apply changes to a table, all or none.

        Raises
        ------
        TableNotExistError
        CatalogError
            A change is not possible here; none was made.
        """
        raise AtomicityNotSupportedError(f"Catalog {self.name} cannot alter tables.", path=path)

    def read_source(self, path: ObjectPath) -> ReadSource:
        """How Spark reads the published table.

        Raises
        ------
        TableNotExistError
            It does not exist.
        """
        raise AtomicityNotSupportedError(f"Catalog {self.name} offers no reads through Spark.", path=path)

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

        Raises
        ------
        TableNotExistError
            It does not exist.
        CatalogError
            It never had, or no longer has, such a state.
        """
        raise AtomicityNotSupportedError(f"Catalog {self.name} has no time travel.", path=path)

    def accepts_any_schema(self, definition: TableDefinition) -> bool:
        """Whether a table takes rows with columns that it does not have; their columns are found by name then."""
        return False

    def plan_delete(self, path: ObjectPath, conditions: Sequence[Filter | None]) -> Deletion:
        """Tell which files a ``DELETE FROM ... WHERE`` has to replace; it changes nothing.

        Parameters
        ----------
        path : ObjectPath
        conditions : sequence of Filter or None
            All must hold for a row to be deleted; None for one that only Spark understands.

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

        Raises
        ------
        CatalogError
            A newer version wrote it, or it is of another store than this catalog's.
        """

    def group_key(self, participant: TwoPhaseCatalogTable) -> str | None:
        """Participants with the same key (not None) are published by one :meth:`publish_group`."""
        return None

    def publish_group(self, participants: list[TwoPhaseCatalogTable]) -> None:
        """Publish several participants in one step; the same contract as :meth:`TwoPhaseCatalogTable.commit`."""
        raise NotImplementedError

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

        Parameters
        ----------
        live_transactions : frozenset of str
            Transactions that must not be touched.
        """
        return []

    def remove_residue(self, residue: Residue) -> None:
        """Remove one of :meth:`residues`; checks its stamp again. Idempotent."""
        raise NotImplementedError

    def table_dropped(self, path: ObjectPath) -> None:
        """The host dropped this table past the catalog: give the place that it held free again. Idempotent."""

    def table_renamed(self, path: ObjectPath, new_path: ObjectPath) -> None:
        """The host renamed this table past the catalog: make sure that it finds the files. Idempotent."""

    def check(self) -> list[str]:
        """Problems that ``twophase doctor`` should tell: each a sentence with what to do. Empty when all is well."""
        return []

    def close(self) -> None:
        """Release connections. Idempotent."""
