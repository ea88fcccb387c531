"""Connections to a Hive Metastore are kept for the next call, and only while they can be trusted."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from hive_metastore.ttypes import NoSuchObjectException
from pyiceberg.catalog.hive import _HiveClient
from thrift.transport.TTransport import TTransportException

from tests.servers import Server
from twophase.catalogs.lakehouse import metastore_connections
from twophase.catalogs.lakehouse.metastore_connections import MetastoreClient, MetastoreConnections


class Counted:
    """Connections, and all clients that were made for them."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self.made: list[_HiveClient] = []
        self.connections = MetastoreConnections(self._connect)

    def _connect(self) -> _HiveClient:
        self.made.append(MetastoreClient(self._uri))
        return self.made[-1]

    def call(self) -> int:
        """Call the metastore; how many connections were made until now."""
        with self.connections.use() as client:
            assert "default" in client.get_all_databases()
        return len(self.made)


@pytest.fixture
def counted(hive_metastore: Server) -> Iterator[Counted]:
    made = Counted(hive_metastore.url)
    yield made
    made.connections.close()


def test_calls_one_after_the_other_share_a_connection(counted: Counted) -> None:
    assert [counted.call() for _ in range(3)] == [1, 1, 1]
    counted.connections.close()
    assert counted.call() == 2


def test_each_of_two_uses_at_once_has_its_own(counted: Counted) -> None:
    with counted.connections.use() as one, counted.connections.use() as other:
        assert one is not other
        assert one.get_all_databases() == other.get_all_databases()


def test_after_an_error_nobody_gets_the_connection_again(counted: Counted) -> None:
    with pytest.raises(KeyboardInterrupt), counted.connections.use():
        raise KeyboardInterrupt
    assert counted.call() == 2


def test_what_the_metastore_refuses_comes_out_as_it_is(counted: Counted) -> None:
    with pytest.raises(NoSuchObjectException), counted.connections.use() as client:
        client.get_database("nowhere")
    assert counted.call() == 2


def test_one_that_the_metastore_has_ended_is_not_used(counted: Counted) -> None:
    counted.call()
    counted.made[0]._transport._TBufferedTransport__trans.handle.shutdown(socket.SHUT_RD)
    assert counted.call() == 2


def test_one_that_was_long_idle_is_not_used(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.call()
    later = time.monotonic() + metastore_connections._IDLE_SECONDS
    monkeypatch.setattr(metastore_connections.time, "monotonic", lambda: later)
    assert counted.call() == 2


def test_a_forked_process_leaves_its_parents_connection_alone(counted: Counted) -> None:
    counted.call()
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if counted.call() == 2 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert counted.call() == 1


def test_a_metastore_that_is_gone_without_a_word_is_noticed(counted: Counted) -> None:
    counted.call()
    connected = counted.made[0]._transport._TBufferedTransport__trans.handle
    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
    assert connected.gettimeout() == metastore_connections.ANSWER_SECONDS


def test_a_metastore_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metastore_connections, "ANSWER_SECONDS", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        counted = Counted(f"thrift://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(TTransportException, match=r"timed out|timeout"):
            counted.call()
