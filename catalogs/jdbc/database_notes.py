"""Properties of databases, in the comment of the database, as those of a table are in its comment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from twophase.catalogs.jdbc.definitions import Note
from twophase.catalogs.jdbc.publishing import exclusive
from twophase.catalogs.jdbc.store import Store
from twophase.errors import AtomicityNotSupportedError

_COMMENT = "comment"
#: What Spark says of each new database, and a relational database has no place for.
_NOT_KEPT = ("owner", "location")


def note_of(properties: Mapping[str, str]) -> Note:
    """Return the note of a new database."""
    kept = {key: value for key, value in properties.items() if key not in (_COMMENT, *_NOT_KEPT)}
    return Note(properties.get(_COMMENT), kept)


def properties_of(store: Store, database: str) -> dict[str, str]:
    """Return the properties of a database, ``comment`` among them; none where a database has no comment."""
    if not store.database.comments_databases:
        return {}
    with store.begin(database, path=database, read_only=True) as connection:
        note = Note.read(store.database.database_comment(connection, database))
    return {**note.properties, **({_COMMENT: note.comment} if note.comment else {})}


def alter(store: Store, database: str, changes: Mapping[str, str | None]) -> None:
    """Set properties of a database, and remove those that are None, in one transaction.

    Raises
    ------
    AtomicityNotSupportedError
        A database has no comment there; nothing was changed.
    """
    if not store.comments_databases(database):
        raise AtomicityNotSupportedError(
            f"{store.database.title} has no place for properties of the database {database}.", path=database
        )
    with exclusive(store, database, [database], path=database) as connection:
        note = Note.read(store.database.database_comment(connection, database))
        known: dict[str, str | None] = {**note.properties, _COMMENT: note.comment, **changes}
        comment = known.pop(_COMMENT)
        kept = {key: value for key, value in known.items() if value is not None}
        store.database.set_database_comment(
            connection, database, replace(note, comment=comment, properties=kept).write()
        )
