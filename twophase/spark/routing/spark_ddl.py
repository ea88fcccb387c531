"""Spark's own DROP TABLE, RENAME and search for partitions, which know nothing of where twophase puts files.

They run as they are; the table's catalog is told before or after, so that what it keeps beside the table fits again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from twophase.model import ObjectPath
from twophase.redaction import logger
from twophase.spark.routing.ddl import dropped_tables, renamed_table
from twophase.spark.routing.targets import Target, Targets

if TYPE_CHECKING:
    from twophase.catalog import Catalog

log = logger("twophase.spark")


class SparkDdl:
    """Tells the catalogs of one attached session what Spark itself does to their tables.

    Parameters
    ----------
    targets : Targets
    """

    def __init__(self, targets: Targets) -> None:
        self._targets = targets

    def partitions_sought(self, tables: Iterable[tuple[str, ...]]) -> None:
        """Before Spark looks below a table's directory for partitions: what was replaced must not be found there."""
        for names in tables:
            target = self._targets.resolve(names, views=True)
            if target is not None and target.spliced and self._targets.existing(target) is not None:
                target.catalog.partitions_sought(target.path)

    def dropping(
        self, run: Callable[[], Any], tables: Iterable[tuple[str, ...]], catalog: Catalog | None = None
    ) -> Any:
        """After a DROP TABLE the place that the table held is free again for a plain CREATE TABLE.

        Parameters
        ----------
        run : callable
        tables : iterable of tuple of str
            The names of those that may be dropped.
        catalog : Catalog, optional
            Where others may be dropped, too.
        """
        resolved = (self._targets.resolve(names, views=True) for names in tables)
        targets = [target for target in resolved if target and target.spliced]
        before = _tables_of(catalog) if catalog else set()
        result = run()
        if catalog:  # names that only Spark knows
            gone = sorted(before - _tables_of(catalog))
            targets += [target for path in gone if (target := self._targets.in_session(path))]
        for target in targets:
            if self._targets.existing(target) is None:
                self._table_dropped(target)
        return result

    def dropping_said(self, run: Callable[[], Any], text: str) -> Any:
        """The same for what a text says, a script's too."""
        lower = text.lower()
        hides = "identifier" in lower and "rename" not in lower
        return self.dropping(run, dropped_tables(text), self._targets.session_catalog if hides else None)

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
        """Names that only Spark knows, by ``IDENTIFIER`` or in a script: who has a name that was not there before?"""
        catalog = self._targets.session_catalog
        if catalog is None:
            return run()
        before = _tables_of(catalog)
        try:
            return run()
        finally:  # of a script a part may have run
            self._find_again(catalog, before)

    def _find_again(self, catalog: Catalog, before: set[ObjectPath]) -> None:
        try:
            for path in sorted(_tables_of(catalog) - before):
                catalog.table_renamed(path, path)
        except Exception:  # the statement's own outcome counts; `twophase doctor` tells of the rest
            log.warning("A table that was renamed could not be led back to its files.", exc_info=True)


def _tables_of(catalog: Catalog) -> set[ObjectPath]:
    """All names of a catalog, of views too."""
    databases = catalog.list_databases()
    return {ObjectPath.of(database, name) for database in databases for name in catalog.list_tables(database)}
