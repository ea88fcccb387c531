"""Partitions of a table that the statements of a transaction change.

A scope is a list of patterns; a pattern has one text per partition field, or None for any value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Pattern = list[str | None]
Scope = list[Pattern]


@dataclass(frozen=True)
class Changes:
    """The changes of one transaction's statements to the partitions of a table.

    Attributes
    ----------
    replaced : Scope or None
        Partitions whose rows they replace; None: all.
    written : Scope or None
        Partitions to which they write rows; None: any.
    """

    replaced: Scope | None = field(default_factory=list)
    written: Scope | None = field(default_factory=list)

    def to_document(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any] | None) -> Changes:
        """Read the result of :meth:`to_document`; None is the whole table."""
        return cls(None, None) if document is None else cls(**document)

    def joined(self, other: Changes) -> Changes:
        """Combine the changes of both."""
        return Changes(_joined(self.replaced, other.replaced), _joined(self.written, other.written))

    def keys(self) -> frozenset[str] | None:
        """Keys to reserve: values of the first field, as patterns may leave the others open. None: the whole table."""
        scope = _joined(self.replaced, self.written)
        if scope is None or any(pattern[0] is None for pattern in scope):
            return None
        return frozenset(str(pattern[0]) for pattern in scope)


def _joined(one: Scope | None, other: Scope | None) -> Scope | None:
    return None if one is None or other is None else [*one, *(pattern for pattern in other if pattern not in one)]
