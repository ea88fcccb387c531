"""The errors of the schema rules.

::

    TwoPhaseError
    ├── SchemaError                          facts: field_path, old_type, new_type, allowed
    │   ├── UnknownFieldError                no field has the given path or id
    │   ├── AmbiguousPathError               a dotted or case-insensitive name matches several fields
    │   ├── DuplicateFieldError              two siblings have names that differ at most in case
    │   ├── ContradictingChangesError        two changes of one list contradict each other
    │   ├── TypeChangeError                  the promotion policy refuses the change of type
    │   ├── NullabilityError                 nullable to NOT NULL without a check, or NULL in a NOT NULL field
    │   ├── KeyFieldError                    a primary-key or partition field does not allow the change
    │   ├── LastFieldError                   a table or struct would be left without fields
    │   ├── NestedFieldError                 a map's key or value, or a list's element does not allow the change
    │   ├── MoveError                        a field cannot be moved there
    │   ├── DefaultValueError                a default does not fit its field's type
    │   ├── UnsupportedTypeError             a type has no counterpart in the target system
    │   ├── FieldIdError                     ids clash, are missing, or belong to another schema
    │   ├── CastError                        a value cannot be read as the new type
    │   ├── IncompatibleWriteError           the reconcile policy refuses the incoming columns
    │   ├── SchemaDocumentError              a document does not describe a schema
    │   │   └── NewerDocumentError           a document was written by a newer version
    │   └── SchemaHistoryError               the history refuses the version, or does not have it
    └── ... ConcurrentSchemaEvolutionError
        └── SchemaConflictError              names the field and both versions (RFC-82)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twophase.errors import ConcurrentSchemaEvolutionError, TwoPhaseError


class SchemaError(TwoPhaseError):
    """Base of the schema errors.

    Parameters
    ----------
    message : str
        What happened, in one sentence.
    field_path : str, optional
        The affected field.
    old_type, new_type : str, optional
        The types involved, by their names in error messages.
    allowed : iterable of str, optional
        The changes that would be allowed instead.
    **facts
        As in :class:`twophase.errors.TwoPhaseError`.
    """

    def __init__(
        self,
        message: str,
        *,
        field_path: str | None = None,
        old_type: str | None = None,
        new_type: str | None = None,
        allowed: Iterable[str] = (),
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        self.field_path = field_path
        self.old_type = old_type
        self.new_type = new_type
        self.allowed = tuple(allowed)

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} Allowed: {'; '.join(self.allowed)}." if self.allowed else text


class UnknownFieldError(SchemaError):
    """No field has the given path or id."""


class AmbiguousPathError(SchemaError):
    """A dotted name or a name in another case matches several fields."""


class DuplicateFieldError(SchemaError):
    """Two fields of one struct have names that Spark cannot distinguish."""


class ContradictingChangesError(SchemaError):
    """Two changes of one list contradict each other."""


class TypeChangeError(SchemaError):
    """The promotion policy refuses the change of type."""


class NullabilityError(SchemaError):
    """A nullable field would become NOT NULL unchecked, or a NOT NULL field holds NULL."""


class KeyFieldError(SchemaError):
    """A primary-key or partition field does not allow the change."""


class LastFieldError(SchemaError):
    """A table or struct would be left without fields."""


class NestedFieldError(SchemaError):
    """A map's key or value, or a list's element does not allow the change."""


class MoveError(SchemaError):
    """A field cannot be moved onto itself or into another struct."""


class DefaultValueError(SchemaError):
    """A default does not fit its field's type."""


class UnsupportedTypeError(SchemaError):
    """A type has no counterpart in the target system."""


class FieldIdError(SchemaError):
    """Field ids clash, are missing, or belong to another schema."""


class CastError(SchemaError):
    """A stored value cannot be read as the field's new type."""


class IncompatibleWriteError(SchemaError):
    """The incoming columns do not fit the table under the reconcile policy."""


class SchemaDocumentError(SchemaError):
    """A document does not describe a schema."""


class NewerDocumentError(SchemaDocumentError):
    """A document was written by a newer version of twophase."""


class SchemaHistoryError(SchemaError):
    """The schema history refuses the version, or does not have the requested one."""


class SchemaConflictError(ConcurrentSchemaEvolutionError):
    """Two writers made conflicting changes to the schema of one table (Hudi RFC-82).

    Parameters
    ----------
    message : str
    field_path : str, optional
        The first field that both writers changed.
    table_version, writer_version : int, optional
        Schema ids of the version that was committed meanwhile, and of the writer's.
    **facts
        As in :class:`twophase.errors.TwoPhaseError`.
    """

    def __init__(
        self,
        message: str,
        *,
        field_path: str | None = None,
        table_version: int | None = None,
        writer_version: int | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        self.field_path = field_path
        self.table_version = table_version
        self.writer_version = writer_version
