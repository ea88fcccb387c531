"""Iceberg catalogs to test against, each opened past ours, too: what a test sees is what other engines see."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from tests.lakehouse.rest_server import TOKEN
from twophase.catalog import Environment
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.model import ObjectPath

NAME = "lake"
Row = tuple[Any, ...]


def open_lakehouse(**options: str) -> LakehouseCatalog:
    """A catalog as another process makes it."""
    environment = Environment()
    environment.allows_untested_storage = True
    return LakehouseCatalog(NAME, options, environment)


@dataclass(frozen=True)
class Lake:
    """An Iceberg catalog, and how to reach it past ours.

    Attributes
    ----------
    uri : str
    warehouse : Path
    """

    uri: str
    warehouse: Path
    _kept: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    def options(self, **more: str) -> dict[str, str]:
        """Options of a catalog over it."""
        return {"uri": self.uri, "warehouse": str(self.warehouse), **more}

    def catalog(self, **more: str) -> LakehouseCatalog:
        """A catalog that shares nothing in memory with another one."""
        return open_lakehouse(**self.options(**more))

    # -- past the catalog ----------------------------------------------------------------------------------------

    @property
    def properties(self) -> dict[str, str]:
        """PyIceberg's settings for the files."""
        return {}

    @property
    def root(self) -> str:
        """The URI of the warehouse."""
        return f"file://{self.warehouse}"

    def open(self) -> Any:
        """PyIceberg's own catalog, to be closed."""
        return SqlCatalog(NAME, uri=self.uri, warehouse=self.root, **self.properties)

    @contextmanager
    def iceberg(self) -> Iterator[Any]:
        """PyIceberg's own catalog: the one that is kept open, else one for this look."""
        if self._kept:
            yield self._kept[-1] or self._keep()
            return
        with self.open() as catalog:
            yield catalog

    @contextmanager
    def kept_open(self) -> Iterator[Self]:
        """Keep PyIceberg's catalog open from the first look on: to open it anew would be most of a look."""
        self._kept.append(None)
        try:
            yield self
        finally:
            if (catalog := self._kept.pop()) is not None:
                catalog.close()

    def _keep(self) -> Any:
        self._kept[-1] = self.open()
        return self._kept[-1]

    def load(self, path: ObjectPath) -> Any:
        """PyIceberg's own table, to look at."""
        with self.iceberg() as catalog:
            return catalog.load_table(tuple(path.to_document()))

    def table(self, path: ObjectPath) -> pa.Table | None:
        """A table as PyIceberg reads it; None where there is none."""
        try:
            return self.load(path).scan().to_arrow()
        except NoSuchTableError:
            return None

    def rows(self, path: ObjectPath) -> list[Row]:
        """The rows of a table as two readers have them: PyIceberg, and iceberg-rust."""
        try:
            found = self.read_alike(self.load(path), path)
        except NoSuchTableError:
            raise AssertionError(f"There is no {path}.") from None
        return [tuple(row.values()) for row in found.to_pylist()]

    def read_alike(self, table: Any, path: ObjectPath) -> pa.Table:
        """A table that PyIceberg has loaded, as it and iceberg-rust read it."""
        found = table.scan().to_arrow()
        rust = self.rust_table(path, table.metadata_location)
        assert_alike(found, rust, f"{path}: PyIceberg and iceberg-rust")
        return found

    def rust_table(self, path: ObjectPath, at: str | None = None) -> pa.Table:
        """A table as Iceberg's implementation in Rust reads it, from the metadata file alone: the one that the pointer
        names, where none is told.
        """
        import datafusion
        from pyiceberg_core.datafusion import IcebergDataFusionTable

        at = at or self.metadata_location(path)
        with _in_its_current_schema(at, self.read(at)) as location:
            found = IcebergDataFusionTable(
                identifier=path.to_document(), metadata_location=location, file_io_properties=self.properties
            )
            # A thread for each core takes longer to start than these rows to read.
            context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(1))
            context.register_table("found", found)
            return context.sql("SELECT * FROM found").to_arrow_table()

    def metadata_location(self, path: ObjectPath) -> str:
        """The pointer, as its row has it."""
        rows = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = :database AND table_name = :name"
        with self.iceberg() as catalog, catalog.engine.connect() as connection:
            found = connection.execute(sa.text(rows), {"database": path.database, "name": path.name}).one()
        return str(found[0])

    def execute(self, sql: str) -> list[Row]:
        """Run one statement in the catalog's database, committed at once."""
        engine = sa.create_engine(self.uri, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            result = connection.exec_driver_sql(sql)
            return [tuple(row) for row in result] if result.returns_rows else []

    def read(self, location: str) -> bytes:
        """The content of a file."""
        return Path(location.removeprefix("file://")).read_bytes()

    def files(self) -> set[str]:
        """All files of the warehouse but the catalog itself."""
        found = (file for file in self.warehouse.rglob("*") if file.is_file())
        return {
            str(file.relative_to(self.warehouse)) for file in found if not file.name.startswith("iceberg_catalog.db")
        }

    def reachable(self) -> set[str]:
        """Files that some snapshot of some table, or its metadata, refers to."""
        found: set[str] = set()
        for table in self.tables():
            found |= _reached(table)
        return {location.removeprefix(f"{self.root}/") for location in found}

    def tables(self) -> list[Any]:
        """All tables, as PyIceberg has them."""
        with self.iceberg() as catalog:
            names = [name for namespace in catalog.list_namespaces() for name in catalog.list_tables(namespace)]
            return [catalog.load_table(name) for name in names]

    def orphans(self) -> set[str]:
        """Files that nothing refers to."""
        return {file for file in self.files() - self.reachable() if not file.endswith((".crc", "_SUCCESS"))}


def in_schema(url: str, schema: str) -> str:
    """The URL of a PostgreSQL database, with another schema as the one where names are looked up."""
    return sa.engine.make_url(url).set(query={"options": f"-csearch_path={schema}"}).render_as_string(False)


class RecordingLake(Lake):
    """An Iceberg catalog whose records are files of the warehouse."""

    def metadata_location(self, path: ObjectPath) -> str:
        return str(self.load(path).metadata_location)

    def orphans(self) -> set[str]:
        """Records of participants that were published, and of dropped tables, stay until their retention ends."""
        return {file for file in super().orphans() if not self._is_kept(file)}

    def _is_kept(self, file: str) -> bool:
        if file.startswith(".twophase/staged/"):
            return bool(json.loads((self.warehouse / file).read_text())["state"] == "published")
        return file.startswith(".twophase/dropped/")


class RestLake(RecordingLake):
    """A REST catalog of its own."""

    def options(self, **more: str) -> dict[str, str]:
        os.environ["TWOPHASE_TEST_TOKEN"] = TOKEN
        return super().options(**{"token_env": "TWOPHASE_TEST_TOKEN", **more})

    def open(self) -> Any:
        from pyiceberg.catalog.rest import RestCatalog

        return RestCatalog(NAME, uri=self.uri, token=TOKEN, **{"oauth2-server-uri": "http://nowhere.invalid"})

    def tables(self) -> list[Any]:
        found = []
        with self.iceberg() as catalog:
            names = [name for levels in catalog.list_namespaces() for name in catalog.list_tables(levels)]
            for name in names:
                # Other tests may share the server, and drop theirs meanwhile.
                with contextlib.suppress(NoSuchTableError):
                    found.append(catalog.load_table(name))
        return [table for table in found if table.metadata.location.startswith(f"file://{self.warehouse}/")]


class MetastoreLake(RecordingLake):
    """An Iceberg catalog in a Hive Metastore, which is shared with other tests."""

    def options(self, **more: str) -> dict[str, str]:
        # The metastore of the PySpark wheel lacks the library that locks need; it compares pointers itself.
        return super().options(**{"hive_locks": "false", **more})

    def open(self) -> Any:
        from pyiceberg.catalog.hive import HiveCatalog

        return HiveCatalog(NAME, uri=self.uri, warehouse=f"file://{self.warehouse}")

    def tables(self) -> list[Any]:
        with self.iceberg() as catalog, catalog._client as client:
            names = [
                (table.dbName, table.tableName)
                for database in client.get_all_databases()
                for table in client.get_table_objects_by_name(database, client.get_all_tables(database))
                if table.parameters.get("metadata_location", "").startswith(f"file://{self.warehouse}/")
            ]
        with self.iceberg() as catalog:
            return [catalog.load_table(name) for name in names]


@contextmanager
def _in_its_current_schema(location: str, content: bytes) -> Iterator[str]:
    """Where the metadata of a table says that its last snapshot has the table's schema.

    Iceberg-rust shows a table in the schema that it had when its last snapshot was made. Where it has changed since,
    a copy of the metadata names the present one, in which other engines show it.
    """
    metadata = json.loads(content)
    current = [s for s in metadata.get("snapshots", ()) if s["snapshot-id"] == metadata.get("current-snapshot-id")]
    if all(snapshot["schema-id"] == metadata["current-schema-id"] for snapshot in current):
        yield location
        return
    for snapshot in current:
        snapshot["schema-id"] = metadata["current-schema-id"]
    with tempfile.NamedTemporaryFile("w", suffix=".metadata.json") as copy:
        json.dump(metadata, copy)
        copy.flush()
        yield f"file://{copy.name}"


def _reached(table: Any) -> set[str]:
    found = {table.metadata_location, *(log.metadata_file for log in table.metadata.metadata_log)}
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {
                entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            }
    return found


def ordered(rows: Sequence[Sequence[Any]]) -> list[Row]:
    """Rows in a fixed order."""
    return sorted((tuple(row) for row in rows), key=repr)


def assert_alike(one: pa.Table, other: pa.Table, who: str) -> None:
    """Two readers found the same columns, and the same rows in whatever order."""
    assert (one.column_names, tuples(one)) == (other.column_names, tuples(other)), f"{who} disagree."


def tuples(table: pa.Table) -> list[Any]:
    """The rows of a table in a fixed order, in one form whoever read them."""
    columns = [_listed(column) for column in table.columns]
    return ordered([_plain(row) for row in zip(*columns, strict=True)])


def _listed(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column; as numbers where it has years that Python lacks."""
    try:
        return column.to_pylist()
    except (OverflowError, ValueError):
        return column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64()).to_pylist()


def _plain(value: Any) -> Any:
    """A value in the one form that all readers' values are compared in."""
    if isinstance(value, dict):
        return tuple(_plain(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return tuple(_plain(part) for part in value)
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value
    if isinstance(value, float) and value != value:
        return "NaN"  # It equals itself here.
    return bytes(value) if isinstance(value, bytearray) else value
