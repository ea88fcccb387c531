"""The stores in which a block changes databases and names, and what each of them can."""

from __future__ import annotations

import pytest

#: The prefix of the databases of each store. The suite of all catalogs shows those of MariaDB, too.
DATABASES = {"session": "", "lakehouse": "ice.", "postgresql": "pg.", "mariadb": "maria."}
#: The database of each store that renames tables.
RENAMING = {"session": "default", "postgresql": "pg.hermitage", "sqlite": "lite.main"}
RENAMING |= {"mariadb": "maria.hermitage", "lakehouse": "ice.db"}

#: Those in which a block can create a table by a name that another one has left, and those where rows can follow a
#: rename.
CREATING = ("default.", "pg.", "lite.", "maria.")
WRITING = ("pg.", "lite.", "ice.")
OF_DATABASES = ["postgresql", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("sqlite", "mariadb"))]
WITH_ROWS = [*OF_DATABASES[:2], "lakehouse"]
#: Those that exchange names, and those of them that do it beside other blocks and writers.
EXCHANGING = ["session", *OF_DATABASES, "lakehouse"]
BESIDE_OTHERS = [pytest.param("session", marks=pytest.mark.exhaustive), *OF_DATABASES, "lakehouse"]


def level_of_several(table: str) -> str:
    """The level of a block with several tables: each session table is published by a call of its own."""
    return "REVERSIBLE" if table.startswith("default.") else "ATOMIC"
