"""Inside a transaction: statements read what earlier statements of it staged.

A staged table is not in the session catalog yet, or is there in its published state. Its name, wherever a statement
reads it, is replaced by the full name in the twophase catalog, which answers with the staged state. What would read the
published state past that, a view or a function, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from twophase.catalog import TwoPhaseCatalogTable
from twophase.model import quote
from twophase.spark.jvm.functions import FunctionReader
from twophase.spark.jvm.statements import ReadNode, StatementReader
from twophase.spark.routing.rewrite import Args, Rewritten, Untellable
from twophase.spark.routing.scripts import says_use
from twophase.spark.routing.targets import SESSION_CATALOG, Target, Targets, quoted
from twophase.spark.routing.tokens import called_names, leading_words, splice, tokens

if TYPE_CHECKING:
    from twophase.spark.session import Handle

#: Database and name of a table, in lower case.
Key = tuple[str, str]
_READ_NOTHING = (("RESET",), ("USE",), ("DROP",))
_VARIABLE = ("VAR", "VARIABLE")
#: What these tell of a table the catalog of the staged one cannot tell.
_ABOUT_PUBLISHED = (("SHOW", "PARTITIONS"), ("ANALYZE", "TABLE"))


class StagedReads:
    """Rewrites the reads of one attached session's statements.

    Parameters
    ----------
    reader : StatementReader
    targets : Targets
    handle : Handle
    plain_names : callable
        Puts plain names into a text in the place of each ``IDENTIFIER(...)``.
    """

    def __init__(
        self,
        reader: StatementReader,
        targets: Targets,
        handle: Handle,
        plain_names: Callable[[str, Args], tuple[str, Args]],
    ) -> None:
        self._reader = reader
        self._targets = targets
        self._handle = handle
        self._plain_names = plain_names
        self._functions = FunctionReader(handle.jvm)

    def rewrite(self, statement: Rewritten) -> Rewritten:
        """The statement with each staged table that it reads under its full name.

        Raises
        ------
        Untellable
            Where a table that it reads cannot be told.
        """
        staged = self._staged() | self._keys(statement.written)
        if not staged or not _may_read(statement.text):
            return statement
        plan = self._reader.parse(statement.text)
        if plan is None:
            return self._unparsed(statement)
        nodes = self._reader.reads(plan)
        if nodes is None:
            statement, nodes = self._named(statement)
        if statement.says_use or _says_use(statement.text):
            _refuse_unsure(nodes, staged)
        self._refuse_functions(statement.text, staged, frozenset())
        for parts in {node.parts for node in nodes if node.use == "rows"}:
            self._refuse_stale(parts, staged)
        # A node may be reached on two ways, for instance in a script.
        edits = {edit for node in nodes if (edit := self._edit(node, staged, statement.text))}
        edits |= self._columns(statement.text, staged) if edits else set()
        return replace(statement, text=splice(statement.text, list(edits))) if edits else statement

    def _named(self, statement: Rewritten) -> tuple[Rewritten, list[ReadNode]]:
        """A statement that reads a table by an ``IDENTIFIER(...)``, with plain names in it."""
        text, args = self._plain_names(statement.text, statement.args)
        plan = self._reader.parse(text)
        nodes = self._reader.reads(plan) if plan is not None else None
        if nodes is None:
            raise Untellable("the table behind an IDENTIFIER(...) that it reads cannot be told from its text")
        return replace(statement, text=text, args=args), nodes

    def _edit(self, node: ReadNode, staged: set[Key], text: str) -> tuple[int, int, str] | None:
        target = self._target(node, staged)
        if target is None:
            return None
        if node.use == "kept":
            self._refuse_kept(target)
            return None
        if leading_words(text, 2) in _ABOUT_PUBLISHED:
            raise Untellable(
                f"it would tell of {target.path} without what this transaction has written",
                hint="Run it after the transaction",
            )
        # In SHOW COLUMNS the database may stand behind the name.
        if self._reader.parse_name(text[node.start : node.stop]) != node.parts:
            raise Untellable(f"where {quoted(node.parts)} stands in its text cannot be told")
        return node.start, node.stop, target.name

    def _columns(self, text: str, staged: set[Key]) -> set[tuple[int, int, str]]:
        """Columns under the full name of their table: it stands in another catalog now."""
        stream = list(tokens(text))
        edits = set()
        for index, token in enumerate(stream[:-6]):
            names, dots = stream[index : index + 6 : 2], stream[index + 1 : index + 6 : 2]
            is_column = token.name.lower() == SESSION_CATALOG and all(dot.text == "." for dot in dots)
            if is_column and (names[1].name.lower(), names[2].name.lower()) in staged:
                edits.add((token.start, token.stop, quote(str(self._handle.session_catalog))))
        return edits

    def _refuse_kept(self, target: Target) -> None:
        """Refuse a view that Spark would make of the columns of a table as it was, or cannot make yet."""
        if self._targets.staged_definition(target) is None or self._targets.redefined(target) is not None:
            raise Untellable(
                f"a view is made of published tables, and {target.path} is made by this transaction",
                hint="Make it after the transaction, or make a TEMPORARY VIEW",
            )

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
        for table in sorted(staged & self._reader.tables_behind(quoted(parts))):
            raise _stale(f"view {'.'.join(parts)}", table)

    def _refuse_functions(self, text: str, staged: set[Key], passed: frozenset[tuple[str, ...]]) -> None:
        """Refuse a function of SQL text that reads a staged table, itself or by a view or another one."""
        for parts in called_names(list(tokens(text))):
            body = None if parts in passed else self._functions.body(parts)
            if body is None:
                continue
            for node in self._read_by(body):
                if (table := _meant(node.parts, staged)) is not None:
                    raise _stale(f"function {'.'.join(parts)}", table)
                self._refuse_stale(node.parts, staged)
            self._refuse_functions(body, staged, passed | {parts})

    def _read_by(self, body: str) -> Iterator[ReadNode]:
        plan = self._reader.parse(body) or self._reader.parse(f"SELECT {body}")
        yield from (self._reader.reads(plan) or ()) if plan is not None else ()

    def _unparsed(self, statement: Rewritten) -> Rewritten:
        """Either Spark refuses the text, or parameters stand where only the text with them put in can be parsed."""
        if statement.args and self._reader.parse(statement.text, statement.args) is not None:
            raise Untellable("its parameters stand where the tables that it reads cannot be told any more")
        return statement

    def any(self) -> bool:
        """Whether the surrounding transaction has written a table of the session catalog."""
        return bool(self._staged())

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
    words = leading_words(text, 2)
    if words[:1] == ("SET",):
        return words[1:] in ((), *((word,) for word in _VARIABLE))
    return bool(words or "(" in text) and words[:1] not in _READ_NOTHING


def _says_use(text: str) -> bool:
    return leading_words(text, 1) == ("BEGIN",) and says_use(list(tokens(text)))


def _refuse_unsure(nodes: Iterable[ReadNode], staged: set[Key]) -> None:
    """Refuse names that mean a staged table or another one, as the script has said USE before."""
    names = {name for _, name in staged}
    for parts in sorted(node.parts for node in nodes):
        if len(parts) < 3 and parts[-1].lower() in names:
            raise Untellable(f"the script says USE, so that {quoted(parts)} is known only when it runs")


def _meant(parts: tuple[str, ...], staged: set[Key]) -> Key | None:
    """The staged table that a name in a function may mean: its database is that in which the function was made."""
    name = parts[-1].lower()
    databases = {parts[-2].lower()} if len(parts) > 1 else {database for database, _ in staged}
    return next((key for key in sorted(staged) if key[1] == name and key[0] in databases), None)


def _stale(what: str, table: Key) -> Untellable:
    database, name = table
    return Untellable(
        f"{what} would show {database}.{name} without what this transaction has written", hint=f"Read {name} itself"
    )
