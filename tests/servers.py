"""Real servers for tests: PostgreSQL, MariaDB, a Hive Metastore, a HiveServer2, and one with the API of S3.

Each is a context manager. It starts the program on a free port with its data in a directory of its own, waits until
the server really answers (a query or a call, until a deadline), and stops it for sure: at the end of the block, when
the block fails, and through the kernel when this process is killed. A program that is missing fails the test with the
command that installs it; nothing is skipped.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
#: Below those that Linux (32768 and above) and other systems hand out, above the usual services.
PORTS = range(20_000, 32_000)
#: Seconds that a server may take until it answers; the Java ones need about 15 on a quiet machine with two cores.
DEADLINE = 150.0
#: The processes of the tests are killed, the machine is not: an embedded metastore need not wait for its disk.
FORGETFUL_METASTORE = "-Dderby.system.durability=test"
#: A JVM of the tests lives for seconds to minutes: its optimising compiler would take a third of the cores' time and
#: give little back.
JAVA_FOR_SHORT_RUNS = (
    "-XX:TieredStopAtLevel=1",
    # With one compiler Java has room for a fifth of the usual code: a session of some minutes compiled all of it again
    # and again.
    "-XX:ReservedCodeCacheSize=240m",
    "-XX:+UseSerialGC",
    FORGETFUL_METASTORE,
)
#: Spark's classes, ready to be used: ``make test`` has them written by :mod:`tests.class_archive`.
ARCHIVE = Path(sys.prefix) / "spark.jsa"
#: Java ignores an archive of another Java or of other jars, and need not say so.
WITH_ARCHIVE = (f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
#: The environment variable that names the ``mysqld`` of a MySQL to test instead of MariaDB.
MYSQL = "TWOPHASE_MYSQLD"
_ATTEMPTS = 3


def java_of_short_runs() -> list[str]:
    """The options of a JVM of the tests that runs Spark."""
    return [*JAVA_FOR_SHORT_RUNS, *(WITH_ARCHIVE if ARCHIVE.exists() else ())]


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes
    ----------
    name : str
        What it is, for messages.
    host, port : str, int
        Where it listens.
    directory : Path
        Its data, log included; removed at the end.
    url : str
        SQLAlchemy's URL for the databases, ``thrift://`` for the metastore, ``hive://`` for HiveServer2.
    process : subprocess.Popen
        The server's own process: a test may kill it.
    """

    name: str
    host: str
    port: int
    directory: Path
    url: str
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return (self.directory / "server.log").read_text(errors="replace")


class ServerNotInstalledError(RuntimeError):
    """A program is missing; the message holds the command that installs it."""


# -- databases -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def postgresql(*, longest_file: int | None = None) -> Iterator[Server]:
    """A PostgreSQL server with the database ``twophase``; its user ``twophase`` may do everything.

    Parameters
    ----------
    longest_file : int, optional
        Bytes that it may write into one file.
    """
    initdb, postgres = postgresql_program("initdb"), postgresql_program("postgres")
    user = _unprivileged_user("postgres")
    with _directory("postgresql", user) as directory:
        data = directory / "data"
        _run([initdb, "-D", str(data), *"-U twophase -A trust -E UTF8 --locale=C -N".split()], directory, user)

        def command(port: int) -> list[str]:
            limit = [] if longest_file is None else ["prlimit", f"--fsize={longest_file}", "--"]
            return [*limit, *_postgres(postgres, directory, port)]

        def ready(port: int) -> None:
            import psycopg

            address = f"host={HOST} port={port} user=twophase dbname=postgres"
            with psycopg.connect(address, autocommit=True) as connection:
                if not connection.execute("SELECT 1 FROM pg_database WHERE datname = 'twophase'").fetchone():
                    connection.execute("CREATE DATABASE twophase")

        with _server("PostgreSQL", command, ready, directory, user=user, stop=signal.SIGINT) as (port, process):
            url = f"postgresql+psycopg://twophase@{HOST}:{port}/twophase"
            yield Server("PostgreSQL", HOST, port, directory, url, process)


