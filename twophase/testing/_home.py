"""State that the chaos catalog and its participants share: the store, the faults, the declared capabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import ClassVar

from twophase import failpoints
from twophase.catalog import Environment, SupportsGroupPublish
from twophase.errors import CatalogError, ConfigurationError, DatabaseNotExistError
from twophase.model import Capabilities, Level, ObjectPath, Purpose
from twophase.testing._store import Document, FileStore, MemoryStore, Store
from twophase.testing.faults import Faults

#: Steps of the protocol; the other steps (``create_table``, ...) have no failpoints, only faults.
STEPS = ("begin", "write", "prepare", "publish", "publish_group", "outcome", "abort", "finish", "compensate")

POINTS = {name: failpoints.Failpoint(f"chaos.{name}") for name in STEPS}


class ChaosHome(SupportsGroupPublish):
    """The part of a chaos catalog that its participants use; :class:`~twophase.testing.ChaosCatalog` is the catalog."""

    known_options: ClassVar[Mapping[str, str]] = {
        "store": "name of the store inside this process, shared by all catalogs that name it (default: the catalog's)",
        "file": "keep the store in this JSON file instead, so that another process sees it",
        "directory": "write tables that Spark reads to Parquet files below this directory",
        "faults": "script of faults: step=action[@n], separated by commas",
        "seed": "a number: fail at random, repeatably",
        "rate": "probability of a random fault (default 0.1)",
        "purposes": "purposes on offer, separated by commas (default: all)",
        "group_publish": "false: publish each table on its own",
        "compensate": "false: a publish cannot be undone",
        "password": "never used; a secret that must not leak",
    }

    def __init__(
        self, name: str, options: Mapping[str, str] | None = None, environment: Environment | None = None
    ) -> None:
        super().__init__(name, options or {}, environment or Environment())
        if unknown := sorted(set(self.options) - set(self.known_options)):
            raise ConfigurationError(
                f"Catalog {name} has no option {unknown[0]!r}.", hint="Known: " + ", ".join(self.known_options) + "."
            )
        self.store: Store = self._open_store()
        self.directory = self.options.get("directory")
        self.faults = self._faults()
        self._capabilities = self._declared()

    def _open_store(self) -> Store:
        if file := self.options.get("file"):
            return FileStore(file)
        return MemoryStore.named(self.options.get("store", self.name))

    def _faults(self) -> Faults:
        seed = self.options.get("seed")
        try:
            return Faults(
                self.options.get("faults", ""),
                seed=None if seed is None else int(seed),
                rate=float(self.options.get("rate", "0.1")),
            )
        except ValueError:
            raise ConfigurationError(f"Catalog {self.name}: seed and rate are numbers.") from None

    def _declared(self) -> Capabilities:
        names = self.options.get("purposes")
        try:
            purposes = Purpose if names is None else [Purpose(n.strip()) for n in names.split(",") if n.strip()]
        except ValueError as error:
            raise ConfigurationError(f"Catalog {self.name}: {error}.") from None
        return Capabilities(
            purposes=frozenset(purposes),
            partitioning=frozenset({"identity"}),
            alter_database=True,
            rename_table=True,
            alter_table=True,
            read=self.directory is not None,
            group_publish=self.options.get("group_publish", "true") != "false",
            compensate=self.options.get("compensate", "true") != "false",
            max_level=Level.ATOMIC,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Run one step, which a failpoint or :attr:`faults` may make fail.

        Parameters
        ----------
        name : str
            One of the steps of :attr:`faults`.
        """
        with failpoints.step(POINTS[name]) if name in POINTS else nullcontext(), self.faults.step(name):
            yield

    # -- what is stored -------------------------------------------------------------------------------------------

    def database_of(self, document: Document, database: str) -> Document:
        try:
            found: Document = document["databases"][database]
        except KeyError:
            raise DatabaseNotExistError.of(database, self.name) from None
        return found

    def tables_of(self, document: Document, path: ObjectPath) -> Document:
        """Return the tables of a path's database, by name.

        Parameters
        ----------
        document : dict
            The entire store, as read or as being changed.
        path : ObjectPath
            Only its database is used.
        """
        if len(path.namespace) != 1:
            raise CatalogError(f"A table of catalog {self.name} has a name of the form database.table.", path=path)
        return self.database_of(document, path.namespace[0])["tables"]
