"""RENAME of a table that was there before, as a statement of the surrounding transaction.

It is two participants, of the new name and of the former one, which are published together.
"""

from __future__ import annotations

import pyarrow as pa

from twophase.catalog import Catalog, SupportsStagedRename
from twophase.hooks.statement import Statement
from twophase.model import ObjectPath, TableDefinition
from twophase.spark import active
from twophase.spark.staged import staged_source
from twophase.spark.statement import StatementContext, open_leave, open_rename, run_without_rows


def rename(context: StatementContext, catalog: Catalog, path: ObjectPath, new_path: ObjectPath) -> bool:
    """Rename a table as a statement of the surrounding transaction; return False if that is not possible.

    Raises
    ------
    TableAlreadyExistsError
        There is a table of the new name.
    AtomicityNotSupportedError
        The transaction has written one of the two before.
    """
    session, transaction = context.session, context.joined
    if transaction is None or session is None or not isinstance(catalog, SupportsStagedRename):
        return False
    arriving = open_rename(context, catalog, path, new_path)
    if arriving is None:
        return False

    run_without_rows(session, arriving, lambda: _definition(arriving))
    try:
        leaving = open_leave(context, catalog, path, arriving)
        run_without_rows(session, leaving, lambda: TableDefinition(pa.schema([])))
    except BaseException:
        # Not by a savepoint: that would take back what other threads of the block have written meanwhile.
        transaction.discard(arriving.participant)
        if (block := active.find(transaction.id)) is not None:
            block.revert([arriving.participant])
        raise
    return True


def _definition(arriving: Statement) -> TableDefinition:
    found = staged_source(arriving.participant).definition
    assert found is not None
    return found
