"""The write: rows to data files, with Spark's own writer if possible, and files to manifest entries."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile

from twophase.catalogs.files import data_entries, join
from twophase.catalogs.lakehouse import sorting
from twophase.catalogs.lakehouse.arrow_writing import ArrowWriter, file_schema
from twophase.catalogs.lakehouse.footers import Registrar
from twophase.catalogs.lakehouse.layout import remove_file
from twophase.catalogs.lakehouse.member import Member
from twophase.catalogs.lakehouse.transforms import partition_key
from twophase.errors import CatalogError, ConfigurationError
from twophase.schema import Kind, to_iceberg

_DISTRIBUTION = "write.distribution-mode"
_TARGET_SIZE = "write.target-file-size-bytes"
_THREADS = 8


def write(member: Member, df: Any) -> list[DataFile]:
    """Write the rows, and return the files; no rows pass through the driver.

    Parameters
    ----------
    member : Member
    df : pyspark.sql.DataFrame or pyarrow.Table
        An Arrow table holds rows that the driver has anyway.
    """
    schema = to_iceberg(member.schema)
    sort = None if isinstance(df, pa.Table) else sorting.keys(schema, member.sort_order)
    order_id = member.sort_order.order_id if sort else None
    registrar = Registrar(member.io, str(member.path), schema, member.spec, dict(member.properties), order_id)
    target = target_size(member.path, member.properties)
    arrow = ArrowWriter(registrar, member.place.data, _arrow_codec(member.codec or "zstd"), target)
    if isinstance(df, pa.Table):
        return arrow(0, df.to_batches())
    runner, writer = _executors(member)
    key = partition_key(registrar.schema, registrar.spec) if member.spec.fields else None
    if (member.spec.fields and key is None) or _is_nested(member):
        rows = writer.sorted(df, file_schema(registrar).names, sort) if sort else df
        return [file for part in runner.collect(rows, arrow) for file in part]
    member.lakehouse.files.make_ready(member.place.data, df.sparkSession.conf)
    writer.write(
        df,
        file_schema(registrar),
        member.place.data,
        partition_key=key,
        rebalance=member.properties.get(_DISTRIBUTION, "hash") != "none",
        codec=member.codec,
        sort=sort or (),
        most_rows=None if target is None else _rows_of(member, df, target),
    )
    return _register(member, df, registrar)


def target_size(path: object, properties: Mapping[str, str]) -> int | None:
    """Target size of a file in bytes, if the table sets one.

    Raises
    ------
    CatalogError
        It is not a number of bytes.
    """
    said = properties.get(_TARGET_SIZE)
    if said is None:
        return None
    if not said.isdigit() or not int(said):
        raise CatalogError(f"{path}: {_TARGET_SIZE} is a number of bytes, not {said!r}.", path=path)
    return int(said)


def _rows_of(member: Member, df: Any, size: int) -> int:
    """Estimate the rows of a file of a size: from the table's bytes per row, or, if it is empty, from the types."""
    total, rows = member.document["seen_size"] or (0, 0)
    width = total / rows if rows else member.catalog.environment.parquet_writer.row_width(df)
    return max(1, int(size / width))


def _is_nested(member: Member) -> bool:
    """Return True if there are lists or maps, to whose elements Spark's writer does not assign ids."""
    return any(node.kind in (Kind.LIST, Kind.MAP) for node in member.schema.walk())


def _arrow_codec(codec: str) -> str:
    return "none" if codec == "uncompressed" else codec


def _register(member: Member, df: Any, registrar: Registrar) -> list[DataFile]:
    """Read the footers of the files that Spark wrote, on the executors if there are many."""
    files = member.lakehouse.files
    names = [entry.name for entry in data_entries(files.list(member.place.data))]
    locations = [join(member.place.data, name) for name in names if name.endswith(".parquet")]
    if len(locations) >= member.store.settings.read_footers_on_executors:
        found = member.catalog.environment.partition_runner.map(df, locations, registrar.register_all)
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(registrar.register, locations))
    for location, file in zip(locations, found, strict=True):
        if file is None:  # A task without rows.
            remove_file(files, location)
    return [file for file in found if file is not None]


def _executors(member: Member) -> tuple[Any, Any]:
    """The runner and the writer that Spark lends."""
    environment = member.catalog.environment
    if environment.partition_runner is None or environment.parquet_writer is None:
        raise ConfigurationError(
            f"{member.path} cannot be written: no Spark session lends its executors to catalog {member.catalog.name}.",
            hint="Attach the session with twophase.attach(spark); over Spark Connect give the catalog a "
            "twophase.spark.connect.ConnectEnvironment().",
        )
    return environment.partition_runner, environment.parquet_writer