def postgresql_program(name: str) -> str:
    """The path of a program of PostgreSQL's."""
    return _program(name, "postgresql", "/usr/lib/postgresql/*/bin")


def postgresql_driver() -> Path:
    """PostgreSQL's JDBC driver, a jar."""
    jar = Path("/usr/share/java/postgresql.jar")
    if not jar.exists():
        raise ServerNotInstalledError(
            f"{jar} is missing. Run: sudo apt-get update && sudo apt-get install -y libpostgresql-jdbc-java"
        )
    return jar


def _postgres(program: str, directory: Path, port: int) -> list[str]:
    # No TCP but on the loopback; no fsync: processes are killed here, machines are not.
    settings = {"listen_addresses": HOST, "unix_socket_directories": str(directory), "fsync": "off"}
    words = [f"--{key}={word}" for key, word in settings.items()]
    return [program, "-D", str(directory / "data"), "-p", str(port), *words]


@contextlib.contextmanager
def again(server: Server) -> Iterator[None]:
    """A database server that has ended, started again on its data and its port."""

    def ready(_: int) -> None:
        import sqlalchemy

        sqlalchemy.create_engine(server.url, poolclass=sqlalchemy.pool.NullPool).connect().close()

    command = [str(word) for word in server.process.args]  # type: ignore[union-attr]
    with _server(server.name, lambda _: command, ready, server.directory, stop=signal.SIGINT):
        yield


@contextlib.contextmanager
def mariadb(*settings: str) -> Iterator[Server]:
    """A MariaDB server with the database ``twophase``; its user ``twophase`` (password the same) may do everything.

    Where the environment variable :data:`MYSQL` names MySQL's ``mysqld``, a MySQL server takes MariaDB's place.

    Parameters
    ----------
    *settings : str
        More options of the server.
    """
    if os.environ.get(MYSQL):
        with _mysql(os.environ[MYSQL], settings) as server:
            yield server
        return
    install = _program("mariadb-install-db", "mariadb-server", "/usr/bin")
    mariadbd = _program("mariadbd", "mariadb-server", "/usr/sbin")
    client = _program("mariadb", "mariadb-server", "/usr/bin")
    user = _unprivileged_user("mysql")
    with _directory("mariadb", user) as directory:
        data, sock, temporary = directory / "data", directory / "server.sock", directory / "tmp"
        temporary.mkdir(mode=0o777)
        temporary.chmod(0o777)
        options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        _run([install, "--no-defaults", f"--datadir={data}", *options], directory, user)

        def command(port: int) -> list[str]:
            return [
                *(mariadbd, "--no-defaults", f"--datadir={data}", f"--socket={sock}", f"--port={port}"),
                # A server that starts removes the temporary tables that are in its directory: another one's, too.
                f"--tmpdir={temporary}",
                *(f"--bind-address={HOST}", f"--pid-file={directory / 'server.pid'}", "--skip-name-resolve"),
                *("--debug-no-sync", "--character-set-server=utf8mb4", "--local-infile=ON"),
                *settings,
            ]

        def ready(port: int) -> None:
            sql = (
                "CREATE DATABASE IF NOT EXISTS twophase; "
                "CREATE USER IF NOT EXISTS twophase@'%' IDENTIFIED BY 'twophase'; "
                "GRANT ALL ON *.* TO twophase@'%' WITH GRANT OPTION;"
            )
            address = ["--protocol=tcp", f"--host={HOST}", f"--port={port}", "--user=root"]
            subprocess.run([client, "--no-defaults", *address, "-e", sql], check=True, capture_output=True, timeout=30)

        with _server("MariaDB", command, ready, directory, user=user) as (port, process):
            url = f"mysql+pymysql://twophase:twophase@{HOST}:{port}/twophase"
            yield Server("MariaDB", HOST, port, directory, url, process)


