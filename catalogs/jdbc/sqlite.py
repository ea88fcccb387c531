"""SQLite: one writer at a time, a file for each database, declared types that record Spark's types."""

from __future__ import annotations

import hashlib
import itertools
import marshal
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from decimal import Context, Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from twophase.catalogs.jdbc import rendering
from twophase.catalogs.jdbc.database import Column, Database, type_of
from twophase.catalogs.jdbc.spooling import own_directory
from twophase.errors import CatalogError
from twophase.model import ObjectPath

_is = pa.types

#: The database that is the file of the URL itself.
MAIN = "main"
#: SQLite stores NUMERIC values of up to so many digits exactly; longer decimals are stored as texts.
_EXACT_DIGITS = 15
#: Values in one INSERT: some hundred save a fifth of the time; every SQLite allows 999.
_VALUES_AT_ONCE = 250
#: A function of SQL, of a value and the number of digits behind the point: a decimal as it is stored as a text.
DECIMAL_TEXT = "twophase_decimal_text"
#: Names of a row's number, unless a column has them: a column may be a text, and a cut by it leaves out its NULLs.
_ROW_NUMBERS = ("rowid", "_rowid_", "oid")
_SPOOL = "partition_rows"
_ROWS_AT_ONCE = 10_000
#: Settings of a spool file, which need not outlive its task.
_OF_A_SPOOL = ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE")
#: More digits than any decimal of Spark has.
_DIGITS = Context(prec=60)
_FILE_NAME = re.compile(r"[A-Za-z0-9_\-]{1,100}")
_PARAMETERS = re.compile(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")

_KINDS: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "BOOL": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    # A declared INTEGER, which twophase does not use itself, is SQLite's own 64 bits.
    "INTEGER": pa.int64(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DOUBLE PRECISION": pa.float64(),
    "REAL": pa.float64(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    "DATETIME": pa.timestamp("us"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", tz="UTC"),
    # Spark does not read Arrow's TIME.
    "TIME": pa.string(),
}


class SQLite(Database):
    """SQLite 3.35 and later; a database other than ``main`` is a file beside the URL's own."""

    title = "SQLite"
    relations = (
        "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') AND substr(name, 1, 7) <> 'sqlite_'"
    )
    longest_name = 1_000
    column_comments: ClassVar[bool] = False

    # -- files ---------------------------------------------------------------------------------------------------

    @property
    def _file(self) -> Path:
        return Path(str(self.settings.parsed.database))

    def file(self, database: str) -> Path:
        """The file of a database.

        Raises
        ------
        CatalogError
            A file cannot have this name.
        """
        if database == MAIN:
            return self._file
        if not _FILE_NAME.fullmatch(database):
            raise CatalogError(
                f"{database!r} is no name of a database in SQLite: it names a file; use letters, digits, - and _.",
                path=database,
            )
        return self._file.with_name(f"{self._file.stem}.{database}{self._file.suffix}")

    def url(self, database: str) -> URL:
        return self.settings.parsed.set(database=str(self.file(database)))

    def engine_key(self, database: str) -> str:
        return database

    def connect_arguments(self, label: str) -> dict[str, Any]:
        return {"timeout": self.settings.lock_timeout, "check_same_thread": False}

    def configure(self, engine: sa.Engine) -> None:
        if engine.url.database != str(self._file):
            sa.event.listen(engine, "do_connect", _only_to_what_is_there)
        sa.event.listen(engine, "connect", _configure)
        sa.event.listen(engine, "begin", _begin)

    # -- names ---------------------------------------------------------------------------------------------------

    def name(self, table: ObjectPath) -> str:
        return self.quote(table.name)

    def schema(self, database: str) -> str | None:
        return None

    def canonical(self, path: ObjectPath) -> ObjectPath:
        """SQLite does not distinguish names by the case of ASCII letters."""
        return ObjectPath(path.namespace, path.name.translate(_LOWER))

    def check_name(self, name: str, what: str, path: object) -> None:
        super().check_name(name, what, path)
        if name.lower().startswith("sqlite_"):
            raise CatalogError(f"Names that begin with sqlite_ are SQLite's own: {name!r}.", path=path)

    # -- databases -----------------------------------------------------------------------------------------------

    def list_databases(self, connection: sa.Connection) -> list[str]:
        return self.files()

    def files(self) -> list[str]:
        """Return the databases, by their files."""
        start, end = f"{self._file.stem}.", self._file.suffix
        found = []
        for file in self._file.parent.glob("*"):
            name = file.name[len(start) : len(file.name) - len(end)] if end else file.name[len(start) :]
            if (
                file.name == f"{start}{name}{end}"
                and _FILE_NAME.fullmatch(name)
                and not name.endswith(("-wal", "-shm"))
            ):
                found.append(name)
        return sorted({MAIN, *found})

    def create_database(self, connection: sa.Connection, database: str, comment: str | None) -> None:
        self.file(database).touch(exist_ok=False)

    def drop_database(self, connection: sa.Connection, database: str) -> None:
        if database == MAIN:
            raise CatalogError("The database main is the file of the url itself and is not dropped.", path=database)
        file = self.file(database)
        for end in ("", "-wal", "-shm", "-journal"):
            file.with_name(file.name + end).unlink(missing_ok=True)

    def drop_empty_database(self, connection: sa.Connection, database: str) -> None:
        """Delete the file while no other connection can write to it."""
        if database == MAIN:
            self.drop_database(connection, database)
        with closing(sqlite3.connect(self.file(database), self.settings.lock_timeout, isolation_level=None)) as own:
            own.execute("BEGIN EXCLUSIVE")
            made = own.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            if found := [n for (n,) in made if not n.startswith("sqlite_") and not self.is_bookkeeping(n)]:
                raise self.not_empty(database, found)
            self.drop_database(connection, database)

    @property
    def unstaged_database_reason(self) -> str:
        return "a database of SQLite is a file, which is created and deleted outside of every transaction"

    # -- tables --------------------------------------------------------------------------------------------------

    def kinds(self, connection: sa.Connection, database: str, names: Sequence[str]) -> dict[str, str]:
        found = {name: self.table_kind(connection, ObjectPath.of(database, name)) for name in names}
        return {name: kind for name, kind in found.items() if kind is not None}

    def table_kind(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        return connection.scalar(
            sa.text("SELECT type FROM sqlite_master WHERE type IN ('table', 'view') AND name = :name COLLATE NOCASE"),
            {"name": table.name},
        )

    def columns(self, connection: sa.Connection, table: ObjectPath) -> list[Column]:
        rows = connection.execute(
            sa.text('SELECT name, type, "notnull", hidden, dflt_value FROM pragma_table_xinfo(:name)'),
            {"name": table.name},
        )
        return [
            Column(name, declared, _arrow(declared), not required, None, hidden in (2, 3), default)
            for name, declared, required, hidden, default in rows
            if hidden != 1
        ]

    def _comments(self) -> str:
        return self.quote(f"{self.settings.staging_prefix}comments")

    def comment(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        if self.table_kind(connection, ObjectPath.of(MAIN, f"{self.settings.staging_prefix}comments")) is None:
            return None
        return connection.scalar(
            sa.text(f"SELECT comment FROM {self._comments()} WHERE name = :name COLLATE NOCASE"), {"name": table.name}
        )

    def set_comment(self, connection: sa.Connection, table: ObjectPath, comment: str | None) -> None:
        self.run(
            connection,
            f"CREATE TABLE IF NOT EXISTS {self._comments()} (name TEXT COLLATE NOCASE PRIMARY KEY, comment TEXT)",
        )
        facts = {"name": table.name, "comment": comment}
        connection.execute(sa.text(f"DELETE FROM {self._comments()} WHERE name = :name"), facts)
        if comment is not None:
            connection.execute(sa.text(f"INSERT INTO {self._comments()} VALUES (:name, :comment)"), facts)

    def column_type(self, field: pa.Field) -> str | None:
        return type_of(_TYPES, field.type)

    def drop(self, connection: sa.Connection, table: ObjectPath) -> None:
        super().drop(connection, table)
        if self.comment(connection, table) is not None:
            self.set_comment(connection, table, None)

    def rename(self, connection: sa.Connection, table: ObjectPath, new: ObjectPath) -> None:
        # Views and triggers refer to a table by name: they are not rewritten for the new name.
        self.run(connection, "PRAGMA legacy_alter_table = ON")
        self.run(connection, f"ALTER TABLE {self.name(table)} RENAME TO {self.quote(new.name)}")
        self.run(connection, "PRAGMA legacy_alter_table = OFF")
        comment = self.comment(connection, table)
        if comment is not None:
            self.set_comment(connection, table, None)
            self.set_comment(connection, new, comment)

    # -- changes of rows -----------------------------------------------------------------------------------------

    def content(self, connection: sa.Connection, table: ObjectPath, *, lock: bool = False) -> list[Any] | None:
        """A digest of all values: SQLite's own change counter is for the whole file and includes our changes."""
        driver: Any = connection.connection.driver_connection
        made, count, digest = driver.text_factory, 0, hashlib.blake2b(digest_size=16)
        driver.text_factory = bytes
        try:
            cursor = driver.execute(f"SELECT * FROM {self.name(table)} NOT INDEXED")
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                count += len(rows)
                digest.update(marshal.dumps(rows, 2))
        finally:
            driver.text_factory = made
        return [count, digest.hexdigest()]

    # -- rows ----------------------------------------------------------------------------------------------------

    @contextmanager
    def arranged(self, columns: Mapping[str, str], batches: Iterable[pa.RecordBatch]) -> Iterator[Path]:
        """Spool the rows to a separate database file: many tasks do so concurrently, and copying from it is fast."""
        with own_directory() as directory:
            file = directory / "rows.db"
            with closing(sqlite3.connect(file, isolation_level=None)) as own:
                for setting in _OF_A_SPOOL:
                    own.execute(f"PRAGMA {setting}")
                body = ", ".join(f"{self.quote(name)} {kind}" for name, kind in columns.items())
                own.execute(f"CREATE TABLE {_SPOOL} ({body})")
                own.execute("BEGIN")
                for batch in batches:
                    plain = rendering.plain(batch)
                    values = [_values(field, column) for field, column in plain]
                    for (field, column), declared, given in zip(plain, columns.values(), values, strict=True):
                        if _changes(column.type, declared):
                            _check_kept(field.name, column.type, declared, given)
                    _insert(own, values)
                own.execute("COMMIT")
            yield file

    def load(self, connection: sa.Connection, table: ObjectPath, columns: Mapping[str, str], rows: Any) -> int:
        names = ", ".join(self.quote(name) for name in columns)
        driver: Any = connection.connection.driver_connection
        driver.execute("ATTACH DATABASE ? AS spool", (str(rows),))
        sql = f"INSERT INTO main.{self.name(table)} ({names}) SELECT {names} FROM spool.{_SPOOL}"
        return int(driver.execute(sql).rowcount)

    def snapshot_options(self) -> dict[str, Any]:
        return {}

    def cuts(self, connection: sa.Connection, table: ObjectPath) -> list[str]:
        if self.table_kind(connection, table) != "table":
            return [""]
        taken = {column.name.lower() for column in self.columns(connection, table)}
        number = next((name for name in _ROW_NUMBERS if name not in taken), None)
        if number is None:
            return [""]
        try:
            first, last = self.run(connection, f"SELECT min({number}), max({number}) FROM {self.name(table)}").one()
        except OperationalError:  # WITHOUT ROWID
            return [""]
        return [""] if first is None else self.ranges(number, first, last + 1, last - first + 1)

    def compares_texts(self, column: Column) -> bool:
        # Where nothing was declared (nor of an expression of a view, NUM), 2 is no '2': a comparison converts nothing.
        return column.type.upper() not in ("", "NUM")

    def to_arrow(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """Convert from SQLite's storage classes: dates are stored as texts, booleans as numbers."""
        if _is.is_boolean(kind):
            return pa.array([None if v is None else bool(v) for v in values], kind)
        if _is.is_decimal(kind):
            return pa.array([None if v is None else _decimal(v, kind.scale) for v in values], kind)
        if _is.is_timestamp(kind):
            return _timestamps(values, kind)
        if _is.is_date(kind):
            return pa.array(values, pa.string()).cast(kind)
        if _is.is_floating(kind):
            return pa.array([None if v is None else float(v) for v in values], kind)
        if _is.is_string(kind):
            return pa.array([v if v is None or isinstance(v, str) else str(v) for v in values], kind)
        return pa.array(values, kind)


def _changes(kind: Any, declared: str) -> bool:
    """Whether SQLite may change values in a column, which it does if it makes numbers of texts: by its affinity."""
    word = declared.upper()
    keeps = not word or any(part in word for part in ("CHAR", "CLOB", "TEXT", "BLOB"))
    if keeps and "INT" not in word:
        return False
    is_text = _is.is_string(kind) or _is.is_large_string(kind)
    return is_text or (_is.is_decimal(kind) and kind.precision > _EXACT_DIGITS)


def _check_kept(name: str, kind: Any, declared: str, given: list[Any]) -> None:
    """Refuse values that a column would change in silence: 007 to 7 if it was declared STRING.

    Raises
    ------
    CatalogError
        The message names the column and such a value.
    """
    with closing(sqlite3.connect(":memory:")) as own:
        own.execute(f"CREATE TABLE probe (value {declared})")
        own.executemany("INSERT INTO probe VALUES (?)", zip(given))
        stored = [value for (value,) in own.execute("SELECT value FROM probe")]
    for value, made in zip(given, stored, strict=True):
        is_decimal = _is.is_decimal(kind)
        if made is not None and not (Decimal(str(made)) == Decimal(value) if is_decimal else str(made) == value):
            better = _decimal_type(kind) if is_decimal else "TEXT"
            raise CatalogError(
                f"Column {name!r} was declared {declared}: SQLite would store {made!r} there for {value!r}.",
                hint=f"Declare it {better}, which keeps each value; no row was written.",
            )


def _insert(connection: sqlite3.Connection, columns: Sequence[list[Any]]) -> None:
    """Append to the spool, many rows per statement."""
    width = len(columns)
    values = list(itertools.chain.from_iterable(zip(*columns, strict=True)))
    head, row = f"INSERT INTO {_SPOOL} VALUES ", f"({', '.join('?' * width)})"
    size = max(1, _VALUES_AT_ONCE // width) * width
    full = len(values) // size * size
    pieces = (values[start : start + size] for start in range(0, full, size))
    connection.executemany(head + ", ".join([row] * (size // width)), pieces)
    if rest := values[full:]:
        connection.execute(head + ", ".join([row] * (len(rest) // width)), rest)


def _decimal(value: Any, scale: int) -> Decimal:
    return Decimal(str(value)).quantize(Decimal(1).scaleb(-scale), context=_DIGITS)


def _decimal_text(value: Any, scale: int) -> str | None:
    return None if value is None else format(_decimal(value, scale), "f")


def _timestamps(values: Sequence[Any], kind: Any) -> pa.Array:
    texts = pa.array(
        [None if v is None else str(v).removesuffix("Z").removesuffix("+00:00") for v in values], pa.string()
    )
    return texts.cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)


def _only_to_what_is_there(dialect: Any, record: Any, arguments: list[str], options: dict[str, Any]) -> None:
    """Refuse to open a missing file, because opening it would create the dropped database again."""
    if not Path(arguments[0]).exists():
        raise sqlite3.OperationalError(f"the file {arguments[0]} is not there")


def _configure(connection: sqlite3.Connection, _: Any) -> None:
    connection.isolation_level = None  # _begin sends BEGIN itself.
    # A commit ends by removing the journal. With less than EXTRA its directory is not synced then, so that a power cut
    # could bring the journal back, and SQLite would undo what it had committed.
    connection.execute("PRAGMA synchronous = EXTRA")
    connection.create_function(DECIMAL_TEXT, 2, _decimal_text, deterministic=True)


def _begin(connection: sa.Connection) -> None:
    read_only = connection.get_execution_options().get("twophase_read_only")
    # IMMEDIATE: a writer waits here, up to the busy timeout, instead of failing later.
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _arrow(declared: str) -> pa.DataType:
    """Map a declared type; a type that twophase does not declare is mapped by SQLite's rules of affinity."""
    word = _PARAMETERS.sub("", declared).strip().upper()
    found = _PARAMETERS.search(declared)
    if word in ("DECIMAL", "NUMERIC", "DECIMALTEXT"):
        return pa.decimal128(int(found[1]), int(found[2] or 0)) if found else pa.decimal128(38, 18)
    if word in _KINDS:
        return _KINDS[word]
    if "INT" in word:
        return pa.int64()
    if any(part in word for part in ("CHAR", "CLOB", "TEXT")):
        return pa.string()
    if "BLOB" in word or not word:
        return pa.binary() if word else pa.string()
    return pa.float64() if any(part in word for part in ("REAL", "FLOA", "DOUB")) else pa.string()


def _decimal_type(kind: Any) -> str:
    word = "DECIMAL" if kind.precision <= _EXACT_DIGITS else "DECIMALTEXT"
    return f"{word}({kind.precision},{kind.scale})"


_TYPES: tuple[tuple[Any, Any], ...] = (
    (_is.is_boolean, "BOOLEAN"),
    (_is.is_int8, "TINYINT"),
    (lambda k: _is.is_int16(k) or _is.is_uint8(k), "SMALLINT"),
    (lambda k: _is.is_int32(k) or _is.is_uint16(k), "INT"),
    (lambda k: _is.is_int64(k) or _is.is_uint32(k), "BIGINT"),
    (_is.is_uint64, "DECIMALTEXT(20,0)"),
    (lambda k: _is.is_float16(k) or _is.is_float32(k), "FLOAT"),
    (_is.is_float64, "DOUBLE"),
    (lambda k: _is.is_decimal(k) and 0 <= k.scale <= k.precision <= 38, _decimal_type),
    (lambda k: _is.is_string(k) or _is.is_large_string(k), "TEXT"),
    (rendering.is_binary, "BLOB"),
    (_is.is_date, "DATE"),
    (lambda k: _is.is_timestamp(k) and k.tz is not None, "TIMESTAMP WITH TIME ZONE"),
    (_is.is_timestamp, "TIMESTAMP"),
    (_is.is_time, "TIME"),
)


def _values(field: pa.Field, column: pa.Array) -> list[Any]:
    """The values of a column as SQLite stores them."""
    kind = column.type
    rendering.refuse_not_finite(field, column, "SQLite", infinities=False)
    if _is.is_timestamp(kind):
        texts = rendering.utc(column).cast(pa.string())
        column = texts if kind.tz is None else pc.binary_join_element_wise(texts, "+00:00", "")
    elif _is.is_decimal(kind):
        # Arrow writes small numbers with an exponent.
        texts = column.cast(pa.string()).to_pylist()
        return [_decimal_text(text, kind.scale) if text and "E" in text else text for text in texts]
    elif _is.is_temporal(kind):
        column = column.cast(pa.string())
    return column.to_pylist()
