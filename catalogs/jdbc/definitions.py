"""Conversion between table definitions and a database's columns and comments; bad input is refused before any work.

Databases do not support table properties. They are stored as JSON at the end of the table's comment; so are comments of
columns if the database does not support those.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from twophase.catalog.spark_columns import SPARK_FIELD, collated_types, declared_type, spark_field
from twophase.catalogs.jdbc import defaults, options
from twophase.catalogs.jdbc.database import Column, Database
from twophase.config.settings import nearest
from twophase.errors import CatalogError
from twophase.model import ObjectPath, TableDefinition

_MARK = "\n[twophase] "
_COMMENT = b"comment"
#: Prefixes of Spark types that are numbers, bytes or plain text in Arrow, and would be read back as those.
_FOREIGN = ("interval", "geo", "variant", "string collate")


@dataclass(frozen=True)
class Note:
    """The content of a table's comment.

    Attributes
    ----------
    comment : str or None
    properties : mapping of str to str
    columns : mapping of str to str
        Comments of columns.
    """

    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str | None) -> Note:
        """Parse a table's comment, also one that twophase did not write."""
        comment, mark, facts = (text or "").rpartition(_MARK)
        if not mark:
            return cls(text or None)
        try:
            found = json.loads(facts)
            return cls(comment or None, dict(found.get("properties", {})), dict(found.get("columns", {})))
        except (ValueError, AttributeError):
            return cls(text)

    def write(self) -> str | None:
        """Format the note as a table's comment."""
        facts = {"properties": dict(self.properties), "columns": dict(self.columns)}
        kept = {key: value for key, value in facts.items() if value}
        if not kept:
            return self.comment
        return (self.comment or "") + _MARK + json.dumps(kept, ensure_ascii=False, separators=(",", ":"))


def note_of(definition: TableDefinition, database: Database) -> Note:
    """The note of a new table."""
    columns = {} if database.column_comments else {f.name: c for f in definition.schema if (c := column_comment(f))}
    return Note(definition.comment, dict(definition.properties), columns)


def column_comment(column: pa.Field) -> str | None:
    """The comment of a column of a definition."""
    found = (column.metadata or {}).get(_COMMENT)
    return None if found is None else found.decode()


def to_definition(columns: Sequence[Column], comment: str | None) -> TableDefinition:
    """The definition of an existing table; columns computed by the database are nullable, as they take no values."""
    note = Note.read(comment)
    fields = []
    for column in columns:
        said = column.comment or note.columns.get(column.name)
        metadata = {_COMMENT: said.encode()} if said else None
        fields.append(pa.field(column.name, column.arrow, column.nullable or column.generated, metadata))
    return TableDefinition(pa.schema(fields), comment=note.comment, properties=dict(note.properties))


def check(path: ObjectPath, definition: TableDefinition, database: Database) -> None:
    """Refuse what this database does not support, before anything happens.

    Raises
    ------
    CatalogError
        The layout, an option, or a column's name or type is not supported.
    """
    _check_layout(path, definition, database)
    _check_columns(path, definition.schema.names, database)
    columns_of(path, definition, database)
    text = note_of(definition, database).write()
    longest = database.longest_comment
    if longest is not None and text is not None and len(text) > longest:
        raise CatalogError(
            f"Comment and properties of {path} take {len(text)} characters; {database.title} holds {longest}.",
            path=path,
        )


def _check_layout(path: ObjectPath, definition: TableDefinition, database: Database) -> None:
    problem = None
    if definition.partitioning:
        problem = f"a table of {database.title} is not partitioned by PARTITIONED BY"
    elif definition.bucketing:
        problem = f"a table of {database.title} has no buckets"
    elif definition.location or definition.external:
        problem = f"a table of {database.title} has no LOCATION"
    if problem:
        raise CatalogError(f"{path} cannot be made: {problem}.", path=path)
    for name in definition.options:
        if name not in options.TABLE_OPTIONS:
            known = nearest(name, options.TABLE_OPTIONS)
            raise CatalogError(f"There is no option {name} for {path}.", path=path, hint=known)


