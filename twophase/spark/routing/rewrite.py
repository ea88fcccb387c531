"""A statement's text, so that the tables it writes are written all-or-nothing.

Text in, text out. Nothing is analysed or executed, except that Spark is asked for the value of a constant expression in
an ``IDENTIFIER(...)`` or ``EXECUTE IMMEDIATE``. What the parser reads and what is found in the text must agree; where
they do not, the target cannot be told, and the policy decides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import PySparkException

from twophase.model import OverwriteScope, quote
from twophase.spark.intent import option_clause
from twophase.spark.jvm.formats import TEXT
from twophase.spark.jvm.statements import StatementReader, TableFacts, WriteNode
from twophase.spark.routing.ownership import Owner, Ownership, Ruling
from twophase.spark.routing.scripts import Script
from twophase.spark.routing.targets import Target, Targets, purpose_of, quoted
from twophase.spark.routing.tokens import Place, Token, identifiers, leading_words, places, splice, tokens

Args = Mapping[str, Any] | Sequence[Any] | None
#: Spark's value of a constant expression: (expression, args).
Evaluate = Callable[[str, Args], Any]
Edit = tuple[int, int, str]

_INSERT = re.compile(r"\binsert\b", re.IGNORECASE)
_EXECUTE = re.compile(r"\bexecute\b", re.IGNORECASE)
_IDENTIFIER = re.compile(r"\bidentifier\b", re.IGNORECASE)
_BEGIN = re.compile(r"\bbegin\b", re.IGNORECASE)
_VERBS = {"create": ("create",), "replace": ("create", "replace"), "empty": ("create", "replace")}

#: Any partitioned table, to ask how the session overwrites one.
_PARTITIONED = TableFacts("parquet", ("p",))


class Untellable(Exception):
    """The statement cannot be made atomic.

    Parameters
    ----------
    problem : str
        Why.
    hint : str, optional
        What the user can do.
    """

    def __init__(self, problem: str, hint: str = "Name its table in plain words") -> None:
        super().__init__(problem)
        self.hint = hint


@dataclass(frozen=True)
class Rewritten:
    """A statement to run instead.

    Attributes
    ----------
    text, args
        For ``SparkSession.sql``.
    targets : tuple of Target
        The tables of ours that it writes.
    is_script : bool
        Each statement in it is a transaction of its own.
    insert : tuple, optional
        For a single INSERT: its target, and what it overwrites.
    inserts : bool
        Whether there is an INSERT among its statements.
    written : frozenset of Target
        What else may have been written when it runs: by the script that it is, or that it is part of.
    says_use : bool
        Whether it runs in a script that changes the current database, so that no text tells which that is.
    writes_nothing : bool
        Whether there is nothing to run: its ``IF NOT EXISTS`` names a partition that this transaction has made.
    """

    text: str
    args: Args
    targets: tuple[Target, ...] = ()
    is_script: bool = False
    insert: tuple[Target, OverwriteScope | None] | None = None
    inserts: bool = False
    written: frozenset[Target] = frozenset()
    says_use: bool = False
    writes_nothing: bool = False

    @property
    def is_group(self) -> bool:
        """Whether one statement writes several tables, with one outcome."""
        return len(self.targets) > 1 and not self.is_script


def concerns_us(text: str) -> bool:
    """Whether a statement may write a table, by its first words alone: most statements need no second look."""
    words = leading_words(text, 4)
    first = words[0] if words else ""
    if first == "CREATE":
        return "TABLE" in words[1:3] or words[1:] == ("OR", "REPLACE", "TABLE")
    if first in ("WITH", "FROM"):
        return _INSERT.search(text) is not None
    if first == "EXPLAIN":
        return _EXECUTE.search(text) is not None
    return first in ("INSERT", "REPLACE", "BEGIN", "EXECUTE")


def _is_insert(text: str) -> bool:
    return leading_words(text, 1) in (("INSERT",), ("WITH",), ("FROM",)) and concerns_us(text)


class Rewriter:
    """Rewrites the statements of one session.

    Parameters
    ----------
    reader : StatementReader
    targets : Targets
    ownership : Ownership
    evaluate : callable
    outside : callable, optional
        Told of each write that stays Spark's, before anything runs; may refuse it.
    told : callable, optional
        Told of the text of each statement, those in a script and behind EXECUTE IMMEDIATE among them; may refuse it.
    reading : callable, optional
        Rewrites what a statement behind EXECUTE IMMEDIATE reads inside a transaction.
    """

    def __init__(
        self,
        reader: StatementReader,
        targets: Targets,
        ownership: Ownership,
        evaluate: Evaluate,
        outside: Callable[[WriteNode], None] = lambda _: None,
        told: Callable[[str], None] = lambda _: None,
        reading: Callable[[Rewritten], Rewritten] = lambda statement: statement,
    ) -> None:
        self._reader = reader
        self._targets = targets
        self._ownership = ownership
        self._evaluate = evaluate
        self._outside = outside
        self._told = told
        self._reading = reading

    def rewrite(self, text: str, args: Args = None, script: Script | None = None) -> Rewritten | None:
        """The statement to run instead, which may be the same; None where it writes none of our tables.

        Parameters
        ----------
        text, args
            As for ``SparkSession.sql``.
        script : Script, optional
            The script that the statement is part of.

        Raises
        ------
        Untellable
            Its target cannot be told, or our catalog cannot do it.
        """
        # Spark puts variables in before it parses: they may hold the very verb.
        text = self._reader.substituted(text) if "${" in text else text
        self._tell(text, args)
        if not concerns_us(text):
            return None
        named = self._name_identifiers(text, args)
        if named is None:
            return None
        text, args = named
        plan = self._reader.parse(text, args)
        if plan is None:
            return None  # Spark's own parse error is better than ours
        nodes, stream = self._writes(plan, text), list(tokens(text))
        if _BEGIN.search(text) and self._reader.is_script(plan):
            script = self._script(text, stream, nodes, args)
        draft = _Draft(self, text, args, stream, script)
        for node, place in _paired(nodes, places(stream)):
            draft.add(node, place)
        return draft.finished(inside_transaction=self._targets.in_transaction)

    def _tell(self, text: str, args: Args) -> None:
        """Inside a transaction: tell of each statement before anything is decided."""
        if not self._targets.in_transaction:
            return
        self._told(text)
        plan = self._reader.parse(text, args) if leading_words(text, 1) == ("BEGIN",) else None
        if plan is not None:
            for start, stop in self._reader.statements(plan):
                self._told(text[start:stop])

    def _script(self, text: str, stream: Sequence[Token], nodes: Sequence[WriteNode], args: Args) -> Script:
        script = Script(self._targets, self._ownership)
        script.add(text, stream, nodes)
        for place in places(stream):
            inner = self._immediate_text(text, stream, place, args, True) if place.verb == "execute" else None
            plan = self._reader.parse(inner) if inner else None
            if inner and plan is not None:
                script.add(inner, list(tokens(inner)), self._writes(plan, inner))
        return script

    def _writes(self, plan: Any, text: str) -> list[WriteNode]:
        """What a plan writes, but for statements on an ``IDENTIFIER(...)`` that are no insert."""
        nodes = self._reader.writes(plan)
        return [n for n in nodes if n.kind != "unknown" or _is_insert(text[n.position :])]

    # -- IDENTIFIER(...) -----------------------------------------------------------------------------------------

    def _name_identifiers(self, text: str, args: Args) -> tuple[str, Args] | None:
        """Put plain names in the place of each ``IDENTIFIER(...)`` that is a target."""
        if not _IDENTIFIER.search(text):
            return text, args
        try:
            return self._named(text, args, leading_words(text, 1) == ("BEGIN",))
        except Untellable:
            plan = self._reader.parse(text, args)
            if plan is None or all(node.kind == "empty" for node in self._writes(plan, text)):
                return None  # a plain CREATE TABLE needs no telling
            raise

    def _named(self, text: str, args: Args, is_script: bool) -> tuple[str, Args]:
        while True:
            stream = list(tokens(text))
            found = [p for p in places(stream) if p.names is None and p.verb != "execute"]
            if not found:
                return text, args
            text, args = self._put_name(found[-1], text, stream, args, is_script)

    def plain_names(self, text: str, args: Args) -> tuple[str, Args]:
        """The same statement with a plain name in the place of each ``IDENTIFIER(...)``, whatever it names.

        Raises
        ------
        Untellable
            A name is known only when the statement runs.
        """
        is_script = leading_words(text, 1) == ("BEGIN",)
        while found := identifiers(stream := list(tokens(text))):
            text, args = self._put_name(found[-1], text, stream, args, is_script)
        return text, args

    def _put_name(
        self, place: Place, text: str, stream: Sequence[Token], args: Args, is_script: bool
    ) -> tuple[str, Args]:
        names = [name for part in place.parts for name in self._names(part, text, stream, args, is_script)]
        span = (place.start, place.stop)
        return splice(text, [(*span, quoted(names))]), _without(args, stream, span)

    def _names(self, part: Any, text: str, stream: Sequence[Token], args: Args, is_script: bool) -> tuple[str, ...]:
        if part.expression is None:
            return (part.name,)
        value = self._constant(text, stream, part.expression, args, is_script)
        names = self._reader.parse_name(value) if isinstance(value, str) else None
        if names is None:
            raise Untellable(f"IDENTIFIER({text[slice(*part.expression)]}) gives no table name")
        return names

    def _constant(self, text: str, stream: Sequence[Token], span: tuple[int, int], args: Args, is_script: bool) -> Any:
        """The value of an expression in the text; in a script a variable has none before the script runs."""
        expression = text[slice(*span)]
        inside = [token for token in stream if span[0] <= token.start < span[1]]
        if is_script and any(_may_be_variable(inside, index) for index in range(len(inside))):
            raise Untellable(f"the value of {expression} is known only when the script runs")
        return self._evaluate(expression, _within(args, stream, span))

    # -- EXECUTE IMMEDIATE ---------------------------------------------------------------------------------------

    def immediate(
        self, text: str, stream: Sequence[Token], place: Place, args: Args, script: Script | None
    ) -> tuple[Rewritten, bool] | None:
        """The statement inside an EXECUTE IMMEDIATE, rewritten, and whether that changes its text."""
        inner = self._immediate_text(text, stream, place, args, script is not None)
        if inner is None:
            return None
        self._refuse_unreadable(inner)
        try:
            statement = self.rewrite(inner, script=script) or Rewritten(inner, None)
        except PySparkException as error:
            if error.getCondition() != "UNBOUND_SQL_PARAMETER":
                raise
            raise Untellable("the name of its table is a parameter that is bound only when it runs") from error
        if self._targets.in_transaction:
            written = frozenset(script.written if script else ())
            says_use = script is not None and script.says_use
            statement = self._reading(replace(statement, written=written, says_use=says_use))
        return statement, statement.text != inner

    def _refuse_unreadable(self, inner: str) -> None:
        """Refuse parameters in places where Spark can read the text only once USING has bound them."""
        matters = self._targets.in_transaction or concerns_us(inner)
        if matters and _has_parameters(list(tokens(inner))) and self._reader.parse(inner) is None:
            raise Untellable(
                "its parameters stand where it cannot be read before they are bound", "Write their values into its text"
            )

    def immediate_texts(self, text: str, args: Args) -> list[str]:
        """What each EXECUTE IMMEDIATE of a statement or a script runs, as far as that can be told."""
        is_script, stream = leading_words(text, 1) == ("BEGIN",), list(tokens(text))
        found = []
        for place in places(stream):
            if place.verb == "execute":
                with suppress(Untellable):
                    found.append(self._immediate_text(text, stream, place, args, is_script))
        return [inner for inner in found if inner is not None]

    def _immediate_text(
        self, text: str, stream: Sequence[Token], place: Place, args: Args, is_script: bool
    ) -> str | None:
        value = self._constant(text, stream, (place.start, place.stop), args, is_script)
        return value if isinstance(value, str) else None

    # -- one target ----------------------------------------------------------------------------------------------

    def decide(self, node: WriteNode, script: Script | None) -> tuple[Ruling, OverwriteScope | None]:
        """Whose a statement is, and the scope of an overwrite that runs as an append."""
        if node.kind == "directory":
            return self._left(node, Ruling(Owner.SPARK))
        if node.parts is None:
            raise Untellable("its target cannot be told from its text")
        if script is not None and script.says_use and len(node.parts) < 3:
            raise Untellable(f"the script says USE, so that {quoted(node.parts)} is known only when it runs")
        if node.kind != "insert":
            return self._create(node)
        return self._insert(node, script)

    def _left(self, node: WriteNode, ruling: Ruling) -> tuple[Ruling, None]:
        """A write that is not ours."""
        if ruling.owner is Owner.SPARK:
            self._outside(node)
        return ruling, None

    def _create(self, node: WriteNode) -> tuple[Ruling, None]:
        ruling = self._ownership.of_new(node.parts or (), node.provider)
        target = ruling.target
        if target is not None and node.kind == "empty":
            # A catalog that Spark asks anyway refuses it in a transaction itself.
            return self._left(node, Ruling(Owner.SPARK if target.spliced else Owner.NOBODY, target))
        if not ruling.ours:
            return self._left(node, ruling)
        self._require(node, ruling.ours)
        return ruling, None

    def _insert(self, node: WriteNode, script: Script | None) -> tuple[Ruling, OverwriteScope | None]:
        ruling = self._ownership.of_existing(node.parts or ())
        if script is not None:
            told = script.ruling(ruling)
            if told is None:
                raise Untellable(f"who writes {quoted(node.parts or ())} is known only when the script runs")
            ruling = told
        target, facts = ruling.ours, ruling.facts
        if target is not None and target.spliced and "" in node.partition.values():
            raise Untellable("its PARTITION names an empty value")
        if target is not None and target.spliced and facts is not None and not _fits(node, facts):
            raise Untellable(
                f"its PARTITION does not name all of {', '.join(facts.partition_columns) or 'no partition columns'}, "
                "those with a value first",
                "Name them all, with values from the first one on",
            )
        if target is None or (node.replaces_rows and target.spliced):
            return self._left(node, ruling if target is None else Ruling(Owner.SPARK, target, facts))
        self._require(node, target)
        return ruling, self._scope(node, facts, script) if node.overwrite and not node.replaces_rows else None

    def _scope(self, node: WriteNode, facts: TableFacts | None, script: Script | None) -> OverwriteScope | None:
        target = self._targets.resolve(node.parts or (), views=True)
        if script is not None and target is not None:
            static = self._targets.carried_scope(_PARTITIONED, {}, node.options) is None
            if script.sets_overwrite_mode or not script.overwrites_at_once(target, static):
                raise Untellable(f"what it overwrites of {quoted(node.parts or ())} is known only when the script runs")
        return self._targets.carried_scope(facts, node.partition, node.options) if facts else None

    def _require(self, node: WriteNode, target: Target) -> None:
        # A catalog that the statement names is asked by Spark.
        hindrance = self._targets.hindrance(target, purpose_of(node) if target.spliced else None)
        if hindrance is not None:
            raise Untellable(*hindrance)

    def stored_as(self, place: Place) -> Edit:
        """What a ROW FORMAT DELIMITED leaves unsaid, behind the target's name: clauses may stand in any order."""
        if self._targets.hive_format() != TEXT:
            raise Untellable("its ROW FORMAT is for text, and hive.default.fileformat is not", "Say STORED AS TEXTFILE")
        return (place.stop, place.stop, " STORED AS TEXTFILE")

    def is_staged(self, target: Target) -> bool:
        """Whether the surrounding transaction has written a table."""
        return self._targets.staged_definition(target) is not None

    def partition_exists(self, target: Target, node: WriteNode) -> bool:
        """Whether the partition of a ``PARTITION (...) IF NOT EXISTS`` is there, published or staged."""
        if self.is_staged(target):
            return self._targets.has_rows(target, node.partition)
        return self._targets.names.partition_exists(target.path.database, target.path.name, node.partition)


