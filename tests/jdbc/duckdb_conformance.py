"""The conformance suite over DuckDB. Each test opens its file a hundred times, which takes ten minutes in all: it is no
part of the other tests, and has a command of its own, ``make test-duckdb``.
"""

from __future__ import annotations

from tests.jdbc.test_conformance import OtherConformance


class TestDuckDB(OtherConformance):
    """A file that one process at a time has open."""

    kind, home = "duckdb", "main"
