"""Answers to the questions of the rules on Spark's plans: a question is a node of the plan, described as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from twophase.catalog import SupportsEvolution, SupportsExternalChanges
from twophase.model import Isolation, ObjectPath, OverwriteScope
from twophase.spark import active, types
from twophase.spark.connector.definition import PLAIN, RESERVED
from twophase.spark.connector.table import insert_analyzed
from twophase.spark.ddl.databases import is_staged_by
from twophase.spark.errors import thrown_to_spark
from twophase.spark.jvm import frames
from twophase.spark.jvm.callbacks import JavaCallable
from twophase.spark.jvm.listed import listed_index
from twophase.spark.jvm.rules import PlanRules
from twophase.spark.jvm.statements import TableFacts
from twophase.spark.routing.commands import DROP, SAVES, TRUNCATE, change_of
from twophase.spark.routing.decide import Decider, Unsupported, WriteNode
from twophase.spark.routing.ownership import Owner, RoutingDecision
from twophase.spark.routing.router import Router
from twophase.spark.routing.spark_ddl import rows_change
from twophase.spark.routing.targets import Names, Target
from twophase.spark.running import running
from twophase.spark.session_reads import resolved_version
from twophase.spark.write_hints import stated_as
from twophase.transactions import failures

Facts = Mapping[str, Any]
#: Commands that find partitions below a table's directory, or make one where files may be: ADD PARTITION and others.
_FINDS_PARTITIONS = ("AddPartitions", "RenamePartitions", "RecoverPartitions", "RepairTable", "LoadData")
#: Commands by which Spark itself takes rows of a session table away, or replaces them. Others only add some, and often
#: find none.
_CHANGES_ROWS = ("DropPartitions", "RenamePartitions", "TruncateTable", "TruncatePartition", "LoadData")
#: Of a statement that finds no table.
_ALL = OverwriteScope()


class Answers(JavaCallable):
    """The Python side of the rules of one session: a ``java.util.function.BiFunction``."""

    class Java:
        implements = ["java.util.function.BiFunction"]

    def __init__(self, router: Router) -> None:
        self._router = router
        self._session = router.session
        self._targets = router.targets
        self._decider = Decider(router.targets)
        self._questions: dict[str, Callable[[Facts], Any]] = {
            **dict.fromkeys(("create", "replace"), self._create),
            **dict.fromkeys(("insert", "write"), self._write),
            "truncate": self._truncate,
            "drop": self._drop,
            "alter": self._alter,
            "namespace": self._namespace,
            "evolve": self._evolve,
            "session_insert": self._insert,
            "group": self._group,
            "read": self._read,
            "travel": self._travel,
            "listed": self._listed,
            "stale": self._stale,
            "command": self._command,
        }

    def apply(self, question: str, rows: Any | None) -> Any:
        with thrown_to_spark(self._session.jvm):
            facts = json.loads(question)
            if rows is not None:
                return self._rows(facts, rows)
            try:
                return self._questions[facts["question"]](facts)
            except Unsupported as problem:
                self._router.unprotected(str(problem), hint=problem.hint)
                return None

    # -- writes ----------------------------------------------------------------------------------------------------

    def _create(self, facts: Facts) -> str | None:
        node = WriteNode.of(facts)
        routed, decision = self._decider.create(node, Names(facts))
        statement = f"CREATE TABLE{' AS SELECT' if node.node.endswith('AsSelect') else ''}"
        using = f" (USING {node.provider})" if node.provider else ""
        self._refuse_outside(routed, f"{statement} of a table that twophase does not write{using},", node.parts)
        if decision is None or not decision.target.via_session_catalog:
            return None
        answer = {"parts": _full(decision.target), "reserved": sorted(RESERVED), "plain": PLAIN}
        return json.dumps(answer | ({"stored_as": decision.stored_as} if decision.stored_as else {}))

    def _write(self, facts: Facts) -> str | None:
        node = WriteNode.of(facts)
        routed, decision = self._decider.write(node, Names(facts))
        self._refuse_outside(routed, "INSERT into a table that twophase does not write,", node.parts)
        if decision is None:
            return self._dropped(routed.target)
        answer: dict[str, Any] = {"parts": _full(decision.target)} if decision.target.via_session_catalog else {}
        if decision.scope is not None:
            answer["scope"] = stated_as(decision.scope)
        if node.brings_columns:
            answer["brings_columns"] = True
        if node.if_not_exists and (decision.target.via_session_catalog or decision.scope):
            answer["writes_nothing" if decision.writes_nothing else "if_not_exists"] = True
        return json.dumps(answer) if answer else None

    def _truncate(self, facts: Facts) -> str | None:
        """Return the INSERT that empties a table; outside of a transaction, only a session table by its full name."""
        parts, names = tuple(facts["parts"]), Names(facts)
        routed = self._decider.truncate(parts, names)
        if routed.owner is Owner.SPARK:
            self._router.refuse_change(TRUNCATE, parts, routed.target)
        if self._dropped(routed.target) is not None:
            assert routed.target is not None
            return json.dumps({"insert": f"INSERT INTO {routed.target.name} SELECT 1", "scope": stated_as(_ALL)})
        target = routed.ours
        if target is None or routed.facts is None:  # Spark refuses it itself.
            return None
        of_session = target.catalog is self._targets.session_catalog
        if of_session:
            self._targets.require_managed(target)
        elif facts["partition"] is not None or not self._router.in_transaction():
            return None  # Spark itself has PARTITION for its own tables only, and asks other catalogs to truncate.
        scope = OverwriteScope(self._targets.existing_partition(target, routed.facts, facts["partition"] or {}))
        insert = f"INSERT INTO {target.name} SELECT * FROM {target.name} WHERE FALSE"
        return json.dumps({"insert": insert, "scope": stated_as(scope)})

    def _dropped(self, target: Target | None) -> str | None:
        """Return the name of a session table that the surrounding transaction drops, in our catalog: it has none."""
        is_dropped = target is not None and target.via_session_catalog and self._targets.is_dropped(target)
        return json.dumps({"parts": _full(target)}) if target is not None and is_dropped else None

    def _drop(self, facts: Facts) -> str | None:
        """Return the name in our catalog of a table that the surrounding transaction drops."""
        parts, names = tuple(facts["parts"]), Names(facts)
        target = self._targets.resolve(parts, views=True, names=names)
        if target is None or not self._targets.drops(target):
            self._router.refuse_change(DROP, parts, target)
            return None
        return json.dumps({"parts": _full(target)}) if target.via_session_catalog else None

    def _namespace(self, facts: Facts) -> str | None:
        """Return the name in our catalog of a database that the surrounding transaction creates or drops."""
        parts, node = tuple(facts["parts"]), facts["node"]
        if node == "CreateNamespace":
            self._router.refuse_hidden_database(parts, creates=True)
        target = self._targets.resolve((*parts, "anything"), names=Names(facts))
        if target is not None and target.path.namespace and is_staged_by(target.catalog, target.path.database):
            parts = (target.catalog_name, *target.path.namespace)
            return json.dumps({"parts": parts}) if target.via_session_catalog else None
        change = change_of(node, temporary=False)
        assert change is not None
        self._router.refuse_change(change, parts, target)
        return None

    def _alter(self, facts: Facts) -> str | None:
        """Return the name in our catalog of a table that the surrounding transaction makes, drops, or can alter."""
        parts, names = tuple(facts["parts"]), Names(facts)
        target = self._targets.resolve(parts, views=True, names=names)
        if target is not None and self._is_altered_in_block(target):
            return json.dumps({"parts": _full(target)}) if target.via_session_catalog else None
        change = change_of(facts["node"], temporary=False)
        assert change is not None
        self._router.refuse_change(change, parts, target)
        return None

    def _is_altered_in_block(self, target: Target) -> bool:
        targets = self._targets
        if targets.redefined(target) is not None or targets.is_dropped(target) or targets.alters(target):
            return True
        return target.via_session_catalog and targets.existing(target) is None  # Spark says that there is none.

    def _evolve(self, facts: Facts) -> str | None:
        """Return the name in our catalog of a session table whose columns it alters."""
        target = self._targets.resolve(tuple(facts["parts"]), views=True, names=Names(facts))
        if target is None or not target.via_session_catalog or not isinstance(target.catalog, SupportsEvolution):
            return None
        evolves = target.catalog.evolves(target.path, only_if_evolved=facts["is_plain"])
        return json.dumps({"parts": _full(target)}) if evolves else None

    def _insert(self, facts: Facts) -> str | None:
        """Return whether twophase writes a session table; the rows come when the statement runs."""
        node = WriteNode.of({**facts, "question": "insert"})
        target = self._targets.in_session(ObjectPath.of(*node.parts), facts["extension"])
        if target is None:
            return None
        provider = self._targets.names.short_name(facts["provider"])
        table = TableFacts(provider, tuple(facts["partition_columns"]))
        return "ours" if self._decider.insert(node, target, table) else None

    def _rows(self, facts: Facts, rows: Any) -> None:
        catalog = self._session.catalogs.of_session
        assert catalog is not None  # It has answered for this INSERT.
        frame = frames.data_frame(self._session.jvm, rows, facts["schema"])
        insert_analyzed(self._session, catalog, ObjectPath.of(*facts["parts"]), frame, facts)

    def _group(self, facts: Facts) -> str | None:
        """Handle several writes in one statement; an answer leaves them all to Spark."""
        try:
            if facts["mixed"]:
                raise Unsupported("it writes a table of twophase together with one that only Spark writes")
            self._router.group_writes(in_script=facts["script"])
        except Unsupported as problem:
            self._router.unprotected(str(problem), hint=problem.hint)
            return "spark"
        return None

    def _refuse_outside(self, routed: RoutingDecision, statement: str, parts: tuple[str, ...]) -> None:
        """Refuse a write that Spark runs inside a transaction: it takes effect immediately."""
        if routed.owner is Owner.SPARK:
            active.refuse_in_transaction(self._session, statement, ".".join(parts))

    # -- inside a transaction --------------------------------------------------------------------------------------

    def _read(self, facts: Facts) -> str | None:
        """Resolve a table that a statement reads: to its full name if it is staged, or no longer what it was."""
        target = self._named(facts)
        if target is None or not target.via_session_catalog:
            return None
        if self._targets.is_dropped(target):
            statement = running(self._session)
            is_listing = statement is not None and statement.listing is not None  # It leaves the table out itself.
            return None if is_listing else json.dumps({"parts": _full(target)})
        if not self._targets.is_staged(target):
            if not self._has_moved(target, facts["use"]):
                return None
            if facts["use"] == "published":
                problem = f"it would show {target.path} as it is now, not as this transaction sees it"
                raise Unsupported(problem, "Run it after the transaction")
            return json.dumps({"parts": _full(target)})
        if facts["use"] == "published":
            problem = f"it would show {target.path} without what this transaction has written"
            raise Unsupported(problem, "Run it after the transaction")
        if facts["use"] == "kept" and self._targets.redefined(target) is not None:
            problem = f"a view is made of published tables, and {target.path} is made by this transaction"
            raise Unsupported(problem, "Make it after the transaction, or make a TEMPORARY VIEW")
        return json.dumps({"parts": _full(target)})

    def _named(self, facts: Facts) -> Target | None:
        """The table that a query names; the body of a view is resolved in the view's own catalog and database."""
        parts, view = tuple(facts["parts"]), tuple(facts["view"])
        if view:
            parts = (*view, *parts) if len(parts) == 1 else (view[0], *parts) if len(parts) == 2 else parts
        return self._targets.resolve(parts, views=not view, names=Names(facts))

    def _travel(self, facts: Facts) -> str | None:
        """Resolve a table that is read as of a version to its full name: Spark itself has no earlier states."""
        target = self._named(facts)
        return None if target is None or not target.via_session_catalog else json.dumps({"parts": _full(target)})

    def _has_moved(self, target: Target, use: str) -> bool:
        """Whether a table must be read in the state that it had when the transaction began, which is another one."""
        transaction = active.current_transaction(self._session)
        if transaction is None or use == "kept":
            return False
        catalog, path = target.catalog, target.path
        version = catalog.table_version(path)
        if transaction.has_moved(catalog, path, version):
            return True
        # Under SERIALIZABLE SHOW PARTITIONS reads, too, and whoever finds no table. A view has no version, either.
        counts = transaction.isolation is Isolation.SERIALIZABLE and use in ("rows", "published")
        if counts or (use == "rows" and version is not None and transaction.isolation.pins_reads):
            transaction.is_reading(catalog, path, version)
        if version is not None:
            self._session.caches.require_current(catalog, path, version)
        return False

    def _listed(self, facts: Facts) -> Any:
        """Return Spark's index of the files to read instead of those that it has; None if these are right."""
        reader, catalog = active.find(facts["transaction"]), self._session.catalogs.of_session
        if reader is None or catalog is None:
            return None
        path = ObjectPath.of(*facts["parts"])
        resolved = resolved_version(self._session, facts["location"], facts["stamp"])
        source = reader.transaction.instead_of_listed(catalog, path, resolved=resolved, looked_up=facts["now"])
        if source is None or source.listed is None or source.definition is None:
            return None
        if not _folded(facts["columns"]) <= _folded(source.definition.schema.names):
            # It was altered while its name was resolved: nothing but NULL would be read of the new columns.
            raise failures.moved_since_begin(f"{catalog.name}.{path}", reader.transaction.id)
        schema = types.from_arrow(source.definition.schema)
        return listed_index(self._session.jvm, source.listed, schema, source.definition.options)

    def _stale(self, facts: Facts) -> None:
        database, name = facts["parts"]
        problem = (
            f"a view or DataFrame that was made before would show {database}.{name} without what this transaction has "
            "written"
        )
        raise Unsupported(problem, f"Read {name} itself")

    def _spark_changes(self, facts: Facts, target: Target | None) -> None:
        """Let a session table's catalog and the timeline know that Spark itself is about to change it."""
        found = self._targets.existing(target) if target is not None and target.via_session_catalog else None
        if target is None or found is None or found.provider is None:
            return
        if facts["node"] in _FINDS_PARTITIONS and isinstance(target.catalog, SupportsExternalChanges):
            # Replaced partitions must not be found there.
            target.catalog.partitions_sought(target.path, facts["partitions"] or None)
        if facts["node"] in _CHANGES_ROWS:
            rows_change(self._session, target.catalog, target.path)

    def _command(self, facts: Facts) -> None:
        node, parts = facts["node"], tuple(facts["parts"] or ())
        names = Names(facts)
        if node in ("SetCatalogAndNamespace", "CreateNamespace"):
            self._router.refuse_hidden_database(parts, creates=node == "CreateNamespace")
        change = change_of(node, temporary=facts["temporary"])
        if not self._router.in_transaction():
            if change is not None:
                active.to_join(self._session)  # It refuses a change inside the transaction of another session.
            if node in (*_FINDS_PARTITIONS, *_CHANGES_ROWS) and parts:
                self._spark_changes(facts, self._targets.resolve(parts, views=True, names=names))
            return
        if node in ("ShowTables", "ShowTablesExtended"):
            self._router.lists_tables(parts, facts["pattern"], extended=node == "ShowTablesExtended")
            return
        if change is not None and not (facts["saves"] and node in SAVES):
            self._router.refuse_change(change, parts, self._targets.resolve(parts, names=names) if parts else None)


def _full(target: Target) -> list[str]:
    return [target.catalog_name, *target.path.to_document()]


def _folded(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}


def installed(router: Router) -> PlanRules:
    """Install the rules in a router's session."""
    session, catalog = router.session, router.targets.session_catalog
    return PlanRules(
        session.jvm,
        Answers(router),
        tuple(session.catalogs),
        session.catalogs.name_of(catalog) if catalog else None,
        router.targets.providers(catalog) if catalog else (),
        reads_paths_by_name=session.state.reads_paths_by_name,
    )
