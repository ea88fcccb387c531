"""The defaults of a table's columns as Spark keeps them: their SQL, and the value that rows from before have."""

from __future__ import annotations

import json
from typing import Any

from twophase.schema.convert_spark import CURRENT_DEFAULT, EXISTS_DEFAULT
from twophase.spark.jvm.gateway import CATALOG, Jvm


def of_new_column(jvm: Jvm, data_type: Any, sql: str) -> dict[str, str]:
    """The metadata with which Spark keeps the default of a new column: its SQL, and its present value for old rows.

    Parameters
    ----------
    jvm : Jvm
    data_type : org.apache.spark.sql.types.DataType
    sql : str

    Raises
    ------
    py4j.protocol.Py4JJavaError
        Spark cannot evaluate it once for all rows, or its value is of another type.
    """
    analyze = jvm.static("org.apache.spark.sql.catalyst.util.ResolveDefaultColumns", "analyze")
    value = str(analyze("", data_type, sql, "ALTER TABLE").sql())
    return {CURRENT_DEFAULT: sql, EXISTS_DEFAULT: parsable(value, str(data_type.typeName()))}


# Of CHAR and VARCHAR columns, PySpark 4.0 and 4.2 add the end of the type's name to each literal: ``'ab'r(4)``.
#: A struct with such a column, to see what a version does.
VARCHAR = """{"type": "struct", "fields": [{"name": "a", "type": "varchar(4)", "nullable": true,
  "metadata": {"EXISTS_DEFAULT": "'a'", "CURRENT_DEFAULT": "'a'"}}]}"""


def parsable(value: str, kind: str) -> str:
    """A literal that Spark has written for a column of a type, as Spark can read it again."""
    added = kind[len("string") :]
    return value.removesuffix(added) if _is_char(kind) and value.endswith("'" + added) else value


def _is_char(kind: Any) -> bool:
    return isinstance(kind, str) and kind.startswith(("char(", "varchar("))


def with_parsable(struct_json: str) -> str:
    """A struct of columns that Spark has made of a statement, with defaults that it can read again."""
    struct = json.loads(struct_json)
    for field in struct["fields"]:
        if _is_char(field["type"]) and EXISTS_DEFAULT in field["metadata"]:
            field["metadata"][EXISTS_DEFAULT] = parsable(field["metadata"][EXISTS_DEFAULT], field["type"])
    return json.dumps(struct)


def keep_parsable(jvm: Jvm, struct_json: str, columns: Any) -> None:
    """Replace columns whose defaults Spark would write once more: as plain metadata it passes them on as they are."""
    for index, field in enumerate(json.loads(struct_json)["fields"]):
        if _is_char(field["type"]) and EXISTS_DEFAULT in field["metadata"]:
            column, metadata = columns[index], {k: v for k, v in field["metadata"].items() if k != "comment"}
            facts = (column.name(), column.dataType(), column.nullable(), column.comment(), json.dumps(metadata))
            columns[index] = jvm.static(CATALOG + "Column", "create")(*facts)
