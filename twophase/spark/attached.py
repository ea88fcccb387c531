"""An attached session as seen by the layers below the wiring; nothing in here attaches or detaches it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from twophase.catalog import Catalog
from twophase.config.settings import nearest
from twophase.errors import ConfigurationError
from twophase.hooks.hook import JobStatusHook
from twophase.model import Isolation
from twophase.spark.execution.listener import JobTracker
from twophase.spark.invalidation import CacheInvalidation
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.rules import PlanRules
from twophase.transactions.coordinator import Coordinator


class SessionCatalogs(Mapping[str, Catalog]):
    """The twophase catalogs of one session, by their names in the session.

    Parameters
    ----------
    session_name : str or None
        Name of the catalog that serves unprefixed names.
    """

    def __init__(self, session_name: str | None) -> None:
        self.session_name = session_name
        self._catalogs: dict[str, Catalog] = {}

    def __getitem__(self, name: str) -> Catalog:
        return self._catalogs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._catalogs)

    def __len__(self) -> int:
        return len(self._catalogs)

    def add(self, name: str, catalog: Catalog) -> None:
        """Add a catalog while the session is being attached."""
        self._catalogs[name] = catalog

    def named(self, name: str) -> Catalog:
        """The catalog with a name in this session.

        Raises
        ------
        ConfigurationError
            There is no catalog of this name.
        """
        if name not in self._catalogs:
            raise ConfigurationError(
                f"There is no twophase catalog {name!r} in this session.", hint=nearest(name, self._catalogs)
            )
        return self._catalogs[name]

    def recorded(self, name: str) -> Catalog:
        """The catalog that a name on the timeline refers to.

        Raises
        ------
        ConfigurationError
            There is no catalog of this name in this session.
        """
        recorded = (catalog for catalog in self._catalogs.values() if catalog.name == name)
        return next(recorded, None) or self.named(name)

    def name_of(self, catalog: Catalog) -> str:
        """The name of a catalog in this session; its name on the timeline may differ."""
        return next((name for name, known in self._catalogs.items() if known is catalog), catalog.name)

    @property
    def of_session(self) -> Catalog | None:
        """The catalog that serves unprefixed names."""
        return self._catalogs.get(self.session_name or "")


class SessionState:
    """The mutable part of an attached session: its policy, its hooks, and the rules on its plans.

    Parameters
    ----------
    policy : str
        ``required`` or ``preferred``.
    isolation : Isolation
        The isolation level of its blocks.
    timeout : float or None
        How many seconds they may last.
    hooks : iterable of JobStatusHook
    parent : SessionState or None
        State of the session from which this one was created: its hooks serve this one, too.
    """

    def __init__(
        self,
        policy: str,
        isolation: Isolation,
        timeout: float | None,
        hooks: Iterable[JobStatusHook] = (),
        parent: SessionState | None = None,
    ) -> None:
        self.policy = policy
        self.isolation = isolation
        self.timeout = timeout
        #: Whether only twophase, not the user, lets the session read Parquet files by field ids: tables have them.
        self.reads_paths_by_name: bool = parent is not None and parent.reads_paths_by_name
        #: Set while its statements are routed.
        self.rules: PlanRules | None = None
        self._own_hooks = tuple(hooks)
        self._parent = parent

    @property
    def hooks(self) -> tuple[JobStatusHook, ...]:
        """The hooks of its parent, and its own."""
        return (*self._parent.hooks, *self._own_hooks) if self._parent else self._own_hooks

    def set_hooks(self, hooks: Iterable[JobStatusHook]) -> None:
        """Replace its own hooks."""
        self._own_hooks = tuple(hooks)

    def add_hooks(self, hooks: Iterable[JobStatusHook]) -> None:
        """Notify these hooks, too, from the next statement on."""
        self._own_hooks = (*self._own_hooks, *(hook for hook in hooks if hook not in self.hooks))

    def stand_alone(self) -> None:
        """Keep the parent's hooks, and detach from the parent."""
        self._own_hooks, self._parent = self.hooks, None


@dataclass(frozen=True, eq=False)
class AttachedSession:
    """An attached session.

    Attributes
    ----------
    jvm : Jvm
    catalogs : SessionCatalogs
    state : SessionState
    tracker : JobTracker
        Follows the jobs of statements.
    caches : CacheInvalidation
    get_coordinator : callable
        Returns the coordinator of its transactions.
    """

    jvm: Jvm
    catalogs: SessionCatalogs
    state: SessionState
    tracker: JobTracker
    caches: CacheInvalidation
    get_coordinator: Callable[[], Coordinator]

    @property
    def spark(self) -> Any:
        """The PySpark session."""
        return self.jvm.spark

    @property
    def policy(self) -> str:
        """``required`` or ``preferred``."""
        return self.state.policy

    @property
    def isolation(self) -> Isolation:
        """The isolation level of its blocks, unless they choose another one."""
        return self.state.isolation

    @property
    def timeout(self) -> float | None:
        """Longest time of its blocks in seconds, unless they choose another one."""
        return self.state.timeout

    @property
    def hooks(self) -> tuple[JobStatusHook, ...]:
        """Hooks of its statements, those of its parent first."""
        return self.state.hooks

    @property
    def rules(self) -> PlanRules | None:
        """The rules on its plans, while its statements are routed."""
        return self.state.rules

    @property
    def coordinator(self) -> Coordinator:
        """Runs its transactions; opened at first use, with the default timeline."""
        return self.get_coordinator()
