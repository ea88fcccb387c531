"""Choices of the user by name: one of ours, or a class of their own."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from twophase.config.settings import nearest


def chosen(name: str, known: Mapping[str, object]) -> object:
    """Return what a name means: one of those that are known, or what ``package.module:Class`` imports.

    Parameters
    ----------
    name : str
    known : mapping of str to object
        By their names in lower case.

    Returns
    -------
    object
        Of a user's own anything: the caller checks it.

    Raises
    ------
    ValueError
        It is neither. The first argument says what is wrong, after the name of the option; a second one what to do.
    """
    module, colon, attribute = name.strip().partition(":")
    if not colon:
        if module.lower() not in known:
            raise ValueError(f"is {name!r}.", f"{nearest(module, known)} Or a class of your own: package.module:Class.")
        return known[module.lower()]
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"is {name!r}, which cannot be imported: {error}.") from error
