"""A complete plugin: a catalog of tables in a SQLite file, tested by the conformance suite and with Spark.

::

    spark.sql.catalog.lite         examples.sqlite_plugin:SqliteCatalog
    spark.sql.catalog.lite.file    /data/tables.db

Two internal tables list the databases and the tables, a third one the published statements. See docs/plugins.md.
"""

import json
import os
import sqlite3
from contextlib import closing, contextmanager
from functools import partial

import pyarrow as pa

from twophase import StoredTable, TableDefinition, TransactionalCatalog
from twophase.errors import CatalogError

SETUP = """
CREATE TABLE IF NOT EXISTS catalog_databases (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS catalog_tables (database, name, definition, version, PRIMARY KEY (database, name));
CREATE TABLE IF NOT EXISTS catalog_published (key TEXT PRIMARY KEY);
INSERT OR IGNORE INTO catalog_databases VALUES ('default');
"""
THIS = "WHERE database = ? AND name = ?"
STORED = dict.fromkeys(["int", "bool", "timestamp"], ("INTEGER", pa.int64())) | {"date": ("INTEGER", pa.int32())}
STORED |= dict.fromkeys(["float", "double"], ("REAL", pa.float64())) | {"binary": ("BLOB", pa.binary())}
STORED |= dict.fromkeys(["string", "decimal"], ("TEXT", pa.string()))


def stored(kind):
    """Return the type of a column in SQLite and in Arrow; decimals are stored as text, times as numbers."""
    for start, found in STORED.items():
        if str(kind).startswith(start):
            return found
    raise CatalogError(f"SQLite has no column of type {kind}.")


def to_sqlite(column):
    values = column.cast(stored(column.type)[1]).to_pylist()
    return ["NaN" if value != value else value for value in values]  # SQLite would store NULL instead.


def to_arrow(values, kind):
    raw = stored(kind)[1]
    values = [None if value is None else float(value) for value in values] if raw == pa.float64() else values
    return pa.array(values, raw).cast(kind)


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def table_of(path):
    return quoted(f"{path.database}.{path.name}")


def read(file, table, schema):
    """Read a table on an executor."""
    columns = ", ".join(map(quoted, schema.names))
    with closing(sqlite3.connect(file, timeout=60)) as db:
        rows = db.execute(f"SELECT {columns} FROM {table}")
        while some := rows.fetchmany(10_000):
            arrays = list(map(to_arrow, zip(*some, strict=True), schema.types))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class SqliteCatalog(TransactionalCatalog):
    known_options = {"file": "path of the SQLite file"}
    folds_case = True

    def __init__(self, name, options, environment):
        super().__init__(name, options, environment)
        self.file = os.path.abspath(options["file"])
        self.staging = self.file + ".staging"
        with closing(sqlite3.connect(self.file, timeout=60)) as db:
            db.executescript(SETUP)

    @contextmanager
    def transaction(self):
        with closing(sqlite3.connect(self.file, timeout=60, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")  # Closing the connection without it rolls back.

    def databases(self, db):
        return [name for (name,) in db.execute("SELECT name FROM catalog_databases")]

    def add_database(self, db, database):
        if "." in database:
            raise CatalogError("The name of a database has no dot here.", path=database)
        db.execute("INSERT INTO catalog_databases VALUES (?)", [database])

    def remove_database(self, db, database):
        db.execute("DELETE FROM catalog_databases WHERE name = ?", [database])

    def tables(self, db, database):
        return [name for (name,) in db.execute("SELECT name FROM catalog_tables WHERE database = ?", [database])]

    def find(self, db, path):
        query = f"SELECT definition, version FROM catalog_tables {THIS}"
        row = db.execute(query, [path.database, path.name]).fetchone()
        return row and StoredTable(TableDefinition.from_document(json.loads(row[0])), row[1])

    def make(self, db, path, definition):
        columns = ", ".join(f"{quoted(field.name)} {stored(field.type)[0]}" for field in definition.schema)
        db.execute(f"CREATE TABLE {table_of(path)} ({columns})")
        document = json.dumps(definition.to_document())
        db.execute("INSERT INTO catalog_tables VALUES (?, ?, ?, '')", [path.database, path.name, document])

    def remove(self, db, path):
        db.execute(f"DROP TABLE {table_of(path)}")
        db.execute(f"DELETE FROM catalog_tables {THIS}", [path.database, path.name])

    def clear(self, db, path):
        db.execute(f"DELETE FROM {table_of(path)}")

    def fill(self, db, path, rows):
        marks = ", ".join("?" * len(rows.schema))
        for batch in rows.batches():
            values = zip(*map(to_sqlite, batch.columns), strict=True)
            db.executemany(f"INSERT INTO {table_of(path)} VALUES ({marks})", values)

    def stamp(self, db, path, version):
        db.execute(f"UPDATE catalog_tables SET version = ? {THIS}", [version, path.database, path.name])

    def is_recorded(self, db, key):
        return db.execute("SELECT 1 FROM catalog_published WHERE key = ?", [key]).fetchone() is not None

    def record(self, db, key):
        db.execute("INSERT INTO catalog_published VALUES (?)", [key])

    def records(self, db):
        return [key for (key,) in db.execute("SELECT key FROM catalog_published")]

    def forget(self, db, key):
        db.execute("DELETE FROM catalog_published WHERE key = ?", [key])

    def scan(self, path, schema):
        return partial(read, self.file, table_of(path), schema)

    def validate(self, path, definition):
        for field in definition.schema:
            stored(field.type)
