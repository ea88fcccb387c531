"""The rules on Spark's plans (``java/Routing.java``): compiled once per JVM, installed in each attached session."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from twophase.spark.jvm import values
from twophase.spark.jvm.gateway import Jvm, private_name
from twophase.spark.jvm.java_sources import java_object

#: Local property that passes a statement to Spark unchanged.
_OFF = "twophase.routing.off"


class PlanRules:
    """The rules of one session.

    Parameters
    ----------
    jvm : Jvm
    decider : object
        A Python ``java.util.function.BiFunction`` that answers the rules' questions, and receives an INSERT's rows.
    catalogs : collection of str
        Names of the twophase catalogs of the session.
    session_catalog : str or None
        Name of the catalog that serves unprefixed names.
    providers : collection of str
        The formats that the session catalog writes.
    reads_paths_by_name : bool
        Whether files that are read by their path are read without field ids, as before the session was attached.
    """

    def __init__(
        self,
        jvm: Jvm,
        decider: Any,
        catalogs: Collection[str],
        session_catalog: str | None,
        providers: Collection[str],
        *,
        reads_paths_by_name: bool,
    ) -> None:
        self._jvm = jvm
        lists = (values.from_json(jvm, "java.util.ArrayList", sorted(names)) for names in (catalogs, providers))
        first, second = lists
        with private_name("Analyzer.extendedResolutionRules", jvm.spark):
            maker = java_object(jvm, "Routing$Maker")
            self._rules = maker.install(decider, jvm.session, first, session_catalog, second, reads_paths_by_name)
        self._tables = self._rules.tables()
        self._filters = java_object(jvm, "FormerNames")
        self._filters.install(jvm.session.experimental())

    def uninstall(self) -> None:
        """Remove the rules."""
        self._filters.uninstall(self._jvm.session.experimental())
        self._rules.uninstall()

    def stage(self, transaction_id: str, database: str, name: str) -> None:
        """Let statements of a transaction read the staged version of a session catalog table."""
        self._tables.stage(transaction_id, database, name)

    def unstage(self, transaction_id: str, database: str, name: str) -> None:
        """Let them read the published version again: the transaction was rolled back to a savepoint."""
        self._tables.unstage(transaction_id, database, name)

    def pin(self, transaction_id: str, *, reads_snapshot: bool) -> None:
        """Ask for each table that a statement of a block reads, and for its files if the block reads one snapshot."""
        self._tables.pin(transaction_id, reads_snapshot)

    def end(self, transaction_id: str) -> None:
        """Drop what is known of a transaction that has ended."""
        self._tables.end(transaction_id)

    def analyze_routed(self, since: float) -> bool:
        """Analyse again, without the rules, the last routed statement of this thread.

        Parameters
        ----------
        since : float
            When the statement began, in seconds of Unix time: an earlier one is none of its.

        Returns
        -------
        bool
            Whether there was such a statement.

        Raises
        ------
        pyspark.errors.PySparkException
            Spark's own error for it.
        """
        return bool(self._rules.analyzeRouted(int(since * 1000)))

    def is_bypassed(self) -> bool:
        """Return whether Spark may use its experimental single-pass resolver, which ignores the rules of extensions."""
        return bool(self._rules.isSinglePass())

    def off(self) -> AbstractContextManager[None]:
        """Pass the statements of this thread to Spark unchanged."""
        return off(self._jvm)


@contextmanager
def off(jvm: Jvm) -> Iterator[None]:
    """Pass the statements of this thread to Spark unchanged."""
    context = jvm.spark.sparkContext
    before = context.getLocalProperty(_OFF)
    context.setLocalProperty(_OFF, "true")
    try:
        yield
    finally:
        context.setLocalProperty(_OFF, before)
