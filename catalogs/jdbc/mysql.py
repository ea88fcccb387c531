"""MariaDB and MySQL: each DDL statement commits, and one RENAME TABLE of many tables is atomic."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from twophase.catalogs.jdbc import defined_mysql, infile, rendering
from twophase.catalogs.jdbc.database import Column, Database, type_of
from twophase.catalogs.keepalive import keep_alive
from twophase.errors import CatalogError
from twophase.model import ObjectPath

_is = pa.types

_SYSTEM = {"information_schema", "mysql", "performance_schema", "sys"}
#: Bytes of one INSERT statement: well below the smallest ``max_allowed_packet`` of a server's defaults.
_STATEMENT_BYTES = 1_000_000

_COLUMNS = """
SELECT COLUMN_NAME, COLUMN_TYPE, DATA_TYPE, IS_NULLABLE = 'YES', COLUMN_COMMENT, NUMERIC_PRECISION, NUMERIC_SCALE,
       EXTRA LIKE '%VIRTUAL%' OR EXTRA LIKE '%STORED%' OR EXTRA LIKE '%PERSISTENT%', COLUMN_DEFAULT, EXTRA
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = :schema AND TABLE_NAME = :name
     AND NOT (COLUMN_NAME = 'my_row_id' AND EXTRA = 'auto_increment INVISIBLE')
