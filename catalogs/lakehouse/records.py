"""Records as files in the warehouse, for Iceberg catalogs that cannot store them.

::

    <warehouse>/.twophase/staged/<transaction>-<ordinal>.json      a participant, until its retention ends
    <warehouse>/.twophase/dropped/<hash>.json                      location of a dropped table

Each names the Iceberg catalog to which it belongs, as several may share a warehouse. The state ``staged`` in a file is
not conclusive: until the transaction is over and the file is updated, only the table itself shows whether the
participant was published, see :mod:`~twophase.catalogs.lakehouse.publish_lookup`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any

from twophase.catalogs.files import Files, join
from twophase.catalogs.lakehouse.layout import remove_file
from twophase.catalogs.lakehouse.store import STAGED, Dropped, Staged
from twophase.model import ObjectPath


class Records:
    """The records of one Iceberg catalog.

    Parameters
    ----------
    files : Files
    warehouse : str
    owner : str
        Identity of the Iceberg catalog.
    """

    def __init__(self, files: Files, warehouse: str, owner: str) -> None:
        self._files = files
        self._owner = owner
        self._staged = join(warehouse, ".twophase", "staged")
        self._dropped = join(warehouse, ".twophase", "dropped")

    # -- participants --------------------------------------------------------------------------------------------

    def add(self, participant: str, target: ObjectPath, document: dict[str, Any], since: float) -> None:
        """Record a participant. Idempotent."""
        if self.get(participant) is None:
            self.update(Staged(participant, target, document, STAGED, since))

    def get(self, participant: str) -> Staged | None:
        """The record of a participant; a ``staged`` one may actually be published."""
        found = self._files.read_json(self._file(participant))
        return None if found is None else self._record(found)

    def update(self, record: Staged) -> None:
        """Update the record of a participant."""
        self._files.make_directory(self._staged)
        document = {"owner": self._owner, **vars(record), "target": record.target.to_document()}
        self._files.write_json(self._file(record.participant), document)

    def remove(self, participant: str) -> None:
        """Remove a record. Idempotent."""
        remove_file(self._files, self._file(participant))
        self._tidy(self._staged)

    def all(self) -> list[Staged]:
        """The records of all participants."""
        return [self._record(found) for found in self._documents(self._staged)]

    def _file(self, participant: str) -> str:
        transaction, _, ordinal = participant.rpartition("/")
        return join(self._staged, f"{transaction}-{ordinal}.json")

    def _record(self, found: dict[str, Any]) -> Staged:
        facts = {name: found[name] for name in ("participant", "document", "state", "since", "metadata_location")}
        return Staged(target=ObjectPath.from_document(found["target"]), **facts)

    # -- dropped tables ------------------------------------------------------------------------------------------

    def add_dropped(self, path: ObjectPath, location: str, pointer: str, uuid: str) -> None:
        """Record the location of a dropped table, its last metadata file, and its identity."""
        self._files.make_directory(self._dropped)
        facts = {"owner": self._owner, "location": location, "target": path.to_document()}
        more = {"pointer": pointer, "uuid": uuid, "since": time.time()}
        self._files.write_json(self._dropped_file(location), {**facts, **more})

    def pointer_of_dropped(self, location: str) -> str | None:
        """The last metadata file of a dropped table; None if no table at that location was dropped."""
        found = self._files.read_json(self._dropped_file(location))
        return None if found is None else str(found["pointer"])

    def dropped(self) -> list[Dropped]:
        """The dropped tables."""
        return [
            Dropped(
                ObjectPath.from_document(facts["target"]),
                facts["location"],
                facts["since"],
                facts["pointer"],
                facts.get("uuid"),
            )
            for facts in self._documents(self._dropped)
        ]

    def remove_dropped(self, location: str) -> None:
        """Remove the record of a dropped table. Idempotent."""
        remove_file(self._files, self._dropped_file(location))
        self._tidy(self._dropped)

    def _dropped_file(self, location: str) -> str:
        return join(self._dropped, f"{hashlib.sha256(location.encode()).hexdigest()[:24]}.json")

    # -- inside --------------------------------------------------------------------------------------------------

    def _documents(self, directory: str) -> Iterator[dict[str, Any]]:
        for entry in self._files.list(directory, recursive=False):
            found = self._files.read_json(join(directory, entry.name)) if entry.name.endswith(".json") else None
            if found is not None and found["owner"] == self._owner:
                yield found

    def _tidy(self, directory: str) -> None:
        if self._files.exists(directory):
            self._files.remove_if_empty(directory)
