"""Inside a transaction: statements read what earlier statements of it staged.

A staged table is not in the session catalog yet, or is there in its published state. Its name, wherever a statement
reads it, is replaced by the full name in the twophase catalog, which answers with the staged state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from twophase.catalog import TwoPhaseCatalogTable
from twophase.spark.jvm.statements import ReadNode, StatementReader
from twophase.spark.routing.rewrite import Rewritten, Untellable
from twophase.spark.routing.targets import Target, Targets, quoted
from twophase.spark.routing.tokens import leading_words, splice

if TYPE_CHECKING:
    from twophase.spark.session import Handle

#: Their text is kept in the catalog and read again after the transaction.
_KEPT = re.compile(r"\s*create\s+(or\s+replace\s+)?view\b", re.IGNORECASE)
#: Database and name of a table, in lower case.
Key = tuple[str, str]
_READ_NOTHING = (("SET",), ("RESET",), ("USE",), ("SHOW",), ("DROP",))


class StagedReads:
    """Rewrites the reads of one attached session's statements."""

    def __init__(self, reader: StatementReader, targets: Targets, handle: Handle) -> None:
        self._reader = reader
        self._targets = targets
        self._handle = handle

    def rewrite(self, statement: Rewritten) -> Rewritten:
        """The statement with each staged table that it reads under its full name.

        Raises
        ------
        Untellable
            Where a table that it reads cannot be told.
        """
        staged = self._staged() | self._keys(statement.written)
        if not staged or not _may_read(statement.text) or _KEPT.match(statement.text):
            return statement
        plan = self._reader.parse(statement.text)
        if plan is None:
            return self._unparsed(statement)
        nodes = self._reader.reads(plan)
        if nodes is None:
            raise Untellable("the table behind an IDENTIFIER(...) that it reads cannot be told from its text")
        for parts in {node.parts for node in nodes}:
            self._refuse_stale(parts, staged)
        # A node may be reached on two ways, for instance in a script.
        edits = list({(node.start, node.stop, target.name) for node in nodes if (target := self._target(node, staged))})
        return replace(statement, text=splice(statement.text, edits)) if edits else statement

    def refuse_stale(self, parts: tuple[str, ...]) -> None:
        """Refuse a view that would show a staged table as it was before the transaction.

        Raises
        ------
        Untellable
        """
        self._refuse_stale(parts, self._staged())

    def _refuse_stale(self, parts: tuple[str, ...], staged: set[Key]) -> None:
        if not staged or not self._targets.is_view(parts):
            return
        for database, name in sorted(staged & self._reader.tables_behind(quoted(parts))):
            raise Untellable(
                f"view {'.'.join(parts)} would show {database}.{name} without what this transaction has written",
                hint=f"Read {name} itself",
            )

    def _unparsed(self, statement: Rewritten) -> Rewritten:
        """Either Spark refuses the text, or parameters stand where only the text with them put in can be parsed."""
        if statement.args and self._reader.parse(statement.text, statement.args) is not None:
            raise Untellable("its parameters stand where the tables that it reads cannot be told any more")
        return statement

    def _staged(self) -> set[Key]:
        transaction = self._handle.current_transaction()
        return self._keys(transaction.participants) if transaction else set()

    def _keys(self, written: Iterable[Target | TwoPhaseCatalogTable]) -> set[Key]:
        """Database and name of those tables that the session catalog has too."""
        catalog = self._targets.session_catalog
        return {(t.path.database.lower(), t.path.name.lower()) for t in written if t.catalog is catalog}

    def _target(self, node: ReadNode, staged: set[Key]) -> Target | None:
        target = self._targets.resolve(node.parts, views=True)
        if target is None or not target.spliced:
            return None
        return target if (target.path.database.lower(), target.path.name.lower()) in staged else None


def _may_read(text: str) -> bool:
    """A look at the text alone: some statements never read a table."""
    return bool(leading_words(text, 1) or "(" in text) and leading_words(text, 1) not in _READ_NOTHING
