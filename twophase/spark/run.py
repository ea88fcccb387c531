"""Running a block of statements again after a conflict."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from twophase.errors import ConfigurationError, SnapshotTooOldError, WoundedError, WriteConflictError
from twophase.hooks.hook import JobStatusHook
from twophase.model import Isolation
from twophase.protocol.states import TransactionState
from twophase.spark.attach import Conflict, block
from twophase.spark.conflict_merging import Merge
from twophase.timeline.owners import clock
from twophase.transactions.transaction import Transaction

#: The longest pause before the second attempt, and before any, in seconds.
_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
#: In the message of PySpark's error, a traceback: a task has found that a table is no longer in the snapshot's state.
_IN_A_TASK = f"{SnapshotTooOldError.__module__}.{SnapshotTooOldError.__qualname__}: "

#: Isolation, conflict policy, wait, timeout and merge of a block.
_Terms: TypeAlias = tuple[
    Isolation | str | None, Conflict | None, float | str | None, float | str | None, Merge | Mapping[str, Merge] | None
]


def run(
    spark: Any,
    function: Callable[..., Any] | None = None,
    *,
    isolation: Isolation | str | None = None,
    attempts: int = 5,
    hooks: Iterable[JobStatusHook] = (),
    conflict: Conflict | None = None,
    wait: float | str | None = None,
    timeout: float | str | None = None,
    merge: Merge | Mapping[str, Merge] | None = None,
) -> Any:
    """Run a function in a transaction, and again after a conflict with another one.

    Between two attempts it waits for a random time that grows, so that others can end. All attempts are as old as the
    first one: with the policies ``wait_die`` and ``wound_wait`` no younger transaction then comes before it for ever.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        An attached session; the active one when None.
    function : callable, optional
        Its statements are published together when it returns. It may be called several times, so it must have no other
        effects. It is given the :class:`~twophase.Transaction` if it has a required parameter. Without it, the result
        is a decorator for functions with any arguments.
    isolation : Isolation or str, optional
        As for :func:`twophase.transaction`.
    attempts : int
        The maximum number of calls.
    hooks : iterable of JobStatusHook
        As for :func:`twophase.transaction`.
    conflict : str or ConflictPolicy or class, optional
        As for :func:`twophase.transaction`.
    wait : float or str, optional
        As for :func:`twophase.transaction`.
    timeout : float or str, optional
        As for :func:`twophase.transaction`; of each attempt.
    merge : callable, or mapping of str to callable, optional
        As for :func:`twophase.transaction`; each attempt may ask it.

    Returns
    -------
    Any
        What ``function`` returns; without ``function``, a decorator.

    Raises
    ------
    WriteConflictError, WoundedError
        The last attempt was refused or rolled back, too.
    ConfigurationError
        ``attempts`` is less than 1, the session is not attached, or ``function`` is or returns a coroutine or a
        generator, whose statements would run after it has returned.
    Exception
        Any other error of ``function``, after a rollback; it is not run again.

    Examples
    --------
    >>> def move(tx):
    ...     spark.sql("INSERT OVERWRITE a SELECT id, value - 1 FROM a")
    ...     spark.sql("INSERT OVERWRITE b SELECT id, value + 1 FROM b")
    >>> twophase.run(spark, move, isolation="serializable")

    >>> @twophase.run(spark, attempts=10)
    ... def append(day):
    ...     spark.sql(f"INSERT INTO days SELECT '{day}'")
    """
    if attempts < 1:
        raise ConfigurationError(f"attempts is {attempts}: a function is run at least once.")
    terms = (isolation, conflict, wait, timeout, merge)
    if function is None:

        def decorate(decorated: Callable[..., Any]) -> Callable[..., Any]:
            _require_plain(decorated)

            @functools.wraps(decorated)
            def call(*args: Any, **kwargs: Any) -> Any:
                arguments = functools.partial(decorated, *args, **kwargs)
                return _run(spark, lambda _: arguments(), terms, attempts, hooks)

            return call

        return decorate
    _require_plain(function)
    return _run(spark, function if _takes_transaction(function) else lambda _: function(), terms, attempts, hooks)


def _run(
    spark: Any,
    function: Callable[[Transaction], Any],
    terms: _Terms,
    attempts: int,
    hooks: Iterable[JobStatusHook],
) -> Any:
    own_hooks, first_begun = tuple(hooks), clock()
    last: Transaction | None = None

    def attempt() -> Any:
        nonlocal last
        with block(spark, own_hooks, *terms, first_begun=first_begun) as last:
            result = function(last)
            _require_run(result, last)
            return result

    def may_repeat(error: BaseException) -> bool:
        # A function may commit by itself, and meet a conflict elsewhere afterwards: its rows would come twice.
        return _is_conflict(error) and (last is None or last.state is not TransactionState.COMPLETED)

    retrying = Retrying(
        retry=retry_if_exception(may_repeat),
        stop=stop_after_attempt(attempts),
        wait=wait_random_exponential(multiplier=_PAUSE, max=_LONGEST_PAUSE),
        reraise=True,
    )
    return retrying(attempt)


def _is_conflict(error: BaseException) -> bool:
    """Whether it is a conflict, also one that a task has met on an executor: PySpark raises that as text."""
    return isinstance(error, (WriteConflictError, WoundedError)) or _IN_A_TASK in str(error)


def _require_plain(function: Callable[..., Any]) -> None:
    """Refuse a function that returns before its statements have run: they would be outside the transaction."""
    later = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_later(code) for code in (function, type(function).__call__) for is_later in later):
        raise _runs_later(function)


def _require_run(result: Any, transaction: Transaction) -> None:
    """Refuse a coroutine or a generator as a result, but for a generator of what the function has read."""
    if inspect.isgenerator(result) and transaction.has_worked:
        return
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()  # Python would warn of a coroutine that was never awaited.
    elif not inspect.isasyncgen(result):
        return
    raise _runs_later(result)


def _runs_later(code: Any) -> ConfigurationError:
    return ConfigurationError(
        f"{getattr(code, '__name__', code)} is a coroutine or a generator: its statements would run after the "
        "transaction has ended.",
        hint="Give a plain function, which runs its statements before it returns.",
    )


def _takes_transaction(function: Callable[..., Any]) -> bool:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return any(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)
