"""Which participant serves a statement: purpose, what is there, how it is kept, what the options say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from twophase.catalogs.files import normal, refuse_untried
from twophase.catalogs.hive import identity, layout, linking, names
from twophase.catalogs.hive.definitions import (
    PROVIDERS,
    SERDE_PROVIDER,
    complete,
    has_secrets,
    redacted,
    same_layout,
    same_partition_columns,
    to_definition,
)
from twophase.catalogs.hive.metastore import EXTERNAL, MANAGED, VIEW, HiveTable
from twophase.catalogs.hive.participant import CREATE, INSERT, REPLACE, HiveParticipant
from twophase.catalogs.hive.partitions import by_key
from twophase.catalogs.hive.recipe_append import MoveAppend
from twophase.catalogs.hive.recipe_insert import APPEND_PROPERTY, APPENDS, Insert
from twophase.catalogs.hive.recipe_move import MoveInsert
from twophase.catalogs.hive.recipe_partitions import PointerPartitions
from twophase.catalogs.hive.recipe_pointer import PointerAppend, PointerCreate, PointerCreateHidden, PointerSwitch
from twophase.catalogs.hive.recipe_redefine import PointerSwap, PointerUntrack
from twophase.catalogs.hive.recipe_rename import RenameCreate, RenameReplace
from twophase.errors import (
    AtomicityNotSupportedError,
    CatalogError,
    ConfigurationError,
    TableAlreadyExistsError,
    TableNotExistError,
)
from twophase.model import ObjectPath, Purpose, TableDefinition, WriteContext

if TYPE_CHECKING:
    from twophase.catalogs.hive.catalog import HiveCatalog

RENAME = "rename"

_CLASSES: tuple[type[HiveParticipant], ...] = (
    PointerCreate,
    PointerCreateHidden,
    PointerSwitch,
    PointerAppend,
    PointerPartitions,
    PointerUntrack,
    PointerSwap,
    RenameCreate,
    RenameReplace,
    MoveInsert,
    MoveAppend,
    Insert,
)


def participant_class(document: Mapping[str, Any]) -> type[HiveParticipant]:
    """The class that wrote a document.

    Raises
    ------
    CatalogError
        A newer version of twophase wrote it.
    """
    for kind in _CLASSES:
        if kind.__name__ == document.get("class"):
            return kind
    raise CatalogError(f"This version of twophase does not know the recipe {document.get('class')!r}.")


def offer(
    catalog: HiveCatalog, path: ObjectPath, definition: TableDefinition, purpose: Purpose, context: WriteContext
) -> HiveParticipant | None:
    """A participant for a statement, or None where its format is not ours."""
    home = catalog.default_location(path) if len(path.namespace) == 1 else ""
    names.check_path(path, catalog.metastore.longest_name)
    found = catalog.find(path)
    base = context.base
    _check_target(path, found, purpose, base)
    if purpose.inserts:
        wanted = _definition_for_insert(catalog, path, found, base, definition)
    else:
        catalog.check_definition(path, definition)
        wanted = complete(definition, catalog.conf)
    if wanted.provider not in catalog.capabilities.providers or wanted.provider not in PROVIDERS:
        return None
    return _Offer(catalog, path, wanted, purpose, context, found, home).make()


def _check_target(path: ObjectPath, found: HiveTable | None, purpose: Purpose, base: Mapping[str, Any] | None) -> None:
    if found is not None and found.kind == VIEW:
        if purpose.creates and not purpose.replaces:
            raise TableAlreadyExistsError(f"{path} exists already: it is a view.", path=path)
        raise CatalogError(f"{path} is a view, not a table: it cannot be written.", path=path)
    there = found is not None or base is not None
    if there and purpose in (Purpose.CREATE_TABLE_AS, Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS):
        raise TableAlreadyExistsError(f"Table {path} exists already.", path=path)
    if not there and not purpose.creates:
        raise TableNotExistError(f"Table {path} does not exist.", path=path)


def _definition_for_insert(
    catalog: HiveCatalog,
    path: ObjectPath,
    found: HiveTable | None,
    base: Mapping[str, Any] | None,
    rows: TableDefinition,
) -> TableDefinition:
    if base is not None and (found is None or base["effect"] != INSERT):
        wanted = TableDefinition.from_document(base["definition"])
    else:
        assert found is not None
        wanted = to_definition(found)
    if len(rows.schema) not in (0, len(wanted.schema)):
        widths = f"the rows have {len(rows.schema)} columns, the table has {len(wanted.schema)}"
        raise CatalogError(f"{path} was not written: {widths}.", path=path)
    return wanted


class _Offer:
    """One decision, with everything it depends on."""

    def __init__(
        self,
        catalog: HiveCatalog,
        path: ObjectPath,
        wanted: TableDefinition,
        purpose: Purpose,
        context: WriteContext,
        found: HiveTable | None,
        home: str,
    ) -> None:
        self.catalog = catalog
        self.path = path
        self.wanted = wanted
        self.purpose = purpose
        self.context = context
        self.found = found
        self.home = home
        self.base = context.base
        self.places = catalog.places(path)

    def make(self) -> HiveParticipant:
        self._refuse_untried(None if self.found is None else self.found.location, self._fixed_location())
        kind = self._class()
        document = {
            "class": kind.__name__,
            "catalog": self.catalog.name,
            identity.STORE: self.catalog.metastore.identity,
            "path": self.path.to_document(),
            "purpose": self.purpose.value,
            "transaction_id": self.context.transaction_id,
            "ordinal": self.context.ordinal,
            "recipe": kind.recipe,
            "definition": redacted(self.wanted, self.catalog.conf).to_document(),
            "home": self.home,
            "version": self._version(),
            "before": self._before(),
            "effect": self._effect(),
            "inherit": self._inherit(),
            "overwrite": self._scope(),
            "base": None if self.base is None else self.base["version"],
            "first": None if self.base is None else self.base.get("first") or self.base["version"],
            "replaces": self._replaces(),
            "alone": self.context.autocommit,
        }
        if kind is Insert:
            document |= self._append()
        if kind.recipe == RENAME:
            document |= self._places(kind)
        self._refuse_untried(str(document["version"]), str(document.get("target") or ""))
        return kind(self.catalog, document, self.wanted)

    def _refuse_untried(self, *locations: str | None) -> None:
        refuse_untried(self.path, *locations, allowed=self.catalog.environment.allows_untested_storage)

    # -- the document --------------------------------------------------------------------------------------------

    def _replaces(self) -> bool:
        """Whether rows end with the publish: by this statement, or by an earlier one that it takes in."""
        if self.purpose is not Purpose.INSERT_INTO or self.base is None:
            return self.purpose is not Purpose.INSERT_INTO
        return bool(self.base.get("replaces", self.base["purpose"] != Purpose.INSERT_INTO.value))

    def _version(self) -> str:
        return layout.version_of(self.home, self.context.transaction_id, self.context.ordinal)

    def _before(self) -> dict[str, Any] | None:
        if self.base is not None:
            before: dict[str, Any] | None = self.base["before"]
            return before
        if self.found is None:
            return None
        return {
            "location": self.found.location,
            "stamp": self.found.stamp,
            "kind": self.found.kind,
            "tracked": self.found.tracked,
            "definition": redacted(to_definition(self.found), self.catalog.conf).to_document(),
        }

    def _effect(self) -> str:
        if self._before() is None:
            return CREATE
        if self.purpose.inserts:
            return INSERT if self.base is None else str(self.base["effect"])
        return REPLACE

    def _scope(self) -> dict[str, Any] | None:
        if self.purpose is not Purpose.INSERT_OVERWRITE or self.context.overwrite is None:
            return None
        return self.context.overwrite.to_document()

    def _inherit(self) -> str | None:
        """The directory whose files stay: of an INSERT INTO all, of an INSERT OVERWRITE those out of its scope."""
        if not self.purpose.inserts or (self.purpose is Purpose.INSERT_OVERWRITE and not self._partial()):
            return None
        if self.base is not None:
            return str(self.base["version"])
        assert self.found is not None
        return self.found.location

    def _partial(self) -> bool:
        """Whether an INSERT OVERWRITE leaves some partitions alone."""
        scope = self.context.overwrite
        return bool(self.wanted.partition_columns and scope and (scope.dynamic or scope.static_partition))

    def _places(self, kind: type[HiveParticipant]) -> dict[str, Any]:
        """What the recipe ``rename`` needs beside: staging next to where the files end, on one filesystem."""
        target = self._target_location(kind)
        old = () if self.found is None else self.found.partition_columns
        secret = has_secrets(self.wanted, self.catalog.conf)
        late = not self.catalog.metastore.ends_with_driver
        return {
            "target": target,
            "kind": EXTERNAL if self._fixed_location() or self._keeps_external(kind) else MANAGED,
            "hidden": bool(self.wanted.partition_columns or old or (self.found is None and (secret or late))),
            "version": self._version_for_renames(target),
        }

    def _version_for_renames(self, target: str) -> str:
        """Beside the target; for a table whose other partitions lie in versions, beside those."""
        if self.found is not None and self.found.kind == MANAGED and self._owned():
            return self._version()
        return layout.version_beside(target, self.context.transaction_id, self.context.ordinal)

    def _owned(self) -> bool:
        """Whether the table is ours to move: recipe ``pointer``, and not at a place that a SET LOCATION named."""
        assert self.found is not None
        return self.catalog.recipe != RENAME and self.places.is_tables(str(self.found.location))

    def _target_location(self, kind: type[HiveParticipant]) -> str:
        if self._fixed_location():
            return normal(str(self._fixed_location()))
        if self.found is not None and (kind is MoveInsert or self.found.kind == MANAGED):
            return str(self.found.location)
        return self.home

    def _keeps_external(self, kind: type[HiveParticipant]) -> bool:
        return kind is MoveInsert and self.found is not None and self.found.kind == EXTERNAL

    def _fixed_location(self) -> str | None:
        """The user's own LOCATION of a table that is made or replaced."""
        if self.purpose.inserts:
            return str(self.base["target"]) if self.base is not None and self.base.get("kind") == EXTERNAL else None
        return self.wanted.location

    def _append(self) -> dict[str, Any]:
        assert self.found is not None
        adopts = self.base is not None and self.base.get("appends")
        return {
            "appends": self.purpose is Purpose.INSERT_INTO and not self.found.partitioned,
            "append": self._append_mode(),
            "adopts": self.base["version"] if self.base is not None and adopts else None,
            "inherit": None,
        }

    def _append_mode(self) -> str | None:
        assert self.found is not None
        mode = self.found.properties.get(APPEND_PROPERTY, self.catalog.append)
        if mode is None or mode.lower() in APPENDS:
            return mode and mode.lower()
        raise ConfigurationError(
            f"{self.path} was not written: its property {APPEND_PROPERTY} is {' or '.join(APPENDS)}, not {mode!r}.",
            path=self.path,
        )

    # -- the recipe ----------------------------------------------------------------------------------------------

    def _class(self) -> type[HiveParticipant]:
        self._check_base()
        effect = self._effect()
        renamed = self.catalog.recipe == RENAME or self._fixed_location() is not None
        if effect == CREATE:
            if renamed:
                return RenameCreate
            hidden = self.wanted.partition_columns or has_secrets(self.wanted, self.catalog.conf)
            metastore = self.catalog.metastore
            at_once = metastore.ends_with_driver and metastore.creates_in_one_step(str(self.wanted.provider))
            return PointerCreate if at_once and not hidden else PointerCreateHidden
        return self._class_over_existing(effect)

    def _class_over_existing(self, effect: str) -> type[HiveParticipant]:
        assert self.found is not None
        if effect == INSERT and (self._moves_files() or not self._can_link()):
            self._refuse_base()
            return MoveInsert
        if effect == INSERT and self._waits_for_its_rows():
            return Insert
        if effect != INSERT and (self.catalog.recipe == RENAME or self._fixed_location() is not None):
            return RenameReplace
        if effect == INSERT:
            return PointerPartitions if self.found.partitioned else PointerSwitch
        old = to_definition(self.found)
        if not self.catalog.metastore.replaces_tables and not same_layout(old, self.wanted):
            return PointerSwap
        if not (old.partition_columns or self.wanted.partition_columns):
            return PointerSwitch
        if not same_partition_columns(old, self.wanted) and not self.catalog.metastore.changes_partition_columns:
            return PointerSwap
        if self.found.partitioned and self.base is None and same_layout(old, self.wanted):
            return PointerPartitions
        serdes = SERDE_PROVIDER in (old.provider, self.wanted.provider)
        return PointerSwap if serdes else PointerUntrack

    def _moves_files(self) -> bool:
        """Whether an insert must leave the table's files where they are."""
        assert self.found is not None
        return self.found.kind == EXTERNAL or not self._owned() or self._touches_a_users_partition()

    def _waits_for_its_rows(self) -> bool:
        """Whether it depends on the rows how they are published: see :class:`.Insert`."""
        assert self.found is not None
        if self.purpose is not Purpose.INSERT_INTO:
            return self.found.partitioned and self._is_dynamic()
        return self.found.partitioned or self.base is None or bool(self.base.get("appends"))

    def _is_dynamic(self) -> bool:
        """Whether the statement changes only partitions that its rows fall into."""
        scope = self.context.overwrite
        return self.purpose is Purpose.INSERT_INTO or (scope is not None and scope.dynamic)

    def _touches_a_users_partition(self) -> bool:
        """Whether the statement may write to a partition that the user gave a LOCATION; some know that only later."""
        assert self.found is not None
        if not self.found.partitioned or self._is_dynamic():
            return False
        columns, root = self.found.partition_columns, str(self.found.location)
        static = {} if self.context.overwrite is None else linking.static_values(self.context.overwrite, columns)
        store = self.catalog.metastore
        parts = store.partitions_within(self.found, static) if static else store.list_partitions(self.found)
        self._refuse_untried(*(part.location for part in parts))
        keyed = by_key(self.found, parts)
        return not all(self.places.is_partitions(part.location, key, columns, root) for key, part in keyed.items())

    def _can_link(self) -> bool:
        """Whether the files that an overwrite keeps can get one more name in a new version."""
        assert self.found is not None
        if self.purpose is Purpose.INSERT_INTO or not (self._partial() and not self.found.partitioned):
            return True
        return self.catalog.files.can_link(str(self.found.location), self._version())

    def _check_base(self) -> None:
        """A second statement on one table: whatever the pointer recipe can build on; the rest is refused."""
        if self.base is None:
            return
        in_place = self.base["class"] == MoveInsert.__name__ or (
            self.base["class"] == MoveAppend.__name__ and not self.base.get("appends")
        )
        if in_place or not self.catalog.files.is_local(str(self.base["version"])):
            self._refuse_base()

    def _refuse_base(self) -> None:
        if self.base is not None:
            raise AtomicityNotSupportedError(
                f"{self.path} was already written in this transaction, and its files stay at one location: a second "
                "statement cannot build on the first.",
                path=self.path,
                hint="Commit the first statement before, or write both with one UNION ALL.",
            )
