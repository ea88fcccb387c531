"""Transaction ids: ``<coordinator>-<UTC second>-<8 random hex digits>``.

The coordinator's name is part of the id, so that the owner of a stamp in a store is known without querying a timeline;
the time makes ids sortable; the random part makes them unique.
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
    """The parts of a transaction id.

    Attributes
    ----------
    id, coordinator, day : str
    time : str
        The time of that day: hours, minutes, seconds.
    random : str
    """

    id: str
    coordinator: str
    day: str
    time: str
    random: str

    def packed(self) -> bytes:
        """Pack the part that distinguishes it from others of the same coordinator and day into seven bytes."""
        return int(self.time).to_bytes(3, "big") + bytes.fromhex(self.random)


def coordinator_name(text: str) -> str:
    """Convert any text to a coordinator's name: ``[a-z0-9_]``, at most 24 characters, never empty.

    A longer one is truncated and ends with a digest of the whole, so that applications with the same prefix differ. So
    does one with letters outside ASCII, which may be all that it differs in.
    """
    text = text.lower()
    name = re.sub(r"[^a-z0-9_]+", "_", text).strip("_") or "twophase"
    whole = name if text.isascii() else text
    if len(name) > _MAX_COORDINATOR or whole != name:
        digest = hashlib.sha256(whole.encode(errors="backslashreplace")).hexdigest()[:_DIGEST]
        name = f"{name[: _MAX_COORDINATOR - _DIGEST - 1].rstrip('_')}_{digest}"
    return name


def new_transaction_id(coordinator: str) -> str:
    """Create a new id; its characters are safe in a directory, a table name and a URL."""
    second = datetime.now(UTC).strftime("%Y%m%dt%H%M%S")
    return f"{coordinator_name(coordinator)}-{second}-{secrets.token_hex(4)}"


def parts_of(transaction_id: str) -> Parts | None:
    """Parse an id; None if the text is not a transaction id."""
    match = _PATTERN.fullmatch(transaction_id)
    return Parts(transaction_id, **match.groupdict()) if match else None