class _Draft:
    """Collects the edits of one statement."""

    def __init__(
        self, rewriter: Rewriter, text: str, args: Args, stream: Sequence[Token], script: Script | None
    ) -> None:
        self._rewriter = rewriter
        self._text = text
        self._args = args
        self._stream = stream
        self._script = script
        self._edits: list[Edit] = []
        self._targets: list[Target] = []
        self._inserts: list[tuple[Target, OverwriteScope | None]] = []
        self._skips_staged = False
        self._is_script = script is not None
        self._script_inserts = False
        #: For each statement with one outcome: who runs each of its writes.
        self._owners: dict[int, list[Owner]] = {}

    def add(self, node: WriteNode, place: Place | None) -> None:
        if node.kind == "execute" and place is not None:
            self._add_immediate(place)
            return
        ruling, scope = self._rewriter.decide(node, self._script)
        self._owners.setdefault(node.statement, []).append(ruling.owner)
        target = ruling.ours
        if target is None or place is None:
            return
        if node.if_not_exists and (target.spliced or scope):
            if self._script is not None and not self._script.writes_once(target):
                raise Untellable(f"whether its partition of {target.path} exists is known only when the script runs")
            if self._rewriter.partition_exists(target, node):
                # Spark itself then writes nothing, unless only this transaction knows the partition.
                self._skips_staged |= self._rewriter.is_staged(target)
                return
            self._edits.append(_if_not_exists(self._stream, place))
        self._edits.extend(_edits(target, node, place, scope, self._stream))
        if node.delimited and target.spliced:
            self._edits.append(self._rewriter.stored_as(place))
        self._targets.append(target)
        if node.kind == "insert":
            self._inserts.append((target, scope or (OverwriteScope(node.partition) if node.overwrite else None)))

    def _add_immediate(self, place: Place) -> None:
        found = self._rewriter.immediate(self._text, self._stream, place, self._args, self._script)
        if found is None:
            return
        inner, is_changed = found
        if is_changed:
            self._edits.append((place.start, place.stop, _literal(inner.text)))
            self._args = _without(self._args, self._stream, (place.start, place.stop))
        self._skips_staged |= inner.writes_nothing
        self._targets.extend(inner.targets)
        self._inserts.extend([inner.insert] if inner.insert else [])
        self._is_script = self._is_script or inner.is_script
        self._script_inserts = self._script_inserts or inner.inserts

    def finished(self, *, inside_transaction: bool) -> Rewritten | None:
        """The statement to run instead, which is the same where it names our catalog itself.

        Parameters
        ----------
        inside_transaction : bool
            Whether a transaction is around it, so that several writes have one outcome anyway.
        """
        self._refuse_mixed(inside_transaction)
        written = frozenset(self._script.written if self._script else ())
        if self._skips_staged:
            if self._script is not None or sum(map(len, self._owners.values())) > 1:
                raise Untellable("its IF NOT EXISTS names a partition that this transaction has made")
            return Rewritten(self._text, self._args, writes_nothing=True)
        if not self._edits and not self._targets and not written:
            return None
        text = splice(self._text, self._edits)
        insert = self._inserts[0] if len(self._targets) == 1 and self._inserts else None
        inserts = bool(self._inserts) or self._script_inserts
        return Rewritten(text, self._args, tuple(self._targets), self._is_script, insert, inserts, written)

    def _refuse_mixed(self, inside_transaction: bool) -> None:
        """A multi-insert that could be published by halves."""
        for owners in self._owners.values():
            if len(owners) < 2 or Owner.OURS not in owners:
                continue
            if Owner.SPARK in owners:
                raise Untellable("it writes a table of twophase together with one that only Spark writes")
            if self._script is not None and not inside_transaction:
                raise Untellable("it writes several tables with one outcome, inside a script")


