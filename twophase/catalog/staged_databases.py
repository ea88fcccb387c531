"""CREATE DATABASE and DROP DATABASE as statements of a transaction.

A database is needed before tables can be staged in it: it is created by its statement, empty, with properties that say
whose it is and that it is not published, and a rollback drops it. A DROP DATABASE is published last, by a property, and
the database is dropped when the transaction's tables in it are gone. Neither removes what others have put into it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from twophase.catalog.base import Catalog, TwoPhaseCatalogTable
from twophase.catalog.staged_changes import SupportsStagedDatabases
from twophase.errors import (
    AtomicityNotSupportedError,
    CatalogError,
    DatabaseAlreadyExistsError,
    DatabaseNotExistError,
    WriteConflictError,
)
from twophase.model import Level, ObjectPath, Outcome, Purpose, WriteContext
from twophase.redaction import is_secret, logger

#: Properties of a database: the transaction that has created it; that has not published it; that drops it.
CREATED, PENDING, DROPPING = "twophase.created", "twophase.pending", "twophase.dropping"
#: What they say of a database that its transaction has left to others, where it would know it without them.
LEFT = "left"

_log = logger("twophase")


def plan_create(
    catalog: SupportsStagedDatabases, database: str, properties: Mapping[str, str], context: WriteContext
) -> DatabaseChange:
    """Create the participant that creates a database. Nothing is changed in the store.

    Parameters
    ----------
    catalog : SupportsStagedDatabases
    database : str
        Its name, unquoted.
    properties : mapping of str to str
        As in :meth:`Catalog.create_database`.
    context : WriteContext

    Raises
    ------
    DatabaseAlreadyExistsError
        It exists.
    AtomicityNotSupportedError
        A property is a secret, which no transaction writes down.
    CatalogError
        The catalog cannot undo it.
    """
    secrets = [key for key, value in properties.items() if is_secret(key, value)]
    if secrets:
        raise AtomicityNotSupportedError(
            f"Database {database} was not created: its property {secrets[0]} looks like a secret, which no transaction "
            "writes down.",
            path=database,
            transaction_id=context.transaction_id,
            hint="Create it before the transaction.",
        )
    if catalog.database_exists(database):
        raise DatabaseAlreadyExistsError.of(database, catalog.name)
    catalog.refuse_new_database(database, properties)
    facts = {"properties": dict(properties), "can_undo": True}
    return CreateDatabase(catalog, _document(catalog, database, Purpose.CREATE_DATABASE, context, **facts))


def plan_drop(
    catalog: SupportsStagedDatabases, database: str, gone: Collection[str], context: WriteContext
) -> DatabaseChange:
    """Create the participant that drops a database without tables. Nothing is changed in the store.

    Parameters
    ----------
    catalog : SupportsStagedDatabases
    database : str
    gone : collection of str
        The tables in it that the transaction drops.
    context : WriteContext

    Raises
    ------
    DatabaseNotExistError
        It does not exist.
    CatalogError
        It is not empty.
    """
    if not catalog.database_exists(database):
        raise DatabaseNotExistError.of(database, catalog.name)
    # Marked last, when the tables are gone; but before those whose publish cannot be undone, as the mark can be.
    facts = {
        "gone": sorted(gone),
        "can_undo": not catalog.capabilities.compensate,
        "identity": catalog.database_identity(database),
    }
    participant = DropDatabase(catalog, _document(catalog, database, Purpose.DROP_DATABASE, context, **facts))
    if left := participant.contents():
        raise not_empty(database, left)
    return participant


def restored(catalog: Catalog, document: Mapping[str, Any]) -> DatabaseChange | None:
    """Return the participant of a document; None if it is of a table."""
    kinds = {Purpose.CREATE_DATABASE.value: CreateDatabase, Purpose.DROP_DATABASE.value: DropDatabase}
    kind = kinds.get(document["purpose"])
    return None if kind is None else kind(catalog, document)


def not_empty(database: str, contents: Collection[str]) -> CatalogError:
    """Return the error for a database that is not dropped without CASCADE."""
    return CatalogError(
        f"Database {database} is not empty: it holds {_some(contents)}. Nothing was dropped.",
        path=database,
        hint="Drop what is in it first, or say CASCADE.",
    )


def _document(
    catalog: SupportsStagedDatabases, database: str, purpose: Purpose, context: WriteContext, **facts: Any
) -> dict[str, Any]:
    return {
        **catalog.database_facts(),
        **context.document(catalog.canonical(ObjectPath((), database)), purpose),
        **facts,
    }


def _some(names: Collection[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


class DatabaseChange(TwoPhaseCatalogTable):
    """The participant of a statement that creates or drops a database."""

    @property
    def name(self) -> str:
        """The database."""
        return self.path.name

    @property
    def databases(self) -> SupportsStagedDatabases:
        """The catalog, as that of databases."""
        catalog = self.catalog
        assert isinstance(catalog, SupportsStagedDatabases)
        return catalog

    def facts(self) -> Mapping[str, str] | None:
        """The properties of the database as it is now; None if it does not exist."""
        try:
            return self.databases.load_database(self.name)
        except DatabaseNotExistError:
            return None

    def is_same(self) -> bool:
        """Whether the database is that of the document, as far as its store has an identity of it."""
        identity = self.document.get("identity")
        return identity is not None and self.databases.database_identity(self.name) == identity

    @property
    def _left(self) -> str | None:
        return None if self.document.get("identity") is None else LEFT

    def write(self, df: Any) -> None:
        raise NotImplementedError("A database has no rows.")

    def conflict(self, why: str) -> WriteConflictError:
        """The error for a change by another session."""
        return WriteConflictError(
            f"Database {self.name}: {why}, so transaction {self.transaction_id} cannot publish what it has staged.",
            path=self.name,
            transaction_id=self.transaction_id,
            hint="Run the transaction again: it will see the new state.",
        )

    def _reach(self, reason: str) -> None:
        self.document.update(level=int(Level.REVERSIBLE), level_reason=reason)


class CreateDatabase(DatabaseChange):
    """The participant that creates a database: empty and marked until it is published."""

    staging_is_seen = True

    def begin(self) -> None:
        facts = self.facts()
        if facts is None:
            self.catalog.create_database(self.name, properties={**self.document["properties"], **self._marks})
        elif not self._is_own(facts):
            raise DatabaseAlreadyExistsError.of(self.name, self.catalog.name)
        self.document["identity"] = self.databases.database_identity(self.name)

    @property
    def _marks(self) -> dict[str, str]:
        return {CREATED: self.transaction_id, PENDING: self.transaction_id}

    def _is_own(self, facts: Mapping[str, str]) -> bool:
        """Whether the transaction has created the database; another program may have overwritten what says so."""
        return facts[CREATED] == self.transaction_id if CREATED in facts else self.is_same()

    def prepare(self) -> None:
        self._own()
        self._reach(f"Database {self.name} is there, without tables, before the transaction is published.")

    def _own(self) -> Mapping[str, str]:
        facts = self.facts()
        if facts is None or not self._is_own(facts):
            raise self.conflict("another session has dropped it since it was created")
        return facts

    def commit(self) -> None:
        facts = self._own()
        if PENDING in facts or CREATED not in facts:
            self.databases.alter_database(self.name, {CREATED: self.transaction_id, PENDING: None})
        self.document["published"] = True  # Known to this process where another program overwrites what says so.

    def outcome(self) -> Outcome:
        try:
            facts = self.facts()
        except Exception:  # The store is unreachable.
            return Outcome.UNKNOWN
        is_published = facts is not None and self._is_own(facts) and not self._is_unpublished(facts)
        return Outcome.PUBLISHED if is_published else Outcome.NOT_PUBLISHED

    def _is_unpublished(self, facts: Mapping[str, str]) -> bool:
        return PENDING in facts if CREATED in facts else not self.document.get("published")

    def compensate(self) -> bool:
        """Mark it again as not published: the rollback that follows drops it."""
        facts = self.facts()
        if facts is None or not self._is_own(facts):
            return False
        self.databases.alter_database(self.name, self._marks)
        self.document["published"] = False
        return True

    def abort(self) -> None:
        if not self._is_pending():
            return
        if left := [*self.databases.contents_of(self.name), *self.databases.files_of(self.name, self.transaction_id)]:
            # Theirs from now on: no later recovery removes it.
            self.databases.alter_database(self.name, {PENDING: None, CREATED: self._left})
            _log.warning(
                "Transaction %s is rolled back, and leaves database %s, which it has created: %s is in it.",
                self.transaction_id, self.name, _some(left),
            )  # fmt: skip
            return
        self.databases.remove_staged_database(self.name, self.transaction_id)

    def _is_pending(self) -> bool:
        facts = self.facts()
        return facts is not None and self._is_own(facts) and self._is_unpublished(facts)

    def left_behind(self) -> list[str]:
        return [f"database {self.name}"] if self._is_pending() else []


class DropDatabase(DatabaseChange):
    """The participant that drops a database, after the tables that its transaction drops in it."""

    drop_is_seen = True

    def contents(self) -> list[str]:
        """The contents of the database beside the tables that the transaction drops."""
        gone = {name.lower() for name in self.document["gone"]}
        return [name for name in self.databases.contents_of(self.name) if name.lower() not in gone]

    def begin(self) -> None:
        """It stages nothing."""

    def prepare(self) -> None:
        self._check()
        self._reach(f"Database {self.name} is dropped after the tables in it, by a call of its own.")

    def _check(self) -> Mapping[str, str]:
        facts = self.facts()
        if facts is None or not (self.is_same() or self.document.get("identity") is None):
            raise self.conflict("another session has dropped it meanwhile")
        if left := self.contents():
            raise self.conflict(f"another session has put {_some(left)} into it")
        return facts

    def commit(self) -> None:
        if self._check().get(DROPPING) != self.transaction_id:
            self.databases.alter_database(self.name, {DROPPING: self.transaction_id})

    def outcome(self) -> Outcome:
        try:
            return Outcome.PUBLISHED if self._is_marked() else Outcome.NOT_PUBLISHED
        except Exception:  # The store is unreachable.
            return Outcome.UNKNOWN

    def _is_marked(self) -> bool:
        facts = self.facts()
        return facts is not None and facts.get(DROPPING) == self.transaction_id

    def finish(self) -> None:
        facts = self.facts()
        # Its mark is gone where another program has overwritten the properties since.
        if facts is None or facts.get(DROPPING, self.transaction_id if self.is_same() else None) != self.transaction_id:
            return
        if left := self.databases.contents_of(self.name):
            self.databases.alter_database(self.name, {DROPPING: self._left})
            _log.warning(
                "Transaction %s is published, and leaves database %s, which it drops: meanwhile another session has put"
                " %s into it.", self.transaction_id, self.name, _some(left),
            )  # fmt: skip
            return
        self.databases.remove_staged_database(self.name, self.transaction_id)

    def compensate(self) -> bool:
        if self.can_undo:
            self.abort()
        return self.can_undo

    def abort(self) -> None:
        if self._is_marked():
            self.databases.alter_database(self.name, {DROPPING: None})

    def left_behind(self) -> list[str]:
        return [f"database {self.name}"] if self._is_marked() else []
