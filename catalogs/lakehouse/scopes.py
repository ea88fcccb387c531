"""Partitions that a statement changes, and the rebase of its publish on concurrent changes to other partitions.

A table's other partitions may change until the publish; Iceberg's own writers check the same, file by file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata

from twophase.catalogs.lakehouse import manifests
from twophase.catalogs.lakehouse.changes import Changes, Pattern, Scope
from twophase.catalogs.lakehouse.member import Member
from twophase.catalogs.lakehouse.overwriting import static_values
from twophase.catalogs.lakehouse.snapshots import current_id
from twophase.model import OverwriteScope
from twophase.schema import to_iceberg


def changes_of(member: Member, scope: OverwriteScope | None, files: Iterable[DataFile]) -> Changes:
    """The changes of a statement to the partitions of its table.

    Parameters
    ----------
    member : Member
    scope : OverwriteScope or None
        The rows that it replaces; None for an INSERT INTO.
    files : iterable of pyiceberg.manifest.DataFile
        The files that it has written.
    """
    if not member.spec.fields:
        return Changes([] if scope is None else None, None)
    schema = to_iceberg(member.schema)
    written = [_texts(member, schema, values) for values in {tuple(file.partition._data): 0 for file in files}]
    if scope is None:
        return Changes([], written)
    if scope.static_partition and scope.files is None:
        fixed = static_values(member, scope)
        texts = _texts(member, schema, [fixed.get(number) for number in range(len(member.spec.fields))])
        return Changes([[text if number in fixed else None for number, text in enumerate(texts)]], written)
    return Changes(written if scope.dynamic and scope.files is None else None, written)


def _texts(member: Member, schema: IcebergSchema, values: Sequence[Any]) -> Pattern:
    """The values of a partition, as in Iceberg's directory names."""
    pairs = zip(member.spec.fields, values, strict=True)
    return [f"{field.name}={_text(schema, field, value)}" for field, value in pairs]


def _text(schema: IcebergSchema, field: PartitionField, value: Any) -> str:
    if value is None:  # Also of a field whose column is gone.
        return "null"
    try:
        return field.transform.to_human_string(schema.find_type(field.source_id), value)
    except OverflowError:  # A year that Python does not support; its number is as distinctive.
        return str(value)


# -- rebase on concurrent commits --------------------------------------------------------------------------------------


class Rebase:
    """The rebase of an overwrite of some partitions on a table to which others have written since it began.

    Parameters
    ----------
    member : Member
        The participant, which overwrites some partitions.
    scope : Scope
        The overwritten partitions.
    metadata : pyiceberg.table.metadata.TableMetadata
        The current table, a descendant of the one with which the statement began.

    Raises
    ------
    WriteConflictError
        Others have written to the same partitions.
    """

    def __init__(self, member: Member, scope: Scope, metadata: TableMetadata) -> None:
        self._member = member
        self._scope = scope
        self._metadata = metadata
        self._schema = to_iceberg(member.schema)

    def kept(self) -> list[ManifestFile]:
        """The manifests of the files that are kept; some are rewritten."""
        member, metadata = self._member, self._metadata
        assert member.seen is not None
        before = {m.manifest_path for m in manifests.manifests_of(member.io, metadata, member.seen.snapshot_id)}
        stays = {m.manifest_path for m in member.kept} & before
        removed = member.removed_files()
        current = manifests.manifests_of(member.io, metadata, current_id(metadata))
        # Manifests that the statement has kept as a whole need not be read.
        whole = [m for m in current if m.manifest_path in stays]
        for manifest in current:
            if manifest.manifest_path not in before:
                self._check_new(manifest, removed)
        others = [m for m in current if m.manifest_path not in stays]
        kept, gone = member.work(metadata, rebased=True).keep(others, lambda file: file.file_path not in removed)
        if len(gone) != len(removed):
            raise member.conflict("another writer removed rows meanwhile that this statement replaces")
        return [*kept, *whole]

    def _check_new(self, manifest: ManifestFile, removed: frozenset[str]) -> None:
        for entry in manifests.entries_of(self._member.io, manifest):
            file = entry.data_file
            if (file.file_path not in removed or not manifests.is_data(manifest)) and self._meets(file):
                raise self._member.conflict(
                    "another writer wrote rows meanwhile into a partition that this statement replaces"
                )

    def _meets(self, file: DataFile) -> bool:
        if file.spec_id != self._member.spec.spec_id:
            return True
        texts = _texts(self._member, self._schema, list(file.partition._data))
        return any(
            all(p is None or p == text for p, text in zip(pattern, texts, strict=True)) for pattern in self._scope
        )
