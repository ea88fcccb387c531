"""What the chapters of the conformance suite share: fixtures to override, and a driver for one participant."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from twophase.catalog import Catalog
from twophase.catalog import TwoPhaseCatalogTable as Participant
from twophase.model import (
    Capabilities,
    ObjectPath,
    OverwriteScope,
    Purpose,
    TableDefinition,
    WriteContext,
)

Row = tuple[Any, ...]
Rows = list[Row]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
OLD: Rows = [(1, "old"), (2, "old")]
NEW: Rows = [(3, "new"), (4, "new"), (5, "new")]

#: A secret that the suite puts into OPTIONS of a definition.
SECRET = "s3cr3t-of-the-conformance-suite"


def transaction_id() -> str:
    """A fresh id of the form that the coordinator makes."""
    return f"conformance-20260101T000000-{uuid.uuid4().hex[:8]}"


def after(purpose: Purpose, old: Rows, new: Rows) -> Rows:
    """The rows of a table that held ``old`` after a statement that wrote ``new``."""
    if purpose is Purpose.INSERT_INTO:
        return [*old, *new]
    return old if purpose is Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS and old else new


@dataclass(frozen=True)
class FreshProcess:
    """How a child process makes the catalog.

    Parameters
    ----------
    factory : str
        ``package.module:function``; the function gets ``arguments`` as keywords and returns a catalog.
    arguments : mapping
        Plain JSON.
    """

    factory: str
    arguments: Mapping[str, Any]


@dataclass
class Driver:
    """Does with one catalog what the coordinator would do, step by step."""

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
        """Ask the catalog for a participant; it has staged nothing yet."""
        if context is None:
            scope = OverwriteScope() if purpose is Purpose.INSERT_OVERWRITE else None
            context = WriteContext(transaction_id(), overwrite=scope)
        definition = definition or TableDefinition(SCHEMA)
        return self.catalog.two_phase_create_table(path, definition, purpose=purpose, context=context, **facts)

    def written(self, path: ObjectPath, purpose: Purpose, rows: Rows = NEW, **facts: Any) -> Participant:
        """A participant that is begun and written."""
        definition = facts.get("definition") or TableDefinition(SCHEMA)
        participant = self.offer(path, purpose, **facts)
        assert participant is not None, f"{purpose} is declared, but the catalog answered None."
        participant.begin()
        participant.write(self.make_frame(rows, definition.schema))
        return participant

    def staged(self, path: ObjectPath, purpose: Purpose, rows: Rows = NEW, **facts: Any) -> Participant:
        """A participant that is begun, written and prepared."""
        participant = self.written(path, purpose, rows, **facts)
        participant.prepare()
        return participant

    def published(self, path: ObjectPath, purpose: Purpose, rows: Rows = NEW, **facts: Any) -> Participant:
        """A participant that is published and finished."""
        participant = self.staged(path, purpose, rows, **facts)
        participant.commit()
        participant.finish()
        return participant

    def rows(self, path: ObjectPath) -> Rows:
        """The rows of a published table, sorted."""
        return sorted((tuple(row) for row in self.read_rows(path)), key=repr)

    def ready(self, path: ObjectPath, purpose: Purpose) -> Rows:
        """Bring the target into the state that the purpose wants, and tell the rows it holds then."""
        if purpose.replaces or purpose.inserts:
            return self.existing(path)
        return []

    def existing(self, path: ObjectPath) -> Rows:
        """Make the target exist, with rows where the catalog can, and tell them."""
        if Purpose.CREATE_TABLE_AS in self.catalog.capabilities.purposes:
            self.published(path, Purpose.CREATE_TABLE_AS, OLD)
            return list(OLD)
        self.catalog.create_table(path, TableDefinition(SCHEMA))
        if Purpose.INSERT_INTO in self.catalog.capabilities.purposes:
            self.published(path, Purpose.INSERT_INTO, OLD)
            return list(OLD)
        return []

    def state(self, path: ObjectPath) -> Rows | None:
        """What everybody sees of a table: its rows, or None where there is none.

        The same through this catalog and through another process' view, else it fails.
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

    def left_in_store(self, *transactions: str) -> list[str]:
        """Staging that the catalog itself still knows of these transactions."""
        residues = self.catalog.residues()
        return [r.location for r in residues if r.transaction_id in transactions and r.kind != "version"]


class SuiteBase:
    """Fixtures of the suite; a plugin overrides the first four and :attr:`capabilities`."""

    #: What the catalog must declare. Every flag is closed until opened here.
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

    @pytest.fixture
    def catalog(self) -> Any:
        """The catalog under test, open, with the options of a real use."""
        raise NotImplementedError("Override the fixture `catalog`.")

    @pytest.fixture
    def fresh_catalog(self) -> Callable[[], Catalog]:
        """Makes another catalog over the same store, as another process would: nothing shared in memory."""
        raise NotImplementedError("Override the fixture `fresh_catalog`.")

    @pytest.fixture
    def make_frame(self) -> Callable[[Rows, pa.Schema], Any]:
        """Makes what ``participant.write`` takes, from rows and a schema; by default an Arrow table."""
        return lambda rows, schema: pa.Table.from_arrays(
            [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)], schema=schema
        )

    @pytest.fixture
    def read_rows(self) -> Callable[[ObjectPath], Sequence[Row]]:
        """Reads the rows of a published table, as tuples, past the catalog."""
        raise NotImplementedError("Override the fixture `read_rows`.")

    @pytest.fixture
    def fresh_process(self) -> FreshProcess | None:
        """How a child process makes the catalog; None where the store cannot be opened twice (embedded Derby)."""
        return None

    @pytest.fixture
    def secrets(self, catalog: Catalog) -> list[str]:
        """Texts that must appear in no document, repr or pickle; by default options with a telling name."""
        telling = ("password", "secret", "token", "credential")
        return [value for key, value in catalog.options.items() if any(word in key.lower() for word in telling)]

    @pytest.fixture
    def database(self, catalog: Catalog) -> Iterator[str]:
        """A database of its own for each test."""
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
        """Whether the purpose is declared; where it is not, that it is refused (never skipped)."""
        if purpose in self.capabilities.purposes:
            return True
        if purpose.replaces or purpose.inserts:
            driver.existing(path)
        before = driver.state(path)
        assert driver.offer(path, purpose) is None, f"{purpose} is not declared: the catalog must answer None."
        assert driver.state(path) == before
        return False
