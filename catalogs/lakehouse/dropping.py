"""DROP TABLE as a statement of a transaction: one SQL transaction removes the pointer, and records that.

The files stay, as in a DROP TABLE outside of a transaction; with PURGE they are removed after the publish.
"""

from __future__ import annotations

from typing import Any

from twophase.catalog.reading import ReadSource
from twophase.catalogs.lakehouse import dropped, earlier_states, layout, reachable
from twophase.catalogs.lakehouse.lakehouse import Lakehouse
from twophase.catalogs.lakehouse.member import DROPS
from twophase.catalogs.lakehouse.participant import LakehouseParticipant
from twophase.catalogs.lakehouse.snapshots import DROP, Seen
from twophase.catalogs.lakehouse.store import PUBLISHED, Loaded, Move
from twophase.failpoints import Failpoint, step
from twophase.model import Level, ObjectPath, Outcome, Purpose, WriteContext

CHECK_DROP = Failpoint("lakehouse.check_drop")
PURGE_DROPPED = Failpoint("lakehouse.purge_dropped")

#: Of the documents of a renamed table, under either of its names.
RENAMED = "renamed"
#: Of the document of a new name: the table that has it when the statement begins; None if there is none.
DISPLACED = "displaced"


def _of_the_table(lakehouse: Lakehouse, path: ObjectPath, loaded: Loaded | None, base: Any) -> dict[str, Any]:
    """The table that is dropped, and what has its name."""
    if base is None:
        if loaded is None:
            raise lakehouse.no_table(path)
        seen = Seen.document_of(loaded)
        return {"seen": seen, "location": loaded.metadata.location, DROPS: [seen]}
    if DISPLACED in base:
        drops = [*base[DROPS], base["seen"]]
        return {"seen": base[DISPLACED], "location": base["location"], DROPS: drops, RENAMED: True}
    drops = [] if base["seen"] is None else [base["seen"]]
    return {"seen": base["seen"], "location": base["location"], DROPS: drops}


def plan_drop(
    lakehouse: Lakehouse, path: ObjectPath, context: WriteContext, since: float, *, purge: bool
) -> dict[str, Any]:
    """Return the document of a participant that drops a table.

    Raises
    ------
    TableNotExistError
        The table does not exist, and the transaction has not written it.
    CatalogError
        Its metadata cannot be read, or its files must not be removed by ``purge``.
    """
    base = context.base
    if base is not None and DISPLACED in base:
        loaded: Loaded | None = Seen(base["seen"]).loaded(lakehouse.store, path)
    else:
        loaded = lakehouse.load_to_write(path)
    if loaded is not None and purge:
        reachable.require_own_files(path, loaded)
    return {
        **document_of(path, Purpose.DROP_TABLE, DROP, context, since),
        **_of_the_table(lakehouse, path, loaded, base),
        "purge": purge,
    }


def document_of(path: ObjectPath, purpose: Purpose, effect: str, context: WriteContext, since: float) -> dict[str, Any]:
    """The document of a participant that writes no file."""
    return {
        **context.document(path, purpose),
        "since": since,
        "effect": effect,
        "key": layout.key_of(path, context.transaction_id, context.ordinal),
        "last_sequence_number": 0,
        "carries": [],
        "level": Level.ATOMIC.value,
    }


class LakehouseDrop(LakehouseParticipant):
    """The participant that drops one Iceberg table; see :func:`plan_drop`."""

    # -- before the decision -------------------------------------------------------------------------------------

    def prepare(self) -> None:
        if self.outcome() is Outcome.PUBLISHED:
            return
        if self.store.staged(self.name) is None:
            raise self.gone()
        with step(CHECK_DROP):
            self.check_target(self.store.load(self.path))
        self.document["prepared"] = True

    def persist(self) -> None:
        """It has staged no files."""

    def replaced_state(self) -> dict[str, Any]:
        return earlier_states.replaced_state(self._as_seen())

    def _as_seen(self) -> Loaded | None:
        """The table that has the name; None if only its transaction has given it to one."""
        return None if self.seen is None else self.seen.loaded(self.store, self.path)

    # -- after the decision --------------------------------------------------------------------------------------

    def move_on(self, current: Loaded | None) -> Move:
        """The move that drops the current table.

        Raises
        ------
        WriteConflictError
            It is not the one that the statement saw.
        """
        self.check_target(current)
        return Move(self.path, self.names, current, None, dropped=self.dropped)

    def published_move(self) -> Move | None:
        record = self.store.staged(self.name)
        if record is None or record.state != PUBLISHED or self.store.pointer(self.path) is not None:
            return None
        return Move(self.path, self.names, self._as_seen(), None, dropped=self.dropped)

    def _is_in_history(self) -> bool:
        """No table shows that another one was dropped: without its record that is unknown."""
        return False

    def finish(self) -> None:
        record = self.store.staged(self.name)
        if record is None or record.state != PUBLISHED:
            return
        if self.document["purge"] and self.document[DROPS]:
            with step(PURGE_DROPPED):
                dropped.purge(self.lakehouse, str(self.document["location"]))
        self.store.settle(self.name)

    # -- inside the transaction ----------------------------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        return None
