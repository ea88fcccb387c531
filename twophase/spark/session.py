"""Attaching twophase to a Spark session, and transactions over several statements."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from twophase.catalog import Catalog
from twophase.coordinator import Coordinator, Recovered
from twophase.errors import AtomicityNotSupportedError, ConfigurationError
from twophase.hooks.hook import JobStatusHook, checked
from twophase.model import ObjectPath
from twophase.redaction import logger
from twophase.spark import live, options, shared
from twophase.spark.environment import SessionEnvironment
from twophase.spark.jvm import private
from twophase.spark.jvm.bridge import Jvm
from twophase.spark.jvm.remembering import remembering
from twophase.spark.jvm.statements import NameReader
from twophase.spark.listener import JobTracker
from twophase.spark.native.catalog import CATALOG_ANSWERS, NativeCatalog
from twophase.spark.native.table import TABLE_ANSWERS
from twophase.spark.options import Options
from twophase.spark.refresh import Kept, Refresher
from twophase.spark.routing import doors
from twophase.timeline import Timeline
from twophase.transactions import Transaction

log = logger("twophase.spark")

_attached: dict[str, Handle] = {}
_lock = threading.RLock()


def attach(spark: Any = None, hooks: Iterable[JobStatusHook] = ()) -> Handle:
    """Make the statements of a Spark session all-or-nothing. Harmless to repeat; costs no Spark job.

    Every catalog configured as ``spark.sql.catalog.<name> = twophase.<kind>`` (or ``package.module:Class``) becomes a
    native catalog of the session, and a Hive catalog over the session's own metastore serves unprefixed names. Dead
    transactions of this application are carried to their end. Called in Python's main thread, it lets a SIGTERM roll
    the running statements back before it takes effect; elsewhere Python forbids that.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession, optional
        A classic session; when None the active one, else the application's.
    hooks : iterable of JobStatusHook
        Told of every statement of this session; added to earlier ones when it is attached already.

    Returns
    -------
    Handle

    Raises
    ------
    ConfigurationError
        A wrong option, catalog kind or Spark version, or a catalog with the name of a database; nothing was changed.
    TimelineError
        The timeline cannot be used; nothing was changed.
    """
    spark = spark if spark is not None else _active_session()
    hooks = checked(hooks)
    jvm = Jvm(spark)
    with _lock:
        _forget_stopped()
        key = jvm.session_id()
        handle = _attached.get(key)
        if handle is None:
            private.check(spark)
            settings = options.beside_databases(options.read(jvm.settings()), jvm.is_database)
            handle = Handle(jvm, settings, hooks)
            handle.start()
            _attached[key] = handle
        else:
            handle.add_hooks(hooks)
            shared.watch_signals(handle)
        return handle


def handle_of(spark: Any) -> Handle | None:
    """The handle of an attached session; None for one that is not attached."""
    if not hasattr(spark, "_jsparkSession") or not _attached:
        return None
    return _attached.get(Jvm(spark).session_id())


class Handle:
    """An attached session.

    Attributes
    ----------
    spark : pyspark.sql.SparkSession
    session_catalog : str or None
        Name of the catalog that serves unprefixed names.
    policy : str
        ``required`` or ``preferred``.
    hooks : tuple of JobStatusHook
    tracker : JobTracker
        Follows the jobs of statements.
    environment : SessionEnvironment
    """

    def __init__(self, jvm: Jvm, settings: Options, hooks: Iterable[JobStatusHook]) -> None:
        self.jvm = jvm
        self.spark = jvm.spark
        self.session_catalog = settings.session_catalog
        self.policy = settings.policy
        self.hooks = tuple(hooks)
        self._settings = settings
        self._key = jvm.session_id()
        self._refresher = Refresher(self)
        self._coordinator: Coordinator | None = None
        self._catalogs: dict[str, Catalog] = {}
        self._started = False
        self.environment = SessionEnvironment(jvm, settings, self._has_ended)
        self._timeline_url = settings.timeline or self._default_timeline()
        options.warn_of_passwords(settings)

    def __repr__(self) -> str:
        return f"<Handle of {', '.join(sorted(self._catalogs)) or 'no catalogs'}>"

    # -- what it gives -------------------------------------------------------------------------------------------

    @property
    def catalogs(self) -> Mapping[str, Catalog]:
        """All twophase catalogs of the session, by name."""
        return dict(self._catalogs)

    def catalog(self, name: str) -> Catalog:
        """A twophase catalog of the session.

        Raises
        ------
        ConfigurationError
            There is none of this name.
        """
        if name not in self._catalogs:
            raise ConfigurationError(
                f"There is no twophase catalog {name!r} in this session.", hint=options.nearest(name, self._catalogs)
            )
        return self._catalogs[name]

    def name_of(self, catalog: Catalog) -> str:
        """The name of a catalog in this session; that on the timeline may be another one."""
        return next((name for name, found in self._catalogs.items() if found is catalog), catalog.name)

    def recorded_catalog(self, name: str) -> Catalog:
        """The catalog that is meant by a name on the timeline.

        Raises
        ------
        ConfigurationError
            There is none of this name in this session.
        """
        return next((found for found in self._catalogs.values() if found.name == name), None) or self.catalog(name)

    @property
    def coordinator(self) -> Coordinator:
        """Runs this session's transactions; made, with the default timeline, when first needed."""
        with _lock:
            if self._coordinator is None:
                self._coordinator = self._new_coordinator()
            return self._coordinator

    @property
    def timeline(self) -> Timeline:
        """The durable record of transactions."""
        return self.coordinator.timeline

    def recover(self, *, own_only: bool = False, transaction_id: str | None = None) -> list[Recovered]:
        """Carry dead transactions to their end; see :meth:`twophase.coordinator.Coordinator.recover`."""
        return self.coordinator.recover(own_only=own_only, transaction_id=transaction_id)

    def current_transaction(self) -> Transaction | None:
        """The ``with twophase.transaction(spark)`` around this thread's statement, if any."""
        found = live.current(self)
        return found.transaction if found else None

    def add_hooks(self, hooks: Iterable[JobStatusHook]) -> None:
        """Tell these hooks too, of statements from now on."""
        self.hooks = (*self.hooks, *(hook for hook in hooks if hook not in self.hooks))

    # -- for the layers around it --------------------------------------------------------------------------------

    def refuse_in_transaction(self, statement: str, path: object) -> None:
        """Refuse what would take effect at once, inside a transaction; warn under ``preferred``.

        Raises
        ------
        AtomicityNotSupportedError
        """
        found = live.current(self)
        if found is None:
            return
        if self.policy == "preferred":
            log.warning("%s takes effect at once, inside transaction %s.", statement, found.transaction.id)
            return
        raise AtomicityNotSupportedError(
            f"{statement} takes effect at once and cannot be part of transaction {found.transaction.id}.",
            path=path,
            hint=f"Run it before or after the transaction, or {options.PREFER}.",
        )

    def cached(self, catalog: Catalog, path: ObjectPath) -> list[tuple[str, Kept]]:
        """Under which names a table is cached, and how."""
        return self._refresher.cached(catalog, path)

    def set_caches_aside(self, catalog: Catalog, path: ObjectPath) -> list[tuple[str, Kept]]:
        """Forget what is cached of a table that a transaction writes; the names, and how each is cached."""
        return self._refresher.set_aside(catalog, path)

    def refresh(
        self, catalog: Catalog, path: ObjectPath, *, cached: Iterable[tuple[str, Kept]] = (), replaced: bool = False
    ) -> None:
        """Make Spark forget what it kept of a table, in every attached session, and cache again what was cached."""
        self._refresher.refresh(catalog, path, cached, replaced=replaced)

    def follow(self, database: str, name: str) -> None:
        """Lead what this session made of a session table to the rows that another attached one has written."""
        self._refresher.follow(database, name)

    def fall_behind(self) -> None:
        """A session that is not attached has written something."""
        self._refresher.fall_behind()

    def catch_up(self) -> None:
        """Before a read: see what sessions that are not attached have written."""
        self._refresher.catch_up()

    # -- coming and going ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Register everything; what fails leaves the session as it was."""
        try:
            self._make_catalogs()
            self._refuse_taken_names()
            self.tracker: JobTracker = shared.acquire(self)
            self._started = True
            self._recover_own()
            self._register()
        except BaseException:
            self._release()
            raise

    def detach(self) -> None:
        """Put the session back as it was before :func:`attach`. Idempotent.

        Where Spark itself has been stopped, a transaction of this session that is still open is rolled back: its block
        then ends with :class:`~twophase.errors.TransactionAborted`.

        Raises
        ------
        AtomicityNotSupportedError
            While a block of ``with twophase.transaction(spark)`` has not ended, on whatever thread: nothing would
            protect the rest of it, or it is being published. The session stays attached.
        """
        with _lock:
            if _attached.get(self._key) is not self:
                return
            if self.jvm.is_alive():
                self._refuse_in_blocks()
                self._unregister()
            _attached.pop(self._key, None)
        self._release()

    def _refuse_in_blocks(self) -> None:
        if not (blocks := live.open_blocks(self)):
            return
        raise AtomicityNotSupportedError(
            f"Transaction {', '.join(blocks)} has not ended: detach() would leave the rest of its block unprotected, "
            "or end while it is published. The session stays attached, and the transaction goes on.",
            transaction_id=blocks[0],
            hint="Call it after the block.",
        )

    def _make_catalogs(self) -> None:
        for item in self._settings.catalogs:
            self._catalogs[item.name] = options.made(item, self.environment)

    def _refuse_taken_names(self) -> None:
        taken = self.jvm.catalogs()
        for name in self._catalogs:
            if taken.contains(name):
                raise ConfigurationError(
                    f"Two catalogs have one name: the session has loaded another catalog {name} already.",
                    hint="Give the twophase catalog another name.",
                )

    def _register(self) -> None:
        registered = self.jvm.catalogs()
        for name, catalog in self._catalogs.items():
            native = NativeCatalog(self, catalog)
            registered.put(name, remembering(self.jvm, native, CATALOG_ANSWERS, TABLE_ANSWERS))
        doors.install(self)

    def _unregister(self) -> None:
        doors.uninstall(self)
        if NameReader(self.jvm).current_catalog() in self._catalogs:
            self.jvm.use_session_catalog()
        registered = self.jvm.catalogs()
        for name in self._catalogs:
            registered.remove(name)

    def _release(self) -> None:
        if self._started:
            self._started = False
            shared.release(self)
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None
        for catalog in self._catalogs.values():
            catalog.close()

    def sisters(self) -> list[Handle]:
        """The other attached sessions of this application."""
        with _lock:
            return [h for h in _attached.values() if h is not self and h.spark.sparkContext is self.spark.sparkContext]

    # -- the coordinator -----------------------------------------------------------------------------------------

    def _default_timeline(self) -> str:
        return f"sqlite:///{options.default_timeline(self.environment.warehouse)}"

    def _new_coordinator(self) -> Coordinator:
        application = self.spark.sparkContext.appName
        return Coordinator(
            Timeline(self._timeline_url, password=self._settings.timeline_password),
            self.recorded_catalog,
            name=self._settings.coordinator or application,
            lease_seconds=self._settings.lease,
            wait_seconds=self._settings.wait,
            retention_seconds=max(self._settings.timeline_retention, self._settings.retention),
            application=application,
        )

    def _has_ended(self, transaction_id: str) -> bool | None:
        record = self.coordinator.timeline.transaction(transaction_id)
        if record is not None:
            return not record.is_open
        return True if self.coordinator.timeline.how_ended(transaction_id) else None

    def _recover_own(self) -> None:
        """Recover what an earlier run of this application left, and what others decided and died of.

        The default timeline is not made for that.
        """
        if self._settings.timeline is None and not options.default_timeline(self.environment.warehouse).exists():
            return
        for recovered in (*self.coordinator.recover(own_only=True), *self.coordinator.carry_on()):
            log.warning("At attach: %s", recovered)
        self.coordinator.prune(limit=1)


