"""The publishers of Hive tables: one for each name in a recorded state."""

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
from twophase.catalogs.hive.state import PublisherName
from twophase.catalogs.hive.write import TableWrite

PUBLISHERS: Mapping[PublisherName, type[Publisher]] = {
    PublisherName.CREATE_TABLE: CreateTable,
    PublisherName.CREATE_IN_PLACE: CreateInPlace,
    PublisherName.SWITCH_POINTER: SwitchPointer,
    PublisherName.LINK_FILES: LinkFiles,
    PublisherName.SWITCH_PARTITIONS: SwitchPartitions,
    PublisherName.SWITCH_LAYOUT: SwitchLayout,
    PublisherName.SWAP_NAMES: SwapNames,
    PublisherName.REPLACE_IN_PLACE: ReplaceInPlace,
    PublisherName.MOVE_FILES: MoveFiles,
    PublisherName.APPEND_FILES: AppendFiles,
    PublisherName.DROP_TABLE: DropTable,
    PublisherName.DROP_RENAMED: DropRenamed,
    PublisherName.ALTER_TABLE: AlterTable,
    PublisherName.RENAME_TABLE: RenameTable,
    PublisherName.LEAVE_NAME: LeaveName,
    PublisherName.BY_ROWS: Undecided,
}


def publisher_of(write: TableWrite) -> Publisher:
    """Return the publisher of a write."""
    return PUBLISHERS[write.state.publisher](write)


__all__ = ["PUBLISHERS", "Publisher", "publisher_of"]
