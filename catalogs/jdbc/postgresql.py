"""PostgreSQL: transactional DDL, COPY from Arrow, names of at most 63 bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from twophase.catalogs.jdbc import copying, rendering
from twophase.catalogs.jdbc.database import DROPPER, OWNER, Column, Database, type_of
from twophase.errors import CatalogError
from twophase.model import ObjectPath

_is = pa.types

_SYSTEM = ("information_schema",)

_SYSTEM_COLUMNS = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")

#: No connection hangs for ever on a server that has disappeared; in seconds, the last in milliseconds. That one is
#: longer, as Linux also counts the time in which a server is there and reads nothing: in a stall of its disk, a COPY
#: waits.
_PATIENCE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 600_000}

#: SQLSTATE dependent_objects_still_exist.
_IN_USE = "2BP01"

#: SQLSTATEs undefined_column and undefined_table.
_REPLACED = ("42703", "42P01")

#: SQLSTATEs insufficient_privilege and wrong_object_type.
_NO_LOCK = ("42501", "42809")

#: Estimate used before the server has statistics.
_ROWS_IN_A_BLOCK = 80

#: ``pg_type.typname`` to Arrow, for types without parameters.
_KINDS: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
#: An infinite date or timestamp is read as the last or first finite one, as Spark's own reader does.
_FINITE = (
    "CASE WHEN isfinite({name}) THEN {number} WHEN {name} > '2000-01-01' THEN {last} "
    "WHEN {name} IS NOT NULL THEN {first} END"
)
_DAYS = "({name} - DATE '1970-01-01')"
_DAY = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
#: Exact for every year; the session's time zone is UTC.
_MICROSECONDS = (
    "(CAST(CAST({name} AS date) - DATE '1970-01-01' AS bigint) * 86400000000 "
    "+ CAST(round(date_part('epoch', CAST({name} AS time)) * 1000000) AS bigint))"
)
#: Types whose values the driver returns as texts.
_TEXTS = {"text", "varchar", "bpchar", "name"}

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typname, e.typname, a.atttypmod, a.attnotnull,
       col_description(a.attrelid, a.attnum), a.attgenerated <> '',
       CASE WHEN a.attidentity <> '' THEN 'auto' ELSE pg_get_expr(d.adbin, d.adrelid) END, a.attnum
FROM pg_attribute a
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE a.attrelid = to_regclass(:name) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

_MADE_BY = "count(*), sum(xmin::text::bigint), sum(hashtext(xmin::text)::bigint)"
#: The statistics are updated with a short delay.
_COUNTED = """
SELECT pg_stat_get_tuples_inserted(c.oid), pg_stat_get_tuples_updated(c.oid), pg_stat_get_tuples_deleted(c.oid)
FROM pg_class c WHERE c.oid = to_regclass(:name)
"""

_RIGHTS = """
SELECT quote_ident(current_user) AS role, quote_ident(pg_get_userbyid(c.relowner)) AS owner,
       pg_has_role(c.relowner, 'USAGE') AS is_owner, pg_has_role(n.nspowner, 'USAGE') AS owns_schema,
       has_table_privilege(c.oid, :words) AS may
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(:name)
"""

#: A publish waits for the disk, and ends if it is not heard of: others would wait for its locks.
_PUBLISH = """
SELECT set_config(name, value, true)
FROM (VALUES ('synchronous_commit', 'off', 'on'), ('idle_in_transaction_session_timeout', '0', '10min'))
    AS settings (name, former, value)
