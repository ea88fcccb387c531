"""Refusal of writes to file systems that twophase was not tested on."""

from __future__ import annotations

from twophase.catalogs.files.paths import LOCAL, normal
from twophase.errors import AtomicityNotSupportedError
from twophase.redaction import redact

#: Option that allows writes to tables on other, untested file systems.
UNTRIED = "spark.twophase.storage.untested"


def refuse_untried(path: object, *locations: str | None, allowed: bool) -> None:
    """Refuse to write a table stored on a file system that twophase was not tested on. Accesses no file system.

    Parameters
    ----------
    path : ObjectPath
        The table.
    *locations : str or None
        Locations of its rows, present or future.
    allowed : bool
        Whether the user allows it nevertheless.

    Raises
    ------
    AtomicityNotSupportedError
    """
    if allowed:
        return
    for location in locations:
        if location and not normal(location).startswith(LOCAL):
            raise AtomicityNotSupportedError(
                f"{path} was not written: it is stored at {redact(location)}, and twophase was tried on local file "
                "systems only. Nothing was started.",
                path=str(path),
                hint=f"Call detach(), set {UNTRIED}=allow, and attach again, to have it written there all the same.",
            )
