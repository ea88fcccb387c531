"""Spark's own DROP TABLE, RENAME and search for partitions, which know nothing of where twophase puts files.

They run as they are; the table's catalog is told before or after, so that what it keeps beside the table fits again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from twophase.model import ObjectPath
from twophase.redaction import logger
from twophase.spark.jvm.bridge import Jvm
from twophase.spark.jvm.table_events import TableEvents, table_events
from twophase.spark.routing.ddl import dropped_tables, renamed_table
from twophase.spark.routing.targets import Target, Targets

log = logger("twophase.spark")


class SparkDdl:
    """Tells the catalogs of one attached session what Spark itself does to their tables.

    Parameters
    ----------
    targets : Targets
    jvm : Jvm
    """

    def __init__(self, targets: Targets, jvm: Jvm) -> None:
        self._targets = targets
        self._jvm = jvm

    def partitions_sought(self, tables: Iterable[tuple[str, ...]]) -> None:
        """Before Spark looks below a table's directory for partitions: what was replaced must not be found there."""
        for names in tables:
            target = self._targets.resolve(names, views=True)
            if target is not None and target.spliced and self._targets.existing(target) is not None:
                target.catalog.partitions_sought(target.path)

    def dropping(self, run: Callable[[], Any], tables: Iterable[tuple[str, ...]], *, hides: bool = False) -> Any:
        """After a DROP TABLE the place that the table held is free again for a plain CREATE TABLE.

        Parameters
        ----------
        run : callable
        tables : iterable of tuple of str
            The names of those that may be dropped.
        hides : bool
            Whether others may be dropped, too, whose names only Spark knows.
        """
        resolved = (self._targets.resolve(names, views=True) for names in tables)
        targets = [target for target in resolved if target and target.spliced]
        with self._events(hides) as events:
            result = run()
        named = [self._targets.in_session(ObjectPath.of(*names)) for names in events.dropped]
        for target in [*targets, *filter(None, named)]:
            if self._targets.existing(target) is None:
                self._table_dropped(target)
        return result

    def dropping_said(self, run: Callable[[], Any], text: str) -> Any:
        """The same for what a text says, a script's too."""
        lower = text.lower()
        return self.dropping(run, dropped_tables(text), hides="identifier" in lower and "rename" not in lower)

    def _events(self, wanted: bool) -> AbstractContextManager[TableEvents]:
        if wanted and self._targets.session_catalog is not None:
            return table_events(self._jvm)
        return nullcontext(TableEvents())

    def _table_dropped(self, target: Target) -> None:
        try:
            target.catalog.table_dropped(target.path)
        except Exception:  # the table is gone; what it leaves is for `twophase clean`
            log.warning("What dropped table %s leaves could not be tidied up.", target.path, exc_info=True)

    def renaming(self, run: Callable[[], Any], text: str) -> Any:
        """Spark's own rename supposes that a managed table's files are at its default location."""
        names = renamed_table(text)
        if names is None:
            return self._renaming_some(run)
        old = self._targets.resolve(names[0], views=True)
        result = run()
        if old is not None and old.spliced:
            new = ObjectPath(old.path.namespace, names[1][-1])
            old.catalog.table_renamed(old.path, new)
        return result

    def _renaming_some(self, run: Callable[[], Any]) -> Any:
        """Names that only Spark knows, by ``IDENTIFIER`` or in a script."""
        with self._events(wanted=True) as events:
            try:
                return run()
            finally:  # of a script a part may have run
                self._find_again(events)

    def _find_again(self, events: TableEvents) -> None:
        catalog = self._targets.session_catalog
        try:
            for database, old, new in events.renamed:
                assert catalog is not None  # or nothing was listened to
                catalog.table_renamed(ObjectPath.of(database, old), ObjectPath.of(database, new))
        except Exception:  # the statement's own outcome counts; `twophase doctor` tells of the rest
            log.warning("A table that was renamed could not be led back to its files.", exc_info=True)
