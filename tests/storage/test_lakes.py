"""Iceberg tables in an object store, by PyIceberg's own client: with the session's settings, and with those of others.

The store is a server with the API of S3, and takes any credentials; it shows which ones a request was signed with.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

import twophase
from tests.hive.conftest import start_session
from tests.lakehouse.rest_server import TOKEN, rest_catalog
from tests.lakehouse.statements import ROWS, run, stage
from tests.servers import Server
from tests.storage import filesystems
from tests.storage.objects import USER, Objects
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.catalogs.lakehouse.file_access import FileAccess, layered
from twophase.errors import ConfigurationError
from twophase.model import ObjectPath, Purpose
from twophase.spark.connect import ConnectEnvironment
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.hadoop_files import SessionHadoopFiles

BUCKET = "lakes.test"
#: In all secret keys and tokens.
SECRET = "hunter2"
_LISTS = pa.schema([("list", pa.list_(pa.int64()))])


@pytest.fixture(scope="module")
def store(s3: Server) -> Objects:
    return Objects(s3, BUCKET)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that nothing may use."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "environment")


def keys(store: Objects, user: str) -> dict[str, str]:
    """PyIceberg's settings for the store."""
    return {"s3.endpoint": store.url, "s3.access-key-id": user, "s3.secret-access-key": SECRET}


def users(store: Objects, directory: str) -> set[str]:
    """Whose keys have signed requests for an object in a directory of the bucket."""
    return store.signers(f" /{BUCKET}/{directory}/") - {USER}


def rows(catalog: Any) -> list[tuple[Any, ...]]:
    """What PyIceberg reads in a catalog of its own."""
    found = catalog.load_table(("shop", "daily")).scan().to_arrow()
    return sorted(tuple(row.values()) for row in found.to_pylist())


# -- without a session -------------------------------------------------------------------------------------------------


def opened(**options: str) -> LakehouseCatalog:
    return LakehouseCatalog("lake", options, ConnectEnvironment(allows_untested_storage=True))


def test_files_are_opened_with_the_options_of_the_catalog(store: Objects, tmp_path: Path) -> None:
    uri, path = f"sqlite:///{tmp_path}/lake.db", ObjectPath.of("shop", "daily")
    options = {**keys(store, "own"), "s3.path-style-access": "true"}
    catalog = opened(uri=uri, warehouse=f"s3a://{BUCKET}/own", **options)
    (levels,) = catalog.storage()
    assert levels.startswith(f"s3a://{BUCKET}: each statement atomic, several tables in one transaction atomic")
    assert "spark.twophase.storage.untested=allow" in levels
    catalog.create_database("shop")
    store.set()
    run(catalog, path)
    run(catalog, path, Purpose.INSERT_INTO, [(3, "three")])
    before = store.contents(f"{BUCKET}/own")
    stage(catalog, path, Purpose.INSERT_INTO).abort()
    assert store.contents(f"{BUCKET}/own") == before
    assert users(store, "own") == {"own"}
    with SqlCatalog("lake", uri=uri, **keys(store, "reader"), **{"s3.region": "us-east-1"}) as iceberg:
        assert rows(iceberg) == [*ROWS, (3, "three")]
    catalog.drop_table(path, purge=True)
    assert store.contents(f"{BUCKET}/own") == {}
    catalog.close()


