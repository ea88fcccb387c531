"""Names that a Hive Metastore supports, whatever kind of tables it holds."""

from __future__ import annotations

import re

from twophase.errors import CatalogError, InvalidNameError

_PLAIN = re.compile(r"[A-Za-z0-9_]+")


def is_plain(name: str) -> bool:
    """Whether a name consists of ASCII letters, digits and underscores."""
    return _PLAIN.fullmatch(name) is not None


def check_name(name: str, what: str, where: str, longest: int, path: object = None) -> None:
    """Refuse an invalid part of a name.

    Parameters
    ----------
    name : str
    what, where : str
        The kind of object that it names, and the kind of store; for the message.
    longest : int
        Maximum number of characters.
    path : object
        Object of the statement.

    Raises
    ------
    InvalidNameError
        It has other characters: Spark has its own error for that, which the user gets.
    CatalogError
        It is too long.
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