# -- the parser's statements and the places in the text ---------------------------------------------------------------


def _paired(nodes: Sequence[WriteNode], found: Sequence[Place]) -> list[tuple[WriteNode, Place | None]]:
    """Each statement with its place, in the order of the text; a directory has none."""
    wanted = Counter(_key(node) for node in nodes if node.kind != "directory")
    have = Counter(key for place in found if (key := _place_key(place)) in wanted)
    if wanted != have:
        raise Untellable("its target cannot be told from its text")
    rest = {key: [place for place in found if _place_key(place) == key] for key in wanted}
    return [(node, None if node.kind == "directory" else rest[_key(node)].pop(0)) for node in nodes]


def _key(node: WriteNode) -> tuple[str, tuple[str, ...] | None]:
    return ("table" if node.kind in _VERBS else node.kind, node.parts)


def _place_key(place: Place) -> tuple[str, tuple[str, ...] | None]:
    verb = "table" if place.verb in ("create", "replace") else place.verb
    return (verb, None if verb == "execute" else place.names)


def _fits(node: WriteNode, facts: TableFacts) -> bool:
    """Whether a PARTITION clause is one that Spark takes of its own tables: of others it takes any."""
    if not node.partition_columns:
        return True
    named = {column.lower() for column in node.partition_columns}
    if named != {column.lower() for column in facts.partition_columns}:
        return False
    static = {column.lower() for column in node.partition}
    return static == {column.lower() for column in facts.partition_columns[: len(static)]}


