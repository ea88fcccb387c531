"""Files that an INSERT OVERWRITE replaces: all, those of the named partitions, or those of partitions with new rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import IdentityTransform

from twophase.catalogs.lakehouse import manifests
from twophase.catalogs.lakehouse.footers import as_iceberg
from twophase.catalogs.lakehouse.manifests import Keeps
from twophase.catalogs.lakehouse.member import Member
from twophase.catalogs.lakehouse.transforms import comparable
from twophase.errors import CatalogError
from twophase.model import OverwriteScope


def kept_files(member: Member, scope: OverwriteScope, specs: Mapping[int, PartitionSpec]) -> Keeps:
    """A predicate that is true for files whose rows are kept.

    Parameters
    ----------
    member : Member
    scope : OverwriteScope
    specs : mapping of int to pyiceberg.partitioning.PartitionSpec
        The partitionings of the table's files.
    """
    if scope.files is not None:
        replaced = frozenset(scope.files)
        return lambda file: file.file_path not in replaced
    if scope.static_partition:
        wanted = static_values(member, scope)
        return _Rule(member, specs, list(wanted), {comparable(wanted.values())})
    if scope.dynamic and member.spec.fields:
        new = {comparable(entry.data_file.partition._data) for entry in manifests.all_entries(member.io, member.added)}
        return _Rule(member, specs, list(range(len(member.spec.fields))), new)
    return lambda _: False


class _Rule:
    """A predicate that compares some fields of a file's partition with those of the replaced ones.

    A file of another partitioning is refused where that does not show if its rows are among the replaced ones.
    """

    def __init__(
        self,
        member: Member,
        specs: Mapping[int, PartitionSpec],
        positions: Sequence[int],
        replaced: Set[tuple[Any, ...]],
    ) -> None:
        self._member = member
        self._specs = specs
        self._positions = positions
        self._replaced = replaced
        self._by_spec: dict[int, tuple[list[int], Set[tuple[Any, ...]]]] = {}

    def __call__(self, file: DataFile) -> bool:
        if file.spec_id not in self._by_spec:
            self._by_spec[file.spec_id] = self._compared(file.spec_id)
        positions, replaced = self._by_spec[file.spec_id]
        if comparable(file.partition[position] for position in positions) not in replaced:
            return True
        if len(positions) == len(self._positions):
            return False
        member = self._member
        raise CatalogError(
            f"{member.path} holds files of an earlier partitioning, of which it does not show if their rows are in the "
            "partitions that are overwritten; nothing was changed.",
            path=member.path,
            transaction_id=member.transaction_id,
            hint="Use DELETE FROM and INSERT INTO, or overwrite the whole table.",
        )

    def _compared(self, spec_id: int) -> tuple[list[int], Set[tuple[Any, ...]]]:
        """The places of the compared fields in a partitioning, and the values of the replaced partitions there."""
        known = self._positions_in(spec_id)
        return list(known.values()), {tuple(partition[number] for number in known) for partition in self._replaced}

    def _positions_in(self, spec_id: int) -> dict[int, int]:
        """The places of the compared fields in a file, by their place among these."""
        fields = self._member.spec.fields
        if spec_id == self._member.spec.spec_id:
            return dict(enumerate(self._positions))
        theirs = {(f.source_id, f.transform): place for place, f in enumerate(self._specs[spec_id].fields)}
        keys = ((fields[position].source_id, fields[position].transform) for position in self._positions)
        return {number: theirs[key] for number, key in enumerate(keys) if key in theirs}


def static_values(member: Member, scope: OverwriteScope) -> dict[int, Any]:
    """The replaced values by their position in the partition."""
    zone = member.catalog.environment.conf.get("spark.sql.session.timeZone", "UTC")
    found: dict[int, Any] = {}
    for column, text in scope.static_partition.items():
        source = member.schema.find((column,))
        position = next(
            (
                number
                for number, field in enumerate(member.spec.fields)
                if field.source_id == source.id and isinstance(field.transform, IdentityTransform)
            ),
            None,
        )
        if position is None:
            raise CatalogError(f"{member.path} is not partitioned by {column} itself.", path=member.path)
        found[position] = None if text is None else as_iceberg(_parsed(text, source.leaf, zone))
    return found


def _parsed(text: str, kind: pa.DataType, zone: str) -> pa.Scalar:
    if pa.types.is_binary(kind):
        return pa.scalar(text.encode(), kind)
    if pa.types.is_date(kind):
        return pa.scalar(int(np.datetime64(text.lstrip("+"), "D").astype(np.int64)), kind)
    if pa.types.is_timestamp(kind) and not kind.tz:
        return _local(text)
    if pa.types.is_timestamp(kind) and kind.tz:
        # Spark writes it in the session's time zone; in a repeated hour it means the first one.
        try:
            return pc.assume_timezone(_local(text), zone, ambiguous="earliest").cast(kind)
        except pa.ArrowInvalid as error:
            raise CatalogError(
                f"The partition {text} cannot be determined: {error}.",
                hint="Set spark.sql.session.timeZone to a region that this machine knows, such as UTC, or to +HH:MM.",
            ) from error
    return pa.scalar(text).cast(kind)


def _local(text: str) -> pa.Scalar:
    """Parse a local time of any year; PyArrow itself does not parse years of more than four digits."""
    return pa.scalar(int(np.datetime64(text.lstrip("+"), "us").astype(np.int64)), pa.timestamp("us"))