@contextmanager
def transaction(spark: Any = None, hooks: Iterable[JobStatusHook] = ()) -> Iterator[Transaction]:
    """Group statements: all are published at the end of the block, or none.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession, optional
        An attached session; the active one when None.
    hooks : iterable of JobStatusHook
        Told of the statements in the block, beside those of the session.

    Yields
    ------
    Transaction
        ``id``, ``state``, and after the block ``level``.

    Raises
    ------
    ConfigurationError
        The session is not attached.
    TransactionAborted
        A block inside another one; or, at the end of the block, all was rolled back: because of a refusal, or because a
        statement was still being written in another thread.
    TransactionInDoubt
        At the end of the block: it could not be learned whether it was published.

    Examples
    --------
    >>> with twophase.transaction(spark) as tx:
    ...     spark.sql("CREATE TABLE a AS SELECT 1 AS id")
    ...     spark.sql("INSERT INTO b SELECT * FROM a")
    """
    spark = spark if spark is not None else _active_session()
    handle = handle_of(spark)
    if handle is None:
        raise ConfigurationError("This Spark session is not attached.", hint="Call twophase.attach(spark) first.")
    with live.transaction(handle, hooks) as tx:
        yield tx


def cli_session(conf: Mapping[str, str]) -> Handle:
    """A Spark session of its own for the command line, attached.

    With Hive support, as Spark's own shells have it: tables in memory would be gone with the command.

    Parameters
    ----------
    conf : mapping of str to str
        Spark configuration, ``spark.master`` included where it is not the local machine.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("twophase")
    defaults = {
        "spark.master": "local[*]",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.catalogImplementation": "hive",
    }
    for key, value in {**defaults, **conf}.items():
        builder = builder.config(key, value)
    return attach(builder.getOrCreate())


def _active_session() -> Any:
    """The thread's active session, else the application's."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        raise ConfigurationError(
            "There is no active Spark session.", hint="Pass one: twophase.attach(spark)."
        ) from None


def _forget_stopped() -> None:
    """Sessions whose application was stopped need no putting back."""
    for handle in [h for h in _attached.values() if not h.jvm.is_alive()]:
        handle.detach()
