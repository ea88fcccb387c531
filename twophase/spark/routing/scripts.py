"""What a script makes of names before it comes to a statement: told from its text, before anything runs.

A table may be made by the script itself, in a format that twophase writes or in one that it does not. A statement of
the script is routed only where every way through the script gives the same answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from twophase.spark.jvm.statements import WriteNode
from twophase.spark.routing.ownership import Owner, Ownership, Ruling
from twophase.spark.routing.targets import Target, Targets
from twophase.spark.routing.tokens import Token, name_at

_SETS_MODE = re.compile(r"\bset\s+`?spark\.sql\.sources\.partitionOverwriteMode", re.IGNORECASE)
_BEFORE_VIEW = ("CREATE", "REPLACE", "TEMPORARY", "TEMP", "GLOBAL")
_LOOPS = ("WHILE", "LOOP", "REPEAT", "FOR")
_STARTS = ("BEGIN", "THEN", "ELSE", "DO", "LOOP", "REPEAT")


class Script:
    """The statements of one script, those of its EXECUTE IMMEDIATE among them.

    Parameters
    ----------
    targets : Targets
    ownership : Ownership
    """

    def __init__(self, targets: Targets, ownership: Ownership) -> None:
        self._targets = targets
        self._ownership = ownership
        #: For each table that the script makes: who would write it. None: it cannot be told.
        self._made: dict[str, set[Owner | None]] = {}
        self._serde: set[str] = set()
        #: All that the script may write through a twophase catalog.
        self.written: set[Target] = set()
        #: How often each of them is written, as far as the text tells; a loop may do it more often.
        self._times: Counter[str] = Counter()
        self._loops = False
        self.says_use = False
        self.sets_overwrite_mode = False

    def add(self, text: str, stream: Sequence[Token], nodes: Sequence[WriteNode]) -> None:
        """Take in a text of the script."""
        for node in nodes:
            if node.parts and node.kind in ("create", "replace", "empty"):
                self._make(node.parts, self._ownership.of_new(node.parts, node.provider).owner, node.provider)
        resolved = (self._targets.resolve(node.parts, views=node.kind == "insert") for node in nodes if node.parts)
        written = [target for target in resolved if target]
        self.written.update(written)
        self._times.update(_key(target) for target in written)
        self._loops = self._loops or any(token.is_word(*_LOOPS) for token in stream)
        for copy in _copies(stream):
            self._make(copy.names, *self._copied(copy))
        for names in _appearing(stream):
            self._make(names, None, None)
        self.says_use = self.says_use or says_use(stream)
        self.sets_overwrite_mode = self.sets_overwrite_mode or _SETS_MODE.search(text) is not None

    def _make(self, parts: tuple[str, ...], owner: Owner | None, provider: str | None) -> None:
        target = self._targets.resolve(parts)
        if target is not None:
            self._made.setdefault(_key(target), set()).add(owner)
            if (provider or self._targets.default_provider()) == "hive":
                self._serde.add(_key(target))

    def _copied(self, copy: _Copy) -> tuple[Owner | None, str | None]:
        """Who writes the table of a CREATE TABLE ... LIKE, and its format."""
        if copy.provider is not None:
            return self._ownership.of_new(copy.names, copy.provider).owner, copy.provider
        ruling = self._ownership.of_existing(copy.source) if copy.source else Ruling(Owner.NOBODY)
        owner = None if ruling.owner is Owner.NOBODY else ruling.owner
        return owner, ruling.facts.provider if ruling.facts else None

    def ruling(self, ruling: Ruling) -> Ruling | None:
        """Whose a write is when the script comes to it; None where that cannot be told."""
        made = self._made.get(_key(ruling.target)) if ruling.target else None
        if not made:
            return ruling
        owners = made | ({ruling.owner} if ruling.facts is not None else set())
        if len(owners) > 1 or None in owners:
            return None
        return Ruling(next(owner for owner in owners if owner), ruling.target, ruling.facts)

    def writes_once(self, target: Target) -> bool:
        """Whether one statement of the script alone writes a table, and once."""
        return self._times[_key(target)] < 2 and not self._loops

    def overwrites_at_once(self, target: Target, mode_is_static: bool) -> bool:
        """Whether an overwrite of a table, which the script itself may have made, replaces all that it names."""
        return _key(target) not in self._made or (mode_is_static and _key(target) not in self._serde)


def _key(target: Target) -> str:
    return target.name.casefold()


@dataclass(frozen=True, slots=True)
class _Copy:
    """``CREATE TABLE names LIKE source USING provider``."""

    names: tuple[str, ...]
    source: tuple[str, ...] | None
    provider: str | None


def _copies(stream: Sequence[Token]) -> Iterator[_Copy]:
    for index, (first, second) in enumerate(pairwise(stream)):
        place = name_at(stream, index + 2) if first.is_word("CREATE", "EXTERNAL") and second.is_word("TABLE") else None
        if place and place.names and place.next < len(stream) and stream[place.next].is_word("LIKE"):
            source = name_at(stream, place.next + 1)
            yield _Copy(place.names, source.names if source else None, _provider(stream, place.next))


def _appearing(stream: Sequence[Token]) -> Iterator[tuple[str, ...]]:
    """Names that a table that was renamed gets, and those of views."""
    for index, (first, second) in enumerate(pairwise(stream)):
        is_view = first.is_word(*_BEFORE_VIEW) and second.is_word("VIEW")
        if is_view or (first.is_word("RENAME") and second.is_word("TO")):
            place = name_at(stream, index + 2)
            if place and place.names:
                yield place.names


def _provider(stream: Sequence[Token], index: int) -> str | None:
    """The format behind USING, up to the statement's end."""
    for token, following in pairwise(stream[index:]):
        if token.text == ";":
            return None
        if token.is_word("USING"):
            return following.name
        if token.is_word("STORED"):
            return "hive"
    return None


def says_use(stream: Sequence[Token]) -> bool:
    """Whether a script changes the current catalog or database."""
    if stream and stream[0].is_word("USE"):
        return True
    return any(
        token.is_word("USE") and (before.text == ";" or before.is_word(*_STARTS)) for before, token in pairwise(stream)
    )
