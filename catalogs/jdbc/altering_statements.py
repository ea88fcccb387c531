"""The SQL of an ``ALTER TABLE``, by database: from the columns as they are to those that are wanted."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import sqlalchemy as sa

from twophase.catalogs.jdbc.altered_columns import Altered
from twophase.catalogs.jdbc.database import Column, Database
from twophase.catalogs.jdbc.dependents_sqlite import SQLitePreserver
from twophase.catalogs.jdbc.mysql import MySQL
from twophase.catalogs.jdbc.postgresql import PostgreSQL
from twophase.catalogs.jdbc.sqlite import DECIMAL_TEXT, SQLite
from twophase.errors import CatalogError
from twophase.model import ObjectPath


def run(
    database: Database,
    connection: sa.Connection,
    path: ObjectPath,
    table: ObjectPath,
    columns: Sequence[Column],
    wanted: Sequence[Altered],
    table_comment: str | None,
) -> None:
    """Give a table other columns, and other comments; atomic.

    Parameters
    ----------
    database : Database
    connection : sqlalchemy.Connection
        A transaction.
    path : ObjectPath
        For errors.
    table : ObjectPath
    columns : sequence of Column
        As they are.
    wanted : sequence of Altered
    table_comment : str or None
        The table's new comment; None: it stays as it is.

    Raises
    ------
    CatalogError
        This database cannot make such a change.
    """
    if isinstance(database, MySQL):
        clauses = _mysql(database, connection, table, columns, wanted)
        if table_comment is not None:
            clauses.append(f"COMMENT = {database.text(table_comment)}")
        if clauses:
            database.run(connection, f"ALTER TABLE {database.name(table)} {', '.join(clauses)}")
        return
    anew = isinstance(database, SQLite) and (
        _is_moved(columns, wanted) or any(c.is_redefined or c.new_default is not None for c in wanted)
    )
    if not anew:
        _check_order(database, path, columns, wanted)
    clauses = _simple(database, columns, wanted)
    if isinstance(database, PostgreSQL):
        clauses += _redefined(database, wanted)
    elif not anew:
        _check_kept(database, path, wanted)
    if len(clauses) > 1 and not database.ddl_in_transaction:
        raise _cannot(database, path, "make several changes", "each of its DDL statements is a commit")
    for clause in clauses:
        database.run(connection, f"ALTER TABLE {database.name(table)} {clause}")
    if database.column_comments:
        _comment(database, connection, table, wanted)
    if anew:
        _make_anew(database, connection, path, wanted)
    if table_comment is not None:
        database.set_comment(connection, table, table_comment or None)


# -- the steps that all but MariaDB and MySQL have ---------------------------------------------------------------------


def _simple(database: Database, columns: Sequence[Column], wanted: Sequence[Altered]) -> list[str]:
    """Drop, rename and add columns."""
    quote = database.quote
    kept = {column.before.name for column in wanted if column.before}
    drops = [f"DROP COLUMN {quote(column.name)}" for column in columns if column.name not in kept]
    renames = [
        f"RENAME COLUMN {quote(column.before.name)} TO {quote(column.name)}"
        for column in wanted
        if column.before and column.before.name != column.name
    ]
    new = [f"ADD COLUMN {quote(column.name)} {column.definition}" for column in wanted if column.before is None]
    return [*drops, *renames, *new]


def _redefined(database: Database, wanted: Sequence[Altered]) -> list[str]:
    clauses = []
    for column in wanted:
        if column.before is None:
            continue
        name = database.quote(column.name)
        if column.type != column.before.type:
            clauses.append(f"ALTER COLUMN {name} TYPE {column.type}")
        if column.nullable != column.before.nullable:
            clauses.append(f"ALTER COLUMN {name} {'DROP' if column.nullable else 'SET'} NOT NULL")
        if column.new_default is not None:
            clauses.append(f"ALTER COLUMN {name} {_default_clause(column.new_default)}")
    return clauses


def _default_clause(sql: str) -> str:
    return f"SET DEFAULT {sql}" if sql else "DROP DEFAULT"


def _comment(database: Database, connection: sa.Connection, table: ObjectPath, wanted: Sequence[Altered]) -> None:
    for column in wanted:
        if column.comment != (column.before.comment if column.before else None):
            database.set_column_comment(connection, table, column.name, column.comment)


def _is_moved(columns: Sequence[Column], wanted: Sequence[Altered]) -> bool:
    """Whether the columns are in another order than if the new ones were added behind the old ones."""
    kept = [column.before.name for column in wanted if column.before]
    return kept != [c.name for c in columns if c.name in kept] or any(c.before is None for c in wanted[: len(kept)])


def _check_order(database: Database, path: ObjectPath, columns: Sequence[Column], wanted: Sequence[Altered]) -> None:
    if _is_moved(columns, wanted):
        raise _cannot(database, path, "move a column", "a new column comes last there, and the others stay")


def _check_kept(database: Database, path: ObjectPath, wanted: Sequence[Altered]) -> None:
    for column in wanted:
        if column.is_redefined or column.new_default is not None:
            why = "there it keeps its type, NULL and its default"
            raise _cannot(database, path, f"redefine the column {column.name}", why)


def _cannot(database: Database, path: ObjectPath, what: str, why: str) -> CatalogError:
    return CatalogError(f"{database.title} cannot {what} of {path}: {why}; nothing was changed.", path=path)


# -- MariaDB and MySQL: one statement ----------------------------------------------------------------------------------


def _mysql(
    database: MySQL, connection: sa.Connection, table: ObjectPath, columns: Sequence[Column], wanted: Sequence[Altered]
) -> list[str]:
    quote, kept = database.quote, [column.before.name for column in wanted if column.before]
    clauses = [f"DROP COLUMN {quote(column.name)}" for column in columns if column.name not in kept]
    # The order in which the clauses so far leave the columns; new ones are added behind all others.
    order = [_name_of(wanted, column.name) for column in columns if column.name in kept]
    for number, column in enumerate(wanted):
        moved = (order[number] if number < len(order) else column.name) != column.name
        place = ""
        if moved:
            place = " FIRST" if number == 0 else f" AFTER {quote(wanted[number - 1].name)}"
        order = [name for name in order if name != column.name]
        order.insert(number, column.name)
        clauses += _of_column(database, connection, table, column, place)
    return clauses


def _name_of(wanted: Sequence[Altered], old: str) -> str:
    return next(column.name for column in wanted if column.before and column.before.name == old)


def _of_column(database: MySQL, connection: sa.Connection, table: ObjectPath, column: Altered, place: str) -> list[str]:
    name, before = database.quote(column.name), column.before
    if before is None:
        said = f" COMMENT {database.text(column.comment)}" if column.comment else ""
        return [f"ADD COLUMN {name} {column.definition}{said}{place}"]
    commented = column.comment != before.comment
    if not (column.is_redefined or commented or place or column.new_default is not None):
        return [] if before.name == column.name else [f"RENAME COLUMN {database.quote(before.name)} TO {name}"]
    null = "NULL" if column.nullable else "NOT NULL"
    comment = (column.comment or "") if commented else None
    kind = database.redefined(
        connection,
        table,
        before.name,
        column.type,
        null=null if column.nullable != before.nullable else None,
        comment=comment,
        new_default=column.new_default,
        new_name=column.name,
    )
    return [f"CHANGE COLUMN {database.quote(before.name)} {name} {kind}{place}"]


# -- SQLite: the table is made anew, in the same transaction -----------------------------------------------------------


def _make_anew(database: Database, connection: sa.Connection, path: ObjectPath, wanted: Sequence[Altered]) -> None:
    scratch = ObjectPath.of(path.database, f"{database.settings.staging_prefix}altered")
    work = SQLitePreserver(connection, database, path, path, frozenset(column.name for column in wanted))
    work.prepare()
    if work.lost:
        raise _cannot(
            database,
            path,
            "change types, NULL or the order of columns",
            f"the table would be made anew, without its {', '.join(work.lost)}",
        )
    new = {c.name: f"DEFAULT {c.new_default}" if c.new_default else "" for c in wanted if c.new_default is not None}
    attributes = work.attributes() | new
    work.before_drop()
    database.create(
        connection,
        scratch,
        [(c.name, f"{c.type} {attributes.get(c.name, '')} {'NULL' if c.nullable else 'NOT NULL'}") for c in wanted],
    )
    names = ", ".join(database.quote(column.name) for column in wanted)
    values = ", ".join(value_of(database, column) for column in wanted)
    database.run(
        connection, f"INSERT INTO {database.name(scratch)} ({names}) SELECT {values} FROM {database.name(path)}"
    )
    database.run(connection, f"DROP TABLE {database.name(path)}")
    database.rename(connection, scratch, path)
    work.after_rename()
    if work.lost:
        raise _cannot(database, path, "redefine the columns", f"it would lose {', '.join(work.lost)}")


def value_of(database: Database, column: Altered) -> str:
    """The value of a column in the form in which its new type is stored."""
    name, is_ = database.quote(column.name), pa.types
    old, new = (column.before.arrow if column.before else column.arrow), column.arrow
    if is_.is_date(old) and is_.is_timestamp(new):
        return f"{name} || ' 00:00:00.000000'"
    if not (is_.is_decimal(new) and column.type.upper().startswith("DECIMALTEXT")) or old == new:
        return name
    return f"{DECIMAL_TEXT}({name}, {new.scale})"
