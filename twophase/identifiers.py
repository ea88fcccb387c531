"""Transaction ids: ``<coordinator>-<UTC second>-<8 random hex digits>``.

The coordinator's name is part of the id, so that whoever meets a stamp in a store can tell whose it is without asking
a timeline; the time makes ids sort; the random part makes them unique.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

_MAX_COORDINATOR = 24
_DIGEST = 6
_PATTERN = re.compile(
    r"(?P<coordinator>[a-z0-9_]{1,24})-(?P<day>\d{8})t(?P<time>\d{6})-(?P<random>[0-9a-f]{8})", re.ASCII
)


@dataclass(frozen=True)
class Parts:
    """A transaction id, taken apart.

    Attributes
    ----------
    id, coordinator, day : str
    time : str
        Of that day: hours, minutes, seconds.
    random : str
    """

    id: str
    coordinator: str
    day: str
    time: str
    random: str

    def packed(self) -> bytes:
        """What tells it apart from the others of its coordinator and day, in seven bytes."""
        return int(self.time).to_bytes(3, "big") + bytes.fromhex(self.random)


def coordinator_name(text: str) -> str:
    """Any text as a coordinator's name: ``[a-z0-9_]``, at most 24 characters, never empty.

    A longer one is cut, and ends in a digest of the whole: two applications whose names begin alike are still two.
    """
    name = re.sub(r"[^a-z0-9_]+", "_", text.lower()).strip("_")
    if len(name) > _MAX_COORDINATOR:
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
        name = f"{name[: _MAX_COORDINATOR - _DIGEST - 1].rstrip('_')}_{digest}"
    return name or "twophase"


def new_transaction_id(coordinator: str) -> str:
    """A fresh id; its characters are safe in a directory, a table name and a URL."""
    second = datetime.now(UTC).strftime("%Y%m%dt%H%M%S")
    return f"{coordinator_name(coordinator)}-{second}-{secrets.token_hex(4)}"


def parts_of(transaction_id: str) -> Parts | None:
    """What an id is made of; None when the text is no id of ours."""
    match = _PATTERN.fullmatch(transaction_id)
    return Parts(transaction_id, **match.groupdict()) if match else None


def coordinator_of(transaction_id: str) -> str | None:
    """The coordinator that made an id; None when the text is no id of ours."""
    parts = parts_of(transaction_id)
    return parts.coordinator if parts else None
