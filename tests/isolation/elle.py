"""Find isolation anomalies in the history of blocks that append unique values to tables and read whole tables.

After Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies from Experimental Observations" (VLDB 2020). As each
value has one writer, what was read tells which block depends on which:

- ``wr``: a block has read what another one wrote;
- ``rw``: a block has not seen what another one wrote, so it is the earlier one;
- ``ww``: one write follows another, in tables whose values have an order. In the others appends are rows of their own
  and commute: between them is no order;
- ``rt``: a block had ended before another one began.

A circle of dependencies is an anomaly, named after the edges in it (Adya). Other anomalies show in a single block.
Blocks that were refused, or whose end is unknown, count as readers; what is read of the latter was committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

import networkx as nx

from tests.isolation.history import Append, Block, Read, Sum


class Kind(StrEnum):
    """The anomalies."""

    DUPLICATE = "duplicate"  #: A value is there twice.
    UNKNOWN = "unknown value"  #: Nobody wrote it.
    OWN_WRITE = "own write missing"  #: A block does not see what it has written itself.
    G0 = "G0"  #: Dirty write: a circle of ww.
    G1A = "G1a"  #: Aborted read.
    G1B = "G1b"  #: Intermediate read: of one block's values in a table some are there.
    G1C = "G1c"  #: Circular information flow: a circle of ww and wr.
    LOST = "lost value"  #: It was acknowledged or seen, and is not there in the end.
    ORDER = "incompatible order"  #: Two reads of a table, of which neither is the beginning of the other.
    FUZZY = "fuzzy read"  #: Two reads of a table in one block differ.
    FRACTURED = "fractured read"  #: A block sees what another one wrote into one table, and not into another.
    P4 = "lost update"  #: Two blocks have read one version of a table, and both have written the next.
    G_SINGLE = "G-single"  #: Read skew: a circle with one rw.
    G_NONADJACENT = "G-nonadjacent"  #: A circle of several rw, no two of which follow each other.
    BANK = "bank"  #: The accounts of the bank do not add up.
    G2 = "G2"  #: Write skew: a circle with several rw.


#: What no level allows. A circle that only the times of the blocks close is of the same kind.
ALWAYS_WRONG = frozenset({Kind.DUPLICATE, Kind.UNKNOWN, Kind.OWN_WRITE, Kind.G0, Kind.G1A, Kind.G1B, Kind.G1C})
FORBIDDEN = {
    "read_committed": ALWAYS_WRONG | {Kind.LOST, Kind.P4},
    "snapshot": frozenset(Kind) - {Kind.G2},
    "serializable": frozenset(Kind),
}


@dataclass(frozen=True)
class Anomaly:
    """One anomaly.

    Parameters
    ----------
    kind : Kind
    blocks : tuple of str
        The block that saw it first.
    why : str
        The reads, or the circle, that prove it.
    in_time : bool
        Whether only the times at which blocks began and ended make it one.
    """

    kind: Kind
    blocks: tuple[str, ...]
    why: str = field(compare=False)
    in_time: bool = False

    def __str__(self) -> str:
        return f"{self.kind}{' (real time)' if self.in_time else ''}: {self.why}"


def check(blocks: Sequence[Block], *, ordered: Collection[str] = (), total: int | None = None) -> list[Anomaly]:
    """Find the anomalies of a history.

    Parameters
    ----------
    blocks : sequence of Block
    ordered : collection of str
        Tables whose reads show the values in the order in which they were written: each writer reads the table and
        writes it whole, with its value at the end.
    total : int, optional
        What the accounts of the bank add up to.

    Returns
    -------
    list of Anomaly
    """
    history = _History(blocks, frozenset(ordered))
    found = [*history.values(), *history.internal(), *history.intermediate(), *history.fractured(), *history.lost()]
    found += [*history.incompatible_orders(), *history.lost_updates(), *history.sums(total)]
    plain = list(_Circles(history, in_time=False).find())
    known = {(anomaly.kind, anomaly.blocks[0]) for anomaly in plain}
    # What is a circle without the times is one with them; a block may be in a worse one then, which is told as well.
    timed = [a for a in _Circles(history, in_time=True).find() if (a.kind, a.blocks[0]) not in known]
    return [*found, *plain, *timed]


def violations(anomalies: Sequence[Anomaly], level: str) -> list[Anomaly]:
    """Those which a level forbids."""
    return [anomaly for anomaly in anomalies if anomaly.kind in FORBIDDEN[level]]


class _History:
    """The blocks, who wrote what, and what each has read of others' values."""

    def __init__(self, blocks: Sequence[Block], ordered: frozenset[str]) -> None:
        self.blocks = {block.name: block for block in blocks}
        self.ordered = ordered
        self.wrote: dict[str, dict[str, list[int]]] = {}
        self.writer: dict[tuple[str, int], str] = {}
        for block in blocks:
            own = self.wrote[block.name] = defaultdict(list)
            for op in (op for op in block.operations if isinstance(op, Append)):
                own[op.table].append(op.value)
                if self.writer.setdefault((op.table, op.value), block.name) != block.name:
                    raise ValueError(f"Two blocks append {op.value} to {op.table}.")
        #: (block, table, values of others), in the order of the reads.
        self.reads = [
            (block, op.table, tuple(v for v in op.values if self.writer.get((op.table, v)) != block.name))
            for block in blocks
            for op in block.operations
            if isinstance(op, Read)
        ]
        seen = {self.writer.get((table, value)) for _, table, values in self.reads for value in values}
        #: Those whose writes are in the history for good, as far as can be known.
        self.committed = {b.name for b in blocks if b.outcome == "ok" or (b.outcome == "info" and b.name in seen)}

    # -- one read, or one block ----------------------------------------------------------------------------------------

    def values(self) -> Iterator[Anomaly]:
        for block, op in ((b, op) for b in self.blocks.values() for op in b.operations if isinstance(op, Read)):
            for value in {value for value in op.values if op.values.count(value) > 1}:
                yield Anomaly(Kind.DUPLICATE, (block.name,), f"{block.name} reads {value} twice in {op.table}")
            for value in op.values:
                writer = self.writer.get((op.table, value))
                text = f"{block.name} reads {value} in {op.table}"
                if writer is None:
                    yield Anomaly(Kind.UNKNOWN, (block.name,), f"{text}, which nobody wrote")
                elif self.blocks[writer].outcome == "fail" and writer != block.name:
                    yield Anomaly(Kind.G1A, (block.name, writer), f"{text}, of {writer}, which was rolled back")

    def internal(self) -> Iterator[Anomaly]:
        for block in self.blocks.values():
            own: dict[str, list[int]] = defaultdict(list)
            before: dict[str, tuple[int, ...]] = {}
            for op in block.operations:
                if isinstance(op, Append):
                    own[op.table].append(op.value)
                elif isinstance(op, Read):
                    missing = [value for value in own[op.table] if value not in op.values]
                    others = tuple(v for v in op.values if v not in own[op.table])
                    others = others if op.table in self.ordered else tuple(sorted(others))
                    text = f"{block.name} reads {list(op.values)} in {op.table}"
                    if missing:
                        yield Anomaly(Kind.OWN_WRITE, (block.name,), f"{text} after it has written {missing}")
                    if (earlier := before.setdefault(op.table, others)) != others:
                        yield Anomaly(Kind.FUZZY, (block.name,), f"{text}, and of others {list(earlier)} before")

    def intermediate(self) -> Iterator[Anomaly]:
        for block, table, values in self.reads:
            for writer in sorted({self.writer[table, v] for v in values if (table, v) in self.writer}):
                if (unseen := [v for v in self.wrote[writer][table] if v not in values]) and not block.final:
                    text = f"{block.name} reads {list(values)} in {table}: of {writer}'s values not {unseen}"
                    yield Anomaly(Kind.G1B, (block.name, writer), text)

    def fractured(self) -> Iterator[Anomaly]:
        for block in self.blocks.values():
            reads = [(table, set(values)) for reader, table, values in self.reads if reader is block]
            tables = {table for table, _ in reads}
            for writer in sorted(self.committed - {block.name}):
                wrote = {table: set(self.wrote[writer][table]) for table in tables & self.wrote[writer].keys()}
                seen = {table for table, values in reads if values & wrote.get(table, set())}
                unseen = {table for table, values in reads if table in wrote and not wrote[table] <= values} - seen
                if seen and unseen:
                    text = f"{block.name} sees what {writer} wrote in {sorted(seen)}, and not in {sorted(unseen)}"
                    yield Anomaly(Kind.FRACTURED, (block.name, writer), text)

    def lost(self) -> Iterator[Anomaly]:
        for reader, table, values in self.reads:
            for writer in sorted(self.committed if reader.final else ()):
                if gone := [value for value in self.wrote[writer].get(table, ()) if value not in values]:
                    text = f"{gone} of {writer} ({self.blocks[writer].outcome}) is not in {table} at the end"
                    yield Anomaly(Kind.LOST, (writer, reader.name), text)

    def sums(self, total: int | None) -> Iterator[Anomaly]:
        for block in self.blocks.values():
            for op in (op for op in block.operations if isinstance(op, Sum)):
                if op.total != total:
                    yield Anomaly(Kind.BANK, (block.name,), f"{block.name} sees {op.total} instead of {total}")

    # -- tables with an order ------------------------------------------------------------------------------------------

    @cached_property
    def orders(self) -> dict[str, tuple[int, ...]]:
        """Of each ordered table the longest read; a block that was rolled back has seen its own values, which go."""
        found: dict[str, tuple[int, ...]] = dict.fromkeys(self.ordered, ())
        for _, table, values in self._lists():
            found[table] = max(found[table], values, key=len)
        return found

    def _lists(self) -> Iterator[tuple[Block, str, tuple[int, ...]]]:
        for block in self.blocks.values():
            for op in (op for op in block.operations if isinstance(op, Read) and op.table in self.ordered):
                own = () if block.name in self.committed else self.wrote[block.name][op.table]
                yield block, op.table, tuple(value for value in op.values if value not in own)

    def incompatible_orders(self) -> Iterator[Anomaly]:
        for block, table, values in self._lists():
            if values != self.orders[table][: len(values)]:
                text = f"{block.name} reads {list(values)} in {table}, others {list(self.orders[table])}"
                yield Anomaly(Kind.ORDER, (block.name,), text)

    def lost_updates(self) -> Iterator[Anomaly]:
        readers: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
        for name in sorted(self.committed):
            read: set[str] = set()
            for op in self.blocks[name].operations:
                if isinstance(op, Read) and op.table in self.ordered - read and self.wrote[name][op.table]:
                    read.add(op.table)
                    readers[op.table, op.values].append(name)
        for (table, values), names in readers.items():
            if len(names) > 1:
                yield Anomaly(Kind.P4, tuple(names), f"{', '.join(names)} have written {table} after {list(values)}")