# -- edits -------------------------------------------------------------------------------------------------------------


def _edits(
    target: Target, node: WriteNode, place: Place, scope: OverwriteScope | None, stream: Sequence[Token]
) -> list[Edit]:
    edits = []
    if target.spliced:
        written = len(node.parts or ())
        if written == 3:
            edits.append((place.start, place.stop, target.name))
        else:
            missing = (target.catalog_name, *target.path.namespace)[: 3 - written]
            edits.append((place.start, place.start, "".join(quote(part) + "." for part in missing)))
    if scope and place.overwrite:
        edits.append((*place.overwrite, "INTO"))
        edits.append(_option(scope, place, stream))
    return edits


def _option(scope: OverwriteScope, place: Place, stream: Sequence[Token]) -> Edit:
    """The option behind the target's name that says what an append means, beside those that stand there."""
    following = stream[place.next : place.next + 2]
    if len(following) == 2 and following[0].is_word("WITH") and following[1].text == "(":
        return (following[1].stop, following[1].stop, f"{option_clause(scope)}, ")
    return (place.stop, place.stop, f" WITH ({option_clause(scope)})")


def _if_not_exists(stream: Sequence[Token], place: Place) -> Edit:
    """Take away the ``IF NOT EXISTS`` behind the target's PARTITION clause."""
    for index in range(place.next, len(stream) - 2):
        if [t.text.upper() for t in stream[index : index + 3]] == ["IF", "NOT", "EXISTS"]:
            return (stream[index].start, stream[index + 2].stop, "")
    raise Untellable("its IF NOT EXISTS cannot be found in its text")


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _may_be_variable(inside: Sequence[Token], index: int) -> bool:
    """Whether a token of an expression names a column or variable: a word that is no function and no parameter."""
    token = inside[index]
    if token.kind == "quoted":
        return True
    if token.kind != "word" or token.text[0].isdigit():
        return False
    before = inside[index - 1].text if index else ""
    after = inside[index + 1].text if index + 1 < len(inside) else ""
    return before != ":" and after != "("


# -- parameters --------------------------------------------------------------------------------------------------------


def _has_parameters(stream: Sequence[Token]) -> bool:
    """Whether there may be any, by position or by name."""
    return any(token.text in ("?", ":") for token in stream)


def _markers(stream: Sequence[Token], stop: int) -> int:
    return sum(token.text == "?" and token.start < stop for token in stream)


def _within(args: Args, stream: Sequence[Token], span: tuple[int, int]) -> Args:
    """The arguments of an expression cut out of the text."""
    if args is None or isinstance(args, Mapping):
        return args
    return list(args[_markers(stream, span[0]) : _markers(stream, span[1])])


def _without(args: Args, stream: Sequence[Token], span: tuple[int, int]) -> Args:
    """The arguments of the text without that expression."""
    if args is None or isinstance(args, Mapping):
        return args
    return [*args[: _markers(stream, span[0])], *args[_markers(stream, span[1]) :]]
