"""The statements of a transaction that rename a table, and that create and drop databases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from twophase.catalog import (
    Catalog,
    SupportsStagedDatabases,
    SupportsStagedRename,
    TwoPhaseCatalogTable,
    staged_databases,
)
from twophase.model import ObjectPath, Purpose, WriteContext
from twophase.transactions import failures
from twophase.transactions.statements import Plan, Statements


class DdlStatements(Statements):
    """Statements of a :class:`~twophase.transactions.transaction.Transaction` that concern more than one table."""

    def stage_rename(
        self, catalog: SupportsStagedRename, path: ObjectPath, new_path: ObjectPath
    ) -> TwoPhaseCatalogTable | None:
        """Stage a table's new name; :meth:`write_nothing` follows, and :meth:`stage_leave` for the former name.

        Parameters
        ----------
        catalog : SupportsStagedRename
        path, new_path
            As in :meth:`twophase.catalog.SupportsStagedRename.two_phase_rename_table`.

        Returns
        -------
        TwoPhaseCatalogTable or None
            None if the store cannot rename the table in a transaction; then nothing was recorded.

        Raises
        ------
        TwoPhaseError
            As :meth:`stage`.
        """
        with self._life.lock:
            former = self._to_build_on(catalog, path)
            if former is not None and former.participant.purpose.drops:
                raise failures.dropped(catalog.name, path, self.id)

            def plan(context: WriteContext) -> TwoPhaseCatalogTable | None:
                context = replace(context, former=former.participant.document if former else None)
                return catalog.two_phase_rename_table(path, new_path, context=context)

            return self._stage(catalog, new_path, Purpose.CREATE_TABLE_AS, plan)

    def stage_leave(
        self, catalog: SupportsStagedRename, path: ObjectPath, arriving: TwoPhaseCatalogTable
    ) -> TwoPhaseCatalogTable:
        """Request the participant of the former name of a renamed table, and record it; :meth:`write_nothing` follows.

        Parameters
        ----------
        catalog, path
            As in :meth:`stage_rename`.
        arriving : TwoPhaseCatalogTable
            Its result.

        Returns
        -------
        TwoPhaseCatalogTable

        Raises
        ------
        TwoPhaseError
            As :meth:`stage`.
        """
        plan = partial(catalog.two_phase_leave_table, path, arriving)
        return self._staged(catalog, path, Purpose.DROP_TABLE, plan)

    def stage_create_database(
        self, catalog: SupportsStagedDatabases, database: str, properties: Mapping[str, str]
    ) -> TwoPhaseCatalogTable:
        """Request a participant that creates a database, and record it; :meth:`write_nothing` follows.

        Parameters
        ----------
        catalog : SupportsStagedDatabases
        database, properties
            As in :meth:`twophase.Catalog.create_database`.

        Returns
        -------
        TwoPhaseCatalogTable

        Raises
        ------
        DatabaseAlreadyExistsError
            It exists.
        AtomicityNotSupportedError
            The transaction drops it.
        TwoPhaseError
            As :meth:`stage`.
        """
        if self.drops_database(catalog, database):
            raise failures.dropped_database(catalog.name, database, self.id)
        plan = partial(staged_databases.plan_create, catalog, database, properties)
        return self._staged(catalog, ObjectPath((), database), Purpose.CREATE_DATABASE, plan)

    def stage_drop_database(self, catalog: SupportsStagedDatabases, database: str) -> TwoPhaseCatalogTable:
        """Request a participant that drops a database without tables, and record it; :meth:`write_nothing` follows.

        Tables that the transaction drops are not there any more, and those that it creates are.

        Returns
        -------
        TwoPhaseCatalogTable

        Raises
        ------
        DatabaseNotExistError
            It does not exist, or the transaction drops it.
        CatalogError
            It is not empty.
        TwoPhaseError
            As :meth:`stage`.
        """
        self._require_database(catalog, database)
        gone, made = self.tables_in(catalog, database)
        if made:
            raise staged_databases.not_empty(database, made)
        plan = partial(staged_databases.plan_drop, catalog, database, gone)
        return self._staged(catalog, ObjectPath((), database), Purpose.DROP_DATABASE, plan)

    def _staged(self, catalog: Catalog, path: ObjectPath, purpose: Purpose, plan: Plan) -> TwoPhaseCatalogTable:
        participant = self._stage(catalog, path, purpose, plan)
        assert participant is not None  # These plans never answer None.
        return participant
