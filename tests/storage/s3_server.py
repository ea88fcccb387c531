"""A server with the API of S3 whose faults a test chooses: ``python -m tests.storage.s3_server PORT``.

It is moto's; all that is stored is in its memory. Each request has a line of text, such as ``PUT /bucket/key``,
``COPY /bucket/key``, ``REMOVE /bucket/key`` or ``LIST /bucket/prefix``, by which :class:`Fault` finds it. A client that
does not number its attempts as the tests' own does has no faults. Any credentials are taken; whose keys have signed
each request is remembered.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qs

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple
from werkzeug.test import run_wsgi_app

#: Where faults are set, and read back what has happened.
FAULTS, HELD, LOG, SIGNED = "/_faults", "/_held", "/_log", "/_signed"
SLOW_SECONDS = 0.02
#: Seconds after which a request that waits for a held one gives up.
PATIENCE = 120.0
_TOO_MANY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_DENIED = b"<Error>%s<Code>AccessDenied</Code><Message>Access Denied</Message></Error>"

Environ = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """What happens to some requests.

    Parameters
    ----------
    kind : str
        ``refuse``: answered with 503, and not done. ``deny``: answered with 403, and not done; of a removal of several
        keys, each is denied by itself. ``lose``: done, and not answered. ``slow``: done later. ``hold``: not done, nor
        answered. ``hold after``: done, and not answered.
    on : str
        A regular expression for the line of a request.
    after : str
        Requests count only after one with such a line.
    nth : int
        The first one of them that is concerned.
    times : int
        How many are, from then on; 0 for all.
    first : bool
        Whether only the first attempt of a request is concerned.
    """

    kind: str
    on: str = "."
    after: str = ""
    nth: int = 1
    times: int = 0
    first: bool = False

    def document(self) -> dict[str, Any]:
        """Its JSON."""
        return asdict(self)


class Faulty:
    """An application with faults.

    Parameters
    ----------
    app : callable
        A WSGI application.
    """

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._log: list[str] = []
        self._concerned = 0
        self._set(())

    def _set(self, faults: Iterable[Fault]) -> int:
        """Replace the faults; return how many requests the former ones concerned."""
        with self._lock:
            concerned, self._concerned = self._concerned, 0
            self._faults = list(faults)
            self._begun = [not fault.after for fault in self._faults]
            self._counts = [0] * len(self._faults)
            self._held, self._released = threading.Event(), threading.Event()
            self._log = []
            self._signed: set[tuple[str, str]] = set()
        return concerned

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path in (FAULTS, HELD, LOG, SIGNED):
            return _answer(start_response, 200, json.dumps(self._control(path, environ)).encode())
        user = re.search(r"Credential=([^/]*)/", environ.get("HTTP_AUTHORIZATION", ""))
        with self._lock:
            self._signed.add((user[1] if user else "", line_of(environ)))
        released, kind = self._released, self._kind(environ)
        if kind == "refuse":
            return _answer(start_response, 503, _TOO_MANY)
        if kind == "deny":
            return _deny(environ, start_response)
        if kind == "slow":
            time.sleep(SLOW_SECONDS)
        if kind in ("lose", "hold after"):
            run_wsgi_app(self._app, environ, buffered=True)
        if kind in ("hold", "hold after"):
            self._held.set()
            released.wait()
        if kind in ("lose", "hold", "hold after"):
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return _answer(start_response, 500, b"")
        return self._app(environ, start_response)  # type: ignore[no-any-return]

    def _control(self, path: str, environ: Environ) -> Any:
        if path == HELD:
            return self._held.wait(PATIENCE)
        if path == LOG:
            return self._log
        if path == SIGNED:
            with self._lock:
                return sorted(self._signed)
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        self._released.set()
        return self._set(Fault(**fault) for fault in json.loads(body))

    def _kind(self, environ: Environ) -> str | None:
        """What happens to a request."""
        line, attempt = line_of(environ), environ.get("HTTP_X_ATTEMPT")
        if not attempt:
            return None
        with self._lock:
            self._log.append(line)
            kinds = [self._kind_by(number, fault, line, attempt) for number, fault in enumerate(self._faults)]
            kind = next(filter(None, kinds), None)
            self._concerned += kind is not None
        return kind

    def _kind_by(self, number: int, fault: Fault, line: str, attempt: str) -> str | None:
        if not self._begun[number]:
            self._begun[number] = re.search(fault.after, line) is not None
            return None
        if not re.search(fault.on, line) or (fault.first and attempt != "1"):
            return None
        self._counts[number] += 1
        since = self._counts[number] - fault.nth
        return fault.kind if since >= 0 and (fault.times == 0 or since < fault.times) else None


def line_of(environ: Environ) -> str:
    """The line of a request."""
    method, query = environ["REQUEST_METHOD"], parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
    path = environ["PATH_INFO"].encode("latin-1").decode()
    if method == "PUT" and "HTTP_X_AMZ_COPY_SOURCE" in environ:
        method = "COPY"
    elif method == "DELETE" or "delete" in query:
        method = "REMOVE"
    elif "list-type" in query:
        method, path = "LIST", path + query.get("prefix", [""])[0]
    return f"{method} {path}"


def _answer(start_response: Any, status: int, body: bytes) -> list[bytes]:
    start_response(f"{status} -", [("Content-Length", str(len(body))), ("Content-Type", "application/xml")])
    return [body]


def _deny(environ: Environ, start_response: Any) -> list[bytes]:
    """Answer as where a policy denies a request: S3 asks it for each key of a bulk removal."""
    if environ["REQUEST_METHOD"] != "POST":
        return _answer(start_response, 403, _DENIED % b"")
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    errors = b"".join(_DENIED % key for key in re.findall(b"<Key>.*?</Key>", body))
    return _answer(start_response, 200, b"<DeleteResult>%s</DeleteResult>" % errors)


class _Quiet(WSGIRequestHandler):
    def log_request(self, *_: Any) -> None:
        """Requests are counted, and not printed."""


if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), Faulty(create_backend_app("s3")), threaded=True, request_handler=_Quiet)
