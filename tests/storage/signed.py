"""A server with the API of S3 that takes any credentials, and knows whose keys have signed each request."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from moto.server import create_backend_app
from pyarrow import fs
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.servers import HOST

#: The user of the methods below.
_OWN = "tests"


class SignedRequests:
    """The application of a server with one bucket, and what the tests see in it.

    Parameters
    ----------
    bucket : str
    """

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.url = ""
        self._app = create_backend_app("s3")
        self._signed: list[tuple[str, str]] = []

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        user = re.search(r"Credential=([^/]*)/", environ.get("HTTP_AUTHORIZATION", ""))
        self._signed.append((user[1] if user else "", environ["PATH_INFO"]))
        return self._app(environ, start_response)  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Forget the requests until now."""
        self._signed.clear()

    def users(self, directory: str) -> set[str]:
        """Whose keys have signed the requests since then for an object in a directory of the bucket."""
        return {user for user, path in self._signed if path.startswith(f"/{self.bucket}/{directory}/")} - {_OWN}

    @property
    def _files(self) -> fs.S3FileSystem:
        secrets = {"access_key": _OWN, "secret_key": _OWN}
        return fs.S3FileSystem(endpoint_override=self.url, region="us-east-1", allow_bucket_creation=True, **secrets)

    def make_bucket(self) -> None:
        self._files.create_dir(self.bucket)

    def contents(self, directory: str) -> dict[str, bytes]:
        """The objects in a directory of the bucket, without what stands for a directory."""
        files = self._files
        selector = fs.FileSelector(f"{self.bucket}/{directory}", recursive=True, allow_not_found=True)
        found = [info.path for info in files.get_file_info(selector) if info.type == fs.FileType.File]
        return {path: files.open_input_stream(path).read() for path in found}


class _Quiet(WSGIRequestHandler):
    def log_request(self, *_: Any) -> None:
        pass


@contextmanager
def signed_requests(bucket: str) -> Iterator[SignedRequests]:
    """A running server with a bucket.

    Parameters
    ----------
    bucket : str
    """
    app = SignedRequests(bucket)
    server = make_server(HOST, 0, app, threaded=True, request_handler=_Quiet)
    app.url = f"http://{HOST}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        app.make_bucket()
        yield app
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
