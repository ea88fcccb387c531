"""A server of WebHDFS over a local directory: as much of it as Hadoop's own client asks for."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_PREFIX = "/webhdfs/v1"
_ERRORS = {
    FileNotFoundError: (404, "java.io.FileNotFoundException"),
    FileExistsError: (403, "org.apache.hadoop.fs.FileAlreadyExistsException"),
    OSError: (403, "java.io.IOException"),
    KeyError: (400, "java.lang.UnsupportedOperationException"),
}


class _Handler(BaseHTTPRequestHandler):
    root: Path
    requests: list[str]

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def _run(self) -> None:
        url = urlsplit(self.path)
        self._query = {key.lower(): values[-1] for key, values in parse_qs(url.query).items()}
        self._local = self._at(unquote(url.path).removeprefix(_PREFIX))
        operation = self._query["op"].lower()
        self.requests.append(operation)
        try:
            getattr(self, f"_{operation}", self._unknown)()
        except tuple(_ERRORS) as error:
            self._fail(error)

    do_GET = do_PUT = do_DELETE = do_POST = _run  # noqa: N815 - so the standard library calls them

    def _at(self, path: str) -> Path:
        return self.root / path.strip("/")

    def _unknown(self) -> None:
        raise KeyError(self._query["op"])

    def _fail(self, error: BaseException) -> None:
        status, name = next(found for kind, found in _ERRORS.items() if isinstance(error, kind))
        facts = {"exception": name.rpartition(".")[2], "javaClassName": name, "message": str(error)}
        self._answer({"RemoteException": facts}, status=status)

    def _answer(self, document: Any = None, *, status: int = 200, data: bytes = b"", **headers: str) -> None:
        if document is not None:
            # Without a Content-Type: to compare that, the client needs parts of Jersey that PySpark comes without.
            data = json.dumps(document).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data)), "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    def _redirected(self) -> bool:
        """Whether the client was sent on, as a namenode sends it to a datanode."""
        if "redirected" in self._query:
            return False
        self._answer(status=307, Location=f"http://{self.headers['Host']}{self.path}&redirected=true")
        return True

    # -- reading -----------------------------------------------------------------------------------------------------

    def _getfilestatus(self) -> None:
        self._answer({"FileStatus": _status(self._local, "")})

    def _liststatus(self) -> None:
        found = sorted(self._local.iterdir()) if self._local.is_dir() else [self._local]
        suffixed = [_status(path, path.name if self._local.is_dir() else "") for path in found]
        self._answer({"FileStatuses": {"FileStatus": suffixed}})

    def _liststatus_batch(self) -> None:
        after = self._query.get("startafter", "")
        names = sorted(path.name for path in self._local.iterdir()) if self._local.is_dir() else []
        found = [_status(self._local / name, name) for name in names if name > after]
        if not self._local.is_dir():
            found = [_status(self._local, "")]
        page = {"FileStatuses": {"FileStatus": found[:100]}}
        self._answer({"DirectoryListing": {"partialListing": page, "remainingEntries": max(0, len(found) - 100)}})

    def _getfileblocklocations(self) -> None:
        self._answer({"BlockLocations": {"BlockLocation": []}})

    def _open(self) -> None:
        if not self._redirected():
            start = int(self._query.get("offset", 0))
            end = start + int(self._query["length"]) if "length" in self._query else None
            self._answer(data=self._local.read_bytes()[start:end])

    # -- changing ----------------------------------------------------------------------------------------------------

    def _create(self) -> None:
        if self._query.get("overwrite") == "false" and self._local.exists():
            raise FileExistsError(str(self._local))
        if not self._redirected():
            self._local.parent.mkdir(parents=True, exist_ok=True)
            self._local.write_bytes(self._body())
            self._answer(status=201)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = []
        while size := int(self.rfile.readline().strip(), 16):
            found.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(found)

    def _mkdirs(self) -> None:
        self._local.mkdir(parents=True, exist_ok=True)
        self._answer({"boolean": True})

    def _rename(self) -> None:
        target, options = self._at(self._query["destination"]), self._query.get("renameoptions")
        if options is None:
            target = target / self._local.name if target.is_dir() else target
            can = self._local.exists() and not target.exists() and target.parent.is_dir()
            if can:
                os.rename(self._local, target)
            self._answer({"boolean": can})
            return
        if not self._local.exists() or not target.parent.is_dir():
            raise FileNotFoundError(f"rename from {self._local} to {target}")
        if target.exists() and options.upper() != "OVERWRITE":
            raise FileExistsError(str(target))
        os.replace(self._local, target)
        self._answer(status=200)

    def _delete(self) -> None:
        there = self._local.exists()
        if self._local.is_dir() and self._query.get("recursive") == "true":
            shutil.rmtree(self._local)
        elif self._local.is_dir():
            self._local.rmdir()
        elif there:
            self._local.unlink()
        self._answer({"boolean": there})

    def _setpermission(self) -> None:
        self._answer(status=200)

    _settimes = _setpermission


def _status(path: Path, suffix: str) -> dict[str, Any]:
    found = path.stat()
    kind = "DIRECTORY" if path.is_dir() else "FILE"
    facts = {"pathSuffix": suffix, "type": kind, "length": 0 if kind == "DIRECTORY" else found.st_size}
    owner = {"owner": "tester", "group": "tester", "permission": "755", "replication": 1, "blockSize": 1 << 27}
    times = {"modificationTime": int(found.st_mtime * 1000), "accessTime": 0}
    return {**facts, **owner, **times, "fileId": found.st_ino, "childrenNum": 0, "storagePolicy": 0}


@contextmanager
def serving(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a directory; yields its URI, and a list that receives the operations."""
    requests: list[str] = []
    handler = type("Handler", (_Handler,), {"root": root, "requests": requests})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"webhdfs://127.0.0.1:{server.server_port}", requests
        server.shutdown()
        thread.join()
