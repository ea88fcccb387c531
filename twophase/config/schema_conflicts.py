"""The option ``schema_conflicts`` of a catalog: how two writers who change one schema are resolved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator

from twophase.config.chosen import chosen
from twophase.schema import (
    DEFAULT_STRATEGY,
    RebaseSchemaConflictResolutionStrategy,
    SchemaConflictResolutionStrategy,
)

_STRATEGIES: Mapping[str, SchemaConflictResolutionStrategy] = {
    "rfc-82": DEFAULT_STRATEGY,
    "rebase": RebaseSchemaConflictResolutionStrategy(),
}


def strategy_of(name: str) -> SchemaConflictResolutionStrategy:
    """The strategy of a name, or of a class of the user's.

    Parameters
    ----------
    name : str
        ``rfc-82``, ``rebase``, or ``package.module:Class``.

    Raises
    ------
    ValueError
        There is no such strategy.
    """
    found = chosen(name, _STRATEGIES)
    if isinstance(found, SchemaConflictResolutionStrategy):
        return found
    if not (isinstance(found, type) and issubclass(found, SchemaConflictResolutionStrategy)):
        raise ValueError(f"is {name!r}, which is no SchemaConflictResolutionStrategy.")
    try:
        return found()
    except Exception as error:  # A class of the user's may raise anything.
        raise ValueError(f"is {name!r}, which cannot be made: {error!r}.") from error


def _checked(name: str) -> str:
    strategy_of(name)
    return name


#: The type of the option.
SchemaConflicts = Annotated[str, BeforeValidator(_checked)]
DESCRIPTION = (
    "two writers change one schema: rfc-82; rebase, which also combines changes of different fields; or a class of "
    "your own as package.module:Class"
)