@contextlib.contextmanager
def _mysql(mysqld: str, settings: Sequence[str]) -> Iterator[Server]:
    """The same as MySQL. Debian's package of the server alone brings no client: its first statements lie in a file."""
    user = _unprivileged_user("mysql")
    with _directory("mysql", user) as directory:
        data, sock, first = directory / "data", directory / "server.sock", directory / "first.sql"
        first.write_text(
            "CREATE DATABASE IF NOT EXISTS twophase;\n"
            "CREATE USER IF NOT EXISTS twophase@'%' IDENTIFIED BY 'twophase';\n"
            "GRANT ALL ON *.* TO twophase@'%' WITH GRANT OPTION;\n"
        )
        _run([mysqld, "--no-defaults", f"--datadir={data}", "--initialize-insecure", *settings], directory, user)

        def command(port: int) -> list[str]:
            return [
                *(mysqld, "--no-defaults", f"--datadir={data}", f"--socket={sock}", f"--port={port}"),
                *(f"--bind-address={HOST}", f"--pid-file={directory / 'server.pid'}", "--skip-name-resolve"),
                *("--mysqlx=OFF", "--secure-file-priv=NULL", "--skip-log-bin", "--innodb-flush-log-at-trx-commit=2"),
                *("--local-infile=ON", f"--init-file={first}"),
                *settings,
            ]

        def ready(port: int) -> None:
            import sqlalchemy

            sqlalchemy.create_engine(url(port), poolclass=sqlalchemy.pool.NullPool).connect().close()

        def url(port: int) -> str:
            return f"mysql+pymysql://twophase:twophase@{HOST}:{port}/twophase"

        with _server("MySQL", command, ready, directory, user=user) as (port, process):
            yield Server("MySQL", HOST, port, directory, url(port), process)


# -- Hive, out of the PySpark wheel ----------------------------------------------------------------------------------


@contextlib.contextmanager
def hive_metastore() -> Iterator[Server]:
    """A standalone Hive Metastore on a Derby database of its own.

    Spark joins with ``spark.hadoop.hive.metastore.uris`` = ``server.url``; the default database lies in
    ``server.directory / "warehouse"``.
    """
    with _directory("metastore") as directory:
        conf = {
            # Without this it dies on a class that the wheel does not hold.
            "hive.async.log.enabled": "false",
            "hive.metastore.schema.verification": "false",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.warehouse.dir": f"file:{directory / 'warehouse'}",
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={directory / 'metastore_db'};create=true",
        }

        def command(port: int) -> list[str]:
            main = [str(_spark_home() / "bin" / "spark-class"), "org.apache.hadoop.hive.metastore.HiveMetaStore"]
            return [*main, "-p", str(port), *_hiveconf(conf)]

        (directory / "warehouse").mkdir()
        with _server("Hive Metastore", command, _call_metastore, directory, env=_java_env()) as (port, process):
            yield Server("Hive Metastore", HOST, port, directory, f"thrift://{HOST}:{port}", process)