def test_what_a_rest_catalog_lends_opens_the_files_of_its_tables(
    store: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REST_TOKEN", TOKEN)
    path = ObjectPath.of("shop", "daily")
    server = {**keys(store, "server"), "s3.region": "us-east-1", "warehouse": f"s3a://{BUCKET}/lent"}
    lent = {"s3.access-key-id": "lent", "s3.secret-access-key": SECRET, "s3.session-token": SECRET}
    with rest_catalog(tmp_path / "rest", server, lent) as uri:
        options = {"token_env": "REST_TOKEN", **keys(store, "own")}
        catalog = opened(uri=uri, warehouse=f"s3a://{BUCKET}/lent", **options)
        assert "several tables in one transaction reversible" in catalog.storage()[0]
        catalog.create_database("shop")
        run(catalog, path)
        store.set()
        run(catalog, path, Purpose.INSERT_INTO, [(3, "three")])
        assert users(store, "lent/shop") == {"lent", "server"}
        assert rows(catalog.store.catalog) == [*ROWS, (3, "three")]
        assert not any(SECRET.encode() in content for content in store.contents(f"{BUCKET}/lent").values())
        catalog.close()


def test_credentials_of_several_sources_are_not_mixed() -> None:
    session = {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.session-token": "c", "s3.region": "r"}
    own = {"s3.access-key-id": "d", "s3.secret-access-key": "e", "token": "of the server"}
    assert layered(session, own) == {"s3.access-key-id": "d", "s3.secret-access-key": "e", "s3.region": "r"}
    assert "token" not in layered(session, {"token": "of the server"})


# -- in a session ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark(store: Objects, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    root = tmp_path_factory.mktemp("lakes")
    filesystems.install(root / "classes")
    s3a = {
        "impl": "twophasetests.ObjectStore",
        "endpoint": store.url.removeprefix("http://"),
        "connection.ssl.enabled": "false",
        "path.style.access": "true",
        "access.key": "session",
        "secret.key": SECRET,
        "bucket.central.endpoint": "s3.amazonaws.com",
        "bucket.central.endpoint.region": "eu-north-1",
        "bucket.paris.endpoint": "https://s3.eu-west-3.amazonaws.com",
        "bucket.paris.path.style.access": "false",
        "bucket.paris.access.key": "bucket",
        "bucket.paris.secret.key": SECRET,
        "bucket.paris.session.token": SECRET,
        "bucket.any-role.aws.credentials.provider": "org.apache.hadoop.fs.s3a.auth.AssumedRoleCredentialProvider",
        "bucket.any-role.assumed.role.arn": "arn:aws:iam::1:role/writer",
        "bucket.any-machine.aws.credentials.provider": "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider",
        "bucket.any-simple.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "bucket.any-simple.session.token": SECRET,
        "bucket.any-former.aws.credentials.provider": "com.amazonaws.auth.AnonymousAWSCredentials",
        "bucket.any-open.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,"
        "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider, com.example.CompanyProvider",
        "bucket.any-last.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider,"
        "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "bucket.any-company.aws.credentials.provider": "com.example.CompanyProvider",
        "bucket.any-both.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider, "
        "com.example.CompanyProvider",
    }
    azure = {
        "fs.azure.account.auth.type.other.dfs.core.windows.net": "OAuth",
        "fs.azure.account.oauth2.client.id": "me",
        "fs.azure.account.oauth2.client.secret": SECRET,
        "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.com/tenant/oauth2/token",
        "fs.azure.account.key.account.dfs.core.windows.net": SECRET,
        "fs.gs.project.id": "project",
    }
    conf = {
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()},
        **{f"spark.hadoop.{name}": value for name, value in azure.items()},
        "spark.hadoop.fs.objects.endpoint": store.url,
        "spark.twophase.storage.untested": "allow",
        "spark.twophase.timeline.local": "allow",
        "spark.sql.catalog.lake": "twophase.lakehouse",
        "spark.sql.catalog.lake.uri": f"sqlite:///{root}/lake.db",
        "spark.sql.catalog.lake.warehouse": f"s3a://{BUCKET}/session",
        "spark.sql.catalog.db": "twophase.jdbc",
        "spark.sql.catalog.db.url": f"sqlite:///{root}/shop.db",
        "spark.sql.catalog.db.password": SECRET,
    }
    session = start_session(root, hive=False, conf=conf)
    yield session
    session.stop()


@pytest.fixture
def lake(spark: SparkSession) -> Iterator[LakehouseCatalog]:
    handle = twophase.attach(spark)
    found = handle.catalog("lake")
    assert isinstance(found, LakehouseCatalog)
    yield found
    handle.detach()


@pytest.mark.promise(
    "untested-storage", "PyIceberg opens the files of a lake with the settings and credentials of the session"
)
def test_tables_are_written_with_the_settings_of_the_session(
    spark: SparkSession, lake: LakehouseCatalog, store: Objects
) -> None:
    """Of tables with lists, which Spark's own writer does not write."""
    spark.sql("CREATE DATABASE lake.shop")
    store.set()
    spark.sql("CREATE TABLE lake.shop.t AS SELECT id, array(id) AS list FROM range(0, 2)")
    spark.sql("INSERT INTO lake.shop.t SELECT id, array(id) AS list FROM range(2, 3)")
    assert users(store, "session") == {"session"}
    before = store.contents(f"{BUCKET}/session")
    with pytest.raises(LookupError), twophase.transaction(spark):
        spark.sql("INSERT INTO lake.shop.t VALUES (9L, array(9L))")
        raise LookupError
    assert store.contents(f"{BUCKET}/session") == before
    path = ObjectPath.of("shop", "t")
    table = lake.store.iceberg_table(path, lake.lakehouse.require(path))
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2]
    spark.sql("DROP TABLE lake.shop.t PURGE")
    assert store.contents(f"{BUCKET}/session") == {}


