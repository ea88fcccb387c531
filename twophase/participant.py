"""The participant: one table inside one transaction, staged, then committed or aborted.

The other half of the service-provider interface, beside :mod:`twophase.catalog`, from where its name is imported too.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from twophase.errors import CatalogError
from twophase.model import Level, ObjectPath, Outcome, Purpose
from twophase.reading import ReadSource

if TYPE_CHECKING:
    from twophase.catalog import Catalog

__all__ = ["TwoPhaseCatalogTable"]


class TwoPhaseCatalogTable(ABC):
    """One participant: a table (or the rows of an insert) that is staged, then committed or aborted.

    The whole state is :attr:`document`, a plain JSON document that names no connection and no secret. It is
    written to the timeline before :meth:`begin`, and whenever a method changed it, so that a fresh process can
    carry on: ``catalog.restore(document)`` gives an equal participant. What :meth:`prepare` changes is written
    together with the decision: an :meth:`abort` before it has the document as it was before :meth:`prepare`, as
    after a death in the middle of it. Pickling keeps the document only; :meth:`bind` gives an unpickled
    participant its catalog back.

    Order of calls: ``begin`` → ``write`` → ``prepare`` → ``persist`` → ``commit`` → ``finish``, or ``abort`` at any
    moment before something was published. Each method but ``write`` is idempotent: recovery may repeat it, may itself
    be killed in the middle, and may run twice at once in two processes.

    Parameters
    ----------
    catalog : Catalog
        The live catalog that it belongs to; never a part of its state.
    document : mapping
        Its state; at least ``path``, ``purpose`` and ``transaction_id``. It is copied.

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
        """Give an unpickled participant its catalog back, and return it.

        Parameters
        ----------
        catalog : Catalog
            One over the same store as the catalog that made it.
        """
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

        Called by the coordinator when the table is reserved, at the end of the transaction. Inside a block of several
        statements it is also called when the query has finished, with nothing reserved: what a later statement reads or
        builds on is then made, and what cannot be published is told early. Idempotent, and not to be trusted a second
        time: others may have published meanwhile. An append goes on top of what they did, everything else whose
        target moved is refused. It sets :attr:`level`.

        Raises
        ------
        WriteConflictError
            The target is no longer what it was at ``begin``; ``TableAlreadyExistsError`` where it was free then.
        CatalogError
            Anything else that would make the publish fail. The transaction is rolled back.
        """

    def persist(self) -> None:
        """Make what is staged survive a power cut: called once all is prepared, right before the decision is recorded.

        Nothing by default: what a database has stored in a transaction needs nothing more. A store of files syncs them,
        and the directories that lead to them, unless :attr:`Environment.fsync <twophase.catalog.Environment.fsync>`
        is False. What :meth:`commit` makes has to be durable when it returns.

        Raises
        ------
        Exception
            The disk did not take it: the transaction is rolled back.
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
            True when the table is again as it was before; False where that cannot be done: in doubt, too. A
            later :meth:`commit`, by a recovery that could not undo the others, publishes it again wholly, or refuses.

        Raises
        ------
        Exception
            It is not known whether it was undone: the coordinator asks :meth:`outcome`, and unless that answers
            ``NOT_PUBLISHED``, the transaction is in doubt.
        """
        return False

    # -- what is reserved ----------------------------------------------------------------------------------------

    @property
    def shares_appends(self) -> bool:
        """Whether other appends may be published between the last ``prepare`` and ``commit``.

        By default so for an INSERT INTO. A catalog whose publish of one goes wrong, or is refused, where another append
        came in between says False: then nobody else publishes to the table meanwhile.
        """
        return self.purpose is Purpose.INSERT_INTO

    def reservation_scope(self) -> frozenset[str] | None:
        """Which partitions the publish changes: two writes whose scopes do not meet need not wait for each other.

        Asked when all is written, before the ``prepare`` at the end of the transaction.

        Returns
        -------
        frozenset of str or None
            Any texts that tell the partitions of this table apart, the same in each process; None for the whole table.
        """
        return None

    @property
    def can_undo(self) -> bool:
        """Whether :meth:`compensate` can undo the publish while nobody changes the table (valid after :meth:`prepare`).

        What cannot be undone is published last. Where its document says nothing of it, the catalog's capability counts.
        """
        return bool(self.document.get("can_undo", self.catalog.capabilities.compensate))

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
