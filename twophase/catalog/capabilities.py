"""Look-up of the optional interfaces of a catalog: ``Supports...``, which ``twophase.catalog`` lists."""

from __future__ import annotations

from typing import TypeVar

from twophase.catalog.base import Catalog
from twophase.errors import AtomicityNotSupportedError

_Interface = TypeVar("_Interface")


def required(catalog: Catalog, interface: type[_Interface], problem: str, path: object) -> _Interface:
    """Return the catalog, typed as an optional interface, or raise if it does not implement it.

    Parameters
    ----------
    catalog : Catalog
    interface : type
        An interface of ``twophase.catalog``.
    problem : str
        The limitation of a catalog without it, as a verb and its object: ``cannot rename tables``.
    path : object
        The requested table or database.

    Raises
    ------
    AtomicityNotSupportedError
        The catalog does not implement the interface.
    """
    if isinstance(catalog, interface):
        return catalog
    raise AtomicityNotSupportedError(f"Catalog {catalog.name} {problem}.", path=path)