@pytest.mark.promise(
    "untested-storage",
    "Spark writes the data files of a lake with its own client, and PyIceberg's finds all of them",
    detail=True,
)
def test_sparks_own_client_writes_and_reads_the_rows(
    spark: SparkSession, lake: LakehouseCatalog, store: Objects
) -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS lake.shop")
    store.set()
    spark.sql("CREATE TABLE lake.shop.p PARTITIONED BY (k) AS SELECT id, id % 2 AS k FROM range(4)")
    spark.sql("INSERT INTO lake.shop.p SELECT 9, 9")
    spark.sql("INSERT OVERWRITE lake.shop.p PARTITION (k = 0) SELECT 6")
    kept = [(1, 1), (3, 1), (6, 0), (9, 9)]
    assert sorted(map(tuple, spark.table("lake.shop.p").collect())) == kept
    assert store.signers(rf"^(PUT|GET) /{BUCKET}/session/shop/.*/part-") == {USER, "session"}
    assert store.signers(rf"^PUT /{BUCKET}/session/shop/.*/part-") == {USER}
    before = store.contents(f"{BUCKET}/session")
    with pytest.raises(LookupError), twophase.transaction(spark):
        spark.sql("INSERT INTO lake.shop.p SELECT 7, 7")
        raise LookupError
    assert store.contents(f"{BUCKET}/session") == before
    path = ObjectPath.of("shop", "p")
    found = lake.store.iceberg_table(path, lake.lakehouse.require(path)).scan().to_arrow()
    assert sorted(zip(found["id"].to_pylist(), found["k"].to_pylist(), strict=True)) == kept
    spark.sql("DROP TABLE lake.shop.p PURGE")
    assert store.contents(f"{BUCKET}/session") == {}


@pytest.mark.promise("secrets", "settings of file systems are in no metadata, record or timeline")
def test_no_secret_is_written_or_shown(
    spark: SparkSession, lake: LakehouseCatalog, store: Objects, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS lake.shop")
    spark.sql("CREATE TABLE lake.shop.s AS SELECT array(1L) AS list")
    participant = stage(lake, ObjectPath.of("shop", "s"), Purpose.INSERT_INTO, [([2],)], _LISTS)
    shown = [repr(lake), repr(lake.store), repr(lake.store.access), repr(participant), str(participant.document)]
    participant.abort()
    stored = [*store.contents(f"{BUCKET}/session").values()]
    stored += [file.read_bytes() for file in tmp_path_factory.getbasetemp().rglob("*.db*") if file.is_file()]
    spark.sql("DROP TABLE lake.shop.s PURGE")
    assert not any(SECRET in text for text in shown)
    assert not any(SECRET.encode() in content for content in stored)


@pytest.mark.promise("secrets", "the log of Py4J, which at level DEBUG shows all calls, holds no secret setting")
def test_what_py4j_logs_of_our_calls_holds_no_secret(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "py4j"):
        handle = twophase.attach(spark)
        FileAccess({}, SessionHadoopFiles(Jvm(spark))).io("s3a://any/t")
        spark.sql("CREATE OR REPLACE TABLE db.main.t AS SELECT 1 AS id")
        assert spark.sql("SELECT id FROM db.main.t").collect() == [(1,)]
        handle.detach()
    assert "spark.sql.catalog.db.password" in caplog.text and "fs.s3a.secret.key" in caplog.text
    assert SECRET not in caplog.text


_AMAZON = {"s3.endpoint": "https://s3.eu-west-3.amazonaws.com", "s3.region": "eu-west-3"}
_BY_PATH = {"s3.force-virtual-addressing": "false", "s3.region": "us-east-1"}
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "file:/data": {},
    "s3a://any/t": {**_BY_PATH, "s3.access-key-id": "session", "s3.secret-access-key": SECRET},
    "s3a://any-role/t": {**_BY_PATH, "s3.role-arn": "arn:aws:iam::1:role/writer"},
    "s3a://any-machine/t": _BY_PATH,
    "s3a://any-simple/t": {**_BY_PATH, "s3.access-key-id": "session", "s3.secret-access-key": SECRET},
    "s3a://any-former/t": {**_BY_PATH, "s3.anonymous": "true"},
    "s3a://any-open/t": {**_BY_PATH, "s3.access-key-id": "session", "s3.secret-access-key": SECRET},
    "s3a://any-last/t": {**_BY_PATH, "s3.anonymous": "true"},
    "s3a://any-both/t": {**_BY_PATH, "s3.access-key-id": "session", "s3.secret-access-key": SECRET},
    "s3a://central/t": {
        "s3.region": "eu-north-1",
        "s3.access-key-id": "session",
        "s3.secret-access-key": SECRET,
    },
    "s3://paris/t": {
        **_AMAZON,
        "s3.force-virtual-addressing": "true",
        "s3.access-key-id": "bucket",
        "s3.secret-access-key": SECRET,
        "s3.session-token": SECRET,
    },
    "abfss://c@account.dfs.core.windows.net/t": {"adls.account-name": "account", "adls.account-key": SECRET},
    "abfss://c@other.dfs.core.windows.net/t": {
        "adls.account-name": "other",
        "adls.client-id": "me",
        "adls.client-secret": SECRET,
        "adls.tenant-id": "tenant",
    },
    "gs://bucket/t": {"gcs.project-id": "project"},
}


