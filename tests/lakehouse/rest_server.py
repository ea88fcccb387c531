"""An Iceberg REST catalog to test against: the routes that a client needs, over PyIceberg's own SQL catalog.

What decides - requirements, updates, the pointer - is PyIceberg's.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg import exceptions
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableRequest

from tests.servers import HOST

#: What PyIceberg refuses, as the status that the specification has for it.
_STATUS = {
    exceptions.NoSuchNamespaceError: 404,
    exceptions.NoSuchTableError: 404,
    exceptions.NamespaceAlreadyExistsError: 409,
    exceptions.NamespaceNotEmptyError: 409,
    exceptions.TableAlreadyExistsError: 409,
    exceptions.CommitFailedException: 409,
}
TOKEN = "the-token-of-rest"


class _Catalog(SqlCatalog):
    #: Credentials for the files of its tables.
    lends: Mapping[str, str]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, directory: Path, properties: Mapping[str, str], lends: Mapping[str, str]) -> None:
        super().__init__((HOST, 0), _Request)
        facts = {"uri": f"sqlite:///{directory}/rest.db", "warehouse": f"file://{directory}/rest", **properties}
        self.catalog = _Catalog("rest", **facts)
        self.catalog.lends = lends
        self.lock = threading.Lock()


class _Request(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size) or "{}")
        try:
            status, found = self._route(body)
        except tuple(_STATUS) as error:
            status, found = self._error(_STATUS[type(error)], error)
        except Exception as error:
            status, found = self._error(400 if isinstance(error, ValueError) else 500, error)
        content = b"" if found is None else json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 - so the standard library calls them

    def _error(self, status: int, error: Exception) -> tuple[int, Any]:
        return status, {"error": {"message": str(error), "type": type(error).__name__, "code": status}}

    def _route(self, body: Any) -> tuple[int, Any]:
        path = urlsplit(self.path).path
        if path == "/v1/config":
            return 200, {"defaults": {}, "overrides": {}}
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._error(401, PermissionError("No token."))
        for method, pattern, do in _ROUTES:
            found = re.fullmatch(pattern, path)
            if found is not None and method == self.command:
                with self.server.lock:
                    return do(self.server.catalog, body, *map(unquote, found.groups()))
        return self._error(404, LookupError(path))


def _table(catalog: _Catalog, name: tuple[str, str]) -> tuple[int, Any]:
    table = catalog.load_table(name)
    return 200, {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {},
        "storage-credentials": [{"prefix": "s3a://", "config": catalog.lends}],
    }


def _commit(catalog: _Catalog, body: Any, namespace: str, name: str) -> tuple[int, Any]:
    request = CommitTableRequest.model_validate({"identifier": {"namespace": [namespace], "name": name}, **body})
    catalog.commit_table(catalog.load_table((namespace, name)), request.requirements, request.updates)
    return _table(catalog, (namespace, name))


def _register(catalog: _Catalog, body: Any, namespace: str) -> tuple[int, Any]:
    catalog.register_table((namespace, body["name"]), body["metadata-location"])
    return _table(catalog, (namespace, body["name"]))


def _rename(catalog: SqlCatalog, body: Any) -> tuple[int, Any]:
    names = [(*body[end]["namespace"], body[end]["name"]) for end in ("source", "destination")]
    catalog.rename_table(*names)
    return 204, None


def _properties(catalog: SqlCatalog, body: Any, namespace: str) -> tuple[int, Any]:
    done = catalog.update_namespace_properties((namespace,), set(body["removals"]), body["updates"])
    return 200, {"removed": done.removed, "updated": done.updated, "missing": done.missing}


def _names(catalog: SqlCatalog, namespace: str) -> tuple[int, Any]:
    found = [{"namespace": [*levels], "name": name} for *levels, name in catalog.list_tables((namespace,))]
    return 200, {"identifiers": found}


def _done(change: Callable[..., Any], *arguments: Any) -> tuple[int, Any]:
    change(*arguments)
    return 204, None


def _make_namespace(catalog: SqlCatalog, body: Any) -> tuple[int, Any]:
    catalog.create_namespace(tuple(body["namespace"]), {"exists": "true", **body["properties"]})
    return 200, body


_ONE = "/v1/namespaces/([^/]+)"
_ROUTES: list[tuple[str, str, Callable[..., tuple[int, Any]]]] = [
    ("GET", "/v1/namespaces", lambda c, _: (200, {"namespaces": [list(n) for n in c.list_namespaces()]})),
    ("POST", "/v1/namespaces", _make_namespace),
    ("GET", _ONE, lambda c, _, n: (200, {"namespace": [n], "properties": c.load_namespace_properties((n,))})),
    ("DELETE", _ONE, lambda c, _, n: _done(c.drop_namespace, (n,))),
    ("POST", f"{_ONE}/properties", _properties),
    ("GET", f"{_ONE}/tables", lambda c, _, n: _names(c, n)),
    ("POST", f"{_ONE}/register", _register),
    ("GET", f"{_ONE}/tables/([^/]+)", lambda c, _, n, t: _table(c, (n, t))),
    ("POST", f"{_ONE}/tables/([^/]+)", _commit),
    ("DELETE", f"{_ONE}/tables/([^/]+)", lambda c, _, n, t: _done(c.drop_table, (n, t))),
    ("POST", "/v1/tables/rename", _rename),
]


@contextmanager
def rest_catalog(
    directory: Path, properties: Mapping[str, str] | None = None, lends: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A server over a catalog in a directory: its URI.

    Parameters
    ----------
    directory : Path
    properties : mapping of str to str, optional
        Of the server's own catalog, such as the credentials of its file system.
    lends : mapping of str to str, optional
        Credentials that it lends for tables on S3.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with _Server(directory, properties or {}, lends or {}) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
            server.catalog.close()