ORDER BY ORDINAL_POSITION
"""

_COLUMN = """
SELECT IS_NULLABLE, DATA_TYPE, COLUMN_DEFAULT, EXTRA, COLUMN_COMMENT, COLLATION_NAME, GENERATION_EXPRESSION
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = :schema AND TABLE_NAME = :name AND COLUMN_NAME = :column
"""

_KEY = """
SELECT COLUMN_NAME FROM information_schema.KEY_COLUMN_USAGE
WHERE TABLE_SCHEMA = :schema AND TABLE_NAME = :name AND CONSTRAINT_NAME = 'PRIMARY'
"""

#: What is refused to a role that does not see the routines and events of a database, and the numbers of the errors.
_LOOKS = ("CALL {}.__twophase_nothing()", "SHOW EVENTS FROM {}")
_UNSEEN = (1044, 1370)
#: Numbers of the errors for an unknown column, an unknown table, and a table that was defined anew.
_REPLACED = (1054, 1146, 1412)
#: Those for an unknown database, and an unknown table.
_NOT_THERE = (1049, 1146)

_PROGRAMS = """
SELECT CONCAT(LOWER(ROUTINE_TYPE), ' ', ROUTINE_NAME) FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = :schema
UNION ALL
SELECT CONCAT('event ', EVENT_NAME) FROM information_schema.EVENTS WHERE EVENT_SCHEMA = :schema
"""

#: MariaDB cuts a longer comment of a database.
_DATABASE_COMMENT = 1024

_DATABASE = """
SELECT DEFAULT_CHARACTER_SET_NAME, DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = :schema
"""

_FILE_NAME = re.compile(r"[A-Za-z0-9_]+/[A-Za-z0-9_]+")

#: MariaDB writes integers with a display width, which has no meaning, except that ``tinyint(1)`` is a boolean.
_WIDTH = re.compile(r"^(tinyint(?!\(1\))|smallint|mediumint|int|bigint)\(\d+\)")

_INTEGERS: dict[str, tuple[pa.DataType, pa.DataType]] = {  # signed, unsigned
    "tinyint": (pa.int8(), pa.int16()),
    "smallint": (pa.int16(), pa.int32()),
    "mediumint": (pa.int32(), pa.int32()),
    "int": (pa.int32(), pa.int64()),
    "bigint": (pa.int64(), pa.decimal128(20, 0)),
}
_KINDS: dict[str, pa.DataType] = {
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "year": pa.int16(),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"), pa.binary()),
    **dict.fromkeys(("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"), pa.binary()),
    **dict.fromkeys(("multipolygon", "geomcollection", "geometrycollection"), pa.binary()),
}


class MySQL(Database):
    """MariaDB 10.6 and later, MySQL 8."""

    title = "MariaDB/MySQL"
    relations = (
        "SELECT TABLE_NAME, CASE WHEN TABLE_TYPE LIKE '%VIEW' THEN 'view' ELSE 'table' END "
        "FROM information_schema.TABLES WHERE TABLE_SCHEMA = :schema"
    )
    longest_name = 64
    longest_comment = 2048
    ddl_in_transaction = False
    _sees_numbers = True
    comments_in_ddl = True
    nullable = " NULL"
    #: Of MariaDB only; which one it is shows at the first connection.
    comments_databases = True
    _is_known = False

    def check_name(self, name: str, what: str, path: object) -> None:
        super().check_name(name, what, path)
        if name.endswith(" ") or any(ord(character) > 0xFFFF for character in name):
            raise CatalogError(
                f"{name!r} is no name of a {what} in {self.title}: no space at its end, no character beyond U+FFFF.",
                path=path,
            )

    def connect_arguments(self, label: str) -> dict[str, Any]:
        seconds = self.settings.lock_timeout
        return {
            "connect_timeout": self.settings.connect_timeout,
            "charset": "utf8mb4",
            # Strict mode: a value that does not fit is an error. Backslashes escape. Times are in UTC.
            "init_command": (
                "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO', "
                f"time_zone = '+00:00', lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}"
                # MySQL caches the number of rows of a table for a day; MariaDB ignores this comment.
                "/*!80000 , information_schema_stats_expiry = 0 */"
                # Of MariaDB only: no limit of a role ends a load or a publish.
                "/*M!100100 , max_statement_time = 0 */"
            ),
        }

    def configure(self, engine: sa.Engine) -> None:
        if engine.dialect.driver == "pymysql":
            sa.event.listen(engine, "do_connect", _allow_rows)
            if "read_timeout" not in engine.url.query:
                sa.event.listen(engine, "do_connect", _limit_login)
                sa.event.listen(engine, "connect", _wait_for_answers)

    def learn(self, engine: sa.Engine, database: str) -> None:
        if not self._is_known:
            with engine.connect() as connection:
                self.comments_databases = self.is_mariadb(connection)
            self._is_known = True

    # -- databases -----------------------------------------------------------------------------------------------

    def list_databases(self, connection: sa.Connection) -> list[str]:
        rows = connection.execute(sa.text("SELECT SCHEMA_NAME FROM information_schema.SCHEMATA"))
        return sorted(name for (name,) in rows if name.lower() not in _SYSTEM)

    def create_database(self, connection: sa.Connection, database: str, comment: str | None) -> None:
        self._check_case(connection, database)
        said = ""
        if comment and self.is_mariadb(connection):
            said = f" COMMENT {self._database_comment(database, comment)}"
        self.run(connection, f"CREATE DATABASE {self.quote(database)} CHARACTER SET utf8mb4{said}")

    def database_comment(self, connection: sa.Connection, database: str) -> str | None:
        if not self.is_mariadb(connection):
            return None
        found = "SELECT SCHEMA_COMMENT FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = :schema"
        return connection.scalar(sa.text(found), {"schema": database}) or None

    def set_database_comment(self, connection: sa.Connection, database: str, text: str | None) -> None:
        # Without them, the statement would set the character set of the server.
        charset, collation = connection.execute(sa.text(_DATABASE), {"schema": database}).one()
        said = self._database_comment(database, text or "")
        self.run(
            connection,
            f"ALTER DATABASE {self.quote(database)} CHARACTER SET {charset} COLLATE {collation} COMMENT {said}",
        )

    def _database_comment(self, database: str, text: str) -> str:
        if len(text) > _DATABASE_COMMENT:
            raise CatalogError(
                f"Comment and properties of database {database} take {len(text)} characters; MariaDB holds "
                f"{_DATABASE_COMMENT}. Nothing was changed.",
                path=database,
            )
        return self.text(text)

    @property
    def unstaged_database_reason(self) -> str:
        return "nothing of a database of MySQL says which transaction has created it, as its comment does in MariaDB"

    def require_sight(self, connection: sa.Connection, database: str) -> None:
        for look in _LOOKS:
            try:
                self.run(connection, look.format(self.quote(database)))
            except DBAPIError as error:
                if getattr(error.orig, "args", (None,))[0] in _UNSEEN:  # Else there is nothing of that name.
                    raise CatalogError(
                        f"Database {database}: this role may not see whether others have routines or events in it, "
                        "which the server would drop with it. Nothing was changed.",
                        path=database,
                        hint=f"Grant the role EXECUTE and EVENT on {self.quote(database)}.*, or use another role.",
                    ) from None

    def contents(self, connection: sa.Connection, database: str) -> list[str]:
        self.require_sight(connection, database)
        programs = connection.execute(sa.text(_PROGRAMS), {"schema": database})
        return [*super().contents(connection, database), *(str(name) for (name,) in programs)]

    def drop_database(self, connection: sa.Connection, database: str) -> None:
        self.run(connection, f"DROP DATABASE {self.quote(database)}")

    def drop_empty_database(self, connection: sa.Connection, database: str) -> None:
        """Check routines and events, too: ``DROP DATABASE`` drops them without asking."""
        if found := [name for name in self.contents(connection, database) if not self.is_bookkeeping(name)]:
            raise self.not_empty(database, found)
        self.drop_database(connection, database)

    def _check_case(self, connection: sa.Connection, name: str) -> None:
        """Refuse a name that would be stored in another case: many servers convert names to lower case."""
        if name != name.lower() and connection.scalar(sa.text("SELECT @@lower_case_table_names")):
            raise CatalogError(
                f"This server holds names in lower case (its lower_case_table_names is not 0), {name!r} is not.",
                hint=f"Write {name.lower()}.",
            )

    # -- tables --------------------------------------------------------------------------------------------------

    def table_kind(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        found = super().table_kind(connection, table)
        if found is None:
            self._check_case(connection, table.name)
        return found

    def text(self, value: str) -> str:
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"

    def kinds(self, connection: sa.Connection, database: str, names: Sequence[str]) -> dict[str, str]:
        # For a single name the server opens one table; for several, MariaDB opens all tables of the database.
        one = sa.text(f"{self.relations} AND TABLE_NAME = :name")
        rows = [row for name in names for row in connection.execute(one, {"schema": database, "name": name})]
        return {str(name): str(kind) for name, kind in rows if name in names}

    def columns(self, connection: sa.Connection, table: ObjectPath) -> list[Column]:
        rows = connection.execute(sa.text(_COLUMNS), {"schema": table.database, "name": table.name})
        return [
            Column(
                name,
                _WIDTH.sub(r"\1", sql),
                _arrow(sql, kind, precision, scale),
                bool(nullable),
                comment or None,
                bool(generated),
                self._default(connection, kind, default, extra),
            )
            for name, sql, kind, nullable, comment, precision, scale, generated, default, extra in rows
        ]

    def _default(self, connection: sa.Connection, kind: str, default: str | None, extra: str) -> str | None:
        if "auto_increment" in extra.lower():
            return "auto"
        if default is None or default == "NULL":
            return None
        return self.default(connection, kind, default, extra)

    def primary_key(self, connection: sa.Connection, table: ObjectPath) -> list[str]:
        place = {"schema": table.database, "name": table.name}
        return [str(name) for (name,) in connection.execute(sa.text(_KEY), place)]

    def comment(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        return self._fact(connection, table, "TABLE_COMMENT") or None

    def _fact(self, connection: sa.Connection, table: ObjectPath, fact: str) -> Any:
        return connection.scalar(
            sa.text(
                f"SELECT {fact} FROM information_schema.TABLES WHERE TABLE_SCHEMA = :schema AND TABLE_NAME = :name"
            ),
            {"schema": table.database, "name": table.name},
        )

    def set_comment(self, connection: sa.Connection, table: ObjectPath, comment: str | None) -> None:
        self.run(connection, f"ALTER TABLE {self.name(table)} COMMENT = {self.text(comment or '')}")

    def set_column_comment(
        self, connection: sa.Connection, table: ObjectPath, column: str, comment: str | None
    ) -> None:
        (found,) = [c for c in self.columns(connection, table) if c.name == column]
        kind = self.redefined(connection, table, column, found.type, comment=comment or "")
        self.run(connection, f"ALTER TABLE {self.name(table)} MODIFY COLUMN {self.quote(column)} {kind}")

    def redefined(
        self,
        connection: sa.Connection,
        table: ObjectPath,
        column: str,
        kind: str,
        *,
        null: str | None = None,
        comment: str | None = None,
        new_default: str | None = None,
        new_name: str | None = None,
    ) -> str:
        """A column's full definition for MODIFY COLUMN: attributes that are omitted would be lost."""
        facts = connection.execute(sa.text(_COLUMN), {"schema": table.database, "name": table.name, "column": column})
        nullable, data_type, default, extra, said, collation, expression = facts.one()
        null = null or ("NULL" if nullable == "YES" else "NOT NULL")
        words = defined_mysql.type_clauses(kind, null, extra, collation, self._expression(connection, expression))
        if new_default is not None:
            words += [f"DEFAULT {new_default}"] if new_default else []
        elif default is not None and not (self.is_mariadb(connection) and default == "NULL"):
            words.append(f"DEFAULT {self.default(connection, data_type, default, extra)}")
        words += ["AUTO_INCREMENT"] if "auto_increment" in extra.lower() else []
        words += [update[0]] if (update := defined_mysql.ON_UPDATE.search(extra)) else []
        words += ["INVISIBLE"] if "INVISIBLE" in extra else []
        words.append(f"COMMENT {self.text(said if comment is None else comment)}")
        check = defined_mysql.check_kept(self.definition(connection, table), column, new_name or column)
        return " ".join([*words, *check])

    def definition(self, connection: sa.Connection, table: ObjectPath) -> str:
        """The statement that would create the table."""
        return str(self.run(connection, f"SHOW CREATE TABLE {self.name(table)}").one()[1])

    @staticmethod
    def is_mariadb(connection: sa.Connection) -> bool:
        """Whether it is MariaDB, which shows defaults as SQL; MySQL shows a constant without its quotes."""
        return bool(getattr(connection.dialect, "is_mariadb", False))

    def default(self, connection: sa.Connection, data_type: str, default: str, extra: str) -> str:
        """Convert a default of ``information_schema`` to SQL."""
        if self.is_mariadb(connection) or default.upper().startswith("CURRENT_TIMESTAMP"):
            return default
        if "DEFAULT_GENERATED" in extra:
            return f"({self._expression(connection, default)})"
        # A constant has no quotes there, except bits and bytes, which are SQL.
        return default if data_type in ("bit", "binary", "varbinary") else self.text(default)

    def _expression(self, connection: sa.Connection, sql: str | None) -> str:
        """An expression of ``information_schema``, in which MySQL escapes the quotes."""
        return (sql or "") if self.is_mariadb(connection) else re.sub(r"\\(.)", r"\1", sql or "")

    def generation(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        """Creation time in seconds, and InnoDB's table id for roles that may see it."""
        found = self._fact(connection, table, "CREATE_TIME")
        if found is None:
            return None
        number = self._number(connection, table)
        return str(found) if number is None else f"{found} {number}"

    def _number(self, connection: sa.Connection, table: ObjectPath) -> int | None:
        name = f"{table.database}/{table.name}"
        # Other names are encoded there as file names.
        if not self._sees_numbers or not _FILE_NAME.fullmatch(name):
            return None
        where = "INNODB_SYS_TABLES" if self.is_mariadb(connection) else "INNODB_TABLES"
        sql = sa.text(f"SELECT TABLE_ID FROM information_schema.{where} WHERE NAME = :name")
        try:
            number: int | None = connection.scalar(sql, {"name": name})
        except DBAPIError:  # It requires the PROCESS privilege.
            self._sees_numbers = False
            return None
        return number

    def column_type(self, field: pa.Field) -> str | None:
        return type_of(_TYPES, field.type)

    def create(
        self, connection: sa.Connection, table: ObjectPath, columns: Sequence[tuple[str, str]], suffix: str = ""
    ) -> None:
        super().create(connection, table, columns, f" ENGINE=InnoDB CHARACTER SET utf8mb4{suffix}")

    def rename(self, connection: sa.Connection, table: ObjectPath, new: ObjectPath) -> None:
        self.rename_all(connection, [(table, new)])

    def rename_all(self, connection: sa.Connection, pairs: Sequence[tuple[ObjectPath, ObjectPath]]) -> None:
        """Rename several tables atomically, from left to right."""
        steps = ", ".join(f"{self.name(old)} TO {self.name(new)}" for old, new in pairs)
        self.run(connection, f"RENAME TABLE {steps}")

    def writable_reason(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        engine = self._fact(connection, table, "ENGINE")
        return None if engine == "InnoDB" else f"its storage engine {engine} knows no transactions"

    def missing_right(
        self, connection: sa.Connection, table: ObjectPath, rights: Sequence[str], free: Sequence[ObjectPath]
    ) -> tuple[str, str] | None:
        super().missing_right(connection, table, rights, free)
        old, new = map(self.name, free)
        rows = "INSERT" in rights
        self._finds(connection, f"INSERT INTO {old} VALUES (1)" if rows else f"RENAME TABLE {old} TO {new}")
        if "DELETE" in rights:
            self.run(connection, f"EXPLAIN DELETE FROM {self.name(table)}")
        return None

    def is_there(self, connection: sa.Connection, table: ObjectPath) -> bool:
        # A table of which the role has no right is not listed.
        return self._finds(connection, f"SELECT 1 FROM {self.name(table)} LIMIT 0")

    def _finds(self, connection: sa.Connection, sql: str) -> bool:
        """Whether the server finds the tables of a statement; it looks for the role's rights first, and says so."""
        try:
            self.run(connection, sql)
        except DBAPIError as error:
            if getattr(error.orig, "args", (None,))[0] not in _NOT_THERE:
                raise
            return False
        return True

    def default_row(self, table: ObjectPath) -> str:
        return f"INSERT INTO {self.name(table)} () VALUES ()"

    # -- changes of rows -----------------------------------------------------------------------------------------

    def content(self, connection: sa.Connection, table: ObjectPath, *, lock: bool = False) -> list[Any] | None:
        """A sum over checksums of all rows; ``lock`` locks all rows and the gaps between them, as a DELETE would.

        Of their squares: CRC32 is linear, so that the plain sum is often the same after rows exchange values.
        """
        words = [f"COALESCE(CRC32({self.select_expression(c)}), 'N')" for c in self.columns(connection, table)]
        row = f"CRC32(CONCAT_WS(',', {', '.join(words)}))"
        sums = f"COUNT(*), COALESCE(SUM({row} * {row}), 0)"
        kept = " FOR UPDATE" if lock else ""
        count, made = self.run(connection, f"SELECT {sums} FROM {self.name(table)}{kept}").one()
        return [int(count), str(made)]

    # -- locks ---------------------------------------------------------------------------------------------------

    def guard(self, connection: sa.Connection, name: str) -> None:
        """A named lock, held as long as the server considers the connection open."""
        taken = connection.scalar(
            sa.text("SELECT GET_LOCK(:name, :seconds)"), {"name": name[:64], "seconds": self.settings.lock_timeout}
        )
        if taken != 1:
            raise TimeoutError(f"lock wait timeout: another session publishes or examines {name}")

    @contextmanager
    def exclusive(self, engine: sa.Engine, home: str, names: Sequence[str]) -> Iterator[sa.Connection]:
        with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
            try:
                with connection.begin():
                    for name in names:
                        self.guard(connection, name)
                with connection.begin():
                    yield connection
            finally:
                with suppress(SQLAlchemyError):  # A lost connection holds no lock.
                    for name in names:
                        self.unguard(connection, name)

    def unguard(self, connection: sa.Connection, name: str) -> None:
        """Release the lock of :meth:`guard`."""
        connection.execute(sa.text("SELECT RELEASE_LOCK(:name)"), {"name": name[:64]})

    def durability_problem(self, connection: sa.Connection) -> str | None:
        flushed = connection.scalar(sa.text("SELECT @@innodb_flush_log_at_trx_commit"))
        if int(flushed) == 1:
            return None
        return (
            f"innodb_flush_log_at_trx_commit is {flushed}: what is committed may be lost in a power cut. "
            "Set it to 1; it is a setting of the whole server."
        )

    # -- rows ----------------------------------------------------------------------------------------------------

    def keep_for_reading(self, connection: sa.Connection, table: ObjectPath) -> None:
        # A transaction holds the metadata lock of each table that it has used until its end.
        self.run(connection, f"SELECT 1 FROM {self.name(table)} LIMIT 0")

    def load(self, connection: sa.Connection, table: ObjectPath, columns: Mapping[str, str], rows: Any) -> int:
        driver: Any = connection.connection.driver_connection
        batches = iter(rows)
        first = next(batches, None)
        if first is None:
            return 0
        batches = itertools.chain([first], batches)
        if not infile.takes(driver, first.schema, columns):
            return self._insert(driver, table, columns, batches)
        names = {self.quote(name): infile.making(kind) for name, kind in zip(columns, first.schema.types, strict=True)}
        return infile.load(driver, self.name(table), names, infile.texts(batches, self.title))

    def _insert(
        self, driver: Any, table: ObjectPath, columns: Mapping[str, str], batches: Iterable[pa.RecordBatch]
    ) -> int:
        names = ", ".join(self.quote(name) for name in columns)
        head = f"INSERT INTO {self.name(table)} ({names}) VALUES "
        count = 0
        with driver.cursor() as cursor:
            for batch in batches:
                count += batch.num_rows
                for values in statements(batch, self.title):
                    cursor.execute(head + values)
        return count

    def is_replaced(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "args", (None,))[0] in _REPLACED

    def cuts(self, connection: sa.Connection, table: ObjectPath) -> list[str]:
        """Split by an integer primary key of one column, if there is one."""
        keys = self.primary_key(connection, table)
        kinds = {c.name: c.arrow for c in self.columns(connection, table)}
        if len(keys) != 1 or not _is.is_integer(kinds.get(keys[0], pa.null())):
            return [""]
        column = self.quote(keys[0])
        first, last = self.run(connection, f"SELECT min({column}), max({column}) FROM {self.name(table)}").one()
        rows = int(self._fact(connection, table, "TABLE_ROWS") or 0)
        return [""] if first is None else self.ranges(column, first, last + 1, rows)

    def give_up_reading(self, connection: sa.Connection) -> None:
        if connection.dialect.driver == "pymysql":
            infile.give_up_reading(connection.connection.driver_connection)
            connection.invalidate()

    def select_expression(self, column: Column) -> str:
        name = self.quote(column.name)
        if column.type.startswith("float"):
            return f"CAST({name} AS DOUBLE)"  # printed with six digits otherwise
        if column.type.startswith("bit"):
            return f"CAST({name} + 0 AS CHAR)"
        if column.type.startswith("vector"):
            return f"CAST({name} AS BINARY)"  # the driver does not support this type
        return f"CAST({name} AS CHAR)" if column.type.startswith("time") and _is.is_string(column.arrow) else name

    def compares_texts(self, column: Column) -> bool:
        return column.type != "json"  # MySQL compares JSON documents: no text equals one

    def to_arrow(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        if _is.is_boolean(kind):
            return pa.array([None if value is None else bool(value) for value in values], kind)
        if _is.is_decimal(kind):
            return pa.array([None if value is None else Decimal(value) for value in values], kind)
        return pa.array(values, kind)


def _allow_rows(_: Any, __: Any, ___: Any, arguments: dict[str, Any]) -> None:
    """Announce support of LOAD DATA LOCAL to the server; PyMySQL itself still refuses to send any file."""
    arguments["client_flag"] = arguments.get("client_flag", 0) | infile.CLIENT_FLAG


def _limit_login(_: Any, __: Any, ___: Any, arguments: dict[str, Any]) -> None:
    """Apply the time limit of a connection to the login as well; PyMySQL itself does so only until a server accepts."""
    arguments["read_timeout"] = arguments["connect_timeout"]


def _wait_for_answers(connection: Any, _: Any) -> None:
    """Wait for a statement as long as the server is there."""
    connection._read_timeout = None
    keep_alive(connection._sock)


def _arrow(sql: str, kind: str, precision: int | None, scale: int | None) -> pa.DataType:
    if sql == "tinyint(1)":
        return pa.bool_()
    if kind in _INTEGERS:
        return _INTEGERS[kind]["unsigned" in sql]
    if kind == "decimal":
        precision, scale = int(precision or 10), int(scale or 0)
        return pa.decimal128(precision, scale) if precision <= 38 else pa.string()
    return _KINDS.get(kind, pa.string())


_TYPES: tuple[tuple[Any, Any], ...] = (
    (_is.is_boolean, "tinyint(1)"),
    (_is.is_int8, "tinyint"),
    (lambda k: _is.is_int16(k) or _is.is_uint8(k), "smallint"),
    (lambda k: _is.is_int32(k) or _is.is_uint16(k), "int"),
    (lambda k: _is.is_int64(k) or _is.is_uint32(k), "bigint"),
    (_is.is_uint64, "decimal(20,0)"),
    (lambda k: _is.is_float16(k) or _is.is_float32(k), "float"),
    (_is.is_float64, "double"),
    (
        lambda k: _is.is_decimal(k) and 0 <= k.scale <= min(k.precision, 30),
        lambda k: f"decimal({k.precision},{k.scale})",
    ),
    (lambda k: _is.is_string(k) or _is.is_large_string(k), "longtext"),
    (rendering.is_binary, "longblob"),
    (_is.is_date, "date"),
    (lambda k: _is.is_timestamp(k) and k.tz is not None, "timestamp(6)"),
    (_is.is_timestamp, "datetime(6)"),
    (_is.is_time, "time(6)"),
)


# -- INSERT ------------------------------------------------------------------------------------------------------------


def statements(batch: pa.RecordBatch, title: str) -> Iterator[str]:
    """The ``(...),(...)`` parts of INSERT statements for a batch, each of bounded size."""
    if not batch.num_rows:
        return
    literals = [_literals(field, column, title) for field, column in rendering.plain(batch)]
    rows = pc.binary_join_element_wise(*literals, ",").to_pylist()
    part: list[str] = []
    size = 0
    for row in rows:
        if part and size + len(row) > _STATEMENT_BYTES:
            yield "(" + "),(".join(part) + ")"
            part, size = [], 0
        part.append(row)
        size += len(row) + 3
    yield "(" + "),(".join(part) + ")"


def _literals(field: pa.Field, column: pa.Array, title: str) -> pa.Array:
    """The values of a column as SQL literals."""
    kind = column.type
    rendering.refuse_not_finite(field, column, title, infinities=True)
    if _is.is_boolean(kind):
        texts = column.cast(pa.int8()).cast(pa.string())
    elif _is.is_string(kind) or _is.is_large_string(kind):
        texts = _quoted(_escaped(column.cast(pa.string())))
    elif rendering.is_binary(kind):
        texts = rendering.by_value(column, lambda value: f"X'{rendering.as_bytes(value).hex()}'")
    elif _is.is_temporal(kind):
        moments = rendering.utc(column) if _is.is_timestamp(kind) else column
        texts = _quoted(moments.cast(pa.string()))
    else:
        texts = column.cast(pa.string())
        # The integer literal -0 would lose the sign.
        texts = pc.if_else(pc.equal(texts, "-0"), "-0e0", texts) if _is.is_floating(kind) else texts
    return pc.fill_null(texts, "NULL")


def _escaped(column: pa.Array) -> pa.Array:
    # The session's sql_mode is set by us: the backslash escapes, and only it, the quote and NUL need escaping.
    for plain, escaped in (("\\", "\\\\"), ("'", "\\'"), ("\0", "\\0")):
        column = pc.replace_substring(column, plain, escaped)
    return column


def _quoted(column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise("'", column, "'", "")
