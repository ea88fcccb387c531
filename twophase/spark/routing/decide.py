"""The routing decision, without a JVM: which engine runs a statement, and what it writes.

Names are resolved by a :class:`Resolver`; the statement is described by a :class:`WriteNode`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from twophase.model import OverwriteScope, Purpose
from twophase.spark.jvm.statements import TableFacts
from twophase.spark.routing.ownership import Owner, Ownership, Resolver, RoutingDecision
from twophase.spark.routing.targets import Names, Target, quoted


class Unsupported(Exception):
    """A statement that cannot be made atomic.

    Parameters
    ----------
    problem : str
        The reason.
    hint : str, optional
        What the user can do.
    """

    def __init__(self, problem: str, hint: str = "Write its tables one by one") -> None:
        super().__init__(problem)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class WriteNode:
    """A statement that writes or creates a table, as described by Spark's plan.

    Attributes
    ----------
    kind : str
        ``create``, ``replace`` (both AS SELECT), ``insert`` or ``write`` (a ``DataFrameWriterV2``).
    node : str
        The name of the plan's node.
    parts : tuple of str
        The target's name.
    provider : str, optional
        ``USING``; ``hive`` for ``STORED AS`` and ``ROW FORMAT``.
    delimited : bool
        ``ROW FORMAT DELIMITED`` without ``STORED AS``: a catalog receives only its options.
    partition : mapping of str to str or None
        ``PARTITION (p = 1, q)``: the columns that have a value, with values as in a directory name.
    partition_columns : tuple of str
        All columns named in the PARTITION clause.
    overwrite, if_not_exists : bool
        ``INSERT OVERWRITE``; ``PARTITION (...) IF NOT EXISTS``.
    replaces_rows : bool
        ``INSERT INTO ... REPLACE WHERE`` and similar clauses.
    options : mapping of str to str
        ``INSERT INTO t WITH (...)``.
    brings_columns : bool
        Whether its rows may bring columns.
    """

    kind: str
    node: str
    parts: tuple[str, ...]
    provider: str | None = None
    delimited: bool = False
    partition: Mapping[str, str | None] = field(default_factory=dict)
    partition_columns: tuple[str, ...] = ()
    overwrite: bool = False
    if_not_exists: bool = False
    replaces_rows: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    brings_columns: bool = False

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> WriteNode:
        """The node described by a rule's question."""
        partition = facts.get("partition", ())
        return cls(
            facts["question"],
            facts["node"],
            tuple(facts["parts"]),
            facts.get("provider"),
            facts.get("delimited", False),
            {column: value for column, is_static, value in partition if is_static},
            tuple(column for column, _, _ in partition),
            facts.get("overwrite", False),
            facts.get("if_not_exists", False),
            facts.get("replaces_rows", False),
            facts.get("options", {}),
            facts.get("brings_columns", False),
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """The way to run a statement.

    Attributes
    ----------
    target : Target
        The twophase table that it writes.
    scope : OverwriteScope or None
        The scope of an overwrite that Spark cannot pass to a V1 write, so that it runs as an append.
    writes_nothing : bool
        Its ``IF NOT EXISTS`` names a partition that exists, as far as this transaction sees.
    stored_as : str or None
        The format that a ``ROW FORMAT`` clause leaves out.
    """

    target: Target
    scope: OverwriteScope | None = None
    writes_nothing: bool = False
    stored_as: str | None = None


class Decider:
    """Routing decisions for one session."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._ownership = Ownership(resolver)

    def create(self, node: WriteNode, names: Names | None = None) -> tuple[RoutingDecision, Decision | None]:
        """Decide a CREATE or REPLACE TABLE AS SELECT.

        Raises
        ------
        Unsupported
            The target belongs to twophase, and the statement cannot be made atomic.
        """
        routed = self._ownership.of_new(node.parts, node.provider, names=names)
        target = routed.ours
        if target is None:
            return routed, None
        self._require(target, node)
        stored_as = self._stored_as() if node.delimited and target.via_session_catalog else None
        return routed, Decision(target, stored_as=stored_as)

    def _stored_as(self) -> str:
        if self._resolver.hive_format() != "textfile":
            raise Unsupported(
                "its ROW FORMAT is for text, and hive.default.fileformat is not", "Say STORED AS TEXTFILE"
            )
        return "TEXTFILE"

    def write(self, node: WriteNode, names: Names | None = None) -> tuple[RoutingDecision, Decision | None]:
        """Decide an INSERT before its names are resolved: into a twophase catalog by name, into a staged table, with
        rows that may bring columns, or by ``IF NOT EXISTS`` of a snapshot's partition.

        There is no decision for a published table of the session catalog, which :meth:`insert` decides once Spark has
        analysed the INSERT, or for a table outside twophase.

        Raises
        ------
        Unsupported
            The target belongs to twophase, and the statement cannot be made atomic.
        """
        routed = self._ownership.of_existing(node.parts, names=names)
        target, facts = routed.ours, routed.facts
        if target is None:
            return routed, None
        if target.via_session_catalog and node.kind == "insert" and not self._is_by_name(node, target):
            return routed, None
        if node.replaces_rows and target.via_session_catalog:
            return RoutingDecision(Owner.SPARK, target, facts), None
        if target.via_session_catalog:
            _require_partitions(node, facts)
        self._require(target, node)
        return routed, self._written(node, target, facts)

    def _is_by_name(self, node: WriteNode, target: Target) -> bool:
        """Return whether an INSERT into a session table is run under its name in our catalog."""
        if self._resolver.is_staged(target) or node.brings_columns:
            return True
        return node.if_not_exists and self._resolver.has_moved(target)  # Spark would look at the published partitions.

    def truncate(self, parts: tuple[str, ...], names: Names | None = None) -> RoutingDecision:
        """Decide a TRUNCATE TABLE that is an INSERT OVERWRITE without rows.

        Raises
        ------
        Unsupported
            The table belongs to twophase, and the statement cannot be made atomic.
        """
        routed = self._ownership.of_existing(parts, names=names)
        if routed.ours is not None and routed.facts is not None:
            self._require_purpose(routed.ours, Purpose.INSERT_OVERWRITE)
        return routed

    def _written(self, node: WriteNode, target: Target, facts: TableFacts | None) -> Decision:
        if node.kind == "write":
            partitioned = facts is not None and bool(facts.partition_columns)
            dynamic = OverwriteScope(dynamic=partitioned) if node.node == "OverwritePartitionsDynamic" else None
            return Decision(target, dynamic)
        overwrites = node.overwrite and not node.replaces_rows and facts is not None
        scope = self._resolver.carried_scope(facts, node.partition, node.options) if overwrites and facts else None
        if not node.if_not_exists or not (target.via_session_catalog or scope):
            return Decision(target, scope)
        scope = OverwriteScope(dict(node.partition), if_not_exists=True)
        return Decision(target, scope, writes_nothing=self._resolver.partition_exists(target, node.partition))

    def insert(self, node: WriteNode, target: Target, facts: TableFacts) -> bool:
        """Return whether twophase writes an INSERT into a session table that stock Spark has analysed.

        Raises
        ------
        Unsupported
            The target belongs to twophase, and the statement cannot be made atomic.
        """
        if not self._resolver.can_write(target, facts):
            return False
        self._require(target, node)
        return not (node.if_not_exists and self._resolver.partition_exists(target, node.partition))

    def _require(self, target: Target, node: WriteNode) -> None:
        # If the statement names the catalog, Spark checks it.
        self._require_purpose(target, purpose_of(node) if target.via_session_catalog else None)

    def _require_purpose(self, target: Target, purpose: Purpose | None) -> None:
        unsupported_reason = self._resolver.unsupported_reason(target, purpose)
        if unsupported_reason is not None:
            raise Unsupported(*unsupported_reason)


def purpose_of(node: WriteNode) -> Purpose:
    """The purpose of a statement for its target."""
    if node.kind == "create":
        return Purpose.CREATE_TABLE_AS
    if node.kind == "replace":
        return Purpose.CREATE_OR_REPLACE_TABLE_AS
    return Purpose.INSERT_OVERWRITE if node.overwrite else Purpose.INSERT_INTO


def _require_partitions(node: WriteNode, facts: TableFacts | None) -> None:
    """Refuse a PARTITION clause that Spark does not accept for its own tables: for a staged one it accepts any."""
    if "" in node.partition.values():
        raise Unsupported("its PARTITION names an empty value", "Write NULL, or a value")
    columns = facts.partition_columns if facts else ()
    known, named, static = _folded(columns), _folded(node.partition_columns), _folded(node.partition)
    if unknown := sorted(named - known):
        raise Unsupported(
            f"its PARTITION names {', '.join(unknown)}, which {quoted(node.parts)} is not partitioned by",
            f"Name its partition columns: {', '.join(columns)}" if columns else "Leave PARTITION out",
        )
    if named and not (named == known and static == _folded(columns[: len(static)])):
        raise Unsupported(
            f"its PARTITION of {quoted(node.parts)} does not name all of "
            f"{', '.join(columns)}, those with a value first",
            "Name them all, with values from the first one on",
        )


def _folded(columns: Any) -> set[str]:
    return {column.lower() for column in columns}
