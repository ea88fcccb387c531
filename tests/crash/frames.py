"""Rows that are written the way Spark's ``DataFrameWriter`` writes them: the same calls, the same files, no JVM."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.crash.remote_files import local
from twophase import failpoints
from twophase.catalogs.hive.tables import NULL_PARTITION

FILE = failpoints.Failpoint("rows.file")
SUCCESS = failpoints.Failpoint("rows.success")


class ArrowFrame:
    """An Arrow table with as much of a DataFrame's face as a catalog needs.

    Parameters
    ----------
    table : pyarrow.Table
    scattered : bool
        Whether each row is written to a file of its own.
    """

    def __init__(self, table: pa.Table, *, scattered: bool = False) -> None:
        self._table = table
        self._scattered = scattered

    @property
    def columns(self) -> list[str]:
        return list(self._table.column_names)

    def __getitem__(self, name: str) -> str:
        return name.strip("`").replace("``", "`")

    def select(self, *columns: str) -> ArrowFrame:
        return ArrowFrame(self._table.select(list(columns)), scattered=self._scattered)

    def selectExpr(self, *expressions: str) -> ArrowFrame:  # noqa: N802 - Spark's name
        found = [re.fullmatch(r"`(\w+)` AS `(\w+)`", expression) for expression in expressions]
        assert all(found), expressions
        return self.select(*(match[1] for match in found if match)).toDF(*(match[2] for match in found if match))

    def toDF(self, *names: str) -> ArrowFrame:  # noqa: N802 - Spark's name
        return ArrowFrame(self._table.rename_columns(list(names)), scattered=self._scattered)

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return self._table

    @property
    def sparkSession(self) -> SimpleNamespace:  # noqa: N802 - Spark's name
        return SimpleNamespace(conf={})

    @property
    def write(self) -> ArrowWriter:
        return ArrowWriter(self._table, scattered=self._scattered)


class ArrowWriter:
    """``df.write``."""

    def __init__(self, table: pa.Table, *, scattered: bool = False) -> None:
        self._table = table
        self._scattered = scattered
        self._keys: tuple[str, ...] = ()
        self._mode = "error"
        self._options: dict[str, Any] = {}

    def format(self, provider: str) -> ArrowWriter:
        assert provider == "parquet", provider
        return self

    def options(self, **options: Any) -> ArrowWriter:
        self._options = options
        return self

    def mode(self, mode: str) -> ArrowWriter:
        self._mode = mode
        return self

    def partitionBy(self, *columns: str) -> ArrowWriter:  # noqa: N802 - Spark's name
        self._keys = columns
        return self

    def save(self, location: str) -> None:
        root = local(location)
        assert self._mode == "append" or not root.exists(), f"{root} exists"
        root.mkdir(parents=True, exist_ok=True)
        for directory, rows in self._parts():
            with failpoints.step(FILE):
                (root / directory).mkdir(parents=True, exist_ok=True)
                pq.write_table(rows, root / directory / f"part-00000-{uuid.uuid4()}.snappy.parquet")
        with failpoints.step(SUCCESS):
            shutil.rmtree(root / "_temporary", ignore_errors=True)
            if self._options.get("mapreduce.fileoutputcommitter.marksuccessfuljobs") != "false":
                (root / "_SUCCESS").touch()

    def _parts(self) -> list[tuple[str, pa.Table]]:
        if not self._keys:
            width = 1 if self._scattered else max(1, len(self._table))
            return [("", self._table.slice(start, width)) for start in range(0, max(1, len(self._table)), width)]
        keys = [tuple(row.values()) for row in self._table.select(list(self._keys)).to_pylist()]
        data = self._table.drop_columns(list(self._keys))
        parts = []
        for key in sorted(set(keys), key=repr):
            rows = data.filter(pa.array([k == key for k in keys], pa.bool_()))
            parts.append(("/".join(_directory(n, v) for n, v in zip(self._keys, key, strict=True)), rows))
        return parts


class TaskFiles:
    """An environment's ``file_writer``: beside the files of each write is one of an attempt that does not count."""

    def write(
        self,
        df: ArrowFrame,
        provider: str,
        directory: str,
        *,
        partition_columns: Sequence[str],
        options: Mapping[str, str],
    ) -> list[tuple[str, int]]:
        df.write.format(provider).mode("append").options(**options).partitionBy(*partition_columns).save(directory)
        root = local(directory)
        found = sorted(file for file in root.rglob("*.parquet"))
        shutil.copy(found[0], found[0].with_name("part-00000-lost.snappy.parquet"))
        return [(str(file.relative_to(root)), file.stat().st_size) for file in found]


def _directory(name: str, value: object) -> str:
    return f"{name}={NULL_PARTITION if value is None else value}"


def read(location: str, schema: pa.Schema, values: dict[str, str], *, recursive: bool = False) -> list[tuple[Any, ...]]:
    """The rows under a directory, as Spark reads them: hidden names passed over, directories are partitions.

    Others are read where the table says so (``recursiveFileLookup``).
    """
    rows: list[tuple[Any, ...]] = []
    root = local(location)
    for file in sorted(root.rglob("*.parquet")):
        parts = file.relative_to(root).parts
        if any(part.startswith((".", "_")) and "=" not in part for part in parts):
            continue
        if not recursive and not all("=" in part for part in parts[:-1]):
            continue
        found = {**values, **dict(part.split("=", 1) for part in parts[:-1] if "=" in part)}
        for row in pq.ParquetFile(file).read().to_pylist():
            rows.append(tuple(_value({**row, **found}.get(field.name), field.type) for field in schema))
    return rows


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None or value == NULL_PARTITION:
        return None
    return pa.scalar(value).cast(kind).as_py()
