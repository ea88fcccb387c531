"""A TCP proxy that cuts the connection at a chosen message: before it arrives, after its effect, or in between."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from types import TracebackType

#: ``before``: the message never reaches the server. ``during``: a half of it does. ``after``: the answer never arrives.
MOMENTS = ("before", "during", "after")


class CuttingProxy:
    """Listens on a free port and forwards to a server, until a message with the given text passes.

    A context manager.

    Parameters
    ----------
    host, port : str, int
        The server.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._text = b""
        self._moment = ""
        self.cuts = 0
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []

    def __enter__(self) -> CuttingProxy:
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with ExitStack() as stack:
            for held in [self._listener, *self._open]:
                stack.callback(held.close)
                with suppress(OSError):
                    held.shutdown(socket.SHUT_RDWR)
            for thread in self._threads:
                thread.join(10)

    def cut(self, text: bytes, moment: str) -> None:
        """Cut the next connection whose client sends a message with this text."""
        self._text, self._moment = text, moment

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._address)
            self._open += [client, server]
            silent = threading.Event()
            self._start(self._upward, client, server, silent)
            self._start(self._downward, server, client, silent)

    def _upward(self, client: socket.socket, server: socket.socket, silent: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self._moment and self._text in data:
                    self._cut(data, server, client, silent)
                    return
                server.sendall(data)
        _end(server, client)

    def _cut(self, data: bytes, server: socket.socket, client: socket.socket, silent: threading.Event) -> None:
        moment, self._moment = self._moment, ""
        self.cuts += 1
        if moment == "after":
            silent.set()  # Before the message goes on: its answer is to be lost for sure.
            server.sendall(data)
            _end(client)
            server.shutdown(socket.SHUT_WR)
            return
        if moment == "during":
            server.sendall(data[: len(data) // 2])
        _end(server, client)

    def _downward(self, server: socket.socket, client: socket.socket, silent: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if not silent.is_set():
                    client.sendall(data)
        _end(client)


def _end(*sockets: socket.socket) -> None:
    for held in sockets:
        with suppress(OSError):
            held.shutdown(socket.SHUT_RDWR)
