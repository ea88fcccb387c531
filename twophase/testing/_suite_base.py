"""Common parts of the conformance suite's chapters: fixtures to override, and a driver for one participant."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
import pytest

from twophase.catalog import Catalog, SupportsCleaning, SupportsExternalChanges
from twophase.catalog import TwoPhaseCatalogTable as Participant
from twophase.catalog.capabilities import required
from twophase.errors import TransactionAborted
from twophase.model import (
    Capabilities,
    ObjectPath,
    Outcome,
    OverwriteScope,
    Purpose,
    TableDefinition,
    WriteContext,
)

_Interface = TypeVar("_Interface")
Row = tuple[Any, ...]
Rows = list[Row]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
OLD: Rows = [(1, "old"), (2, "old")]
NEW: Rows = [(3, "new"), (4, "new"), (5, "new")]

#: A secret that the suite puts into the OPTIONS of a definition.
SECRET = "s3cr3t-of-the-conformance-suite"


Test = TypeVar("Test", bound=Callable[..., None])


def quick(test: Test) -> Test:
    """Mark a test for quick runs: ``pytest -k quick`` also selects functions by such an attribute."""
    test.quick = True  # type: ignore[attr-defined]
    return test


def transaction_id() -> str:
    """Create a new id in the coordinator's format."""
    return f"conformance-20260101T000000-{uuid.uuid4().hex[:8]}"


def after(purpose: Purpose, old: Rows, new: Rows) -> Rows:
    """Return the rows of a table with the rows ``old`` after a statement that wrote ``new``."""
    if purpose is Purpose.INSERT_INTO:
        return [*old, *new]
    return old if purpose is Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS and old else new


@dataclass(frozen=True)
class FreshProcess:
    """The way in which a child process creates the catalog.

    Parameters
    ----------
    factory : str
        ``package.module:function``; the function is called with ``arguments`` as keywords and returns a catalog.
    arguments : mapping
        Plain JSON.
    """

    factory: str
    arguments: Mapping[str, Any]


@dataclass
class Driver:
    """A driver that performs the coordinator's steps on one catalog, one by one."""

    catalog: Catalog
    make_frame: Callable[[Rows, pa.Schema], Any]
    read_rows: Callable[[ObjectPath], Sequence[Row]]
    fresh: Callable[[], Catalog]

    def offer(
        self,
        path: ObjectPath,
        purpose: Purpose,
        definition: TableDefinition | None = None,
        *,
        context: WriteContext | None = None,
        **facts: Any,
    ) -> Participant | None:
        """Request a participant from the catalog; nothing is staged yet."""
        if context is None:
            scope = OverwriteScope() if purpose is Purpose.INSERT_OVERWRITE else None
            context = WriteContext(transaction_id(), overwrite=scope)
        definition = definition or TableDefinition(SCHEMA)
        return self.catalog.two_phase_create_table(path, definition, purpose=purpose, context=context, **facts)

    def written(self, path: ObjectPath, purpose: Purpose, rows: Rows = NEW, **facts: Any) -> Participant:
        """Create a participant, and begin and write it."""
        definition = facts.get("definition") or TableDefinition(SCHEMA)
        participant = self.offer(path, purpose, **facts)
        assert participant is not None, f"{purpose} is declared, but the catalog answered None."
        participant.begin()
        participant.write(self.make_frame(rows, definition.schema))
        return participant

    def staged(self, path: ObjectPath, purpose: Purpose, rows: Rows = NEW, **facts: Any) -> Participant:
        """Create a participant, and begin, write and prepare it."""
        participant = self.written(path, purpose, rows, **facts)
        participant.prepare()
        return participant

    def published(self, path: ObjectPath, purpose: Purpose, rows: Rows = NEW, **facts: Any) -> Participant:
        """Create a participant, and publish and finish it."""
        participant = self.staged(path, purpose, rows, **facts)
        participant.commit()
        participant.finish()
        return participant

    def rows(self, path: ObjectPath) -> Rows:
        """Return the rows of a published table, sorted."""
        return sorted((tuple(row) for row in self.read_rows(path)), key=repr)

    def ready(self, path: ObjectPath, purpose: Purpose) -> Rows:
        """Bring the target into the state that the purpose needs, and return its rows."""
        if purpose.replaces or purpose.inserts:
            return self.existing(path)
        return []

    def existing(self, path: ObjectPath) -> Rows:
        """Make the target exist, with rows if the catalog can write them, and return its rows."""
        if Purpose.CREATE_TABLE_AS in self.catalog.capabilities.purposes:
            self.published(path, Purpose.CREATE_TABLE_AS, OLD)
            return list(OLD)
        self.catalog.create_table(path, TableDefinition(SCHEMA))
        if Purpose.INSERT_INTO in self.catalog.capabilities.purposes:
            self.published(path, Purpose.INSERT_INTO, OLD)
            return list(OLD)
        return []

    def state(self, path: ObjectPath) -> Rows | None:
        """Return the rows of a table as visible to all readers, or None if it does not exist.

        Fails unless this catalog and the view of another process agree.
        """
        exists = self.catalog.table_exists(path)
        fresh = self.fresh()
        try:
            assert fresh.table_exists(path) == exists, f"Two views of {path} disagree."
            assert (path.name in fresh.list_tables(path.database)) == exists
        finally:
            fresh.close()
        assert (path.name in self.catalog.list_tables(path.database)) == exists
        return self.rows(path) if exists else None

    def as_one(self, interface: type[_Interface], catalog: Catalog | None = None) -> _Interface:
        """Return the catalog as an interface of :mod:`twophase.catalog`; refuse it as the host does."""
        return required(catalog or self.catalog, interface, f"cannot do what {interface.__name__} says", None)

    def dropped_by_the_host(self, path: ObjectPath) -> None:
        """Notify the catalog, as the host does after it has dropped a table directly; only if that is supported."""
        if isinstance(self.catalog, SupportsExternalChanges):
            self.catalog.table_dropped(path)

    def left_in_store(self, *transactions: str) -> list[str]:
        """Return the staged data of these transactions that the catalog itself still lists."""
        leftovers = self.as_one(SupportsCleaning).leftovers()
        return [r.location for r in leftovers if r.transaction_id in transactions and r.kind != "version"]

    def outcome_elsewhere(self, participant: Participant) -> Outcome:
        """Return the outcome of a participant as another process, which has only its document, sees it."""
        fresh = self.fresh()
        try:
            return fresh.restore(json.loads(json.dumps(participant.document))).outcome()
        finally:
            fresh.close()

    def ended_again(self, participant: Participant) -> Participant:
        """Repeat what follows the publish of a participant, and of the one restored from its document; return that."""
        restored = self.catalog.restore(participant.document)
        for one in (participant, restored):
            assert one.outcome() is Outcome.PUBLISHED
            one.commit()
            one.abort()
            one.finish()
        return restored

    def rolled_back(self, participant: Participant) -> None:
        """Abort a participant twice, the second time from its document; it can no longer be published."""
        participant.abort()
        self.catalog.restore(participant.document).abort()
        assert participant.outcome() is not Outcome.PUBLISHED
        assert self.left_in_store(participant.transaction_id) == []
        with pytest.raises(TransactionAborted):
            participant.commit()