class _Circles:
    """The graph of dependencies, and the circles in it.

    Parameters
    ----------
    history : _History
    in_time : bool
        Whether a block depends on those that had ended before it began.
    """

    def __init__(self, history: _History, *, in_time: bool) -> None:
        self._history = history
        self._in_time = in_time
        self._edges = {kind: nx.DiGraph() for kind in ("ww", "wr", "rt", "rw")}
        for reader, table, values in history.reads:
            if table in history.ordered:
                self._of_list(reader.name, table, values)
            else:
                self._of_set(reader.name, table, set(values))
        for table in history.ordered:
            writers = [name for value in history.orders[table] if (name := self._committed(table, value))]
            for one, other in pairwise(writers):
                self._add("ww", one, other, table)
        if in_time:
            self._of_times()
        self._order = nx.compose_all([self._edges[kind] for kind in ("ww", "wr", "rt")])
        self._all = nx.compose(self._order, self._edges["rw"])

    # -- edges ---------------------------------------------------------------------------------------------------------

    def _committed(self, table: str, value: int) -> str | None:
        writer = self._history.writer.get((table, value))
        return writer if writer in self._history.committed else None

    def _add(self, kind: str, one: str, other: str, why: str) -> None:
        if one != other:
            self._edges[kind].add_edge(one, other, why=f"{kind} {why}".strip())

    def _of_set(self, reader: str, table: str, values: set[int]) -> None:
        for name in self._history.committed:
            for value in self._history.wrote[name].get(table, ()):
                if value in values:
                    self._add("wr", name, reader, f"{table}: {value}")
                else:
                    self._add("rw", reader, name, f"{table}: {value}")

    def _of_list(self, reader: str, table: str, values: tuple[int, ...]) -> None:
        order = self._history.orders[table]
        if values and (writer := self._committed(table, values[-1])):
            self._add("wr", writer, reader, f"{table}: {values[-1]}")
        later = [v for v in order[len(values) :] if self._committed(table, v)]
        if values == order[: len(values)] and later and (writer := self._committed(table, later[0])):
            self._add("rw", reader, writer, f"{table}: {later[0]}")

    def _of_times(self) -> None:
        """From the last block that each process had ended; those before it, that one follows itself."""
        last: dict[str, str] = {}
        moments = [(b.ended, 1, b) for b in self._history.blocks.values() if b.outcome != "info"]
        moments += [(b.began, 0, b) for b in self._history.blocks.values()]
        for _, ends, block in sorted(moments, key=lambda moment: moment[:2]):
            if ends:
                last[block.process] = block.name
            else:
                for name in last.values():
                    self._add("rt", name, block.name, "")

    # -- circles -------------------------------------------------------------------------------------------------------

    def find(self) -> Iterator[Anomaly]:
        kinds = ("ww", "rt") if self._in_time else ("ww",)
        for circle in _one_in_each(nx.compose_all([self._edges[kind] for kind in kinds])):
            yield self._anomaly(Kind.G0, circle)
        for circle in self._closed("wr", self._order):
            yield self._anomaly(Kind.G1C, circle)
        skewed = set()
        for circle in self._closed("rw", self._order):
            skewed.add(circle[0])
            yield self._anomaly(Kind.G_SINGLE, circle)
        for circle in _one_in_each(self._alternating()):
            names = [name for name, _ in circle]
            if not skewed & {*names}:
                yield self._anomaly(Kind.G_NONADJACENT, names)
        for circle in self._closed("rw", self._all):
            if circle[0] not in skewed:
                yield self._anomaly(Kind.G2, circle)

    def _closed(self, kind: str, graph: nx.DiGraph) -> Iterator[list[str]]:
        """For each block a circle that begins with an edge of this kind, and goes on in the graph."""
        whole = nx.compose(graph, self._edges[kind])
        component = {name: i for i, names in enumerate(nx.strongly_connected_components(whole)) for name in names}
        done: set[str] = set()
        for one, other in sorted(self._edges[kind].edges):
            if one in done or component[one] != component[other]:
                continue
            with suppress(nx.NetworkXNoPath, nx.NodeNotFound):
                path = nx.shortest_path(graph, other, one)
                done.add(one)
                yield [one, *path]

    def _alternating(self) -> nx.DiGraph:
        """Its paths are those without two rw edges in a row: a node remembers how it was reached."""
        graph = nx.DiGraph()
        for one, other in self._order.edges:
            graph.add_edges_from(((one, by_rw), (other, False)) for by_rw in (False, True))
        graph.add_edges_from(((one, False), (other, True)) for one, other in self._edges["rw"].edges)
        return graph

    def _anomaly(self, kind: Kind, circle: list[str]) -> Anomaly:
        text = circle[0]
        for one, other in pairwise(circle):
            # The same two may depend on each other in two ways: the circle was closed without rw if that was possible.
            reasons = [graph.edges[one, other]["why"] for graph in self._edges.values() if graph.has_edge(one, other)]
            text += f" -[{reasons[0 if other != circle[1] or kind not in (Kind.G_SINGLE, Kind.G2) else -1]}]-> {other}"
        return Anomaly(kind, tuple(dict.fromkeys(circle)), text, self._in_time)


def _one_in_each(graph: nx.DiGraph) -> Iterator[list[str]]:
    """Of each set of nodes that reach each other a circle: its nodes, the first one again at the end."""
    for names in nx.strongly_connected_components(graph):
        if len(names) > 1:
            steps = nx.find_cycle(graph.subgraph(names))
            yield [steps[0][0], *(other for _, other in steps)]
