"""Plan a write: choose the publisher of a statement by its effect, the existing table and the options.

:data:`RULES` is the whole decision before the rows are staged; the code below it computes the values of its columns.
Where the rows decide (``PublisherName.BY_ROWS``), :mod:`.publish.by_rows` chooses when they are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from twophase.catalog.schema_changes import MERGE_SCHEMA
from twophase.catalogs.files import normal, parent, refuse_untried
from twophase.catalogs.hive import hard_links, layout, names, streamed
from twophase.catalogs.hive.definitions import (
    PROVIDERS,
    SERDE_PROVIDER,
    complete,
    has_ids,
    has_secrets,
    ids_unknown,
    is_redacted,
    redacted,
    same_layout,
    same_partition_columns,
    to_definition,
    to_table,
)
from twophase.catalogs.hive.dropping import before_of, dropped_by
from twophase.catalogs.hive.partition_plan import by_key
from twophase.catalogs.hive.paths import TablePaths
from twophase.catalogs.hive.publish.by_rows import APPENDS, cannot_build
from twophase.catalogs.hive.schema import bringing
from twophase.catalogs.hive.state import (
    ALTER,
    CREATE,
    DROP,
    INSERT,
    LEAVE,
    OWN_STATES,
    REPLACE,
    Before,
    ByRowsState,
    CreateState,
    Displaced,
    InPlaceState,
    MoveState,
    PublisherName,
    WriteState,
)
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import EXTERNAL, MANAGED, VIEW, HiveTable
from twophase.errors import (
    AtomicityNotSupportedError,
    CatalogError,
    ConfigurationError,
    TableAlreadyExistsError,
    TableNotExistError,
)
from twophase.model import Capabilities, ObjectPath, OverwriteScope, Purpose, TableDefinition, WriteContext
from twophase.redaction import redact
from twophase.transactions import failures

#: Recipe that moves new files to the table's own location, instead of pointing the table at a new one.
RENAME = "rename"
#: Table property that overrides the catalog's ``append`` option.
APPEND_PROPERTY = "twophase.append"


class Change(Enum):
    """Change to the columns and options of a replaced table."""

    SAME = "same"
    #: One metastore call can change them.
    ALTERED = "altered"
    #: No call can: a new table takes the name of the old one.
    REMADE = "remade"


class Case(NamedTuple):
    """The facts that decide which publisher serves a write."""

    #: ``create``, ``replace`` or ``insert``, as the metastore sees it.
    effect: str
    #: Whether the files are published at a fixed location: the table's current one, or the user's choice.
    fixed: bool
    #: Whether the decision depends on the staged rows.
    by_rows: bool
    #: Whether the metastore lists partitions, before or after the write.
    partitioned: bool
    #: Change to the layout of a replaced table.
    layout: Change


#: The publisher for each case; None matches anything. No two rows match the same case.
RULES: tuple[tuple[str, bool, bool | None, bool | None, Change | None, PublisherName], ...] = (
    # effect, fixed, by rows, partitioned, layout, publisher
    (CREATE, False, None, None, None, PublisherName.CREATE_TABLE),
    (CREATE, True, None, None, None, PublisherName.CREATE_IN_PLACE),
    (INSERT, True, None, None, None, PublisherName.MOVE_FILES),
    (INSERT, False, True, None, None, PublisherName.BY_ROWS),
    (INSERT, False, False, True, None, PublisherName.SWITCH_PARTITIONS),
    (INSERT, False, False, False, None, PublisherName.SWITCH_POINTER),
    (REPLACE, True, None, None, None, PublisherName.REPLACE_IN_PLACE),
    (REPLACE, False, None, None, Change.REMADE, PublisherName.SWAP_NAMES),
    (REPLACE, False, None, True, Change.ALTERED, PublisherName.SWITCH_LAYOUT),
    (REPLACE, False, None, True, Change.SAME, PublisherName.SWITCH_PARTITIONS),
    (REPLACE, False, None, False, Change.ALTERED, PublisherName.SWITCH_POINTER),
    (REPLACE, False, None, False, Change.SAME, PublisherName.SWITCH_POINTER),
)


def publishers(case: Case) -> list[PublisherName]:
    """Publishers of the rows of :data:`RULES` that match a case: always exactly one."""
    return [
        publisher
        for *wanted, publisher in RULES
        if all(one is None or one == found for one, found in zip(wanted, case, strict=True))
    ]


@dataclass(frozen=True)
class WritePlan:
    """A planned write, ready to begin."""

    state: WriteState
    #: Definition of the table after the publish, including secrets.
    definition: TableDefinition
    #: The table as it was when the write was planned; None if there was none.
    table: HiveTable | None


def plan_write(
    store: HiveStore,
    capabilities: Capabilities,
    path: ObjectPath,
    definition: TableDefinition,
    purpose: Purpose,
    context: WriteContext,
) -> WritePlan | None:
    """Plan the write of a statement; None if the catalog does not support its format.

    Parameters
    ----------
    store : HiveStore
    capabilities : Capabilities
        Capabilities of the catalog.
    path : ObjectPath
    definition : TableDefinition
        Definition of the table, or of the rows, from the statement.
    purpose : Purpose
    context : WriteContext

    Raises
    ------
    CatalogError
        The statement cannot be executed.
    """
    names.check_path(path, store.metastore.longest_name)
    base = None if context.base is None else WriteState.from_document(context.base)
    displaces = None if base is None else base.displaces
    # The table that has the name until the publish is none of the statement's.
    table = store.find(path, as_analyzed=not context.waited) if displaces is None else None
    default_location = store.default_location(path, table)
    dropped = dropped_by(path, table, context)
    if base is not None and base.effect in (DROP, LEAVE):
        base = None
    _check_target(path, table, purpose, base, is_dropped=dropped is not None)
    if table is not None and base is None:
        _require_mounted(store, path, str(table.location))
        if purpose.inserts:
            streamed.refuse(store, path, table)
    brought = None
    if purpose.inserts:
        wanted = _definition_for_insert(table, base)
        if MERGE_SCHEMA in definition.options and definition.schema.names:
            brought = _brought(store, path, _there(path, wanted, table), base, definition)
            wanted = replace(wanted, schema=brought.schema)
        else:
            context.require_columns(path, wanted.schema.names)
            _check_width(path, wanted, definition)
    else:
        store.check_definition(path, definition, capabilities)
        wanted = complete(definition, store.conf)
        if not context.restores:  # The files of a kept table are bound by the ids that its columns had, or by no ids.
            wanted = store.numbered(wanted)
    if wanted.provider not in capabilities.providers or wanted.provider not in PROVIDERS:
        return None
    _check_ids(store, path, wanted)
    names.check_partition_names(path, wanted.partition_columns)
    planner = _Planner(
        store, path, wanted, purpose, context, base, table, default_location, dropped, brought, displaces
    )
    return WritePlan(planner.state(), wanted, table)


def _check_target(
    path: ObjectPath, table: HiveTable | None, purpose: Purpose, base: WriteState | None, *, is_dropped: bool
) -> None:
    if table is not None and table.kind == VIEW:
        if purpose.creates and not purpose.replaces:
            raise TableAlreadyExistsError(f"{path} already exists: it is a view.", path=path)
        raise CatalogError(f"{path} is a view, not a table: it cannot be written.", path=path)
    there = (table is not None or base is not None) and not is_dropped
    if there and purpose in (Purpose.CREATE_TABLE_AS, Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS):
        raise TableAlreadyExistsError(f"Table {path} already exists.", path=path)
    if not there and not purpose.creates:
        raise TableNotExistError(f"Table {path} does not exist.", path=path)


def _require_mounted(store: HiveStore, path: ObjectPath, location: str) -> None:
    """Refuse to write a table if the directory of all its versions is gone: its file system is not mounted, say.

    Rows would be staged in a new directory, which is hidden when the old one comes back.
    """
    version = layout.version_above(location)
    if version is None or not store.files.is_local(location) or store.files.exists(parent(version)):
        return
    raise CatalogError(
        f"{path} was not written: its directory {location} is gone, with {parent(version)} above it. "
        "Nothing was started.",
        path=path,
        hint="Mount its file system. If its rows are lost, make the directory above (mkdir -p), and write the table "
        "anew with INSERT OVERWRITE.",
    )


def _definition_for_insert(table: HiveTable | None, base: WriteState | None) -> TableDefinition:
    if base is not None and (table is None or base.effect != INSERT or base.brings):
        return base.definition
    assert table is not None
    return to_definition(table)


def _there(path: ObjectPath, definition: TableDefinition, table: HiveTable | None) -> HiveTable:
    """A table as a statement finds it, with the files that it has outside the transaction."""
    location = "" if table is None else str(table.location or "")
    return to_table(path, definition, kind=MANAGED, location=location)


def _check_width(path: ObjectPath, table: TableDefinition, rows: TableDefinition) -> None:
    if len(rows.schema) not in (0, len(table.schema)):
        widths = f"the rows have {len(rows.schema)} columns, the table has {len(table.schema)}"
        raise CatalogError(f"{path} was not written: {widths}.", path=path)


def _check_ids(store: HiveStore, path: ObjectPath, wanted: TableDefinition) -> None:
    if not has_ids(wanted):
        return
    if not store.metastore.read_by_session:
        raise ids_unknown(path, "written")
    if not store.metastore.writes_ids:
        raise CatalogError(
            f"{path} was not written: its columns are read by field ids, and this session writes files without them "
            "(spark.sql.parquet.fieldId.write.enabled is false), which no one could read.",
            path=path,
            hint='Set it with spark.conf.set("spark.sql.parquet.fieldId.write.enabled", "true").',
        )


def _brought(
    store: HiveStore, path: ObjectPath, table: HiveTable, base: WriteState | None, rows: TableDefinition
) -> bringing.Brought:
    """Fit rows to the table, as an earlier statement of the transaction has left it."""
    found = bringing.plan(store, table, path, rows)
    if base is not None and found.is_new:
        raise AtomicityNotSupportedError(
            f"{path} was already written in this transaction: a later statement cannot bring columns to it.",
            path=path,
            hint="Commit the first statement before, or let that one bring the columns.",
        )
    return found


@dataclass(frozen=True)
class _Planner:
    """Planner of one write, with everything that its decision depends on."""

    store: HiveStore
    path: ObjectPath
    wanted: TableDefinition
    purpose: Purpose
    context: WriteContext
    base: WriteState | None
    table: HiveTable | None
    default_location: str
    #: The statement of the same transaction that drops the table.
    dropped: WriteState | None
    #: What the rows bring, where they are matched by name.
    brought: bringing.Brought | None = None
    #: The table that has the name until the publish: an earlier statement of the transaction renames it.
    displaces: Displaced | None = None

    def state(self) -> WriteState:
        """Return the initial state of the write."""
        self._refuse_untried(None if self.table is None else self.table.location, self._fixed_location())
        self._check_base()
        base = self.base
        state = WriteState(
            catalog=self.store.name,
            store=self.store.metastore.identity,
            path=self.path,
            purpose=self.purpose,
            transaction_id=self.context.transaction_id,
            ordinal=self.context.ordinal,
            publisher=self._publisher(),
            definition=redacted(self.wanted, self.store.conf),
            default_location=self.default_location,
            version=self._version(),
            before=self._before(),
            effect=self._effect(),
            replaces=self._replaces(),
            inherit=self._inherit(),
            overwrite=self._scope(),
            base_version=None if base is None else base.version,
            first_version=self._first_version(),
            autocommit=self.context.autocommit,
            fits=None if self.brought is None else self.brought.fits,
            brings=self._brings(),
            alters=self._alters(),
            displaces=self.displaces,
        )
        state = self._with_own(state)
        self._refuse_untried(state.version, getattr(state.own, "target", None))
        return state

    def _refuse_untried(self, *locations: str | None) -> None:
        refuse_untried(self.path, *locations, environment=self.store.environment)

    # -- the rules -----------------------------------------------------------------------------------------------

    def _publisher(self) -> PublisherName:
        (found,) = publishers(self._case())
        if found is PublisherName.MOVE_FILES and self.base is not None:
            raise cannot_build(self.path)
        if self.displaces is not None and found is not PublisherName.CREATE_TABLE:
            raise failures.not_created(self.path, self.context.transaction_id)
        return found

    def _case(self) -> Case:
        effect = self._effect()
        if effect == CREATE:
            return Case(effect, self._is_renamed(), False, bool(self.wanted.partition_columns), Change.SAME)
        assert self.table is not None
        if effect == INSERT:
            fixed = self._moves_files(self.table) or not self._can_link(self.table)
            return Case(effect, fixed, self._waits_for_its_rows(self.table), self.table.partitioned, Change.SAME)
        old = to_definition(self.table)
        partitioned = bool(old.partition_columns or self.wanted.partition_columns)
        return Case(effect, self._is_renamed(), False, partitioned, self._change(old, self.table, partitioned))

    def _is_renamed(self) -> bool:
        """Whether the files of a created or replaced table are moved to a fixed location."""
        return self.store.settings.recipe == RENAME or self._fixed_location() is not None

    def _change(self, old: TableDefinition, table: HiveTable, partitioned: bool) -> Change:
        metastore, same = self.store.metastore, same_layout(old, self.wanted)
        if not metastore.replaces_tables and not same:
            return Change.REMADE
        if not partitioned:
            return Change.SAME if same else Change.ALTERED
        if not same_partition_columns(old, self.wanted) and not metastore.changes_partition_columns:
            return Change.REMADE
        if table.partitioned and self.base is None and same:
            return Change.SAME
        return Change.REMADE if SERDE_PROVIDER in (old.provider, self.wanted.provider) else Change.ALTERED

    def _moves_files(self, table: HiveTable) -> bool:
        """Whether an insert must leave the table's files where they are."""
        return table.kind == EXTERNAL or not self._is_owned(table) or self._touches_a_users_partition(table)

    def _is_owned(self, table: HiveTable) -> bool:
        """Whether we may point the table elsewhere: recipe ``pointer``, and no location from SET LOCATION."""
        return self.store.settings.recipe != RENAME and self._paths.is_tables(str(table.location))

    @cached_property
    def _paths(self) -> TablePaths:
        return TablePaths(self.store.files, lambda: self.default_location)

    def _waits_for_its_rows(self, table: HiveTable) -> bool:
        """Whether the publisher can be chosen only after the rows are staged: see :mod:`.publish.by_rows`."""
        if self.purpose is not Purpose.INSERT_INTO:
            return table.partitioned and self._is_dynamic()
        return table.partitioned or self.base is None or self.base.appends

    def _is_dynamic(self) -> bool:
        """Whether the statement changes only partitions that its rows fall into."""
        scope = self.context.overwrite
        return self.purpose is Purpose.INSERT_INTO or (scope is not None and scope.dynamic)

    def _touches_a_users_partition(self, table: HiveTable) -> bool:
        """Whether the statement may write to a partition with a user's LOCATION; dynamic writes check that later."""
        if not table.partitioned or self._is_dynamic():
            return False
        columns, root = table.partition_columns, str(table.location)
        static = {} if self.context.overwrite is None else hard_links.static_values(self.context.overwrite, columns)
        metastore, paths = self.store.metastore, self._paths
        parts = metastore.partitions_within(table, static) if static else metastore.list_partitions(table)
        self._refuse_untried(*(part.location for part in parts))
        keyed = by_key(table, parts)
        return not all(paths.is_partitions(part.location, key, columns, root) for key, part in keyed.items())

    def _can_link(self, table: HiveTable) -> bool:
        """Whether the files that an overwrite keeps can be hard-linked into a new version."""
        if self.purpose is Purpose.INSERT_INTO or not (self._is_partial() and not table.partitioned):
            return True
        return self.store.files.can_link(str(table.location), self._version())

    def _check_base(self) -> None:
        """Refuse a second statement on the table if a new version cannot build on the first one."""
        base = self.base
        if base is None:
            return
        name = base.publisher
        in_place = name is PublisherName.MOVE_FILES or (name is PublisherName.APPEND_FILES and not base.appends)
        if in_place or not self.store.files.kind(base.version).hard_links:
            raise cannot_build(self.path)
        if self._is_altered and self.purpose.inserts:
            self._check_altered()

    def _check_altered(self) -> None:
        """Refuse rows for an altered table, unless one call can publish both: a new version with its old files."""
        assert self.base is not None
        assert self.table is not None
        if self.wanted.partition_columns:
            why = "it has partitions"
        elif is_redacted(self.base.definition):
            why = "its options hold secrets"
        elif self._moves_files(self.table) or not self.store.files.can_link(str(self.table.location), self._version()):
            why = "its files stay where they are"
        else:
            return
        raise AtomicityNotSupportedError(
            f"{self.path} was altered in transaction {self.context.transaction_id}, and no rows can be written to it "
            f"there: {why}. This statement wrote nothing.",
            path=self.path,
            transaction_id=self.context.transaction_id,
            hint="Commit the ALTER TABLE before, and write the rows after it.",
        )

    # -- the state -----------------------------------------------------------------------------------------------

    def _replaces(self) -> bool:
        """Whether the publish removes rows: by this statement, or by an earlier one that it includes."""
        if self.purpose is not Purpose.INSERT_INTO or self.base is None:
            return self.purpose is not Purpose.INSERT_INTO
        return self.base.replaces

    def _version(self) -> str:
        return layout.version_of(self.default_location, self.context.transaction_id, self.context.ordinal)

    def _first_version(self) -> str | None:
        """The directory whose age shows what the transaction may not have seen: that of its first statement."""
        first = self.base or self.dropped
        return None if first is None else first.first_version or first.version

    def _before(self) -> Before | None:
        first = self.base or self.dropped
        if first is not None:
            return first.before
        return None if self.table is None else before_of(self.store, self.table)

    def _effect(self) -> str:
        if (self.table if self.base is None else self.base.before) is None:
            return CREATE
        if self.purpose.inserts and not self._is_altered:
            return INSERT if self.base is None else self.base.effect
        return REPLACE

    @property
    def _is_altered(self) -> bool:
        """Whether the transaction has altered the table: rows come with the new definition, in a new version."""
        return self.base is not None and self.base.effect == ALTER

    def _alters(self) -> bool:
        """Whether the replacement is the table as the transaction has altered it, so that it rests on the old one."""
        if self.base is None:
            return self.context.alters
        return self.base.alters or (self.purpose.inserts and self._is_altered)

    def _brings(self) -> bool:
        if self.brought is not None and self.brought.is_new:
            return True
        return self.base is not None and self.base.brings and self.purpose.inserts

    def _scope(self) -> OverwriteScope | None:
        return self.context.overwrite if self.purpose is Purpose.INSERT_OVERWRITE else None

    def _inherit(self) -> str | None:
        """Directory whose files are kept: all for INSERT INTO, those outside the scope for INSERT OVERWRITE."""
        if not self.purpose.inserts or (self.purpose is Purpose.INSERT_OVERWRITE and not self._is_partial()):
            return None
        if self.base is not None and not self._is_altered:
            return self.base.version
        assert self.table is not None
        return self.table.location

    def _is_partial(self) -> bool:
        """Whether an INSERT OVERWRITE leaves some partitions unchanged."""
        scope = self.context.overwrite
        return bool(self.wanted.partition_columns and scope and (scope.dynamic or scope.static_partition))

    # -- the publisher's own state -------------------------------------------------------------------------------

    def _with_own(self, state: WriteState) -> WriteState:
        own: Mapping[PublisherName, Any] = {
            PublisherName.CREATE_TABLE: self._with_create,
            PublisherName.CREATE_IN_PLACE: self._with_location,
            PublisherName.REPLACE_IN_PLACE: self._with_location,
            PublisherName.MOVE_FILES: self._with_location,
            PublisherName.BY_ROWS: self._with_mode,
        }
        name = state.publisher
        return own[name](state) if name in own else replace(state, own=OWN_STATES[name]())

    def _with_create(self, state: WriteState) -> WriteState:
        """Decide whether the table is created under a hidden name, or in one call."""
        metastore = self.store.metastore
        one_call = metastore.ends_with_driver and metastore.creates_in_one_step(str(self.wanted.provider))
        plain = not (self.wanted.partition_columns or has_secrets(self.wanted, self.store.conf))
        at_once = one_call and plain
        return replace(state, own=CreateState(hidden=not at_once, at_once=at_once))

    def _with_location(self, state: WriteState) -> WriteState:
        """Stage beside the final location, on the same filesystem."""
        in_place = state.publisher is not PublisherName.MOVE_FILES
        target = self._target_location(in_place)
        if in_place:
            self._refuse_to_move(target)
        external = self._fixed_location() or (not in_place and self.table is not None and self.table.kind == EXTERNAL)
        kind = EXTERNAL if external else MANAGED
        own = InPlaceState(target, kind, self._needs_hidden()) if in_place else MoveState(target, kind)
        return replace(state, own=own, version=self._version_beside(target))

    def _refuse_to_move(self, target: str) -> None:
        """Refuse to move a staged directory to a location where that would be done file by file."""
        kind = self.store.files.kind(target)
        if kind.atomic_rename_directory:
            return
        raise AtomicityNotSupportedError(
            f"{self.path} was not written: its files would be moved to {redact(target)}, and storage of the kind "
            f"{kind} may move a directory file by file. Nothing was started.",
            path=self.path,
            transaction_id=self.context.transaction_id,
            hint="Leave out the LOCATION, and the catalog's option recipe=rename: the files then stay where they are "
            "written, and one call of the metastore publishes them. Or create the table at that LOCATION without rows, "
            "and INSERT INTO it, which is reversible with several files.",
        )

    def _needs_hidden(self) -> bool:
        """Whether a table at a fixed location is created under a hidden name first."""
        old = () if self.table is None else self.table.partition_columns
        late = not self.store.metastore.ends_with_driver
        delicate = self.table is None and (has_secrets(self.wanted, self.store.conf) or late)
        return bool(self.wanted.partition_columns or old or delicate)

    def _version_beside(self, target: str) -> str:
        """Staging path beside the target, or beside the table's other versions if its partitions may be in these."""
        if self.table is not None and self.table.kind == MANAGED and self._is_owned(self.table):
            return self._version()
        return layout.version_beside(target, self.context.transaction_id, self.context.ordinal)

    def _target_location(self, in_place: bool) -> str:
        if self._fixed_location():
            return normal(str(self._fixed_location()))
        if self.table is not None and (not in_place or self.table.kind == MANAGED):
            return str(self.table.location)
        return self.default_location

    def _fixed_location(self) -> str | None:
        """The user's LOCATION of a created or replaced table; None if there is none."""
        if not self.purpose.inserts:
            return self.wanted.location
        own = None if self.base is None else self.base.own
        return own.target if isinstance(own, InPlaceState | MoveState) and own.kind == EXTERNAL else None

    def _with_mode(self, state: WriteState) -> WriteState:
        assert self.table is not None
        adopts = self.base.version if self.base is not None and self.base.appends else None
        return replace(
            state,
            own=ByRowsState(self._append_mode(self.table), adopts),
            appends=self.purpose is Purpose.INSERT_INTO and not self.table.partitioned,
            inherit=None,
        )

    def _append_mode(self, table: HiveTable) -> str | None:
        mode = table.properties.get(APPEND_PROPERTY, self.store.settings.append)
        if mode is None or mode.lower() in APPENDS:
            return mode and mode.lower()
        raise ConfigurationError(
            f"{self.path} was not written: its property {APPEND_PROPERTY} is {' or '.join(APPENDS)}, not {mode!r}.",
            path=self.path,
        )
