"""What all tests share: the real servers, one of each for a process of tests, started when first asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest

from tests import servers
from tests.numbers import NUMBERS
from tests.servers import Server


def pytest_configure(config: pytest.Config) -> None:
    """PySpark 4.0 leaves sockets to the garbage collector; with it that is no fault of ours."""
    if version("pyspark").startswith("4.0"):
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
    config.stash[NUMBERS] = []
    os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(servers.JAVA_FOR_SHORT_RUNS))
    _keep_configurations_apart()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several processes (pytest-xdist) hands its numbers over."""
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
