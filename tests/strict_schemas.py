"""A strategy of a user's for two writers who change one schema, named in an option by :data:`NAME`."""

from __future__ import annotations

from typing import Any

from twophase.errors import ConcurrentSchemaEvolutionError
from twophase.schema import Resolution, SchemaConflictResolutionStrategy

NAME = f"{__name__}:Strict"


class Strict(SchemaConflictResolutionStrategy):
    """Whoever finds another schema runs again."""

    def resolve(self, at_start: Any, at_validation: Any, writer: Any, **facts: Any) -> Resolution:
        if not at_validation.same_as(at_start):
            raise ConcurrentSchemaEvolutionError(f"{facts['table']} has changed, says the user.", path=facts["table"])
        return Resolution(writer)
