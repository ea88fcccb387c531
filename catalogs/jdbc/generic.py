"""Any other database with an SQLAlchemy dialect: its abilities are found by trial, and determine the guarantees.

Before a catalog's first write, a temporary trial table shows whether a primary key refuses a second row (without that,
rows could be duplicated), whether DDL is rolled back with its transaction, and how a table is renamed.
"""

from __future__ import annotations

import re
import secrets as random_source
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
import tenacity
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import SQLAlchemyError

from twophase.catalogs.jdbc import defaults, rendering
from twophase.catalogs.jdbc.database import Column, Database
from twophase.catalogs.jdbc.generic_types import (
    arrow_type,
    arrow_value,
    driver_values,
    duckdb_arrow_type,
    sqlalchemy_type,
    type_text,
    without_collation,
)
from twophase.catalogs.jdbc.options import Settings
from twophase.catalogs.jdbc.spooling import spooled
from twophase.model import ObjectPath

_is = pa.types

#: Statements that rename a table in one database or another.
_RENAMES = (
    "ALTER TABLE {old} RENAME TO {full_new}",
    "ALTER TABLE {old} RENAME TO {new}",
    "RENAME TABLE {old} TO {full_new}",
    "RENAME TABLE {old} TO {new}",
)
#: Error messages for a database that another process has open: DuckDB's, and those of other file databases.
_HELD = re.compile(r"could not set lock|conflicting lock|database is locked", re.IGNORECASE)
#: Characters of a name: dialects claim more than their databases support, and the error would come too late.
_LONGEST = 63
#: Name of the only database if there are no schemas.
ONLY = "main"


@dataclass(frozen=True)
class Abilities:
    """Abilities of a database, as found by trial.

    Attributes
    ----------
    keys : bool
        A primary key refuses a second row.
    undoes_ddl : bool
        Creating and renaming tables is rolled back with the transaction.
    rename : str
        The statement that renames a table; empty if none works.
    """

    keys: bool = False
    undoes_ddl: bool = False
    rename: str = ""

    def to_document(self) -> dict[str, Any]:
        return asdict(self)


def open_generic(settings: Settings) -> Generic:
    """Make the object for a database that has no class of its own."""
    return DuckDB(settings) if settings.parsed.get_backend_name() == "duckdb" else Generic(settings)