def _check_columns(path: ObjectPath, names: Sequence[str], database: Database) -> None:
    if not names:
        raise CatalogError(f"Table {path} would have no column.", path=path)
    if any(not name.strip() for name in names):
        raise CatalogError(f"A column of {path} has an empty name: give it an alias.", path=path)
    for name in names:
        database.check_name(name, "column", path)
    folded = Counter(name.lower() for name in names)
    twice = sorted(name for name, count in folded.items() if count > 1)
    if twice:
        raise CatalogError(f"{path} would have the column {twice[0]!r} twice.", path=path)


def columns_of(path: ObjectPath, definition: TableDefinition, database: Database) -> list[tuple[str, str]]:
    """Names and types of the columns of a new table.

    Raises
    ------
    CatalogError
        The database has no column type for one of the types; the message names the column and Spark's type.
    """
    chosen = {**database.settings.column_types, **_own_types(path, definition)}
    by_name = {name.lower(): kind for name, kind in chosen.items()}
    return [(f.name, by_name.get(f.name.lower()) or _type_of(path, f, database)) for f in definition.schema]


def _own_types(path: ObjectPath, definition: TableDefinition) -> dict[str, str]:
    try:
        return options.read_column_types(definition.options.get("column_types", ""))
    except ValueError as error:
        what, hint = error.args
        raise CatalogError(f"The option column_types {what}", path=path, hint=hint) from None


def _type_of(path: ObjectPath, column: pa.Field, database: Database) -> str:
    described = spark_field(column)
    said = next(iter(collated_types(described)), None) or declared_type(described)
    if isinstance(said, str):
        if said.startswith(("char(", "varchar(")) and database.title != "SQLite":
            return said
        found = None if said.startswith(_FOREIGN) else database.column_type(column)
    else:
        found = database.column_type(column)
    if found is None:
        shown = said if isinstance(said, str) else str(column.type)
        raise CatalogError(
            f"Column {column.name!r} of {path} has the type {shown}, which {database.title} has no column for.",
            path=path,
            hint="Cast it in the query (a map, struct or array with to_json), or drop it.",
        )
    return found


def as_read(definition: TableDefinition, columns: Sequence[Column] = ()) -> TableDefinition:
    """A definition as Spark reads it from a published table.

    Its CHAR and VARCHAR columns are strings; those that the database already has are of the types that it gave them: a
    TINYINT is a smallint in PostgreSQL.
    """
    there = {column.name: column.arrow for column in columns}
    return replace(definition, schema=pa.schema([_as_read(f, there.get(f.name, f.type)) for f in definition.schema]))


def _as_read(column: pa.Field, there: pa.DataType) -> pa.Field:
    kind = declared_type(spark_field(column))
    is_text = isinstance(kind, str) and kind.startswith(("char(", "varchar("))
    column = column.with_type(there)
    if not is_text:
        return column
    kept = {key: value for key, value in (column.metadata or {}).items() if key != SPARK_FIELD}
    return column.with_metadata(kept or None)


def column_clauses(path: ObjectPath, definition: TableDefinition, database: Database) -> list[tuple[str, str]]:
    """Names of the columns, and what follows each name in ``CREATE TABLE``."""
    clauses = []
    for (name, kind), column in zip(columns_of(path, definition, database), definition.schema, strict=True):
        # NULL is explicit: otherwise an old or legacy-configured MariaDB makes the first TIMESTAMP column NOT NULL.
        clause = f"{kind}{_default(path, column, database)} {'NULL' if column.nullable else 'NOT NULL'}"
        clauses.append((name, clause))
    return clauses


def _default(path: ObjectPath, column: pa.Field, database: Database) -> str:
    sql = defaults.given(column)
    if sql is None or defaults.is_null(sql):
        return ""
    defaults.checked(path, _as_read(column, column.type), sql)
    return f" DEFAULT {defaults.in_database(sql, column.type, database)}"
