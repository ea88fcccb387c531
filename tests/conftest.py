"""What all tests share: the real servers, one of each for a process of tests, started when first asked for."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

from tests import servers
from tests.numbers import NUMBERS
from tests.servers import Server
from twophase.model import Purpose

if TYPE_CHECKING:
    from tests.lakehouse.readers import Readers


#: Tests that were not started, by file.
LATE = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--until", type=float, default=math.inf, metavar="TIME",
        help="start no test after this time, in seconds since the epoch; at the end it is said what was not run",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LATE] = Counter()
    java = servers.java_of_short_runs()
    release = version("pyspark")
    if release.startswith(("4.0", "4.1", "4.2")):
        # They leave sockets to the garbage collector, which is no fault of ours.
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
    if not release.startswith("4.0"):
        # A query of few rows takes longer to compile than to run; the subset for PySpark 4.0 compiles.
        java += ["-Dspark.sql.codegen.wholeStage=false", "-Dspark.sql.codegen.factoryMode=NO_CODEGEN"]
    config.stash[NUMBERS] = []
    os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(java))
    _keep_configurations_apart()


#: Here all is quick that needs no Spark session.
_QUICK = ("tests/core/", "tests/hooks/", "tests/schema/", "tests/kit/test_plugin_conforms.py")
#: Nor a server, by the name of its fixture or of a test's parameter.
_SERVERS = {"postgresql", "mariadb", "hive_metastore", "hive_server2", "s3"}

#: Tests of what a fresh process can do with what a participant says of itself.
_IN_A_FRESH_PROCESS = {
    "test_it_survives_into_a_fresh_process",
    "test_a_publish_whose_connection_is_cut_is_carried_through",
    "test_a_publish_whose_process_is_killed_is_carried_through_by_a_fresh_one",
}
#: Tests of what a catalog refuses or takes before it asks its store.
_BEFORE_THE_STORE = {
    "test_a_bad_definition_is_refused_before_anything",
    "test_a_partition_transform_is_declared_or_refused",
}
#: The purpose whose participant does most, and is tried on each store.
_MOST = Purpose.INSERT_OVERWRITE
#: Those whose participants are, once their target is looked up, those of another purpose; and the tests of that look.
_AS_OTHERS = {Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS, Purpose.CREATE_OR_REPLACE_TABLE_AS}
_OF_THE_TARGET = {
    "test_a_missing_target_is_created_or_refused",
    "test_an_existing_target_is_written_or_refused",
    "test_of_two_writers_one_wins_wholly",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as ``quick``, for ``make test``, the first case of the first test of each promise (no detail), and what
    takes no time.

    Files with ``quick_first_cases`` take some: only the first case of each of their tests gets it, too.
    Files with ``spark40_first_cases`` get ``spark40`` on the first case of each test: the others differ in what is the
    same on any PySpark. Over Spark's catalog in memory, which is for trials, one case of each test is tried.
    """
    proven: set[object] = set()
    held: set[object] = set()
    guarded: set[object] = set()
    in_memory: set[object] = set()
    for item in items:
        assert isinstance(item, pytest.Function)
        if getattr(item.module, "spark40_first_cases", False) and item.function not in guarded:
            guarded.add(item.function)
            item.add_marker(pytest.mark.spark40)
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        of_another = getattr(item.cls, "another_store", False)
        if "memory" in parameters.values():
            if item.function in in_memory:
                item.add_marker(pytest.mark.exhaustive)
            in_memory.add(item.function)
        if _repeats(item, parameters.get("purpose"), of_another=of_another):
            item.add_marker(pytest.mark.exhaustive)
        if item.get_closest_marker("exhaustive"):
            continue
        asks = {*getattr(item, "fixturenames", ()), *(value for value in parameters.values() if isinstance(value, str))}
        is_near = item.nodeid.startswith(_QUICK) and asks.isdisjoint({*_SERVERS, "spark"}) and not of_another
        # A catalog inherits the functions of the conformance suite.
        test = (item.cls, item.function)
        promises = _promises(item)
        is_first = test not in proven and (is_near or not held.issuperset(promises))
        first_only = getattr(item.module, "quick_first_cases", False)
        if is_first or (is_near and not first_only):
            proven.add(test)
            held |= promises
            item.add_marker(pytest.mark.quick)


def _promises(item: pytest.Item) -> set[object]:
    """The promises that a test holds, without those of which it holds a detail only."""
    return {marker.args for marker in item.iter_markers("promise") if not marker.kwargs.get("detail")}


def _repeats(item: pytest.Function, purpose: Purpose | None, *, of_another: bool) -> bool:
    """Whether a test of the conformance suite tries what others try, of its cases or on a catalog's first store."""
    if of_another:
        repeated = _IN_A_FRESH_PROCESS | _BEFORE_THE_STORE
        return item.originalname in repeated if purpose is None else purpose is not _MOST
    is_long = hasattr(item.cls, "capabilities") and not item.nodeid.startswith(_QUICK)
    return is_long and purpose in _AS_OTHERS and item.originalname not in _OF_THE_TARGET


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    if time.time() < item.config.getoption("until"):
        return None
    item.config.stash[LATE][item.nodeid.partition("::")[0]] += 1
    return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several processes (pytest-xdist) hands its numbers over."""
    late = session.config.stash[LATE]
    session.config.stash[NUMBERS] += [f"not run, as the time was up: {late[file]} tests of {file}" for file in late]
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["numbers"] = [str(number) for number in session.config.stash[NUMBERS]]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The process that started the others gets them; one that died had none to give."""
    node.config.stash[NUMBERS] += getattr(node, "workeroutput", {}).get("numbers", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for number in config.stash[NUMBERS]:
        terminalreporter.write_line(str(number))


def _keep_configurations_apart() -> None:
    """What the first session of a process is configured with would become a property of the JVM, and so a default of
    all later sessions; here each module has a session of its own.
    """
    from pyspark.core import context
    from pyspark.java_gateway import launch_gateway

    context.launch_gateway = lambda conf=None, popen_kwargs=None: launch_gateway(None, popen_kwargs)


@pytest.fixture
def pythons_own_handler() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt.

    A Spark session of an earlier test leaves PySpark's handler, which calls a JVM that is gone; in the background of a
    shell the tests would ignore it.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server; its database is shared, so give schemas or tables names of your own."""
    with servers.postgresql() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    """A MariaDB server; its database is shared, so give tables names of your own."""
    with servers.mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def hive_metastore() -> Iterator[Server]:
    """A standalone Hive Metastore; give databases names of your own."""
    with servers.hive_metastore() as server:
        yield server


@pytest.fixture(scope="session")
def hive_server2(hive_metastore: Server) -> Iterator[Server]:
    """A HiveServer2 over the metastore of :func:`hive_metastore`."""
    with servers.hive_server2(hive_metastore) as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    """A server with the API of S3; give buckets names of your own."""
    with servers.s3() as server:
        yield server


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Readers]:
    """Three readers of any lake."""
    from tests.lakehouse.readers import Readers

    made = Readers(tmp_path_factory.mktemp("readers"))
    yield made
    made.close()
