"""Preserving in a database known by dialect only: all except columns and comments is lost, and reported by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from twophase.catalogs.jdbc.dependents import Preserver


class GenericPreserver(Preserver):
    """Preserver of comments only; SQLAlchemy's inspector lists what is lost, as far as the dialect supports it."""

    def dependents(self) -> list[str]:
        return []

    def attributes(self) -> dict[str, str]:
        return {}

    def prepare(self) -> None:
        try:
            with self.connection.begin_nested():
                found = self._belongings()
        except (SQLAlchemyError, NotImplementedError):
            self.report_lost("indexes, keys, checks and defaults, if it has any", "the dialect does not report them")
            return
        for what in found:
            self.report_lost(what, "twophase does not know how this database writes it")

    def _belongings(self) -> list[str]:
        inspector = sa.inspect(self.connection)
        kinds: dict[str, Callable[..., Any]] = {
            "index": inspector.get_indexes,
            "constraint": inspector.get_unique_constraints,
            "foreign key": inspector.get_foreign_keys,
            "check": inspector.get_check_constraints,
        }
        place: dict[str, Any] = {"table_name": self.old.name, "schema": self.database.schema(self.old.database)}
        found = [f"{kind} {one['name']}" for kind, find in kinds.items() for one in find(**place)]
        columns = inspector.get_columns(**place)
        found += [f"default of column {column['name']}" for column in columns if column.get("default") is not None]
        return [*found, *(["primary key"] if inspector.get_pk_constraint(**place)["constrained_columns"] else [])]
