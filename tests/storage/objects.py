"""Buckets of the tests' S3 server, seen by PyArrow's client: it shares nothing with what is tested."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote
from urllib.request import Request, urlopen

import pyarrow.parquet as pq
from pyarrow import fs

from tests.servers import Server
from tests.storage.s3_server import FAULTS, HELD, LOG, SIGNED, Fault

#: Whose keys sign the requests of the class below, and of Hadoop's client of the tests.
USER = "tests"


class Objects:
    """The buckets of a server, and its faults.

    Parameters
    ----------
    server : Server
    *buckets : str
        Made here.
    """

    def __init__(self, server: Server, *buckets: str) -> None:
        self.url = server.url
        self.files = fs.S3FileSystem(
            endpoint_override=f"{server.host}:{server.port}",
            scheme="http",
            region="us-east-1",
            access_key=USER,
            secret_key=USER,
            allow_bucket_creation=True,
        )
        for bucket in buckets:
            self.files.create_dir(bucket)

    def keys(self, place: str) -> list[str]:
        """All objects below a place such as ``bucket/directory``, without what stands for a directory."""
        selector = fs.FileSelector(place, recursive=True, allow_not_found=True)
        return sorted(info.path for info in self.files.get_file_info(selector) if info.type == fs.FileType.File)

    def contents(self, place: str) -> dict[str, bytes]:
        """All objects below a place, with what is in them."""
        return {key: self.files.open_input_stream(key).read() for key in self.keys(place)}

    def rows(self, files: Iterable[str]) -> list[tuple[Any, ...]]:
        """The rows in Parquet files, by their URIs; those of a partition ``k=...`` end with its number."""
        found: list[tuple[Any, ...]] = []
        for file in files:
            key = unquote(file.partition("://")[2])
            values = [int(part[2:]) for part in key.split("/") if part.startswith("k=")]
            with self.files.open_input_file(key) as content:
                found += [(*row.values(), *values) for row in pq.read_table(content).to_pylist()]
        return sorted(found)

    # -- faults ---------------------------------------------------------------------------------------------------

    def set(self, *faults: Fault) -> int:
        """Set the faults, in place of all others, whose held requests end; return how many they concerned."""
        concerned: int = self._call(FAULTS, [fault.document() for fault in faults])
        return concerned

    def wait(self) -> None:
        """Wait until a request is held."""
        assert self._call(HELD), "No request was held."

    def requests(self) -> list[str]:
        """The lines of all requests since the faults were set."""
        found: list[str] = self._call(LOG)
        return found

    def signers(self, pattern: str) -> set[str]:
        """Whose keys have signed the requests since then with a line that a regular expression finds."""
        return {user for user, line in self._call(SIGNED) if re.search(pattern, line)}

    def _call(self, path: str, document: Any = None) -> Any:
        data = None if document is None else json.dumps(document).encode()
        with urlopen(Request(self.url + path, data), timeout=180) as answer:
            return json.loads(answer.read())