class Generic(Database):
    """A database that twophase knows by its SQLAlchemy dialect only."""

    column_comments = False

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.title = self.dialect.name  # type: ignore[misc]
        self.longest_name = min(self.dialect.max_identifier_length, _LONGEST)  # type: ignore[misc]
        self.abilities: Abilities | None = None

    @property
    def ddl_in_transaction(self) -> bool:  # type: ignore[override]
        return self.abilities is not None and self.abilities.undoes_ddl

    @property
    def groups(self) -> bool:  # type: ignore[override]
        """True as long as it is unknown: :func:`twophase.catalogs.jdbc.publishing.group_key` finds out."""
        return self.abilities is None or self.abilities.undoes_ddl

    def group(self, home: str) -> str | None:
        """A publish is locked by rows of ledgers, and those of one schema can be locked in one transaction."""
        return home if self.ddl_in_transaction else None

    # -- connections ---------------------------------------------------------------------------------------------

    def connect_arguments(self, label: str) -> dict[str, Any]:
        return {}

    def configure(self, engine: sa.Engine) -> None:
        sa.event.listen(engine, "do_connect", self._connect)

    def _connect(self, dialect: Any, _: Any, arguments: Any, options: Any) -> Any:
        """Wait for a database file that another process has open."""
        waiting = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: bool(_HELD.search(str(error)))),
            stop=tenacity.stop_after_delay(self.settings.lock_timeout),
            wait=tenacity.wait_random(0.02, 0.2),
            reraise=True,
        )
        return waiting(dialect.connect, *arguments, **options)

    # -- abilities -----------------------------------------------------------------------------------------------

    def learn(self, engine: sa.Engine, database: str) -> None:
        if self.abilities is not None:
            return
        with engine.connect() as connection:
            there = database in self.list_databases(connection)
        if there:  # Otherwise it is about to be created.
            self.abilities = _Trial(self, engine, database).run()

    def refusal(self, swaps: bool) -> str | None:
        found = self.abilities or Abilities()
        if not found.keys:
            return "its primary keys do not refuse a second row, or no table could be made to try it"
        if swaps and not found.rename:
            return "no way was found to rename a table there"
        return None

    @property
    def keeps_tables(self) -> bool:
        return not self.ddl_in_transaction

    def level_reason(self, swaps: bool) -> str | None:
        if not swaps or self.ddl_in_transaction:
            return None
        return f"{self.title} commits each DDL statement, so that the old and the new table change names one by one"

    # -- names ---------------------------------------------------------------------------------------------------

    def name(self, table: ObjectPath) -> str:
        schema = self.schema(table.database)
        return self.quote(table.name) if schema is None else super().name(table)

    def schema(self, database: str) -> str | None:
        return database if self._has_schemas else None

    @property
    def _has_schemas(self) -> bool:
        return type(self.dialect).get_schema_names is not Dialect.get_schema_names

    def list_databases(self, connection: sa.Connection) -> list[str]:
        if not self._has_schemas:
            return [ONLY]
        return sorted(name for name in sa.inspect(connection).get_schema_names() if name.lower() not in _SYSTEM)

    def create_database(self, connection: sa.Connection, database: str, comment: str | None) -> None:
        self.run(connection, f"CREATE SCHEMA {self.quote(database)}")

    def drop_database(self, connection: sa.Connection, database: str) -> None:
        for name, kind in self.list_relations(connection, database).items():
            self.run(connection, f"DROP {kind} {self.name(ObjectPath.of(database, name))}")
        self.run(connection, f"DROP SCHEMA {self.quote(database)}")

    # -- tables --------------------------------------------------------------------------------------------------

    def list_relations(self, connection: sa.Connection, database: str) -> dict[str, str]:
        inspector, schema = sa.inspect(connection), self.schema(database)
        views = dict.fromkeys(inspector.get_view_names(schema=schema), "view")
        return {**dict.fromkeys(inspector.get_table_names(schema=schema), "table"), **views}

    def columns(self, connection: sa.Connection, table: ObjectPath) -> list[Column]:
        found = sa.inspect(connection).get_columns(table.name, schema=self.schema(table.database))
        return [
            Column(
                str(facts["name"]),
                type_text(without_collation(facts["type"]), self.dialect),
                arrow_type(facts["type"]),
                bool(facts.get("nullable", True)),
                facts.get("comment") or None,
                "computed" in facts,
                _default(facts),
            )
            for facts in found
        ]

    def _notes(self, database: str) -> sa.TableClause:
        return self.construct(ObjectPath.of(database, f"{self.settings.staging_prefix}comments"), "name", "said")

    def comment(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        notes = self._notes(table.database)
        if notes.name not in self.list_relations(connection, table.database):
            return None
        return connection.scalar(sa.select(notes.c.said).where(notes.c.name == table.name))

    def set_comment(self, connection: sa.Connection, table: ObjectPath, comment: str | None) -> None:
        notes = self._notes(table.database)
        if notes.name not in self.list_relations(connection, table.database):
            kind = self.column_type(pa.field("said", pa.string())) or "varchar(4000)"
            columns = [("name", "varchar(255) NOT NULL"), ("said", kind)]
            self.create(connection, ObjectPath.of(table.database, notes.name), columns)
        connection.execute(sa.delete(notes).where(notes.c.name == table.name))
        if comment is not None:
            connection.execute(sa.insert(notes).values(name=table.name, said=comment))

    def compares(self, column: Column) -> bool:
        """Exclude times with a zone, unless it is known in which zone the session takes those of a condition."""
        return super().compares(column) and (self.aware_times or getattr(column.arrow, "tz", None) is None)

    def compares_texts(self, column: Column) -> bool:
        """Exclude types read as text only because they are unknown; JSON, for one, may be compared as a document."""
        return any(word in column.type.lower() for word in ("char", "text", "string", "clob"))

    def column_type(self, field: pa.Field) -> str | None:
        kind = sqlalchemy_type(field.type)
        return None if kind is None else type_text(kind, self.dialect) or None

    def drop(self, connection: sa.Connection, table: ObjectPath) -> None:
        if table.name not in self.list_relations(connection, table.database):
            return
        self.run(connection, f"DROP TABLE {self.name(table)}")
        if self.comment(connection, table) is not None:
            self.set_comment(connection, table, None)

    def rename(self, connection: sa.Connection, table: ObjectPath, new: ObjectPath) -> None:
        how = (self.abilities or Abilities()).rename or _RENAMES[1]
        self.run(connection, self._rename(how, table, new))
        if (comment := self.comment(connection, table)) is not None:
            self.set_comment(connection, table, None)
            self.set_comment(connection, new, comment)

    def _rename(self, how: str, table: ObjectPath, new: ObjectPath) -> str:
        return how.format(old=self.name(table), new=self.quote(new.name), full_new=self.name(new))

    # -- locks ---------------------------------------------------------------------------------------------------

    @contextmanager
    def exclusive(self, engine: sa.Engine, home: str, names: Sequence[str]) -> Iterator[sa.Connection]:
        """Lock the stamp rows of the ledgers, unless DDL would commit and release the locks."""
        with engine.begin() as connection:
            if self.ddl_in_transaction:
                there = self.list_relations(connection, home)
                for ledger in (f"{self.settings.staging_prefix}l_{name}" for name in names):
                    if ledger in there:
                        table = self.construct(ObjectPath.of(home, ledger), "part", "row_count")
                        connection.execute(sa.update(table).where(table.c.part == -1).values(row_count=0))
            yield connection

    # -- rows ----------------------------------------------------------------------------------------------------

    def arranged(
        self, columns: Mapping[str, str], batches: Iterable[pa.RecordBatch]
    ) -> AbstractContextManager[Iterable[pa.RecordBatch]]:
        return spooled(batches)

    def load(self, connection: sa.Connection, table: ObjectPath, columns: Mapping[str, str], rows: Any) -> int:
        """Load with the driver's own ``executemany``, a batch at a time."""
        count = 0
        for batch in rows:
            ready = [(field.name, sqlalchemy_type(column.type), column) for field, column in rendering.plain(batch)]
            quoted = sa.sql.quoted_name
            target = sa.table(
                quoted(table.name, True),
                *(sa.column(quoted(name, True), kind) for name, kind, _ in ready),
                schema=self.schema(table.database),
            )
            values = zip(*(driver_values(column) for _, _, column in ready), strict=True)
            names = [f"c{number}" for number in range(len(ready))]
            places: dict[Any, Any] = {column: sa.bindparam(name) for column, name in zip(target.c, names, strict=True)}
            found = [dict(zip(names, row, strict=True)) for row in values]
            if found:
                connection.execute(sa.insert(target).values(places), found)
            count += len(found)
        return count

    def snapshot_options(self) -> dict[str, Any]:
        return {}

    def to_arrow(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([None if value is None else arrow_value(value, kind) for value in values], kind)


class DuckDB(Generic):
    """DuckDB: its dialect's reflection reads system tables that DuckDB lacks, so information_schema is used instead."""

    relations = (
        "SELECT table_name, CASE table_type WHEN 'VIEW' THEN 'view' ELSE 'table' END "
        "FROM information_schema.tables WHERE table_catalog = current_database() AND table_schema = :schema"
    )
    list_relations = Database.list_relations
    aware_times = True

    def engine(self, database: str, *, pooled: bool, label: str = "") -> sa.Engine:
        """Connections are never pooled: only one process at a time can open the file."""
        return super().engine(database, pooled=False, label=label)

    def list_databases(self, connection: sa.Connection) -> list[str]:
        found = connection.execute(
            sa.text("SELECT schema_name FROM information_schema.schemata WHERE catalog_name = current_database()")
        )
        return sorted(name for (name,) in found if name not in _SYSTEM)

    def columns(self, connection: sa.Connection, table: ObjectPath) -> list[Column]:
        found = connection.execute(
            sa.text(
                "SELECT column_name, data_type, is_nullable = 'YES', COALESCE(is_generated, '') = 'ALWAYS', "
                "NULLIF(column_default, 'NULL') FROM information_schema.columns "
                "WHERE table_catalog = current_database() AND table_schema = :schema AND table_name = :name "
                "ORDER BY ordinal_position"
            ),
            {"schema": table.database, "name": table.name},
        )
        return [
            Column(name, kind, duckdb_arrow_type(kind), nullable, generated=generated, default=default)
            for name, kind, nullable, generated, default in found
        ]

    def select_expression(self, column: Column) -> str:
        name = self.quote(column.name)
        # What Spark has no type for, in the text form that DuckDB itself takes, unlike that of Python's objects.
        return f"CAST({name} AS VARCHAR)" if _is.is_string(column.arrow) and column.type != "VARCHAR" else name

    def primary_key(self, connection: sa.Connection, table: ObjectPath) -> list[str]:
        found = connection.scalar(
            sa.text(
                "SELECT constraint_column_names FROM duckdb_constraints() WHERE constraint_type = 'PRIMARY KEY' "
                "AND database_name = current_database() AND schema_name = :schema AND table_name = :name"
            ),
            {"schema": table.database, "name": table.name},
        )
        return [str(name) for name in found or ()]


def _default(facts: Mapping[str, Any]) -> str | None:
    """The default of a column as its dialect describes it; of a number that the database counts, dialects have none."""
    if facts.get("identity") or facts.get("autoincrement") is True:
        return "auto"
    default = facts.get("default")
    return None if default is None or defaults.is_null(str(default)) else str(default)


_SYSTEM = {"information_schema", "pg_catalog", "sys", "mysql", "performance_schema"}


#: Seconds after which no trial runs any more: a table of an older one was left by a crash.
_LONGEST_TRIAL = 3600


class _Trial:
    """Trial of a database with a temporary table, whose name contains the time of the trial."""

    def __init__(self, database: Generic, engine: sa.Engine, home: str) -> None:
        self._database = database
        self._engine = engine
        self._prefix = f"{database.settings.staging_prefix}try_"
        mark = f"{int(time.time()):08x}{random_source.token_hex(2)}"
        self._table, self._other = (ObjectPath.of(home, f"{self._prefix}{mark}{end}") for end in ("", "_b"))

    def run(self) -> Abilities:
        try:
            self._remove_old()
            try:
                undoes = self._undone(self._create)
                with self._engine.begin() as connection:
                    if not self._there(connection, self._table):
                        self._create(connection)
                keys = self._refuses_a_second_row()
                rename = next((how for how in _RENAMES if self._renames(how)), "")
            except SQLAlchemyError:
                return Abilities()
            return Abilities(keys, bool(rename) and undoes and self._undone_rename(rename), rename)
        finally:
            for table in (self._table, self._other):
                with suppress(SQLAlchemyError), self._engine.begin() as connection:
                    self._database.drop(connection, table)

    def _remove_old(self) -> None:
        """Drop the tables of trials that a crash has interrupted."""
        with suppress(SQLAlchemyError), self._engine.begin() as connection:
            for name in self._database.list_relations(connection, self._table.database):
                table = ObjectPath.of(self._table.database, name)
                if self._is_old(name) and [c.name for c in self._database.columns(connection, table)] == ["part"]:
                    self._database.drop(connection, table)

    def _is_old(self, name: str) -> bool:
        began = re.fullmatch(f"{re.escape(self._prefix)}([0-9a-f]{{8}})[0-9a-f]{{4}}(_b)?", name)
        return began is not None and int(began[1], 16) < time.time() - _LONGEST_TRIAL

    def _create(self, connection: sa.Connection) -> None:
        self._database.create(connection, self._table, [("part", "integer NOT NULL PRIMARY KEY")])

    def _there(self, connection: sa.Connection, table: ObjectPath) -> bool:
        return table.name in self._database.list_relations(connection, table.database)

    def _undone(self, work: Any) -> bool:
        """Whether a rollback undoes all of ``work``."""
        with self._engine.connect() as connection:
            transaction = connection.begin()
            before = self._there(connection, self._table)
            work(connection)
            transaction.rollback()
        with self._engine.connect() as connection:
            return self._there(connection, self._table) == before

    def _undone_rename(self, how: str) -> bool:
        try:
            return self._undone(lambda connection: self._rename(connection, how, self._table, self._other))
        except SQLAlchemyError:
            return False

    def _rename(self, connection: sa.Connection, how: str, table: ObjectPath, new: ObjectPath) -> None:
        self._database.run(connection, self._database._rename(how, table, new))

    def _renames(self, how: str) -> bool:
        try:
            for table, new in ((self._table, self._other), (self._other, self._table)):
                with self._engine.begin() as connection:
                    self._rename(connection, how, table, new)
                with self._engine.connect() as connection:
                    if not self._there(connection, new):
                        return False  # The table was moved to another schema.
        except SQLAlchemyError:
            return False
        return True

    def _refuses_a_second_row(self) -> bool:
        table = self._database.construct(self._table, "part")
        with self._engine.begin() as connection:
            connection.execute(sa.insert(table).values(part=1))
        try:
            with self._engine.begin() as connection:
                connection.execute(sa.insert(table).values(part=1))
        except SQLAlchemyError:
            return True
        return False
