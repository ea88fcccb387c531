"""RENAME of a table that was there before, as a statement of the surrounding transaction.

It is two participants, of the new name and of the former one, which are published together.
"""

from __future__ import annotations

from twophase.catalog import Catalog, SupportsStagedRename
from twophase.model import ObjectPath
from twophase.spark.staged import staged_definition
from twophase.spark.statement import StatementContext, discarding, run_in_block


def rename(context: StatementContext, catalog: Catalog, path: ObjectPath, new_path: ObjectPath) -> bool:
    """Rename a table as a statement of the surrounding transaction; return False if that is not possible.

    Raises
    ------
    TableAlreadyExistsError
        There is a table of the new name.
    AtomicityNotSupportedError
        The transaction has written one of the two before.
    """
    transaction = context.joined
    if transaction is None or context.session is None or not isinstance(catalog, SupportsStagedRename):
        return False
    arriving = run_in_block(
        context, catalog, new_path, lambda joined: joined.stage_rename(catalog, path, new_path), staged_definition
    )
    if arriving is None:
        return False
    with discarding(transaction) as done:
        done.append(arriving)
        run_in_block(context, catalog, path, lambda joined: joined.stage_leave(catalog, path, arriving.participant))
    return True