class SuiteBase:
    """The fixtures of the suite; a plugin overrides those that raise here, and :attr:`capabilities`."""

    #: The capabilities that the catalog must declare. Every flag is off by default.
    capabilities: ClassVar[Capabilities] = Capabilities()

    #: Arrow types of columns that must survive a round trip through the catalog.
    types: ClassVar[tuple[pa.DataType, ...]] = (
        pa.bool_(),
        pa.int32(),
        pa.int64(),
        pa.float64(),
        pa.string(),
        pa.date32(),
        pa.decimal128(10, 2),
    )

    #: Maximum number of moments at which a publish is interrupted: one for each line of the catalog's own code.
    moments: ClassVar[int] = 100

    @pytest.fixture
    def catalog(self) -> Any:
        """The catalog under test, open, with realistic options."""
        raise NotImplementedError("Override the fixture `catalog`.")

    @pytest.fixture
    def fresh_catalog(self) -> Callable[[], Catalog]:
        """A function that creates another catalog over the same store, as in another process: without shared memory."""
        raise NotImplementedError("Override the fixture `fresh_catalog`.")

    @pytest.fixture
    def make_frame(self) -> Callable[[Rows, pa.Schema], Any]:
        """A function that converts rows and a schema to the argument of ``participant.write``; by default Arrow."""
        return lambda rows, schema: pa.Table.from_arrays(
            [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)], schema=schema
        )

    @pytest.fixture
    def read_rows(self) -> Callable[[ObjectPath], Sequence[Row]]:
        """A function that reads the rows of a published table, as tuples, bypassing the catalog."""
        raise NotImplementedError("Override the fixture `read_rows`.")

    @pytest.fixture
    def fresh_process(self) -> FreshProcess | None:
        """The way in which a child process creates the catalog; None if the store cannot be opened twice (embedded
        Derby): tests that need another process are then omitted."""
        raise NotImplementedError("Override the fixture `fresh_process`.")

    @pytest.fixture
    def secrets(self, catalog: Catalog) -> list[str]:
        """Strings that must not appear in any document, repr or pickle; by default, options with a telling name."""
        telling = ("password", "secret", "token", "credential")
        return [value for key, value in catalog.options.items() if any(word in key.lower() for word in telling)]

    @pytest.fixture
    def database(self, catalog: Catalog) -> Iterator[str]:
        """A separate database for each test."""
        name = f"conformance_{uuid.uuid4().hex[:12]}"
        catalog.create_database(name)
        yield name
        catalog.drop_database(name, ignore_if_not_exists=True, cascade=True)

    @pytest.fixture
    def path(self, database: str) -> ObjectPath:
        """The target of most tests; it does not exist yet."""
        return ObjectPath.of(database, "target")

    @pytest.fixture
    def driver(self, catalog: Any, make_frame: Any, read_rows: Any, fresh_catalog: Any) -> Driver:
        return Driver(catalog, make_frame, read_rows, fresh_catalog)

    def declares(self, driver: Driver, path: ObjectPath, purpose: Purpose) -> bool:
        """Return whether the purpose is declared; if it is not, assert that it is refused (never skipped)."""
        if purpose in self.capabilities.purposes:
            return True
        if purpose.replaces or purpose.inserts:
            driver.existing(path)
        before = driver.state(path)
        assert driver.offer(path, purpose) is None, f"{purpose} is not declared: the catalog must answer None."
        assert driver.state(path) == before
        return False
