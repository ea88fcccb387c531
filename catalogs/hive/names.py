"""Check names and definitions for bad input, before any job starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Set

import pyarrow as pa

from twophase.catalogs import metastore_names
from twophase.catalogs.hive.layout import HIDDEN_PREFIX
from twophase.errors import AtomicityNotSupportedError, CatalogError, MissingLocationError
from twophase.model import ObjectPath, TableDefinition, quote


def check_path(path: ObjectPath, longest: int) -> None:
    """Refuse a table name that the session catalog or a metastore does not support.

    Raises
    ------
    CatalogError
        The name is not ``database.table``, is too long, is one of our own staging names, or has a character other than
        ASCII letters, digits and underscores.
    """
    if len(path.namespace) != 1:
        raise CatalogError(f"A Hive table is named database.table; {path} is not.", path=path)
    check_name(path.namespace[0], "database", longest, path)
    check_name(path.name, "table", longest, path)
    if path.name.lower().startswith(HIDDEN_PREFIX):
        raise CatalogError(f"Names that begin with {HIDDEN_PREFIX} are staging tables of twophase.", path=path)


def check_name(name: str, what: str, longest: int, path: object = None) -> None:
    """Refuse one part of a name, see :func:`twophase.catalogs.metastore_names.check_name`."""
    metastore_names.check_name(name, what, "the session catalog", longest, path)


def check_definition(
    path: ObjectPath, definition: TableDefinition, transforms: Set[str], *, case_sensitive: bool
) -> None:
    """Refuse columns and a layout that no Hive table can have.

    Raises
    ------
    CatalogError
        There is no column, a name is empty or duplicate, a partition or bucket column is missing or duplicate, or all
        columns are partition columns.
    """
    fold = (lambda name: name) if case_sensitive else str.lower
    columns = [fold(field.name) for field in definition.schema]
    if definition.external and definition.location is None:
        raise MissingLocationError(f"The external table {path} needs a LOCATION.", path=path)
    _check_columns(path, columns)
    _check_partitioning(path, definition, transforms, [fold(name) for name in definition.partition_columns], columns)
    _check_clustering(path, definition, columns, fold)
    _check_buckets(path, definition, {fold(name) for name in definition.partition_columns}, columns, fold)


def check_partition_names(path: ObjectPath, columns: Sequence[str]) -> None:
    """Refuse partition columns whose directories readers do not see, or do not tell apart.

    Raises
    ------
    AtomicityNotSupportedError
    """
    folded = Counter(map(str.lower, columns))
    wrong = [name for name in columns if name.startswith(".") or folded[name.lower()] > 1]
    if wrong:
        raise AtomicityNotSupportedError(
            f"{path} was not written: the directories of its partition column {', '.join(map(quote, wrong))} are "
            "hidden from readers by their first dot, or distinct by case only. Nothing was started.",
            path=path,
            hint="Rename the column.",
        )


def _check_columns(path: ObjectPath, columns: list[str]) -> None:
    if not columns:
        raise CatalogError(f"Table {path} would have no column.", path=path)
    if any(not name.strip() for name in columns):
        raise CatalogError(f"A column of {path} has an empty name: give it an alias.", path=path)
    _refuse_duplicates(path, columns, "column")


def _refuse_duplicates(path: ObjectPath, names: list[str], what: str) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise CatalogError(f"The {what} {', '.join(twice)} of {path} is named more than once.", path=path)


def _check_partitioning(
    path: ObjectPath,
    definition: TableDefinition,
    transforms: Set[str],
    partition_columns: list[str],
    columns: list[str],
) -> None:
    known = {*transforms, "bucket", "sorted_bucket"}
    other = sorted({t.name for t in definition.partitioning} - known)
    if other:
        raise CatalogError(
            f"A Hive table is partitioned by columns; {', '.join(other)} of {path} is a transform.",
            path=path,
            hint="Compute it as a column of its own in the query.",
        )
    _refuse_duplicates(path, partition_columns, "partition column")
    if missing := [name for name in partition_columns if name not in columns]:
        raise CatalogError(
            f"The partition column {', '.join(missing)} is not among the columns of {path} ({', '.join(columns)}).",
            path=path,
        )
    _check_partition_types(path, definition, partition_columns, columns)
    if partition_columns and len(partition_columns) == len(columns):
        raise CatalogError(f"All columns of {path} are partition columns: at least one must hold data.", path=path)


def _check_partition_types(
    path: ObjectPath, definition: TableDefinition, partition_columns: list[str], columns: list[str]
) -> None:
    """Refuse types that have no text form for a directory name: a SerDe would write values that it cannot read."""
    if not definition.serde and definition.provider not in (None, "hive"):
        return  # Spark's own writers refuse them, with Spark's message
    types = dict(zip(columns, definition.schema.types, strict=True))
    wrong = [name for name in partition_columns if pa.types.is_nested(types[name]) or pa.types.is_null(types[name])]
    if wrong:
        raise CatalogError(
            f"The partition column {', '.join(wrong)} of {path} has the type {types[wrong[0]]}, which no directory "
            "can be named by.",
            path=path,
            hint="Cast it in the query, for instance to a string with to_json.",
        )


def _check_clustering(
    path: ObjectPath, definition: TableDefinition, columns: list[str], fold: Callable[[str], str]
) -> None:
    clustered = definition.clustering_columns
    if clustered and (definition.bucketing or len(definition.partitioning) > 1):
        raise CatalogError(f"{path} cannot be both clustered and partitioned or bucketed.", path=path)
    _refuse_duplicates(path, [".".join(map(fold, column)) for column in clustered], "clustering column")
    if missing := [column[0] for column in clustered if fold(column[0]) not in columns]:
        raise CatalogError(f"The clustering column {', '.join(missing)} is no column of {path}.", path=path)


def _check_buckets(
    path: ObjectPath,
    definition: TableDefinition,
    partition_columns: set[str],
    columns: list[str],
    fold: Callable[[str], str],
) -> None:
    bucketing = definition.bucketing
    if bucketing is None:
        return
    names = [fold(name) for name in (*bucketing.columns, *bucketing.sort_columns)]
    if wrong := [name for name in names if name not in columns or name in partition_columns]:
        raise CatalogError(f"The bucket or sort column {', '.join(wrong)} is no data column of {path}.", path=path)
    if bucketing.count <= 0:
        raise CatalogError(f"{path} cannot have {bucketing.count} buckets.", path=path)
