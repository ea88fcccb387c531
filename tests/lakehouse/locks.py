"""A Hive Metastore with locks: that of the PySpark wheel lacks the library that they need, so they are added here.

All calls but those for locks go on to the real metastore.
"""

from __future__ import annotations

import contextlib
import itertools
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hive_metastore.ThriftHiveMetastore import Processor
from hive_metastore.ttypes import LockResponse, LockState
from pyiceberg.catalog.hive import _HiveClient
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportException

from tests.servers import HOST


class Locks:
    """One exclusive lock for each table, given in the order of asking."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._numbers = itertools.count(1)
        self._guard = threading.Lock()
        self._queues: dict[tuple[str, str], list[int]] = {}
        #: Tables that were locked, one entry for each lock given.
        self.given: list[tuple[str, str]] = []

    def lock(self, request: Any) -> LockResponse:
        (part,) = request.component
        number = next(self._numbers)
        with self._guard:
            self._queues.setdefault((part.dbname, part.tablename), []).append(number)
            self.given.append((part.dbname, part.tablename))
        return self._state(number)

    def check_lock(self, request: Any) -> LockResponse:
        return self._state(request.lockid)

    def unlock(self, request: Any) -> None:
        with self._guard:
            for queue in self._queues.values():
                if request.lockid in queue:
                    queue.remove(request.lockid)

    def _state(self, number: int) -> LockResponse:
        with self._guard:
            first = any(queue[0] == number for queue in self._queues.values() if queue)
        return LockResponse(lockid=number, state=LockState.ACQUIRED if first else LockState.WAITING)

    @property
    def held(self) -> int:
        """Locks that nobody has given back."""
        return sum(map(len, self._queues.values()))

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            with _HiveClient(self._uri) as client:
                return getattr(client, name)(*arguments)

        return call


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        sock = TSocket()
        sock.setHandle(self.request)
        protocol = TBinaryProtocol(TBufferedTransport(sock))
        with contextlib.suppress(TTransportException):  # The client has gone.
            while True:
                self.server.processor.process(protocol, protocol)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, locks: Locks) -> None:
        super().__init__((HOST, 0), _Connection)
        self.processor = Processor(locks)


@contextmanager
def locking_metastore(uri: str) -> Iterator[tuple[str, Locks]]:
    """A metastore with locks over one without: its URI, and the locks."""
    locks = Locks(uri)
    with _Server(locks) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"thrift://{HOST}:{server.server_address[1]}", locks
        finally:
            server.shutdown()
            thread.join()
