"""The write: rows to data files, by Spark's own writer where it can, and the files to Iceberg's rows of a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.manifest import DataFile

from twophase.catalogs.files import data_entries, join
from twophase.catalogs.lakehouse.arrow_writing import ArrowWriter, file_schema
from twophase.catalogs.lakehouse.footers import Registrar
from twophase.catalogs.lakehouse.layout import remove_file
from twophase.catalogs.lakehouse.transforms import partition_key
from twophase.errors import ConfigurationError
from twophase.schema import Kind, to_iceberg

if TYPE_CHECKING:
    from twophase.catalogs.lakehouse.participant import LakehouseParticipant

_CODEC = "write.parquet.compression-codec"
_DISTRIBUTION = "write.distribution-mode"
_THREADS = 8


def write(member: LakehouseParticipant, df: Any) -> list[DataFile]:
    """Write the rows, and tell the files that hold them; nothing of the data passes the driver.

    Parameters
    ----------
    member : LakehouseParticipant
    df : pyspark.sql.DataFrame or pyarrow.Table
        A table of Arrow's: rows that the driver has anyway.
    """
    registrar = Registrar(str(member.path), to_iceberg(member.schema), member.spec, dict(member.properties))
    codec = member.properties.get(_CODEC, "zstd")
    arrow = ArrowWriter(registrar, member.place.data, _arrow_codec(codec))
    if isinstance(df, pa.Table):
        return arrow(0, df.to_batches())
    environment = member.catalog.environment
    if environment.partition_runner is None or environment.parquet_writer is None:
        raise ConfigurationError(
            f"{member.path} cannot be written: no Spark session lends its executors to catalog {member.catalog.name}.",
            hint="Attach the session with twophase.attach(spark).",
        )
    key = partition_key(registrar.schema, registrar.spec) if member.spec.fields else None
    if (member.spec.fields and key is None) or _is_nested(member):
        found = environment.partition_runner.collect(df, arrow)
        return [file for part in found for file in part]
    environment.parquet_writer.write(
        df,
        file_schema(registrar),
        member.place.data,
        partition_key=key,
        rebalance=member.properties.get(_DISTRIBUTION, "hash") != "none",
        codec=member.properties.get(_CODEC),
    )
    return _register(member, df, registrar)


def _is_nested(member: LakehouseParticipant) -> bool:
    """Whether there are lists or maps: Spark's writer gives no ids to what is in them."""
    return any(node.kind in (Kind.LIST, Kind.MAP) for node in member.schema.walk())


def _arrow_codec(codec: str) -> str:
    return "none" if codec == "uncompressed" else codec


def _register(member: LakehouseParticipant, df: Any, registrar: Registrar) -> list[DataFile]:
    """Read the footers of what Spark wrote; on the executors where there are many."""
    files = member.lakehouse.files
    names = [entry.name for entry in data_entries(files.list(member.place.data))]
    locations = [join(member.place.data, name) for name in names if name.endswith(".parquet")]
    if len(locations) >= member.store.settings.read_footers_on_executors:
        found = member.catalog.environment.partition_runner.map(df, locations, RegisterAll(registrar))
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(registrar.register, locations))
    for location, file in zip(locations, found, strict=True):
        if file is None:  # A task without rows.
            remove_file(files, location)
    return [file for file in found if file is not None]


@dataclass(frozen=True)
class RegisterAll:
    """Registers the files of one task."""

    registrar: Registrar

    def __call__(self, locations: Sequence[str]) -> list[DataFile | None]:
        return [self.registrar.register(location) for location in locations]
