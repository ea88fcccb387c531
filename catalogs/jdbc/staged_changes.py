"""The statements of a staged ALTER TABLE: as documents, tried out, and made in the transaction of the publish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from twophase.catalog import TableChange
from twophase.catalogs.jdbc import altering
from twophase.catalogs.jdbc.altered_columns import Altered
from twophase.catalogs.jdbc.database import Column
from twophase.catalogs.jdbc.member import REPLACE, Member
from twophase.catalogs.jdbc.store import Store
from twophase.model import ObjectPath, TableDefinition
from twophase.redaction import is_secret


@dataclass(frozen=True)
class Attempt:
    """The changes of a table by the statements of a transaction.

    Attributes
    ----------
    definition : TableDefinition
    columns : list of Column
    steps : list of list of Altered
        The columns after each statement.
    """

    definition: TableDefinition
    columns: list[Column]
    steps: list[list[Altered]]


def attempt(store: Store, path: ObjectPath, statements: Sequence[Sequence[TableChange]]) -> Attempt:
    """Alter a table, look at it, and roll that back.

    Raises
    ------
    CatalogError, SchemaError
        A change is not possible.
    """
    database = store.database
    with store.begin(path.database, path=path) as connection:
        database.lock_target(connection, path, REPLACE)
        steps = [altering.apply(database, connection, path, changes) for changes in statements]
        found = Attempt(store.definition(connection, path), list(database.columns(connection, path)), steps)
        connection.rollback()
    return found


def apply(member: Member, connection: sa.Connection) -> None:
    """Alter the target, in the transaction of the publish."""
    for changes in statements_of(member.document):
        altering.apply(member.store.database, connection, member.path, changes)


# -- documents ---------------------------------------------------------------------------------------------------------


def statements_of(document: Mapping[str, Any]) -> list[list[TableChange]]:
    """Return the changes of each ALTER TABLE that a participant publishes."""
    return [[_from_document(change) for change in statement] for statement in document["statements"]]


def without_secrets(definition: TableDefinition) -> TableDefinition:
    """Return a definition as a document may hold it."""
    kept = {key: value for key, value in definition.properties.items() if not is_secret(key, value)}
    return replace(definition, properties=kept)


def to_document(change: TableChange) -> dict[str, Any]:
    """Return the plain JSON document of a change."""
    facts = dict(change.arguments)
    if "field" in facts:
        facts["field"] = TableDefinition(facts["field"]).to_document()
    return {"kind": change.kind, "path": list(change.path), "arguments": facts}


def _from_document(document: Mapping[str, Any]) -> TableChange:
    facts = dict(document["arguments"])
    if "field" in facts:
        facts["field"] = TableDefinition.from_document(facts["field"]).schema
    return TableChange(document["kind"], tuple(document["path"]), facts)
