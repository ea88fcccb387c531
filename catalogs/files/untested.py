"""Refusal of writes to file systems that twophase was not tested on, or whose writers may not share its timeline."""

from __future__ import annotations

from twophase.catalog import Environment
from twophase.catalogs.files.paths import LOCAL, normal
from twophase.errors import AtomicityNotSupportedError
from twophase.redaction import redact

#: Option that allows writes to tables on other, untested file systems.
UNTRIED = "spark.twophase.storage.untested"
#: Option that allows them although the timeline is a file of this machine, and the option of the timeline itself.
LOCAL_TIMELINE = "spark.twophase.timeline.local"
TIMELINE = "spark.twophase.timeline"


def refuse_untried(path: object, *locations: str | None, environment: Environment) -> None:
    """Refuse to write a table that is not on a local file system, unless the session allows it.

    It must allow untested file systems, and its timeline must not be a file: drivers of other machines can write the
    table, too, and would each have a timeline of their own. Accesses no file system.

    Parameters
    ----------
    path : ObjectPath
        The table.
    *locations : str or None
        Locations of its rows, present or future.
    environment : Environment
        What the session allows.

    Raises
    ------
    AtomicityNotSupportedError
    """
    for location in locations:
        if not location or normal(location).startswith(LOCAL):
            continue
        if not environment.allows_untested_storage:
            raise AtomicityNotSupportedError(
                f"{path} was not written: it is stored at {redact(location)}, and twophase was tried on local file "
                "systems only. Nothing was started.",
                path=str(path),
                hint=f"Call detach(), set {UNTRIED}=allow, and attach again, to have it written there all the same.",
            )
        if environment.has_local_timeline:
            raise AtomicityNotSupportedError(
                f"{path} was not written: it is stored at {redact(location)}, where drivers of other machines can "
                "write it, too, and the timeline of this session is a file of this machine: their transactions and "
                "those of this session would not exclude each other. Nothing was started.",
                path=str(path),
                hint=f"Call detach(), set {TIMELINE} to a database that all drivers share, for instance {TIMELINE} = "
                "postgresql+psycopg://user@host/database, and attach again; or, where all of them run on this machine, "
                f"set {LOCAL_TIMELINE}=allow.",
            )


def requirements(location: str, environment: Environment) -> str:
    """Say what a session needs to write at a location, as the end of a sentence; nothing for a local one."""
    if normal(location).startswith(LOCAL):
        return ""
    shared = f", and a timeline that is no file, or {LOCAL_TIMELINE}=allow"
    return f". Not tested: writes there need {UNTRIED}=allow{shared if environment.has_local_timeline else ''}"
