"""The publishers of Hive tables: one for each way that a recorded state may name."""

from __future__ import annotations

from collections.abc import Mapping

from twophase.catalogs.hive.publish.alter import AlterTable
from twophase.catalogs.hive.publish.append import AppendFiles
from twophase.catalogs.hive.publish.by_rows import Undecided
from twophase.catalogs.hive.publish.create import CreateTable
from twophase.catalogs.hive.publish.drop import DropTable
from twophase.catalogs.hive.publish.drop_renamed import DropRenamed
from twophase.catalogs.hive.publish.in_place import CreateInPlace, ReplaceInPlace
from twophase.catalogs.hive.publish.layout import SwitchLayout
from twophase.catalogs.hive.publish.link import LinkFiles
from twophase.catalogs.hive.publish.move import MoveFiles
from twophase.catalogs.hive.publish.partitions import SwitchPartitions
from twophase.catalogs.hive.publish.pointer import SwitchPointer
from twophase.catalogs.hive.publish.publisher import Publisher
from twophase.catalogs.hive.publish.rename import LeaveName, RenameTable
from twophase.catalogs.hive.publish.swap import SwapNames
from twophase.catalogs.hive.state import Way
from twophase.catalogs.hive.write import TableWrite

PUBLISHERS: Mapping[Way, type[Publisher]] = {
    Way.CREATE_TABLE: CreateTable,
    Way.CREATE_IN_PLACE: CreateInPlace,
    Way.SWITCH_POINTER: SwitchPointer,
    Way.LINK_FILES: LinkFiles,
    Way.SWITCH_PARTITIONS: SwitchPartitions,
    Way.SWITCH_LAYOUT: SwitchLayout,
    Way.SWAP_NAMES: SwapNames,
    Way.REPLACE_IN_PLACE: ReplaceInPlace,
    Way.MOVE_FILES: MoveFiles,
    Way.APPEND_FILES: AppendFiles,
    Way.DROP_TABLE: DropTable,
    Way.DROP_RENAMED: DropRenamed,
    Way.ALTER_TABLE: AlterTable,
    Way.RENAME_TABLE: RenameTable,
    Way.LEAVE_NAME: LeaveName,
    Way.BY_ROWS: Undecided,
}


def publisher_of(write: TableWrite) -> Publisher:
    """Return the publisher of a write."""
    return PUBLISHERS[write.state.way](write)


__all__ = ["PUBLISHERS", "Publisher", "publisher_of"]
