"""The handle of an attached session: the user's view of it, and how a session is attached and detached."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from twophase.catalog import Catalog
from twophase.errors import AtomicityNotSupportedError, ConfigurationError
from twophase.hooks.hook import JobStatusHook
from twophase.model import Isolation
from twophase.redaction import logger
from twophase.spark import active, begun, options, shared
from twophase.spark.attached import AttachedSession, SessionCatalogs, SessionState
from twophase.spark.connector.catalog import CATALOG_ANSWERS, NativeCatalog
from twophase.spark.connector.table import TABLE_ANSWERS
from twophase.spark.environment import SessionEnvironment
from twophase.spark.execution.listener import JobTracker
from twophase.spark.invalidation import CacheInvalidation
from twophase.spark.jvm import private, session_state
from twophase.spark.jvm.callback_cache import cached_callbacks
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.statements import NameReader
from twophase.spark.options import Options
from twophase.spark.routing import patches
from twophase.spark.session_coordinator import SessionCoordinator
from twophase.timeline.timeline import Timeline
from twophase.transactions.coordinator import Coordinator, Recovered
from twophase.transactions.transaction import Transaction

log = logger("twophase.spark")

#: Why a transaction from BEGIN is rolled back.
_DETACHED = "its session was detached"

#: Spark's setting to bind the columns of Parquet files by the field ids of a schema that has them.
_READ_BY_IDS = "spark.sql.parquet.fieldId.read.enabled"

_attached: dict[str, Handle] = {}
_lock = threading.RLock()


def attached(jvm: Jvm, hooks: Iterable[JobStatusHook], *, recovers: bool = True) -> Handle:
    """Attach a session, or add hooks to it; see :func:`twophase.attach`."""
    with _lock:
        _forget_stopped()
        _forget_children()
        handle = _attached.get(jvm.session_id())
        if handle is not None and handle.parent is not None:
            handle = _for_itself(handle, jvm)
        if handle is None:
            private.check(jvm.spark)
            settings = _settings(jvm)
            options.warn_of_passwords(settings)
            handle = Handle(jvm, settings, hooks)
            handle.start(recovers=recovers)
        else:
            handle.add_hooks(hooks)
            shared.watch_signals(handle.session)
        return handle


def _settings(jvm: Jvm) -> Options:
    return options.beside_databases(
        options.read(session_state.settings(jvm)), functools.partial(session_state.is_database, jvm)
    )


def _for_itself(child: Handle, jvm: Jvm) -> Handle | None:
    """Attach a child for its user, too: it gets settings of its own, and stays when its parent is detached."""
    if _settings(jvm) != child.settings:
        child.detach()
        return None
    if not child.is_in_batch:  # The session of a query ends with the query.
        child.stand_alone()
    return child


def handle_of(spark: Any) -> Handle | None:
    """The handle of an attached session; None for one that is not attached."""
    if not hasattr(spark, "_jsparkSession") or not _attached:
        return None
    return _attached.get(Jvm(spark).session_id())


class Handle:
    """The handle of an attached session.

    Attributes
    ----------
    spark : pyspark.sql.SparkSession
    session_catalog : str or None
        Name of the catalog that serves unprefixed names.
    environment : SessionEnvironment
    settings : Options
        Settings of the session's configuration; for a child, of its parent's.
    parent : Handle or None
        The attached session from which this one was created, directly or indirectly: its timeline, hooks and settings
        serve this one, too.
    session : AttachedSession
        The part of it that the layers below use, once it has been attached.
    """

    def __init__(
        self,
        jvm: Jvm,
        settings: Options,
        hooks: Iterable[JobStatusHook] = (),
        *,
        parent: Handle | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.jvm = jvm
        self.spark = jvm.spark
        self.session_catalog = settings.session_catalog
        self.settings = settings
        self.parent = parent
        self.environment = SessionEnvironment(
            jvm, settings, lambda transaction: self._coordinator.has_ended(transaction)
        )
        self._key = jvm.session_id()
        shared = parent._state if parent else None
        self._state: SessionState = SessionState(
            settings.policy, Isolation(settings.isolation), settings.timeout, hooks, shared
        )
        self._catalogs = SessionCatalogs(settings.session_catalog)
        self._coordinator: SessionCoordinator = SessionCoordinator(
            jvm.spark, settings, self._catalogs, self.environment.warehouse, parent._coordinator if parent else None
        )
        self._has_joined = False
        self._reads_by_ids = False
        self._is_over = is_over
        #: Running calls of ``foreachBatch`` in it.
        self._batches = 0

    def __repr__(self) -> str:
        return f"<Handle of {', '.join(sorted(self._catalogs)) or 'no catalogs'}>"

    # -- accessors -----------------------------------------------------------------------------------------------

    @property
    def catalogs(self) -> Mapping[str, Catalog]:
        """All twophase catalogs of the session, by name."""
        return dict(self._catalogs)

    def catalog(self, name: str) -> Catalog:
        """A twophase catalog of the session.

        Raises
        ------
        ConfigurationError
            There is no catalog of this name.
        """
        return self._catalogs.named(name)

    @property
    def policy(self) -> str:
        """``required`` or ``preferred``."""
        return self._state.policy

    @policy.setter
    def policy(self, policy: str) -> None:
        self._state.policy = policy

    @property
    def hooks(self) -> tuple[JobStatusHook, ...]:
        """The hooks of its parent, and its own."""
        return self._state.hooks

    @hooks.setter
    def hooks(self, hooks: Iterable[JobStatusHook]) -> None:
        self._state.set_hooks(hooks)

    def add_hooks(self, hooks: Iterable[JobStatusHook]) -> None:
        """Notify these hooks, too, from the next statement on."""
        self._state.add_hooks(hooks)

    @property
    def coordinator(self) -> Coordinator:
        """Runs this session's transactions; opened at first use, with the default timeline."""
        return self._coordinator.get()

    @property
    def timeline(self) -> Timeline:
        """The durable record of transactions."""
        return self.coordinator.timeline

    def recover(self, *, own_only: bool = False, transaction_id: str | None = None) -> list[Recovered]:
        """Recover dead transactions; see :meth:`twophase.transactions.coordinator.Coordinator.recover`."""
        return self.coordinator.recover(own_only=own_only, transaction_id=transaction_id)

    def current_transaction(self) -> Transaction | None:
        """The ``with twophase.transaction(spark)`` around this thread's statement, if any."""
        return active.current_transaction(self.session)

    # -- attaching and detaching ---------------------------------------------------------------------------------

    def start(self, *, recovers: bool = True) -> None:
        """Register everything, and recover dead transactions; a failure leaves the session unchanged."""
        try:
            for item in self.settings.catalogs:
                self._catalogs.add(item.name, options.made(item, self.environment))
            self._refuse_taken_names()
            self.session = shared.join(self.jvm, self._attached_session)
            self._has_joined = True
            if self.parent is None and recovers:
                self._coordinator.recover_own()
            self._register()
            _attached[self._key] = self
        except BaseException:
            self._release()
            raise

    def _attached_session(self, tracker: JobTracker) -> AttachedSession:
        catalogs = self._catalogs
        caches = CacheInvalidation(self.jvm, catalogs.session_name, catalogs.name_of, self._sibling_caches)
        return AttachedSession(self.jvm, catalogs, self._state, tracker, caches, self._coordinator.get)

    def detach(self) -> None:
        """Restore the session to its state before :func:`attach`, and those created from it. Idempotent.

        A running call of ``foreachBatch`` ends in an attached session; the next one runs without twophase. If Spark
        itself has been stopped, an open transaction of this session is rolled back: its block then ends with
        :class:`~twophase.errors.TransactionAborted`. So is one from BEGIN or :func:`twophase.begin` in any case.

        Raises
        ------
        AtomicityNotSupportedError
            While a block of ``with twophase.transaction(spark)`` has not ended, on any thread: the rest of it would not
            be protected, or it is being published. The session stays attached.
        """
        with _lock:
            if not self.is_attached:
                return
            is_alive = self.jvm.is_alive()
            going = [self, *(child for child in self._children() if not (is_alive and child.is_in_batch))]
            begun.leave_all_open(lambda session: any(session is handle.session for handle in going), _DETACHED)
            if is_alive:
                _refuse_in_blocks(going)
                for handle in going:
                    handle._unregister()
            for handle in going:
                del _attached[handle._key]
        for handle in reversed(going):
            handle._release()

    @property
    def is_attached(self) -> bool:
        """Whether statements of the session are currently routed."""
        return _attached.get(self._key) is self

    # -- sessions created from it --------------------------------------------------------------------------------

    @property
    def is_in_batch(self) -> bool:
        """Whether a streaming query is currently calling its function for a batch in this session."""
        return self._batches > 0

    def adopt(self, spark: Any, is_over: Callable[[], bool]) -> Handle | None:
        """Attach a session created from this one, as a part of it. Idempotent.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
            A Python object of its own: it is kept for as long as the session is attached.
        is_over : callable
            Whether that session can no longer be used: it is then detached when another one is attached.

        Returns
        -------
        Handle or None
            None if this session is no longer attached.
        """
        jvm = Jvm(spark)
        with _lock:
            if not self.is_attached:
                return None
            if (known := _attached.get(jvm.session_id())) is not None:
                return known
            _forget_children()
            parent = self.parent or self
            child = Handle(jvm, parent.settings, parent=parent, is_over=is_over)
            child.start()
            return child

    @contextmanager
    def batch(self, spark: Any, is_over: Callable[[], bool]) -> Iterator[None]:
        """Run a call of ``foreachBatch``'s function in a session of its own: see :meth:`adopt`."""
        with _lock:
            child = self.adopt(spark, is_over)
            if child is not None:
                child._batches += 1
        try:
            yield
        finally:
            if child is not None:
                child._end_batch()

    def _end_batch(self) -> None:
        with _lock:
            self._batches -= 1
            parent = self.parent
            if parent is None or parent.is_attached or self._batches:
                return
            self._detach_quietly()
            parent._release()

    def stand_alone(self) -> None:
        """Attach it for itself, with the settings that it had from its parent."""
        with _lock:
            self._state.stand_alone()
            self._coordinator.stand_alone()
            self.parent = None

    def forget(self) -> None:
        """Detach it if it can no longer be used."""
        with suppress(Exception):  # Spark may have been stopped.
            if not self.is_in_batch and self._is_over() and not active.open_blocks(self.session):
                self._detach_quietly()

    def _detach_quietly(self) -> None:
        """Detach and log errors: no call of the user has asked for it."""
        try:
            self.detach()
        except Exception:
            log.warning("A session could not be detached with the one that it came of.", exc_info=True)

    def _children(self) -> list[Handle]:
        return [handle for handle in _attached.values() if handle.parent is self]

    def _sibling_caches(self) -> list[CacheInvalidation]:
        """The caches of the other attached sessions of this application."""
        with _lock:
            siblings = [handle for handle in _attached.values() if handle is not self]
            return [h.session.caches for h in siblings if h.spark.sparkContext is self.spark.sparkContext]

    # -- registering ---------------------------------------------------------------------------------------------

    def _refuse_taken_names(self) -> None:
        taken = session_state.catalogs(self.jvm)
        for name in self._catalogs:
            if taken.contains(name):
                raise ConfigurationError(
                    f"Two catalogs have one name: the session has loaded another catalog {name} already.",
                    hint="Give the twophase catalog another name.",
                )

    def _register(self) -> None:
        registered = session_state.catalogs(self.jvm)
        for name, catalog in self._catalogs.items():
            native = NativeCatalog(self.session, catalog)
            registered.put(name, cached_callbacks(self.jvm, native, CATALOG_ANSWERS, TABLE_ANSWERS))
        # It changes nothing for schemas without ids.
        self._reads_by_ids = session_state.set_unless_set(self.jvm, _READ_BY_IDS, "true")
        self._state.reads_paths_by_name |= self._reads_by_ids
        patches.install(self.session, handle_of)

    def _unregister(self) -> None:
        patches.uninstall(self.session)
        if self._reads_by_ids:
            self._reads_by_ids = False
            self.spark.conf.unset(_READ_BY_IDS)
        if NameReader(self.jvm).current_catalog() in self._catalogs:
            session_state.use_session_catalog(self.jvm)
        registered = session_state.catalogs(self.jvm)
        for name in self._catalogs:
            registered.remove(name)

    def _release(self) -> None:
        if self._children():
            return  # A batch runs in a child: this is repeated at its end.
        if self._has_joined:
            self._has_joined = False
            shared.release(self.session)
        self._coordinator.close()
        for catalog in self._catalogs.values():
            catalog.close()


def _refuse_in_blocks(handles: Iterable[Handle]) -> None:
    blocks = [transaction_id for handle in handles for transaction_id in active.open_blocks(handle.session)]
    if not blocks:
        return
    raise AtomicityNotSupportedError(
        f"Transaction {', '.join(blocks)} has not ended: detach() would leave the rest of its block unprotected, "
        "or end while it is published. The session stays attached, and the transaction goes on.",
        transaction_id=blocks[0],
        hint="Call it after the block.",
    )


def _forget_children() -> None:
    """Detach sessions that were created from others and can no longer be used."""
    for handle in [h for h in _attached.values() if h.parent is not None]:
        handle.forget()


def _forget_stopped() -> None:
    """Detach sessions whose application was stopped, which need no restoring."""
    for handle in [h for h in _attached.values() if not h.jvm.is_alive()]:
        handle.detach()
