"""The participant of a JDBC catalog: staging, and what the database says of its publish."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa

from twophase.catalog import TwoPhaseCatalogTable
from twophase.catalogs.jdbc import altering, defaults, housekeeping, keeping, publishing
from twophase.catalogs.jdbc.database import Table
from twophase.catalogs.jdbc.loading import Loader, Target
from twophase.catalogs.jdbc.offers import APPEND, CREATE, OVERWRITE, REPLACE
from twophase.catalogs.jdbc.store import TAKEN_OVER, Place, Store
from twophase.errors import (
    CatalogError,
    ConcurrentSchemaEvolutionError,
    ConfigurationError,
    TableAlreadyExistsError,
    TransactionAborted,
    TwoPhaseError,
    WriteConflictError,
)
from twophase.failpoints import declare, step
from twophase.model import Outcome, TableDefinition
from twophase.reading import ReadSource

if TYPE_CHECKING:
    from twophase.catalogs.jdbc.catalog import JdbcCatalog

declare(
    "jdbc.stage",
    "jdbc.stage_ledger",
    "jdbc.stage_table",
    "jdbc.write",
    "jdbc.take_over",
    "jdbc.keep",
    "jdbc.publish",
    "jdbc.outcome",
    "jdbc.drop_staging",
    "jdbc.drop_ledger",
    "jdbc.record",
    "jdbc.drop_aside",
    "jdbc.drop_done",
)


class JdbcParticipant(TwoPhaseCatalogTable):
    """One statement on one table of a database."""

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def home_catalog(self) -> JdbcCatalog:
        """The live catalog."""
        from twophase.catalogs.jdbc.catalog import JdbcCatalog

        catalog = self.catalog
        assert isinstance(catalog, JdbcCatalog)
        return catalog

    @property
    def store(self) -> Store:
        return self.home_catalog.store

    @property
    def target(self) -> Table:
        """The table that is written."""
        return Table(self.path.database, self.path.name)

    @cached_property
    def place(self) -> Place:
        """The hidden tables."""
        return self.store.place(self.path, self.transaction_id, int(self.document["ordinal"]))

    @property
    def home(self) -> str:
        """The database of the hidden tables."""
        return self.store.home(self.path.database)

    @property
    def key(self) -> str:
        """The participant among all, as it stands among the published ones."""
        return f"{self.transaction_id}/{self.document['ordinal']}"

    @property
    def effect(self) -> str:
        """``create``, ``replace``, ``append`` or ``overwrite``."""
        return str(self.document["effect"])

    @property
    def swaps(self) -> bool:
        """Whether the staging table itself becomes the target."""
        return self.effect in (CREATE, REPLACE)

    @property
    def shares_appends(self) -> bool:
        return self.effect == APPEND

    @property
    def definition(self) -> TableDefinition:
        """The table after the publish, without its options."""
        return TableDefinition.from_document(self.document["definition"])

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are written."""
        return [str(name) for name in self.document["columns"]]

    def _begun(self, **facts: Any) -> Any:
        return self.store.begin(self.home, path=self.path, transaction_id=self.transaction_id, **facts)

    # -- staging -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        with step("jdbc.stage"):
            self.document["store"] = self.store.make_published(self.home, self.path)
            with self._begun() as connection:
                self._stage(connection)

    def _stage(self, connection: sa.Connection) -> None:
        place = self.place
        there = self.store.there(connection, place)
        if place.staging.name in there or place.done.name in there:
            return
        if self.store.was_published(connection, self.home, self.key):
            return
        self._check_free(connection)
        if place.ledger.name not in there:
            with step("jdbc.stage_ledger"):
                self.store.make_ledger(connection, place, self._stamp())
        with step("jdbc.stage_table"):
            self._make_staging(connection)

    def _check_free(self, connection: sa.Connection) -> None:
        if self.effect == CREATE and self.store.database.table_kind(connection, self.target) is not None:
            raise TableAlreadyExistsError(
                f"Table {self.path} exists already.", path=self.path, transaction_id=self.transaction_id
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
            altering.create(database, connection, staging, self.definition, keeping.with_attributes(self, connection))
        else:
            database.create_like(connection, staging, self.target, self.columns)
        if self.effect != CREATE:
            # What is to be in a table may be read by those only who may read that table.
            database.close_to_others(connection, staging)

    def write(self, df: Any) -> None:
        with step("jdbc.write"):
            loader = Loader(self.store.settings, self._load_target())
            told = self._run(df, loader)
            self._check_written(told)

    def _run(self, df: Any, loader: Loader) -> int:
        if isinstance(df, pa.Table):
            # Rows that the driver has anyway: no executor is needed.
            return loader(0, df.to_batches(max_chunksize=self.store.settings.batch_rows))
        runner = self.catalog.environment.partition_runner
        if runner is None:
            raise ConfigurationError(
                f"{self.path} cannot be written: no Spark session lends its executors to catalog {self.catalog.name}.",
                hint="Attach the session with twophase.attach(spark); over Spark Connect give the catalog a "
                "twophase.spark.connect.ConnectEnvironment().",
            )
        rows: int = runner.run(df, loader)
        return rows

    def _load_target(self) -> Target:
        place = self.place
        with self._begun(read_only=True) as connection:
            types = {column.name: column.type for column in self.store.database.columns(connection, place.staging)}
        names = tuple(self.columns)
        return Target(place.staging, place.ledger, names, types, str(self.path), self.transaction_id, place.label)

    def _check_written(self, told: int) -> None:
        with self._begun(read_only=True) as connection:
            found = sum(count for part, count in self.store.written(connection, self.place).items() if part >= 0)
        if found != told:
            raise CatalogError(
                f"The executors wrote {told} rows of {self.path}, but its ledger counts {found}.",
                path=self.path,
                transaction_id=self.transaction_id,
            )

    # -- preparing -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        if self.outcome() is Outcome.PUBLISHED:
            return
        with self._begun() as connection:
            self.check_staged(connection)
            self.store.database.stop_writers(connection, self.place.label)
            self.check_target(connection)
            self._take_over(connection)
        if self.effect == REPLACE and "lost" not in self.document:
            with step("jdbc.keep"):
                keeping.prepare(self)
        self.document["prepared"] = True

    def _take_over(self, connection: sa.Connection) -> None:
        """The rows that an earlier statement of the transaction staged for the same table."""
        base = self.document["takes_over"]
        if base is None or TAKEN_OVER in self.store.written(connection, self.place):
            return
        with step("jdbc.take_over"):
            ledger = self.store.ledger_table(self.place.ledger)
            connection.execute(sa.insert(ledger).values(part=TAKEN_OVER, row_count=0))
            source = self.store.place(self.path, self.transaction_id, int(base))
            self.copy_rows(connection, source.staging, self.place.staging)

    def copy_rows(self, connection: sa.Connection, source: Table, target: Table) -> None:
        """Append the rows of one table to another, columns named one by one."""
        database = self.store.database
        known = {column.name for column in database.columns(connection, target) if not column.generated}
        names = [name for name in self.columns if name in known]
        held = self.placeholders if target == self.target else {}
        defaults.insert(database, connection, source, target, names, held)

    @property
    def placeholders(self) -> dict[str, str]:
        """What stands in staged rows for values that the database gives at the publish, by column."""
        return dict(self.document.get("placeholders", {}))

    def check_staged(self, connection: sa.Connection) -> None:
        """Refuse to publish what an abort or ``clean`` has removed.

        Raises
        ------
        TransactionAborted
            The staging table is gone.
        """
        there = self.store.there(connection, self.place)
        if not {self.place.staging.name, self.place.ledger.name} <= there:
            raise TransactionAborted(
                f"What was staged for {self.path} is gone: the statement was rolled back meanwhile.",
                path=self.path,
                transaction_id=self.transaction_id,
            )

    def check_target(self, connection: sa.Connection, *, last: bool = False) -> None:
        """Refuse when the target is no longer what the statement found.

        Parameters
        ----------
        connection : sqlalchemy.Connection
        last : bool
            Whether it is published in this database transaction; before, a statement of its own looks at no rows.

        Raises
        ------
        WriteConflictError
        """
        now = self.home_catalog.seen(connection, self.path)
        before: Mapping[str, Any] | None = self.document["seen"]
        if before is None:
            if now is not None:
                raise self.conflict("another writer created it meanwhile")
            return
        if now is None:
            raise self.conflict("it was dropped meanwhile")
        if now["columns"] != before["columns"]:
            raise ConcurrentSchemaEvolutionError(
                f"{self.path} was not written: its columns were changed meanwhile.",
                path=self.path,
                transaction_id=self.transaction_id,
                hint="Look at the table, and run the statement again.",
            )
        if self.effect != APPEND and (_state(now) != _state(before, now)):
            raise self.conflict("another writer published it meanwhile")
        if self.effect == OVERWRITE and (why := self.store.database.overwrite_reason(connection, self.target)):
            raise self.conflict(f"meanwhile {why}")
        if self.is_watched and (last or not self.document.get("autocommit")):
            self.check_content(connection, lock=last)

    @property
    def is_watched(self) -> bool:
        """Whether what other programs do with the target's rows is a conflict."""
        return self.effect != APPEND and (self.document["seen"] or {}).get("content") is not None

    def check_content(self, connection: sa.Connection, *, lock: bool = False) -> None:
        """Refuse when another program has committed a change of the target's rows.

        Raises
        ------
        WriteConflictError
        """
        if self.store.database.content(connection, self.target, lock=lock) != self.document["seen"]["content"]:
            raise self.conflict("another program changed its rows meanwhile")

    def conflict(self, why: str) -> WriteConflictError:
        """The error of a lost race."""
        return WriteConflictError(
            f"{self.path} was not written: {why}.",
            path=self.path,
            transaction_id=self.transaction_id,
            hint="Run the statement again: it will see the new state.",
        )

    # -- after the decision --------------------------------------------------------------------------------------

    def commit(self) -> None:
        with step("jdbc.publish"):
            publishing.publish(self.store, [self])

    def apply(self, connection: sa.Connection) -> None:
        """Make the target what the statement says, inside a database transaction."""
        database, place = self.store.database, self.place
        if self.effect == OVERWRITE:
            database.delete_all(connection, self.target)
        if not self.swaps:
            self.copy_rows(connection, place.staging, self.target)
            if "note" in self.document:
                database.set_comment(connection, self.target, self.document["note"])
            return
        if self.effect == CREATE:
            database.rename(connection, place.staging, self.target)
        else:
            keeping.swap(self, connection, lambda: self._exchange(connection))

    def _exchange(self, connection: sa.Connection) -> None:
        self.store.database.drop(connection, self.target)
        self.store.database.rename(connection, self.place.staging, self.target)

    def outcome(self) -> Outcome:
        try:
            with step("jdbc.outcome"):
                published = publishing.traces(self)
        except (TwoPhaseError, OSError, RuntimeError):
            return Outcome.UNKNOWN
        if published is None and self.document.get("prepared"):
            # Its rows were there when the decision was made: this may be another database, or an older copy of it.
            return Outcome.UNKNOWN
        return Outcome.PUBLISHED if published else Outcome.NOT_PUBLISHED

    def abort(self) -> None:
        try:
            with step("jdbc.outcome"):
                published = publishing.traces(self)
        except ConfigurationError:
            raise
        except (TwoPhaseError, OSError, RuntimeError):
            raise CatalogError(
                f"{self.store.settings.display_url} does not say if {self.path} was published: nothing was removed.",
                path=self.path,
                transaction_id=self.transaction_id,
                left_behind=[_shown(self.place.staging)],
            ) from None
        if not published:  # Where nothing is left an earlier abort may be why.
            prepared = bool(self.document.get("prepared"))
            publishing.remove_staged(self.store, self.place, self.transaction_id, self.key, prepared=prepared)

    def finish(self) -> None:
        if self.outcome() is Outcome.PUBLISHED:
            publishing.tidy(self.store, self.place, self.key, self.path)
            with suppress(TwoPhaseError):  # They are looked for again.
                housekeeping.prune(self.home_catalog, self.path)

    def check_identity(self, connection: sa.Connection | None = None) -> None:
        """Refuse to work on what was staged in another database than the one that the catalog's url leads to.

        Raises
        ------
        ConfigurationError
        """
        theirs = self.document.get("store")
        if theirs is None:
            return
        if connection is None:
            if not self.store.database_exists(self.home):
                return
            with self._begun(read_only=True) as connection:
                ours = self.store.identity(connection, self.home)
        else:
            ours = self.store.identity(connection, self.home)
        if ours not in (None, theirs):
            raise ConfigurationError(
                f"Transaction {self.transaction_id} wrote {self.path} in the database {theirs}; {self.home} of "
                f"{self.store.settings.display_url} is the database {ours}. Nothing was touched.",
                path=self.path,
                transaction_id=self.transaction_id,
                hint=f"Run it with the url that catalog {self.catalog.name} had in the job.",
            )

    def left_behind(self) -> list[str]:
        with self._begun(read_only=True) as connection:
            there = self.store.there(connection, self.place)
        place = self.place
        return [_shown(t) for t in (place.staging, place.ledger, place.done, place.aside) if t.name in there]

    # -- reading inside the transaction --------------------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        return self.home_catalog.staged_source(self)


def _state(seen: Mapping[str, Any], now: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
    """What a publish changes. An earlier release counted publishes in another way, as a list."""
    old = now is not None and isinstance(seen["version"], list)
    return seen["generation"], now["version"] if old and now else seen["version"]


def _shown(table: Table) -> str:
    return f"{table.database}.{table.name}"
