"""Which partitions a statement changes, and its publish on top of what others did to other partitions meanwhile.

A scope is a list of patterns, and a pattern has a text for each field of the partitioning, or None for any value. A
table's other partitions may change until the publish: Iceberg's own writers look at the same, file by file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import Transform
from pyiceberg.types import IcebergType

from twophase.catalogs.lakehouse import manifests
from twophase.catalogs.lakehouse.overwriting import static_values
from twophase.schema import to_iceberg

if TYPE_CHECKING:
    from twophase.catalogs.lakehouse.participant import LakehouseParticipant
    from twophase.model import OverwriteScope

Pattern = list[str | None]
Scope = list[Pattern]


@dataclass(frozen=True)
class Changes:
    """What statements of one transaction do to the partitions of a table.

    Attributes
    ----------
    replaced : Scope or None
        Partitions whose rows they replace; None: all.
    written : Scope or None
        Those that they write rows to.
    """

    replaced: Scope | None = field(default_factory=list)
    written: Scope | None = field(default_factory=list)

    def to_document(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any] | None) -> Changes:
        """What :meth:`to_document` gave; nothing is told: the whole table."""
        return cls(None, None) if document is None else cls(**document)

    def joined(self, other: Changes) -> Changes:
        """What both do together."""
        return Changes(_joined(self.replaced, other.replaced), _joined(self.written, other.written))

    def keys(self) -> frozenset[str] | None:
        """What is reserved: the first field decides, as a pattern may leave the others open. None: the whole table."""
        scope = _joined(self.replaced, self.written)
        if scope is None or any(pattern[0] is None for pattern in scope):
            return None
        return frozenset(str(pattern[0]) for pattern in scope)


def _joined(one: Scope | None, other: Scope | None) -> Scope | None:
    return None if one is None or other is None else [*one, *(pattern for pattern in other if pattern not in one)]


def changes_of(member: LakehouseParticipant, scope: OverwriteScope | None, files: Iterable[DataFile]) -> Changes:
    """What a statement does to the partitions of its table.

    Parameters
    ----------
    member : LakehouseParticipant
    scope : OverwriteScope or None
        Which rows it replaces; None for an INSERT INTO.
    files : iterable of pyiceberg.manifest.DataFile
        What it has written.
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


def _texts(member: LakehouseParticipant, schema: IcebergSchema, values: Sequence[Any]) -> Pattern:
    """The values of a partition, as Iceberg writes them in the names of directories."""
    kinds = [schema.find_type(field.source_id) for field in member.spec.fields]
    pairs = zip(member.spec.fields, kinds, values, strict=True)
    return [f"{field.name}={_text(field.transform, kind, value)}" for field, kind, value in pairs]


def _text(transform: Transform[Any, Any], kind: IcebergType, value: Any) -> str:
    try:
        return transform.to_human_string(kind, value)
    except OverflowError:  # A year that Python lacks: its number tells it apart as well.
        return str(value)


# -- on what others committed ------------------------------------------------------------------------------------------


class Rebase:
    """What is kept of a table that others have written to since the statement found it.

    Parameters
    ----------
    member : LakehouseParticipant
        It overwrites some partitions.
    scope : Scope
        Those.
    metadata : pyiceberg.table.metadata.TableMetadata
        The table now, which has grown from what the statement found.

    Raises
    ------
    WriteConflictError
        Others have written to the same partitions.
    """

    def __init__(self, member: LakehouseParticipant, scope: Scope, metadata: TableMetadata) -> None:
        self._member = member
        self._scope = scope
        self._metadata = metadata
        self._schema = to_iceberg(member.schema)

    def kept(self) -> list[ManifestFile]:
        """The manifests of what stays; some are written anew."""
        member, metadata = self._member, self._metadata
        assert member.seen is not None
        before = {m.manifest_path for m in manifests.manifests_of(metadata, member.seen.snapshot_id)}
        stays = {m.manifest_path for m in member.kept} & before
        removed = member.removed_files()
        snapshot = metadata.current_snapshot()
        current = manifests.manifests_of(metadata, snapshot.snapshot_id if snapshot else None)
        # Nothing has to be read of what the statement has kept as a whole.
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
        for entry in manifests.entries_of(manifest):
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
