"""The participant of a JDBC catalog: staging, preparing, and looking up the outcome of its publish."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from twophase.catalog.reading import ReadSource
from twophase.catalog.schema_versions import SchemaChange
from twophase.catalogs.jdbc import (
    altering,
    altering_by_copy,
    bringing,
    defaults,
    definitions,
    housekeeping,
    pinned_reads,
    preserving,
    publishing,
    schema_changes,
    staged_altering,
    staged_changes,
    staged_renaming,
)
from twophase.catalogs.jdbc.loading import Loader, Target
from twophase.catalogs.jdbc.member import ALTER, ALTER_COPY, APPEND, CREATE, DROP, LEAVE, RENAME, Member
from twophase.catalogs.jdbc.pinned_reads import Version
from twophase.catalogs.jdbc.reading import JdbcReader
from twophase.catalogs.jdbc.store import TAKEN_OVER
from twophase.errors import (
    AtomicityNotSupportedError,
    CatalogError,
    ConfigurationError,
    TableAlreadyExistsError,
    TwoPhaseError,
)
from twophase.failpoints import Failpoint, step
from twophase.model import WAITING, ObjectPath, Outcome, TableDefinition

STAGE = Failpoint("jdbc.stage")
STAGE_LEDGER = Failpoint("jdbc.stage_ledger")
STAGE_TABLE = Failpoint("jdbc.stage_table")
WRITE = Failpoint("jdbc.write")
TAKE_OVER = Failpoint("jdbc.take_over")
KEEP = Failpoint("jdbc.keep")
TRY_DROP = Failpoint("jdbc.try_drop")
TRY_ALTER = Failpoint("jdbc.try_alter")
PUBLISH = Failpoint("jdbc.publish")
OUTCOME = Failpoint("jdbc.outcome")


class JdbcParticipant(Member):
    """One statement on one table of a database."""

    #: The table after an ALTER TABLE, once this object has prepared it.
    _altered: TableDefinition | None = None

    # -- staging -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        with step(STAGE):
            self.document["store"] = self.store.make_published(self.home, self.path, self.transaction_id)
            with self.begin_transaction() as connection:
                self._stage(connection)

    def _stage(self, connection: sa.Connection) -> None:
        place = self.place
        there = self.store.there(connection, place)
        if place.done.name in there or (place.staging.name in there and self._is_made(connection)):
            return
        if self.store.was_published(connection, self.home, self.key):
            return
        self._check_free(connection)
        self._check_rights(connection)
        if place.ledger.name not in there:
            with step(STAGE_LEDGER):
                self.store.make_ledger(connection, place, self._stamp())
        if not self.has_rows:
            return
        with step(STAGE_TABLE):
            if self.effect == ALTER_COPY:
                self.document["definition"] = altering_by_copy.make(self).to_document()
            else:
                self._make_staging(connection)

    def _is_made(self, connection: sa.Connection) -> bool:
        return self.effect != ALTER_COPY or altering_by_copy.is_made(self, connection)

    def _check_free(self, connection: sa.Connection) -> None:
        is_free = self.effect in (CREATE, RENAME) and self.document["seen"] is None
        if is_free and self.store.database.table_kind(connection, self.path) is not None:
            raise TableAlreadyExistsError(
                f"Table {self.path} already exists.", path=self.path, transaction_id=self.transaction_id
            )

    def _check_rights(self, connection: sa.Connection) -> None:
        free = (self.place.done, self.place.backup)
        if missing := self.store.database.missing_right(connection, self.path, self.rights, free):
            what, hint = missing
            raise CatalogError(
                f"{what} Nothing was staged.", path=self.path, transaction_id=self.transaction_id, hint=hint
            )

    def _stamp(self) -> dict[str, Any]:
        return {
            "transaction_id": self.transaction_id,
            "ordinal": self.document["ordinal"],
            "catalog": self.store.settings.catalog,
            "path": self.path.to_document(),
            "since": self.document["since"],
        }

    def _make_staging(self, connection: sa.Connection) -> None:
        database, staging = self.store.database, self.place.staging
        if self.swaps:
            altering.create(
                database, connection, staging, self.definition, preserving.with_attributes(self, connection)
            )
        else:
            more = [(WAITING, str(database.column_type(pa.field(WAITING, pa.string()))))] if self.may_wait else []
            more += bringing.types(database, self.path, self.brought)
            old = [name for name in self.columns if name not in self.brought.names]
            database.create_like(connection, staging, self.source, old, more)
        if self.effect == RENAME or (self.effect != CREATE and not self.drops):
            # The staged rows may be read only by roles that may read the target.
            database.close_to_others(connection, staging)

    def write(self, df: Any) -> None:
        with step(WRITE):
            loader = Loader(self.store.settings, self._load_target(waits=WAITING in _names_of(df)))
            rows = bringing.fitted(self.document, df) if "brings" in self.document else df
            self._check_written(self._run(rows, loader))

    def _run(self, df: Any, loader: Loader) -> int:
        if isinstance(df, pa.Table):
            # The rows are already on the driver: no executor is needed.
            return loader(0, df.to_batches(max_chunksize=self.store.settings.batch_rows))
        runner = self.catalog.environment.partition_runner
        if runner is None:
            raise ConfigurationError(
                f"{self.path} cannot be written: no Spark session lends its executors to catalog {self.catalog.name}.",
                hint="Attach the session with twophase.attach(spark); over Spark Connect give the catalog a "
                "twophase.spark.connect.ConnectEnvironment().",
            )
        return runner.run(df, loader)

    def _load_target(self, *, waits: bool = False) -> Target:
        place = self.place
        with self.begin_transaction(read_only=True) as connection:
            types = {column.name: column.type for column in self.store.database.columns(connection, place.staging)}
        names = (*self.columns, WAITING) if waits else tuple(self.columns)
        return Target(place.staging, place.ledger, names, types, str(self.path), self.transaction_id, place.label)

    def _check_written(self, rows: int) -> None:
        with self.begin_transaction(read_only=True) as connection:
            found = sum(count for part, count in self.store.written(connection, self.place).items() if part >= 0)
        if found != rows:
            raise CatalogError(
                f"The executors wrote {rows} rows of {self.path}, but its ledger counts {found}.",
                path=self.path,
                transaction_id=self.transaction_id,
            )

    # -- preparing -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        if self.outcome() is Outcome.PUBLISHED:
            return
        with self.begin_transaction() as connection:
            self.check_staged(connection)
            self.store.database.stop_writers(connection, self.place.label)
            self.check_target(connection)
            if self.effect == ALTER_COPY:
                altering_by_copy.check_unchanged(self, connection)
            self._take_over(connection)
        if (dropped := self.dropped) is not None:
            with step(TRY_DROP):
                self._try_drop(dropped)
        if self.effect == ALTER:
            with step(TRY_ALTER):
                statements = staged_changes.statements_of(self.document)
                self._altered = staged_changes.attempt(self.store, self.path, statements).definition
        if self.preserves and "lost" not in self.document:
            with step(KEEP):
                preserving.prepare(self)
        self.document["prepared"] = True

    def _try_drop(self, table: ObjectPath) -> None:
        """Find out what depends on the table now, and not after the decision: where possible, drop it and undo that."""
        with self.begin_transaction() as connection:
            preserving.check_unreferred(self, connection, table)
            if self.store.database.ddl_in_transaction:
                self.store.database.drop(connection, table)
                connection.rollback()

    def _take_over(self, connection: sa.Connection) -> None:
        """Copy the rows that an earlier statement of the transaction staged for the same table."""
        base = self.document["takes_over"]
        if base is None or TAKEN_OVER in self.store.written(connection, self.place):
            return
        with step(TAKE_OVER):
            ledger = self.store.ledger_table(self.place.ledger)
            connection.execute(sa.insert(ledger).values(part=TAKEN_OVER, row_count=0))
            source = self.store.place(self.path, self.transaction_id, int(base))
            self.copy_rows(connection, source.staging, self.place.staging)

    def replaced_state(self) -> dict[str, Any]:
        return pinned_reads.replaced_state(self)

    def schema_change(self) -> SchemaChange | None:
        return schema_changes.schema_change(self, self._altered)

    # -- after the decision --------------------------------------------------------------------------------------

    def commit(self) -> None:
        with step(PUBLISH):
            publishing.publish(self.store, [self])

    def outcome(self) -> Outcome:
        try:
            with step(OUTCOME):
                published = publishing.lookup(self)
        except (TwoPhaseError, OSError, RuntimeError):
            return Outcome.UNKNOWN
        if published is None and self.document.get("prepared"):
            # The rows existed when the decision was made: this may be another database, or an older copy of it.
            return Outcome.UNKNOWN
        return Outcome.PUBLISHED if published else Outcome.NOT_PUBLISHED

    def abort(self) -> None:
        try:
            with step(OUTCOME):
                published = publishing.lookup(self)
        except ConfigurationError:
            raise
        except (TwoPhaseError, OSError, RuntimeError):
            raise CatalogError(
                f"{self.store.settings.display_url} does not say if {self.path} was published: nothing was removed.",
                path=self.path,
                transaction_id=self.transaction_id,
                left_behind=[str(self.place.staging)],
            ) from None
        if not published:  # If nothing is left, an earlier abort may have removed it.
            prepared = bool(self.document.get("prepared"))
            publishing.remove_staged(self.store, self.place, self.transaction_id, self.key, prepared=prepared)

    def finish(self) -> None:
        if self.outcome() is Outcome.PUBLISHED:
            publishing.clean_up(self.store, self.place, self.key, self.path)
            with suppress(TwoPhaseError):  # A later publish tries again.
                housekeeping.prune(self.store, self.catalog.environment, self.path)

    def left_behind(self) -> list[str]:
        with self.begin_transaction(read_only=True) as connection:
            there = self.store.there(connection, self.place)
        place = self.place
        return [str(t) for t in (place.staging, place.ledger, place.done, place.backup) if t.name in there]

    # -- reading inside the transaction --------------------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        """The staged rows, and the rows of the table that are kept."""
        if self.effect in (DROP, LEAVE):
            return None
        if self.effect == RENAME and not self.has_rows:
            return staged_renaming.read_source(self)
        if self.effect == ALTER:
            return staged_altering.read_source(self)
        if self.brought.names:
            raise self._not_yet(
                "can be neither read nor altered by this transaction, which has brought columns to it.",
                "Commit before; or add the columns with ALTER TABLE first, and then write the rows.",
            )
        staged = self.place.staging
        adds = self.effect in (APPEND, RENAME) and not self.empties_the_renamed
        tables = [self.source, staged] if adds else [staged]
        with self.store.begin(self.home, path=self.path, read_only=True) as connection:
            columns = [c for c in self.store.database.columns(connection, staged) if c.name != WAITING]
            waiting = self.may_wait and defaults.any_waits(self.store.database, connection, staged)
        if waiting:
            raise self._not_yet(
                "cannot be read yet: the database gives rows of this transaction values of its own at the publish.",
                "Read the table before it is written, or after the transaction; or give all columns values.",
            )
        # In a snapshot, rows that others have added since are not read.
        pinned = self.document["pinned" if self.effect == RENAME else "seen"]
        guards = {self.source: Version.seen(pinned)} if self.document.get("pins_reads") else {}
        reader = JdbcReader(self.store, tables, columns, guards)
        return ReadSource("batches", definition=definitions.as_read(self.definition, columns), reader=reader)

    def _not_yet(self, what: str, hint: str) -> AtomicityNotSupportedError:
        message = f"{self.path} {what}"
        return AtomicityNotSupportedError(message, path=self.path, transaction_id=self.transaction_id, hint=hint)


def _names_of(df: Any) -> list[str]:
    return list(df.column_names if isinstance(df, pa.Table) else df.columns)
