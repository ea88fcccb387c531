"""Two metastore calls that let the old and the new table change names; between them the name is free."""

from __future__ import annotations

from twophase.catalogs.hive.layout import ASIDE
from twophase.catalogs.hive.metastore import EXTERNAL, HiveTable
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.errors import TableAlreadyExistsError
from twophase.model import Outcome


class NameSwap(HiveParticipant):
    """A participant whose new table waits under a hidden name, and whose old one goes to another."""

    def aside_table(self) -> HiveTable | None:
        """The old table, while it has the hidden name."""
        return self.metastore.get_table(self.database, self.hidden(ASIDE))

    def check_unchanged(self) -> HiveTable:
        aside = self.aside_table()
        return aside if aside is not None and self.current() is None else super().check_unchanged()

    def swap_names(self, now: HiveTable | None, kind: str) -> None:
        """Publish; a table that is already aside stays there."""
        if now is not None:
            with self.step("name_aside"):
                self.metastore.rename_table(self.database, self.path.name, self.hidden(ASIDE), kind=EXTERNAL)
        with self.step("publish"):
            try:
                self.metastore.rename_table(self.database, self.hidden("table"), self.path.name, kind=kind)
            except TableAlreadyExistsError as error:
                raise self.conflict("another writer created it while it was replaced") from error

    def put_name_back(self) -> None:
        """The old table gets its name again."""
        if self.aside_table() is not None and self.current() is None and self.before is not None:
            with self.step("restore"):
                kind = str(self.before["kind"])
                self.metastore.rename_table(self.database, self.hidden(ASIDE), self.path.name, kind=kind)
        self.restore_kind()

    def unneeded_aside(self) -> HiveTable | None:
        """The old table, once it cannot come back: it was published, or another writer holds the name by now."""
        aside = self.aside_table()
        settled = self.current() is not None or self.outcome() is Outcome.PUBLISHED
        return aside if settled else None

    def forget_aside(self) -> None:
        """Drop the old table's definition; its files have marks of their own."""
        if self.unneeded_aside() is not None:
            self.metastore.forget_table(self.database, self.hidden(ASIDE))

    def compensate(self) -> bool:
        # The old table still has its definition aside, and its files too.
        if self.aside_table() is None or not self.is_ours(self.current()):
            return False
        with self.step("restore"):
            self.metastore.rename_table(self.database, self.path.name, self.hidden("table"), kind=EXTERNAL)
        self.put_name_back()
        self.stage_again()
        self.tell()
        return True

    def stage_again(self) -> None:
        """Take the files back from where the publish moved them."""


__all__ = ["NameSwap"]
