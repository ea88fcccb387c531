"""Names that a Hive Metastore can hold, whatever tables it keeps."""

from __future__ import annotations

import re

from twophase.errors import CatalogError, InvalidNameError

_PLAIN = re.compile(r"[A-Za-z0-9_]+")


def is_plain(name: str) -> bool:
    """Whether a name has ASCII letters, digits and underscores only."""
    return _PLAIN.fullmatch(name) is not None


def check_name(name: str, what: str, where: str, longest: int, path: object = None) -> None:
    """Refuse one part of a name.

    Parameters
    ----------
    name : str
    what, where : str
        What it names, and in what; for the message.
    longest : int
        Characters.
    path : object
        What the statement is about.

    Raises
    ------
    InvalidNameError
        For its characters: Spark has an error of its own for that, which a statement's user gets.
    CatalogError
        For its length.
    """
    if not is_plain(name):
        raise InvalidNameError(
            f"{name!r} is no valid name of a {what} in {where}: use ASCII letters, digits and underscores.",
            name=name,
            path=path,
        )
    if len(name) > longest:
        raise CatalogError(
            f"The name of the {what} {name[:40]}... has {len(name)} characters: no more than {longest} are allowed, "
            "as every version of a metastore holds as many.",
            path=path,
        )
