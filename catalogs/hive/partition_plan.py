"""The partition changes of a write: planned at prepare, stored beside the files, checked at publish.

The plan is a manifest in the version's directory, not in the document, because it may name ten thousand partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from twophase.catalogs.files import Files, join, same
from twophase.catalogs.hive.layout import MANIFEST_FILE
from twophase.catalogs.hive.tables import HivePartition, HiveTable, partition_key

Key = tuple[str, ...]

SWITCH, ADD, REMOVE = "switch", "add", "remove"


@dataclass(frozen=True)
class Change:
    """One partition that the publish changes.

    Attributes
    ----------
    key : tuple of str
        Values of the partition columns.
    action : str
        ``switch`` an existing one to new files, ``add`` a new one, ``remove`` one without rows.
    old : str or None
        Its previous location in the metastore; None for a new partition.
    new : str
        Its location after the publish; for ``remove``, an empty directory until the partition is dropped.
    files : tuple of int, optional
        Number of the data files that are there after the publish, and their bytes; None if others may be added to them.
    """

    key: Key
    action: str
    old: str | None
    new: str
    files: tuple[int, int] | None = None


@dataclass(frozen=True)
class Plan:
    """All changes of one publish, and the fingerprints of the directories whose files were linked.

    ``loses``: the publish replaces an attribute of old partitions that no compensation can restore.
    """

    changes: tuple[Change, ...]
    marks: Mapping[str, Any]
    loses: bool = False

    def of(self, *actions: str) -> list[Change]:
        """Changes with these actions."""
        return [change for change in self.changes if change.action in actions]

    @property
    def replaced(self) -> dict[Key, str]:
        """The former directories of partitions that had rows."""
        return {change.key: change.old for change in self.of(SWITCH, REMOVE) if change.old is not None}

    @property
    def keys(self) -> list[Key]:
        """Keys of the changed partitions."""
        return [change.key for change in self.changes]

    @property
    def only_adds(self) -> bool:
        """Whether every partition is new, so that one ``add_partitions`` publishes."""
        return all(change.action == ADD for change in self.changes)

    def save(self, files: Files, version: str) -> None:
        changes = [[list(change.key), change.action, change.old, change.new] for change in self.changes]
        held = [change.files for change in self.changes]
        document = {"partitions": changes, "files": held, "marks": dict(self.marks), "loses": self.loses}
        files.write_json(join(version, MANIFEST_FILE), document, waits=False)

    @classmethod
    def load(cls, files: Files, version: str) -> Plan | None:
        """Load the plan of a version; None if prepare has not written one."""
        found = files.read_document(join(version, MANIFEST_FILE), "partitions")
        if found is None:
            return None
        held = (tuple(files) if files else None for files in found.get("files") or repeat(None))
        changes = (
            Change(tuple(key), action, old, new, files)
            for (key, action, old, new), files in zip(found["partitions"], held, strict=False)
        )
        return cls(tuple(changes), found["marks"], bool(found.get("loses")))


def by_key(table: HiveTable, partitions: Iterable[HivePartition]) -> dict[Key, HivePartition]:
    """Return the partitions of a table by their keys."""
    return {partition_key(part.values, table.partition_columns): part for part in partitions}


def unexpected(plan: Plan, now: Mapping[Key, str], empty: Callable[[Key], str]) -> list[Key]:
    """Partitions that are neither at their location at prepare nor at their new one."""
    return [change.key for change in plan.changes if not _expected(change, now.get(change.key), empty(change.key))]


def _expected(change: Change, location: str | None, empty: str) -> bool:
    if change.action == ADD:
        return location is None or same(location, change.new) or same(location, empty)
    return same(location, change.old) or same(location, change.new)


def published(plan: Plan, now: Mapping[Key, str]) -> bool:
    """Whether a partition with new rows is at its new location; a publish switches all of them atomically."""
    holding = plan.of(SWITCH, ADD) or plan.of(REMOVE)
    return any(same(now.get(change.key), change.new) for change in holding)
