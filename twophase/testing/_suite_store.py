"""Chapter one of the conformance suite: databases, tables, definitions, invalid input."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from twophase.catalog import Catalog, SupportsAlter, SupportsAlterDatabase, SupportsDelete, SupportsRename, TableChange
from twophase.catalog.reading import Filter
from twophase.errors import (
    AtomicityNotSupportedError,
    CatalogError,
    DatabaseAlreadyExistsError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
    TableNotExistError,
    TransactionAborted,
)
from twophase.model import BucketSpec, ObjectPath, OverwriteScope, Purpose, TableDefinition, Transform, WriteContext
from twophase.testing._reading import read, read_batches
from twophase.testing._suite_base import NEW, OLD, SCHEMA, SECRET, Driver, SuiteBase, quick, transaction_id

WIDE = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("name", pa.string())])

TRANSFORMS = {
    "identity": Transform.identity("name"),
    "bucket": Transform("bucket", ("id",), (4,)),
    "truncate": Transform("truncate", ("name",), (3,)),
    "years": Transform("years", ("at",)),
    "months": Transform("months", ("at",)),
    "days": Transform("days", ("at",)),
    "hours": Transform("hours", ("at",)),
    "cluster_by": Transform.cluster_by(["id"]),
}

NAMES = [
    "with.dot",
    "with space",
    "with`backtick",
    'with"quote',
    "with'apostrophe",
    "select",
    "Upper",
    "tabelle_äöü",
    "表",
    "n" * 140,
    "semi;colon -- comment",
    "percent%20",
    "..",
]

BAD_DEFINITIONS = {
    "no column": TableDefinition(pa.schema([])),
    "two columns of one name": TableDefinition(pa.schema([("a", pa.int64()), ("a", pa.int64())])),
    "an empty column name": TableDefinition(pa.schema([("", pa.int64())])),
    "a partition column that is missing": TableDefinition(SCHEMA, partitioning=(Transform.identity("nowhere"),)),
    "a partition column twice": TableDefinition(SCHEMA, partitioning=(Transform.identity("name"),) * 2),
}


#: Types that few stores support.
OTHER_TYPES = [
    pa.binary(),
    pa.timestamp("us"),
    pa.timestamp("us", tz="UTC"),
    pa.decimal128(38, 18),
    pa.list_(pa.int64()),
    pa.struct([("a", pa.int32())]),
    pa.map_(pa.string(), pa.int64()),
    pa.duration("us"),
    pa.month_day_nano_interval(),
]


class CatalogChapter(SuiteBase):
    """The catalog object itself."""

    @quick
    def test_it_declares_what_is_expected_of_it(self, catalog: Catalog) -> None:
        assert catalog.capabilities == self.capabilities

    def test_its_repr_and_its_check_show_no_secret(self, catalog: Catalog, secrets: list[str]) -> None:
        reported = repr(catalog) + str(catalog.check())
        assert not [secret for secret in secrets if secret in reported]

    def test_it_is_never_pickled(self, catalog: Catalog) -> None:
        with pytest.raises(TypeError):
            pickle.dumps(catalog)

    def test_closing_it_twice_is_harmless(self, fresh_catalog: Any) -> None:
        fresh = fresh_catalog()
        fresh.close()
        fresh.close()


class DatabasesChapter(SuiteBase):
    """Databases."""

    @quick
    def test_a_created_database_is_seen_by_everybody(self, driver: Driver, database: str) -> None:
        for view in (driver.catalog, driver.fresh()):
            assert view.database_exists(database)
            assert database in view.list_databases()
            assert isinstance(view.load_database(database), dict)
            assert view.list_tables(database) == []

    def test_creating_an_existing_database_is_refused_unless_ignored(self, catalog: Catalog, database: str) -> None:
        with pytest.raises(DatabaseAlreadyExistsError):
            catalog.create_database(database)
        catalog.create_database(database, ignore_if_exists=True)

    @quick
    def test_a_database_is_created_with_the_owner_that_spark_names(self, driver: Driver, database: str) -> None:
        """Spark passes an owner even if ``CREATE DATABASE`` does not specify one."""
        other = f"{database}_owned"
        driver.catalog.create_database(other, properties={"owner": "conformance"})
        try:
            assert driver.fresh().database_exists(other)
        finally:
            driver.catalog.drop_database(other)

    def test_a_database_is_altered_wholly_or_not_at_all(self, driver: Driver, database: str) -> None:
        if not self.capabilities.alter_database:
            with pytest.raises(AtomicityNotSupportedError):
                driver.as_one(SupportsAlterDatabase).alter_database(database, {"conformance": "yes"})
            return
        altering = driver.as_one(SupportsAlterDatabase)
        altering.alter_database(database, {"conformance": "yes", "other": "1"})
        altering.alter_database(database, {"other": "2"})
        known = driver.fresh().load_database(database)
        assert (known["conformance"], known["other"]) == ("yes", "2")
        with pytest.raises(DatabaseNotExistError):
            altering.alter_database(f"{database}_missing", {"conformance": "yes"})

    def test_a_dropped_database_is_gone(self, catalog: Catalog, database: str) -> None:
        catalog.drop_database(database)
        assert not catalog.database_exists(database)
        assert database not in catalog.list_databases()

    def test_what_needs_a_missing_database_says_so(self, catalog: Catalog, database: str) -> None:
        missing = f"{database}_missing"
        assert not catalog.database_exists(missing)
        for call in (catalog.drop_database, catalog.load_database, catalog.list_tables):
            with pytest.raises(DatabaseNotExistError):
                call(missing)
        catalog.drop_database(missing, ignore_if_not_exists=True)

    def test_a_database_with_tables_is_dropped_only_with_cascade(self, catalog: Catalog, path: ObjectPath) -> None:
        catalog.create_table(path, TableDefinition(SCHEMA))
        with pytest.raises(CatalogError):
            catalog.drop_database(path.database)
        assert catalog.table_exists(path)
        catalog.drop_database(path.database, cascade=True)
        assert not catalog.database_exists(path.database)


class TablesChapter(SuiteBase):
    """Tables, without the two-phase write."""

    @quick
    def test_a_created_table_is_there_and_empty(self, driver: Driver, path: ObjectPath) -> None:
        driver.catalog.create_table(path, TableDefinition(SCHEMA))
        assert driver.state(path) == []

    def test_creating_an_existing_table_is_refused_unless_ignored(self, driver: Driver, path: ObjectPath) -> None:
        old = driver.existing(path)
        with pytest.raises(TableAlreadyExistsError):
            driver.catalog.create_table(path, TableDefinition(SCHEMA))
        driver.catalog.create_table(path, TableDefinition(SCHEMA), ignore_if_exists=True)
        assert driver.state(path) == old

    def test_a_table_in_a_missing_database_is_refused(self, catalog: Catalog, path: ObjectPath) -> None:
        homeless = ObjectPath.of(f"{path.database}_missing", "t")
        with pytest.raises(DatabaseNotExistError):
            catalog.create_table(homeless, TableDefinition(SCHEMA))
        assert not catalog.table_exists(homeless)

    def test_a_dropped_table_is_gone_and_its_name_is_free(self, driver: Driver, path: ObjectPath) -> None:
        driver.existing(path)
        driver.catalog.drop_table(path)
        driver.dropped_by_the_host(path)
        driver.dropped_by_the_host(path)
        assert driver.state(path) is None
        driver.catalog.create_table(path, TableDefinition(SCHEMA))
        assert driver.state(path) == []

    @quick
    def test_what_needs_a_missing_table_says_so(self, catalog: Catalog, path: ObjectPath) -> None:
        assert not catalog.table_exists(path)
        with pytest.raises(TableNotExistError):
            catalog.load_table(path)
        with pytest.raises(TableNotExistError):
            catalog.drop_table(path)
        catalog.drop_table(path, ignore_if_not_exists=True)

    def test_spellings_are_one_name_where_the_catalog_says_so(self, driver: Driver, path: ObjectPath) -> None:
        driver.catalog.create_table(path, TableDefinition(SCHEMA))
        other = ObjectPath((*path.namespace,), path.name.upper())
        one, two = (driver.catalog.canonical(spelling) for spelling in (path, other))
        assert driver.catalog.canonical(one) == one
        assert driver.catalog.table_exists(one)
        assert driver.catalog.table_exists(other) == (one == two)

    def test_a_table_is_renamed_with_its_rows_or_not_at_all(self, driver: Driver, path: ObjectPath) -> None:
        old, new_path = driver.existing(path), ObjectPath.of(path.database, "renamed")
        if not self.capabilities.rename_table:
            with pytest.raises(AtomicityNotSupportedError):
                driver.as_one(SupportsRename).rename_table(path, new_path)
            assert (driver.state(path), driver.state(new_path)) == (old, None)
            return
        renaming = driver.as_one(SupportsRename)
        renaming.rename_table(path, new_path)
        assert (driver.state(path), driver.state(new_path)) == (None, old)
        with pytest.raises(TableNotExistError):
            renaming.rename_table(path, ObjectPath.of(path.database, "other"))
        driver.catalog.create_table(path, TableDefinition(SCHEMA))
        with pytest.raises(TableAlreadyExistsError):
            renaming.rename_table(path, new_path)
        assert (driver.state(path), driver.state(new_path)) == ([], old)

    def test_a_table_is_altered_wholly_or_not_at_all(self, driver: Driver, path: ObjectPath) -> None:
        old = driver.existing(path)
        change = TableChange("set_property", arguments={"key": "conformance", "value": "yes"})
        if not self.capabilities.alter_table:
            with pytest.raises(AtomicityNotSupportedError):
                driver.as_one(SupportsAlter).alter_table(path, [change])
        else:
            altering = driver.as_one(SupportsAlter)
            with pytest.raises(CatalogError):
                altering.alter_table(path, [change, TableChange("no_such_change")])
            assert "conformance" not in driver.catalog.load_table(path).properties
            altering.alter_table(path, [change])
            assert driver.fresh().load_table(path).properties["conformance"] == "yes"
            with pytest.raises(TableNotExistError):
                altering.alter_table(ObjectPath.of(path.database, "missing"), [change])
        assert driver.state(path) == old

    def test_spark_reads_a_table_only_where_that_is_declared(self, driver: Driver, path: ObjectPath) -> None:
        driver.existing(path)
        if not self.capabilities.read:
            with pytest.raises(AtomicityNotSupportedError):
                driver.catalog.read_source(path)
            return
        assert driver.catalog.read_source(path).kind in ("session_table", "files", "batches", "parquet")
        with pytest.raises(TableNotExistError):
            driver.catalog.read_source(ObjectPath.of(path.database, "missing"))

    def test_a_reader_gives_the_columns_and_rows_that_it_is_asked_for(self, driver: Driver, path: ObjectPath) -> None:
        """The partitions of a read are pickled and sent to executors. To count rows, Spark requests one column."""
        rows = driver.existing(path)
        source = driver.catalog.read_source(path) if self.capabilities.read else None
        if source is None or source.kind != "batches":
            return
        assert source.reader is not None
        assert source.definition is not None
        schema = source.definition.schema
        assert read(source) == rows
        for names in (["name"], ["id"], ["name", "id"]):
            expected = sorted(tuple(dict(zip(SCHEMA.names, row, strict=True))[name] for name in names) for row in rows)
            wanted = pa.schema([schema.field(name) for name in names])
            assert sorted(read_batches(source.reader, wanted)) == expected
        condition = Filter("=", "id", (OLD[0][0],))
        if source.reader.accepts(condition):
            found = read_batches(source.reader, schema, [condition])
            assert set(rows[:1]) <= set(found) <= set(rows), "It leaves rows out that fulfil the condition."

    @pytest.mark.parametrize("stale", [False, True], ids=["immediately", "after another write"])
    def test_rows_are_deleted_only_where_that_is_declared(self, driver: Driver, path: ObjectPath, stale: bool) -> None:
        old = driver.existing(path)
        if not self.capabilities.delete:
            with pytest.raises(AtomicityNotSupportedError):
                driver.as_one(SupportsDelete).plan_delete(path, [None])
            return
        plan = driver.as_one(SupportsDelete).plan_delete(path, [None])
        assert plan.files
        assert plan.rewritten is not None, "What a condition keeps that only Spark understands cannot be determined."
        scope = OverwriteScope(files=plan.files, version=plan.version)
        context = WriteContext(transaction_id(), overwrite=scope)
        if not stale:
            driver.published(path, Purpose.INSERT_OVERWRITE, old[:1], context=context)
            assert driver.state(path) == old[:1]
            return
        driver.published(path, Purpose.INSERT_OVERWRITE, NEW)
        with pytest.raises(TransactionAborted):
            driver.published(path, Purpose.INSERT_OVERWRITE, old[:1], context=context)
        assert driver.state(path) == NEW


class DefinitionsChapter(SuiteBase):
    """Definitions: everything that is declared survives a round trip, everything else is refused."""

    @quick
    def test_schema_comment_and_properties_make_the_round_trip(self, driver: Driver, path: ObjectPath) -> None:
        schema = pa.schema([pa.field(f"c{i}", kind) for i, kind in enumerate(self.types)])
        definition = TableDefinition(schema, comment="what it is for", properties={"owner": "conformance"})
        driver.catalog.create_table(path, definition)
        loaded = driver.fresh().load_table(path)
        assert loaded.schema.names == schema.names
        assert loaded.schema.types == schema.types
        assert loaded.comment == definition.comment
        assert loaded.properties["owner"] == "conformance"

    @pytest.mark.parametrize("name", TRANSFORMS)
    def test_a_partition_transform_is_declared_or_refused(self, driver: Driver, path: ObjectPath, name: str) -> None:
        definition = TableDefinition(WIDE, partitioning=(TRANSFORMS[name],))
        if name == "bucket" and self.capabilities.bucketing:
            # The transform that Spark passes for CLUSTERED BY.
            driver.catalog.create_table(path, definition)
            loaded = driver.fresh().load_table(path)
            assert loaded.bucketing == BucketSpec(4, ("id",)) or loaded.partitioning == definition.partitioning
            return
        if name not in self.capabilities.partitioning:
            self._is_refused(driver, path, definition)
            return
        driver.catalog.create_table(path, definition)
        assert [t.name for t in driver.fresh().load_table(path).partitioning] == [name]

    def test_buckets_are_declared_or_refused(self, driver: Driver, path: ObjectPath) -> None:
        definition = TableDefinition(SCHEMA, bucketing=BucketSpec(4, ("id",)))
        if not self.capabilities.bucketing:
            self._is_refused(driver, path, definition)
            return
        driver.catalog.create_table(path, definition)
        assert driver.fresh().load_table(path).bucketing == definition.bucketing

    def test_a_location_is_declared_or_refused(self, driver: Driver, path: ObjectPath, tmp_path: Any) -> None:
        definition = TableDefinition(SCHEMA, location=str(tmp_path / "elsewhere"), external=True)
        if not self.capabilities.external_location:
            self._is_refused(driver, path, definition)
            return
        driver.catalog.create_table(path, definition)
        assert driver.fresh().load_table(path).external

    def test_a_provider_is_declared_or_refused(self, driver: Driver, path: ObjectPath) -> None:
        if not self.capabilities.providers:
            # The store has no choice of formats: Spark passes its own default, which must not cause a refusal.
            driver.catalog.create_table(path, TableDefinition(SCHEMA, provider="parquet"))
            assert driver.state(path) == []
            return
        self._is_refused(driver, path, TableDefinition(SCHEMA, provider="no_such_format"))
        for provider in sorted(self.capabilities.providers - {"hive"}):
            made = ObjectPath.of(path.database, f"by_{provider}")
            schema = pa.schema([("name", pa.string())])  # `text` supports no other.
            driver.catalog.create_table(made, TableDefinition(schema, provider=provider))
            assert driver.catalog.load_table(made).provider == provider

    @pytest.mark.parametrize("problem", BAD_DEFINITIONS)
    @quick
    def test_a_bad_definition_is_refused_before_anything(self, driver: Driver, path: ObjectPath, problem: str) -> None:
        self._is_refused(driver, path, BAD_DEFINITIONS[problem], only_errors=True)

    @pytest.mark.parametrize("kind", OTHER_TYPES, ids=str)
    def test_a_type_is_stored_or_refused_before_anything(
        self, driver: Driver, path: ObjectPath, kind: pa.DataType
    ) -> None:
        """If a store refuses it only at the publish, all rows were written in vain. Spark's own writers refuse types
        that they cannot write."""
        purpose, schema = Purpose.CREATE_TABLE_AS, pa.schema([("id", pa.int64()), ("value", kind)])
        if not self.declares(driver, path, purpose):
            return
        try:
            participant = driver.offer(path, purpose, TableDefinition(schema))
        except CatalogError:
            assert driver.state(path) is None
            return
        assert participant is not None
        try:
            participant.begin()
            participant.write(driver.make_frame([(1, None)], schema))
            participant.prepare()
        except Exception:
            participant.abort()
            assert driver.state(path) is None
            return
        participant.commit()
        participant.finish()
        assert driver.fresh().load_table(path).schema.names == schema.names

    def test_a_secret_in_the_options_of_a_bad_definition_is_not_shown(self, driver: Driver, path: ObjectPath) -> None:
        bad = replace(BAD_DEFINITIONS["two columns of one name"], options={"password": SECRET})
        with pytest.raises(CatalogError) as caught:
            driver.catalog.create_table(path, bad)
        assert SECRET not in str(caught.value)

    @pytest.mark.parametrize("name", NAMES)
    def test_an_odd_name_is_taken_exactly_or_refused(self, driver: Driver, database: str, name: str) -> None:
        odd = ObjectPath.of(database, name)
        neighbour = ObjectPath.of(database, "neighbour")
        driver.catalog.create_table(neighbour, TableDefinition(SCHEMA))
        purpose = Purpose.CREATE_TABLE_AS
        if purpose not in self.capabilities.purposes:
            assert driver.offer(odd, purpose) is None
            return
        try:
            participant = driver.offer(odd, purpose)
            assert participant is not None
            participant.begin()
        except CatalogError:
            assert driver.catalog.list_tables(database) == ["neighbour"]
            return
        participant.write(driver.make_frame(OLD, SCHEMA))
        participant.prepare()
        participant.commit()
        participant.finish()
        # A store that folds case may list the folded name.
        found = [table.lower() for table in driver.catalog.list_tables(database)]
        assert sorted(found) == sorted(["neighbour", name.lower()])
        assert driver.rows(odd) == OLD
        driver.catalog.drop_table(odd)
        assert driver.catalog.list_tables(database) == ["neighbour"]

    def _is_refused(
        self, driver: Driver, path: ObjectPath, definition: TableDefinition, *, only_errors: bool = False
    ) -> None:
        try:
            driver.catalog.create_table(path, definition)
        except CatalogError:
            pass
        else:
            pytest.fail(f"It took for CREATE TABLE what is not declared or bad: {definition}")
        if Purpose.CREATE_TABLE_AS in self.capabilities.purposes:
            try:
                participant = driver.offer(path, Purpose.CREATE_TABLE_AS, definition)
            except CatalogError:
                pass
            else:
                assert participant is None, "It took for CREATE TABLE AS what it refuses for CREATE TABLE."
                assert not only_errors, "Bad input must be reported, not passed over."
        assert driver.state(path) is None