@pytest.mark.parametrize("place", SETTINGS)
def test_settings_of_hadoop_have_pyicebergs_names(spark: SparkSession, store: Objects, place: str) -> None:
    access = FileAccess({}, SessionHadoopFiles(Jvm(spark)))
    found = access.io(place).properties
    expected = {"s3.endpoint": store.url, **SETTINGS[place]} if "any" in place else SETTINGS[place]
    assert found == expected
    if place.startswith("s3"):
        access.filesystem(place)  # PyArrow refuses settings that do not fit together.


def test_a_credential_provider_that_pyiceberg_does_not_have_is_refused(spark: SparkSession) -> None:
    hadoop, place = SessionHadoopFiles(Jvm(spark)), "s3a://any-company/t"
    with pytest.raises(ConfigurationError, match=r"any-company .* com\.example\.CompanyProvider") as refused:
        FileAccess({}, hadoop).io(place)
    assert "s3.access-key-id" in str(refused.value)
    own = {"s3.access-key-id": "own", "s3.secret-access-key": SECRET}
    assert own.items() <= FileAccess(own, hadoop).io(place).properties.items()


def test_a_client_that_finds_no_keys_goes_on_anonymously(spark: SparkSession) -> None:
    spark.conf.set("fs.s3a.access.key", "")
    try:
        found = FileAccess({}, SessionHadoopFiles(Jvm(spark))).io("s3a://any-open/t").properties
    finally:
        spark.conf.unset("fs.s3a.access.key")
    assert "s3.access-key-id" not in found and found["s3.anonymous"] == "true"


def test_no_secret_of_the_client_is_looked_up_beside_credentials_of_the_catalog(spark: SparkSession) -> None:
    """The store of secrets may be out of reach, and slow to say so."""
    own, setting = (
        {"s3.access-key-id": "own", "s3.secret-access-key": SECRET},
        "hadoop.security.credential.provider.path",
    )
    spark.conf.set(setting, "nothing://of/this/kind")
    try:
        hadoop = SessionHadoopFiles(Jvm(spark))
        with pytest.raises(OSError, match="provider path"):
            FileAccess({}, hadoop).io("s3a://any/t")
        assert own.items() <= FileAccess(own, hadoop).io("s3a://any/t").properties.items()
    finally:
        spark.conf.unset(setting)


@pytest.mark.parametrize(
    "setting",
    [
        "hadoop.security.credential.provider.path",
        "fs.s3a.security.credential.provider.path",
        "fs.s3a.bucket.hidden.security.credential.provider.path",
    ],
)
def test_a_secret_may_be_in_a_credential_provider(spark: SparkSession, tmp_path: Path, setting: str) -> None:
    provider = f"localjceks://file{tmp_path}/keys.jceks"
    jvm: Any = spark.sparkContext._jvm
    conf = jvm.org.apache.hadoop.conf.Configuration(spark.sparkContext._jsc.hadoopConfiguration())
    conf.set("hadoop.security.credential.provider.path", provider)
    keystore = jvm.org.apache.hadoop.security.alias.CredentialProviderFactory.getProviders(conf).get(0)
    secret = spark.sparkContext._gateway.new_array(jvm.char, 6)
    secret[:] = "hidden"
    keystore.createCredentialEntry("fs.s3a.bucket.hidden.secret.key", secret)
    keystore.flush()
    spark.conf.set(setting, provider)
    try:
        found = FileAccess({}, SessionHadoopFiles(Jvm(spark))).io("s3a://hidden/t").properties
    finally:
        spark.conf.unset(setting)
    assert found["s3.secret-access-key"] == "hidden"