@contextlib.contextmanager
def hive_server2(
    metastore: Server | None = None, *, conf: Mapping[str, str] | None = None, hiveconf: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A HiveServer2 (Spark's own Thrift server).

    Parameters
    ----------
    metastore : Server, optional
        A :func:`hive_metastore` to share with others; without it, an embedded one of its own.
    conf : mapping of str to str, optional
        More Spark configuration.
    hiveconf : mapping of str to str, optional
        More of Hive's configuration, such as ``hive.server2.authentication``. With another authentication than none
        the server counts as ready when its port is open.
    """
    with _directory("hiveserver2") as directory:
        warehouse = (metastore.directory if metastore else directory) / "warehouse"
        spark_conf = {
            "spark.master": "local[1]",
            "spark.ui.enabled": "false",
            "spark.driver.memory": "768m",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": f"file:{warehouse}",
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory}",
        }
        if metastore:
            spark_conf["spark.hadoop.hive.metastore.uris"] = metastore.url
        spark_conf |= conf or {}

        def command(port: int) -> list[str]:
            main = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"
            settings = [word for key, value in spark_conf.items() for word in ("--conf", f"{key}={value}")]
            submit = [str(_spark_home() / "bin" / "spark-submit"), "--class", main, *settings, "spark-internal"]
            options = {"hive.server2.thrift.port": str(port), "hive.server2.thrift.bind.host": HOST, **(hiveconf or {})}
            return [*submit, *_hiveconf(options)]

        ready = _query_hive if not hiveconf else _connect
        with _server("HiveServer2", command, ready, directory, env=_java_env()) as (port, process):
            yield Server("HiveServer2", HOST, port, directory, f"hive://{HOST}:{port}/default", process)


def _hiveconf(conf: Mapping[str, str]) -> list[str]:
    return [word for key, value in conf.items() for word in ("--hiveconf", f"{key}={value}")]


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _java_env() -> dict[str, str]:
    # A SPARK_HOME or SPARK_CONF_DIR of the developer's would start another Spark than the one under test.
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "HADOOP_", "HIVE_"))}
    archive = {"SPARK_SUBMIT_OPTS": " ".join(WITH_ARCHIVE)} if ARCHIVE.exists() else {}
    options = " ".join(["-Xmx768m", *JAVA_FOR_SHORT_RUNS])
    return {**kept, **archive, "SPARK_HOME": str(_spark_home()), "_JAVA_OPTIONS": options}


def _call_metastore(port: int) -> None:
    """Ask for the databases, by hand: the port opens before the metastore can answer."""
    from thrift.protocol.TBinaryProtocol import TBinaryProtocol
    from thrift.Thrift import TMessageType
    from thrift.transport.TSocket import TSocket
    from thrift.transport.TTransport import TBufferedTransport

    _connect(port)
    sock = TSocket(HOST, port)
    sock.setTimeout(20_000)
    transport = TBufferedTransport(sock)
    transport.open()
    try:
        protocol = TBinaryProtocol(transport)
        protocol.writeMessageBegin("get_all_databases", TMessageType.CALL, 1)
        protocol.writeStructBegin("get_all_databases_args")
        protocol.writeFieldStop()
        protocol.writeStructEnd()
        protocol.writeMessageEnd()
        transport.flush()
        _, kind, _ = protocol.readMessageBegin()
        if kind != TMessageType.REPLY:
            raise ConnectionError(f"The metastore answered with message type {kind}.")
    finally:
        transport.close()


def _query_hive(port: int) -> None:
    _connect(port)
    from pyhive import hive

    with contextlib.closing(hive.connect(HOST, port=port)) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT 1")
        cursor.fetchall()


def _connect(port: int) -> None:
    with socket.create_connection((HOST, port), timeout=5):
        pass


# -- object stores ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def s3() -> Iterator[Server]:
    """A server with the API of S3, without buckets; see :mod:`tests.storage.s3_server`."""

    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "tests.storage.s3_server", str(port)]

    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with _directory("s3") as directory, _server("moto", command, _connect, directory, env=env) as (port, process):
        yield Server("moto", HOST, port, directory, f"http://{HOST}:{port}", process)


# -- processes -------------------------------------------------------------------------------------------------------


def free_port() -> int:
    """A port of the loopback that nobody listens on now, and that no system hands out for port 0.

    A server binds it seconds later. Until then a socket of Spark's could have been given the port, and would have
    answered in the server's place.
    """
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind((HOST, port))
            return port
    raise RuntimeError(f"None of the ports {PORTS.start} to {PORTS.stop} is free.")


@contextlib.contextmanager
def _server(
    name: str,
    command: Callable[[int], Sequence[str]],
    ready: Callable[[int], None],
    directory: Path,
    *,
    user: str | None = None,
    env: Mapping[str, str] | None = None,
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    port, process = _start(name, command, ready, directory, user, env, stop)
    try:
        yield port, process
    finally:
        _stop(process, stop)


def _start(
    name: str,
    command: Callable[[int], Sequence[str]],
    ready: Callable[[int], None],
    directory: Path,
    user: str | None,
    env: Mapping[str, str] | None,
    stop: signal.Signals,
) -> tuple[int, subprocess.Popen[bytes]]:
    for _attempt in range(_ATTEMPTS):
        port = free_port()
        with open(directory / "server.log", "wb") as log:
            process = subprocess.Popen(
                [*_as_user(user, stop), *command(port)],
                cwd=directory,
                env=dict(env) if env is not None else None,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            if _wait(process, ready, port):
                return port, process
        except BaseException:
            _stop(process, stop)
            raise
        _stop(process, stop)
        # It ended by itself: most likely another process took the port in between.
    tail = (directory / "server.log").read_text(errors="replace")[-4000:]
    raise RuntimeError(f"{name} did not start ({_ATTEMPTS} attempts, {DEADLINE:.0f} s each). Its last words:\n{tail}")


def _wait(process: subprocess.Popen[bytes], ready: Callable[[int], None], port: int) -> bool:
    """Whether the server answered before it ended or the deadline passed."""
    deadline = time.monotonic() + DEADLINE
    while process.poll() is None and time.monotonic() < deadline:
        try:
            ready(port)
        except ImportError:
            raise
        except Exception:
            # Refused, not yet open, still starting: every client library says so in its own way.
            time.sleep(0.1)
        else:
            return True
    return False


def _stop(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Ask, then kill the whole process group: nothing outlives the block."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=15)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _as_user(user: str | None, death_signal: signal.Signals) -> list[str]:
    """Words in front of a command: another user, and the signal that the kernel sends when this process dies."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        if user is not None:
            raise ServerNotInstalledError("setpriv is missing. Run: apt-get install util-linux")
        return []
    words = [setpriv, "--pdeathsig", death_signal.name]
    if user is not None:
        words += ["--reuid", user, "--regid", str(pwd.getpwnam(user).pw_gid), "--init-groups"]
    return words


def _run(command: Sequence[str], directory: Path, user: str | None) -> None:
    words = [*_as_user(user, signal.SIGTERM), *command]
    result = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    if result.returncode:
        words = result.stdout[-2000:] + result.stderr[-2000:]
        raise RuntimeError(f"{command[0]} failed with {result.returncode}:\n{words}")


def _unprivileged_user(preferred: str) -> str | None:
    """Database servers refuse to run as root: the user to become, None where we are not root."""
    if os.geteuid() != 0:
        return None
    for name in (preferred, "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise RuntimeError("Neither the server's own user nor `nobody` exists.")


def _program(name: str, package: str, folders: str) -> str:
    """The newest program of that name: on the PATH, or in the folders where Debian keeps it out of the PATH."""
    found = shutil.which(name)
    if found:
        return found
    base, _, pattern = folders.partition("*")
    candidates = sorted(Path(base).glob(f"*{pattern}/{name}")) if pattern else [Path(folders) / name]
    for candidate in reversed(candidates):
        if os.access(candidate, os.X_OK):
            return str(candidate)
    raise ServerNotInstalledError(
        f"{name} is missing, and these tests run against the real server. "
        f"Run: sudo apt-get update && sudo apt-get install -y {package}"
    )


@contextlib.contextmanager
def _directory(name: str, user: str | None = None) -> Iterator[Path]:
    # Not pytest's tmp_path: that lies below a directory that only its own user may enter, and its name is too long
    # for a Unix socket.
    directory = Path(tempfile.mkdtemp(prefix=f"twophase-{name}-"))
    try:
        if user is not None:
            shutil.chown(directory, user)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
