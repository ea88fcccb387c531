"""What happens to the tables of Spark's session catalog while a statement runs whose names only Spark knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from twophase.redaction import logger
from twophase.spark.jvm.bridge import Jvm, private_name
from twophase.spark.jvm.callbacks import JavaCallable
from twophase.spark.jvm.metastore import external_catalog
from twophase.spark.jvm.remembering import remembering

log = logger("twophase.spark")


@dataclass
class TableEvents:
    """Tables that were dropped or renamed, each by its database and names, in their order.

    Attributes
    ----------
    dropped : list of (str, str)
    renamed : list of (str, str, str)
        Database, old and new name.
    """

    dropped: list[tuple[str, str]] = field(default_factory=list)
    renamed: list[tuple[str, str, str]] = field(default_factory=list)


class _Listener(JavaCallable):
    """The Python side of an ``ExternalCatalogEventListener``: called by the thread that changes the catalog."""

    class Java:
        implements = ["org.apache.spark.sql.catalyst.catalog.ExternalCatalogEventListener"]

    def __init__(self, heard: TableEvents) -> None:
        self._heard = heard

    def onEvent(self, event: Any) -> None:  # noqa: N802 (Spark's name)
        try:
            kind = str(event.getClass().getSimpleName())
            if kind == "DropTableEvent":
                self._heard.dropped.append((str(event.database()), str(event.name())))
            elif kind == "RenameTableEvent":
                self._heard.renamed.append((str(event.database()), str(event.name()), str(event.newName())))
        except Exception:  # The statement is the user's, and goes on.
            log.warning("An event of Spark's catalog was not understood.", exc_info=True)

    def equals(self, other: Any) -> bool:
        return self is other

    def hashCode(self) -> int:  # noqa: N802
        return id(self) & 0x7FFFFFFF

    def toString(self) -> str:  # noqa: N802
        return "twophase table listener"


@contextmanager
def table_events(jvm: Jvm) -> Iterator[TableEvents]:
    """Hear, inside the block, which tables are dropped and renamed, by whatever thread."""
    heard = TableEvents()
    listener = remembering(jvm, _Listener(heard), {})
    with private_name("ExternalCatalogWithListener.addListener", jvm.spark):
        catalog = external_catalog(jvm.spark)
        catalog.addListener(listener)
    try:
        yield heard
    finally:
        with private_name("ExternalCatalogWithListener.removeListener", jvm.spark):
            catalog.removeListener(listener)


__all__ = ["TableEvents", "table_events"]