WHERE current_setting(name) = former
"""

_GRANTEES = """
SELECT DISTINCT quote_ident(r.rolname)
FROM pg_class c CROSS JOIN aclexplode(c.relacl) x LEFT JOIN pg_roles r ON r.oid = x.grantee
WHERE c.oid = to_regclass(:name) AND x.grantee <> c.relowner
"""


#: All objects of a schema, of whatever kind, but tables and views, and those that go with another object of the schema.
_OTHERS = """
SELECT pg_describe_object(d.classid, d.objid, d.objsubid)
FROM pg_depend d LEFT JOIN pg_class c ON d.classid = CAST('pg_class' AS regclass) AND c.oid = d.objid
WHERE d.refclassid = CAST('pg_namespace' AS regclass) AND d.deptype = 'n'
AND d.refobjid = (SELECT oid FROM pg_namespace WHERE nspname = :schema)
AND (c.relkind IS NULL OR c.relkind NOT IN ('r', 'p', 'f', 'v', 'm'))
AND NOT EXISTS (
    SELECT FROM pg_depend o WHERE o.classid = d.classid AND o.objid = d.objid AND o.deptype IN ('a', 'i')
    AND COALESCE((pg_identify_object(o.refclassid, o.refobjid, 0)).schema, '') IN ('', quote_ident(:schema))
)
"""


#: After a wait for a lock, a statement must see what was committed meanwhile, whatever the role's or server's default.
_SESSION = "-c TimeZone=UTC -c DateStyle=ISO -c statement_timeout=0 -c default_transaction_isolation=read\\ committed"


class PostgreSQL(Database):
    """PostgreSQL 12 and later."""

    title = "PostgreSQL"
    relations = (
        "SELECT c.relname, CASE WHEN c.relkind IN ('r', 'p', 'f') THEN 'table' ELSE 'view' END "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = :schema AND c.relkind IN ('r', 'p', 'f', 'v', 'm')"
    )
    longest_name = 63
    aware_times = True
    over_identities = " OVERRIDING SYSTEM VALUE"
    comments_databases = True
    #: Part of every lock's key, to avoid collisions with other advisory locks.
    _lock_space: ClassVar[int] = 0x7477_6F70

    def measure(self, name: str) -> int:
        return len(name.encode())

    def connect_arguments(self, label: str) -> dict[str, Any]:
        milliseconds = self.settings.lock_timeout * 1000
        arguments: dict[str, Any] = {
            "connect_timeout": self.settings.connect_timeout,
            "options": f"-c lock_timeout={milliseconds} {_SESSION}",
            "application_name": label or "twophase",
        }
        given = self.settings.parsed.query
        arguments |= {name: value for name, value in _PATIENCE.items() if name not in given}
        if "options" in given:
            arguments["options"] = f"{given['options']} {arguments['options']}"
        return arguments

    # -- databases -----------------------------------------------------------------------------------------------

    def list_databases(self, connection: sa.Connection) -> list[str]:
        rows = connection.execute(sa.text("SELECT nspname FROM pg_namespace"))
        return sorted(name for (name,) in rows if name not in _SYSTEM and not name.startswith("pg_"))

    def create_database(self, connection: sa.Connection, database: str, comment: str | None) -> None:
        self.run(connection, f"CREATE SCHEMA {self.quote(database)}")
        if comment:
            self.set_database_comment(connection, database, comment)

    def database_comment(self, connection: sa.Connection, database: str) -> str | None:
        found = "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = :schema"
        return connection.scalar(sa.text(found), {"schema": database})

    def set_database_comment(self, connection: sa.Connection, database: str, text: str | None) -> None:
        literal = "NULL" if text is None else self.text(text)
        self.run(connection, f"COMMENT ON SCHEMA {self.quote(database)} IS {literal}")

    def database_identity(self, connection: sa.Connection, database: str) -> str | None:
        found = connection.scalar(sa.text("SELECT oid FROM pg_namespace WHERE nspname = :schema"), {"schema": database})
        return None if found is None else str(found)

    def contents(self, connection: sa.Connection, database: str) -> list[str]:
        others = [str(name) for (name,) in connection.execute(sa.text(_OTHERS), {"schema": database})]
        return [*super().contents(connection, database), *others]

    def drop_database(self, connection: sa.Connection, database: str) -> None:
        self.run(connection, f"DROP SCHEMA {self.quote(database)} CASCADE")

    def drop_empty_database(self, connection: sa.Connection, database: str) -> None:
        for name in filter(self.is_bookkeeping, self.list_relations(connection, database)):
            self.run(connection, f"DROP TABLE {self.name(ObjectPath.of(database, name))}")
        try:
            self.run(connection, f"DROP SCHEMA {self.quote(database)} RESTRICT")
        except DBAPIError as error:
            diagnosis: Any = getattr(error.orig, "diag", None)
            if diagnosis is None or diagnosis.sqlstate != _IN_USE:
                raise
            details = (diagnosis.message_detail or "").splitlines()
            raise self.not_empty(database, [line.partition(" depends on ")[0] for line in details]) from None

    # -- tables --------------------------------------------------------------------------------------------------

    def check_name(self, name: str, what: str, path: object) -> None:
        super().check_name(name, what, path)
        if what == "column" and name in _SYSTEM_COLUMNS:
            raise CatalogError(
                f"{path} cannot have a column {name!r}: each table of {self.title} has one of its own.",
                path=path,
                hint="Give the column another name in the query.",
            )

    def text(self, value: str) -> str:
        # An E'' string does not depend on standard_conforming_strings.
        return "E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"

    def kinds(self, connection: sa.Connection, database: str, names: Sequence[str]) -> dict[str, str]:
        found = sa.text(f"{self.relations} AND c.relname = ANY(:names)")
        return {
            str(name): str(kind) for name, kind in connection.execute(found, {"schema": database, "names": list(names)})
        }

    def columns(self, connection: sa.Connection, table: ObjectPath) -> list[Column]:
        rows = connection.execute(sa.text(_COLUMNS), {"name": self.name(table)})
        return [
            Column(name, sql, self._arrow(kind, element, modifier), not required, comment, generated, default, number)
            for name, sql, kind, element, modifier, required, comment, generated, default, number in rows
        ]

    def _arrow(self, kind: str, element: str | None, modifier: int) -> pa.DataType:
        if element is not None:
            return pa.list_(pa.field("element", self._arrow(element, None, modifier)))
        if kind == "numeric":
            return _decimal(modifier)
        return _KINDS.get(kind, pa.string())

    def comment(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        return connection.scalar(
            sa.text("SELECT obj_description(to_regclass(:name), 'pg_class')"), {"name": self.name(table)}
        )

    def set_comment(self, connection: sa.Connection, table: ObjectPath, comment: str | None) -> None:
        self._set(connection, f"TABLE {self.name(table)}", comment)

    def set_column_comment(
        self, connection: sa.Connection, table: ObjectPath, column: str, comment: str | None
    ) -> None:
        self._set(connection, f"COLUMN {self.name(table)}.{self.quote(column)}", comment)

    def _set(self, connection: sa.Connection, what: str, comment: str | None) -> None:
        self.run(connection, f"COMMENT ON {what} IS {'NULL' if comment is None else self.text(comment)}")

    def generation(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        found = connection.scalar(sa.text("SELECT CAST(to_regclass(:name) AS oid)"), {"name": self.name(table)})
        return None if found is None else str(found)

    def column_type(self, field: pa.Field) -> str | None:
        kind = field.type
        if _is.is_list(kind) or _is.is_large_list(kind):
            element = None if _is.is_nested(kind.value_type) else self.column_type(kind.value_field)
            return None if element is None else f"{element}[]"
        return type_of(_TYPES, kind)

    def create_like(
        self,
        connection: sa.Connection,
        table: ObjectPath,
        source: ObjectPath,
        columns: Sequence[str],
        more: Sequence[tuple[str, str]] = (),
    ) -> None:
        names = [self.quote(name) for name in columns]
        names += [f"CAST(NULL AS {kind}) AS {self.quote(name)}" for name, kind in more]
        query = f"SELECT {', '.join(names)} FROM {self.name(source)}"
        self.run(connection, f"CREATE TABLE {self.name(table)} AS {query} WITH NO DATA")

    def rename(self, connection: sa.Connection, table: ObjectPath, new: ObjectPath) -> None:
        place = table
        if table.database != new.database:
            self.run(connection, f"ALTER TABLE {self.name(table)} SET SCHEMA {self.quote(new.database)}")
            place = ObjectPath.of(new.database, table.name)
        self.run(connection, f"ALTER TABLE {self.name(place)} RENAME TO {self.quote(new.name)}")

    def writable_reason(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        kind = connection.scalar(
            sa.text("SELECT relkind FROM pg_class WHERE oid = to_regclass(:name)"), {"name": self.name(table)}
        )
        return "it is a foreign table, whose server may not keep the transaction" if kind == "f" else None

    def overwrite_reason(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        hidden = connection.scalar(
            sa.text("SELECT row_security_active(CAST(to_regclass(:name) AS oid))"), {"name": self.name(table)}
        )
        return "its row-level security may hide rows from this role, which would stay" if hidden else None

    def missing_right(
        self, connection: sa.Connection, table: ObjectPath, rights: Sequence[str], free: Sequence[ObjectPath]
    ) -> tuple[str, str] | None:
        name = self.name(table)
        for right in rights:
            words = right if right not in (OWNER, DROPPER) else "UPDATE, DELETE, TRUNCATE"
            found = connection.execute(sa.text(_RIGHTS), {"name": name, "words": words}).one()
            if found.is_owner or (right == DROPPER and found.owns_schema and found.may):
                continue
            if words != right:
                return (
                    f"{table} belongs to {found.owner}: {found.role} may not replace, alter, rename or drop it.",
                    f"GRANT {found.owner} TO {found.role}; or ALTER TABLE {name} OWNER TO {found.role}",
                )
            if not found.may:
                return (
                    f"The role {found.role} has no right to {right} on {table}.",
                    f"GRANT {', '.join(rights)} ON {name} TO {found.role}",
                )
        return None

    def close_to_others(self, connection: sa.Connection, table: ObjectPath) -> None:
        for (role,) in connection.execute(sa.text(_GRANTEES), {"name": self.name(table)}).all():
            self.run(connection, f"REVOKE ALL ON {self.name(table)} FROM {'PUBLIC' if role is None else role}")

    def delete_all(self, connection: sa.Connection, table: ObjectPath) -> None:
        # Raise an error instead of deleting only the rows that policies do not hide.
        before = self.text(str(connection.scalar(sa.text("SELECT current_setting('row_security')"))))
        self.run(connection, "SET LOCAL row_security = off")
        super().delete_all(connection, table)
        self.run(connection, f"SET LOCAL row_security = {before}")

    # -- changes of rows -----------------------------------------------------------------------------------------

    def content(self, connection: sa.Connection, table: ObjectPath, *, lock: bool = False) -> list[Any] | None:
        """Based on xmin: each row version has the id of the transaction that made it; a view has none."""
        allowed = sa.text(
            "SELECT has_table_privilege(oid, 'SELECT') AND relkind IN ('r', 'p', 'm') FROM pg_class "
            "WHERE oid = to_regclass(:name)"
        )
        if not connection.scalar(allowed, {"name": self.name(table)}):
            return None
        return [str(fact) for fact in self.run(connection, f"SELECT {_MADE_BY} FROM {self.name(table)}").one()]

    def counted(self, connection: sa.Connection, table: ObjectPath) -> list[Any] | None:
        return [str(number) for number in connection.execute(sa.text(_COUNTED), {"name": self.name(table)}).one()]

    # -- locks ---------------------------------------------------------------------------------------------------

    def guard(self, connection: sa.Connection, name: str) -> None:
        connection.execute(
            sa.text("SELECT pg_advisory_xact_lock(:space, hashtext(:name))"), {"space": self._lock_space, "name": name}
        )

    def lock_target(self, connection: sa.Connection, table: ObjectPath, effect: str) -> None:
        # Of an append only that no other session alters the table between the look at its columns and the rows.
        modes = {
            "replace": "ACCESS EXCLUSIVE",
            "drop": "ACCESS EXCLUSIVE",
            "overwrite": "SHARE ROW EXCLUSIVE",
            "append": "ROW EXCLUSIVE",
        }
        if effect in modes and self.table_kind(connection, table) is not None:
            self.run(connection, f"LOCK TABLE {self.name(table)} IN {modes[effect]} MODE")

    def keep_for_reading(self, connection: sa.Connection, table: ObjectPath) -> None:
        # Not by a query: its snapshot would be older than a replacement for which it waits.
        try:
            with connection.begin_nested():
                self.run(connection, f"LOCK TABLE {self.name(table)} IN ACCESS SHARE MODE")
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) not in _NO_LOCK:
                raise
            # Materialized views and foreign tables, and roles that may read some columns only.
            self.run(connection, f"SELECT 1 FROM {self.name(table)} LIMIT 0")

    def begin_publish(self, connection: sa.Connection) -> None:
        # Earlier commits of the executors are in the same log, and so become durable with it.
        self.run(connection, _PUBLISH)

    def stop_writers(self, connection: sa.Connection, label: str) -> None:
        connection.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = :label AND usename = current_user AND pid <> pg_backend_pid()"
            ),
            {"label": label},
        )

    # -- rows ----------------------------------------------------------------------------------------------------

    def load(self, connection: sa.Connection, table: ObjectPath, columns: Mapping[str, str], rows: Any) -> int:
        return copying.copy(connection.connection.driver_connection, self.name(table), self.quote, columns, rows)

    def is_replaced(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) in _REPLACED

    def cuts(self, connection: sa.Connection, table: ObjectPath) -> list[str]:
        """Split by blocks of the table's file: needs no key, and reads nothing twice since PostgreSQL 14."""
        facts = connection.execute(
            sa.text(
                "SELECT pg_relation_size(oid) / current_setting('block_size')::int8, reltuples FROM pg_class "
                "WHERE oid = to_regclass(:name) AND relkind = 'r'"
            ),
            {"name": self.name(table)},
        ).first()
        if facts is None:
            return [""]
        blocks, rows = int(facts[0]), int(facts[1])
        settings = self.settings
        rows = rows if rows > 0 else blocks * _ROWS_IN_A_BLOCK
        count = max(1, min(settings.read_partitions, rows // settings.read_partition_rows, blocks))
        bounds = [blocks * number // count for number in range(count)]
        cuts = [f"ctid >= '({start},0)'::tid AND ctid < '({end},0)'::tid" for start, end in pairwise(bounds)]
        return [*cuts, f"ctid >= '({bounds[-1]},0)'::tid" if count > 1 else ""]

    def select_expression(self, column: Column) -> str:
        name, kind = self.quote(column.name), column.arrow
        if not _is.is_list(kind):
            return _read(name, column.type, kind)
        element = column.type.removesuffix("[]")
        if _is.is_string(kind.value_type):
            # The text form of an array is an array of texts, too.
            return name if _is_text(element) else f"CAST(CAST({name} AS text) AS text[])"
        read = _read("e", element, kind.value_type)
        if read == "e":
            return name
        elements = f"ARRAY(SELECT {read} FROM unnest({name}) WITH ORDINALITY AS u(e, o) ORDER BY o)"
        # An array of several dimensions stays one, and so is an error, as where the elements are read as they are.
        return f"CASE WHEN array_ndims({name}) > 1 THEN ARRAY[{elements}] WHEN {name} IS NOT NULL THEN {elements} END"

    def compares(self, column: Column) -> bool:
        # Read in another form, but compared by the database as the same value.
        kind = column.arrow
        return super().compares(column) or _is.is_date(kind) or _is.is_timestamp(kind) or _is.is_decimal(kind)

    def compared(self, column: Column) -> str:
        # Of a NUMERIC with any number of digits some are not read.
        return self.select_expression(column) if column.type == "numeric" else super().compared(column)

    def to_arrow(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        if _is.is_date(kind):
            return pa.array(values, pa.int32()).cast(kind)
        if _is.is_timestamp(kind):
            return pa.array(values, pa.int64()).cast(kind)
        if _is.is_list(kind) and (_is.is_date(kind.value_type) or _is.is_timestamp(kind.value_type)):
            number = pa.int32() if _is.is_date(kind.value_type) else pa.int64()
            return pa.array(values, pa.list_(pa.field("element", number))).cast(kind)
        return super().to_arrow(values, kind)


def _is_text(kind: str) -> bool:
    return kind.startswith("character") or kind in _TEXTS


def _read(name: str, type_: str, kind: pa.DataType) -> str:
    """The SQL that reads a value, including values outside the range of Python's dates and Arrow's decimals."""
    if _is.is_date(kind):
        return _FINITE.format(name=name, number=_DAYS.format(name=name), last=_LAST_DAY, first=_FIRST_DAY)
    if _is.is_timestamp(kind):
        last, first = (_LAST_DAY + 1) * _DAY - 1, _FIRST_DAY * _DAY
        return _FINITE.format(name=name, number=_MICROSECONDS.format(name=name), last=last, first=first)
    if type_ == "numeric":
        return f"round({name}, {kind.scale})"
    if not _is.is_string(kind) or _is_text(type_):
        return name
    if type_ in ("inet", "cidr"):  # A cast to text adds the netmask that their output omits.
        return f"(CAST(CAST(ARRAY[{name}] AS text) AS text[]))[1]"
    return f"CAST({name} AS text)"  # JSON, UUID, enumerations, intervals: in the database's own text form


def _decimal(modifier: int) -> pa.DataType:
    """Decode precision and scale of NUMERIC from its modifier; without one, use those of Spark's own reader."""
    if modifier < 4:
        return pa.decimal128(38, 18)
    precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
    if precision > 38 or scale > precision:
        return pa.string()
    return pa.decimal128(precision, scale)


_TYPES: tuple[tuple[Any, Any], ...] = (
    (_is.is_boolean, "boolean"),
    (lambda k: _is.is_int8(k) or _is.is_int16(k) or _is.is_uint8(k), "smallint"),
    (lambda k: _is.is_int32(k) or _is.is_uint16(k), "integer"),
    (lambda k: _is.is_int64(k) or _is.is_uint32(k), "bigint"),
    (_is.is_uint64, "numeric(20,0)"),
    (lambda k: _is.is_float16(k) or _is.is_float32(k), "real"),
    (_is.is_float64, "double precision"),
    (lambda k: _is.is_decimal(k) and 0 <= k.scale <= k.precision, lambda k: f"numeric({k.precision},{k.scale})"),
    (lambda k: _is.is_string(k) or _is.is_large_string(k), "text"),
    (rendering.is_binary, "bytea"),
    (_is.is_date, "date"),
    (lambda k: _is.is_timestamp(k) and k.tz is not None, "timestamp with time zone"),
    (_is.is_timestamp, "timestamp without time zone"),
    (_is.is_time, "time without time zone"),
)
