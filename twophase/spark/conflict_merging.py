"""The user's ``merge``: it is asked for the rows of tables that a block writes and that others have changed meanwhile.

Modelled on the compensating answer to a conflict in Hudi's RFC-73.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from twophase.catalog import SupportsStagedRename
from twophase.catalog.reading import ReadSource
from twophase.errors import (
    AtomicityNotSupportedError,
    ConfigurationError,
    SnapshotTooOldError,
    TableNotExistError,
)
from twophase.model import OverwriteScope, Purpose, TableDefinition, quote
from twophase.spark.active_transaction import ActiveTransaction
from twophase.spark.assignment import fitted
from twophase.spark.blocks import Terms
from twophase.spark.execution.cancellation import interruptible
from twophase.spark.statement import StatementContext, open_statement, run_statement
from twophase.transactions.merging import Conflict, Merging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Given a table's rows as the block sees them without its own writes, as it leaves them, and as others have left them.
Merge: TypeAlias = Callable[["DataFrame", "DataFrame", "DataFrame"], "DataFrame | None"]

#: Why a state of a table cannot be shown.
_UNREADABLE = (SnapshotTooOldError, TableNotExistError, AtomicityNotSupportedError)


def checked_merge(merge: Any) -> Any:
    """Return a ``merge`` argument, if it is one.

    Raises
    ------
    ConfigurationError
        It is neither a function nor functions by the names of tables.
    """
    functions = list(merge.values()) if isinstance(merge, Mapping) else [merge]
    if merge is not None and not all(map(callable, functions)):
        raise ConfigurationError(
            f"merge is {merge!r}.",
            hint="Give a function of (before, mine, theirs), or functions by the names of tables.",
        )
    return merge


def resolve_conflicts(active: ActiveTransaction, terms: Terms) -> None:
    """Ask the user about each table that the commit would refuse, and stage what is answered.

    Called at the end of a block, whose statements can still join it.

    Raises
    ------
    WriteConflictError
        There is no answer for one of them.
    Exception
        From the user's function.
    """
    merging = active.transaction.merging
    if merging is None:
        return
    for conflict in merging.conflicts():
        merge = None if _is_ddl(active, conflict) else _function(terms, conflict)
        if merge is None:
            merging.refuse(conflict)
        _resolve(active, merging, conflict, merge)


def _is_ddl(active: ActiveTransaction, conflict: Conflict) -> bool:
    """Return whether the block drops, alters or renames the table: rows cannot be the answer then."""
    catalog, participant = conflict.catalog, conflict.participant
    if isinstance(catalog, SupportsStagedRename) and catalog.rests_on_rename(participant):
        return True
    return participant.purpose.drops or active.transaction.member(participant).alters


def _function(terms: Terms, conflict: Conflict) -> Merge | None:
    if not isinstance(terms.merge, Mapping):
        return terms.merge
    assert terms.find_table is not None
    for name, function in terms.merge.items():
        catalog, path = terms.find_table(name)
        if catalog is conflict.catalog and catalog.canonical(path) == catalog.canonical(conflict.path):
            return function
    return None


def _resolve(active: ActiveTransaction, merging: Merging, conflict: Conflict, merge: Merge) -> None:
    name = f"{conflict.catalog.name}.{conflict.path}"
    try:
        before, mine, theirs = _states(active, merging, conflict)
    except _UNREADABLE as problem:
        conflict.error.add_note(f"merge was not asked: {problem.message}")
        merging.refuse(conflict, problem)
    if any(frame.schema.names != mine.schema.names for frame in (before, theirs)) or not _alike(before, mine, theirs):
        conflict.error.add_note(f"merge was not asked: the columns of {name} are not the same in all three states.")
        merging.refuse(conflict)
    merged = merge(before, mine, theirs)
    if merged is None:
        merging.refuse(conflict)
    if not hasattr(merged, "selectExpr"):
        raise ConfigurationError(
            f"merge returned {type(merged).__name__} for {name}; the block was rolled back.",
            path=conflict.path,
            hint="It returns a DataFrame, or None to leave the conflict.",
        )
    _stage(active, conflict, merged)


def _alike(*frames: DataFrame) -> bool:
    return len({tuple(field.dataType for field in frame.schema) for frame in frames}) == 1


def _states(active: ActiveTransaction, merging: Merging, conflict: Conflict) -> tuple[DataFrame, DataFrame, DataFrame]:
    before, mine = _table(active, conflict, merging.state_before(conflict)), _table(active, conflict, None)
    merging.rebase(conflict)
    return before, mine, _table(active, conflict, merging.state_now(conflict))


def _table(active: ActiveTransaction, conflict: Conflict, source: ReadSource | None) -> DataFrame:
    """A table in the state of a source, instead of in that which the transaction sees."""
    parts = (active.session.catalogs.name_of(conflict.catalog), *conflict.path.to_document())
    with active.showing(conflict.catalog, conflict.path, source):
        return active.session.spark.table(".".join(map(quote, parts)))


def _stage(active: ActiveTransaction, conflict: Conflict, merged: DataFrame) -> None:
    session, catalog, path = active.session, conflict.catalog, conflict.path
    purpose, definition = _target(active, conflict)
    rows = fitted(merged, definition.schema, path)
    with interruptible(session.tracker):
        context, scope = StatementContext.of(session), OverwriteScope() if purpose.inserts else None
        statement = open_statement(context, catalog, path, definition, purpose, scope, resolves=conflict)
        run_statement(session, statement, rows, lambda: definition)


def _target(active: ActiveTransaction, conflict: Conflict) -> tuple[Purpose, TableDefinition]:
    """The purpose of the staged write: an overwrite, or another replacement if the block has replaced the table."""
    member = active.transaction.member(conflict.participant)
    if not member.redefines or member.definition is None:
        return Purpose.INSERT_OVERWRITE, conflict.catalog.load_table(conflict.path)
    return Purpose.REPLACE_TABLE_AS, member.definition
