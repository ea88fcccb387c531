"""The scenarios of the Hermitage suite (Martin Kleppmann), for statements that replace or append.

A step is ``AGENT STATEMENT``. There is no UPDATE here: ``SET a[1] = 11`` stands for an INSERT OVERWRITE from the table
itself. ``{1}`` is the value of row 1 in the last SELECT of the agent. A step that ends in ``PAUSED AT point`` stops at
that failpoint, and goes on with ``RESUME``. What is not between BEGIN and COMMIT is a transaction of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

READ_COMMITTED, SNAPSHOT, SERIALIZABLE = LEVELS = ("read_committed", "snapshot", "serializable")


class Kind(IntEnum):
    """What the transactions of a run have seen and left, from right to wrong."""

    SERIAL = 0  #: As one after the other, in some order.
    WRITE_SKEW = 1  #: Each has read one state of all tables, and none has replaced what another one wrote meanwhile.
    ANOMALY = 2  #: Each statement has read one committed state.
    DIRTY = 3  #: Worse: what was never committed, or is gone.


SERIAL, WRITE_SKEW, ANOMALY, DIRTY = Kind


@dataclass(frozen=True)
class Scenario:
    """A schedule, and what may come of it.

    Parameters
    ----------
    name : str
        Hermitage's, where it has one.
    what : str
    steps : str
    allowed : tuple of Kind
        The worst that is allowed under each of :data:`LEVELS`; under the first one it also happens, if ``certain``.
    is_anomaly : Kind
        From which on the scenario's phenomenon has happened.
    refused : tuple of str
        The agents of which a transaction is refused under each of :data:`LEVELS`.
    refused_without : tuple of str, optional
        The same of the last two of :data:`LEVELS` where no former states are kept; None where that makes no difference.
    partitions : bool
        Whether it needs partitions.
    certain : bool
        Whether what is allowed under READ COMMITTED also happens in every store.
    """

    name: str
    what: str
    steps: str
    allowed: tuple[Kind, Kind, Kind] = (SERIAL, SERIAL, SERIAL)
    is_anomaly: Kind = ANOMALY
    refused: tuple[str, str, str] = ("", "", "")
    refused_without: tuple[str, str] | None = None
    partitions: bool = False
    certain: bool = True

    @property
    def is_over_two_tables(self) -> bool:
        """Whether its blocks go over tables that may be in two stores."""
        return bool(re.search(r" a\b", self.steps) and re.search(r" b\b", self.steps))

    @property
    def reads(self) -> bool:
        """Whether a statement reads a table, but to replace that table."""
        return " FROM " in self.steps

    def refused_under(self, place: int, *, keeps_states: bool) -> str:
        """The agents of which a transaction is refused under one of :data:`LEVELS`."""
        if keeps_states or not place or self.refused_without is None:
            return self.refused[place]
        return self.refused_without[place - 1]

    @property
    def is_harmless(self) -> bool:
        """Whether all of its transactions may commit, under each level."""
        return not any(self.refused) and self.allowed == (SERIAL, SERIAL, SERIAL) and self.is_anomaly is ANOMALY

    @property
    def is_stricter_when_serializable(self) -> bool:
        """Whether ``serializable`` refuses what ``snapshot`` lets through."""
        return self.allowed[1] != self.allowed[2] or self.refused[1] != self.refused[2]

    @property
    def needs_serializable(self) -> bool:
        """Whether only ``serializable`` prevents its phenomenon."""
        return self.allowed[1] >= self.is_anomaly


SEVERAL = [
    Scenario(
        "G0",
        "dirty write: two blocks write a, then b, interleaved",
        """T1 BEGIN; T2 BEGIN; T1 SET a[1] = 11; T2 SET a[1] = 12; T1 SET b[1] = 11; T1 COMMIT;
           T2 SET b[1] = 12; T2 COMMIT""",
        is_anomaly=DIRTY,
        refused=("T2", "T2", "T2"),
    ),
    Scenario(
        "G1a",
        "aborted read: T2 reads what T1 rolls back",
        """T1 BEGIN; T2 BEGIN; T1 SET a[1] = 101; T2 SELECT * FROM a; T1 ROLLBACK; T2 SELECT * FROM a; T2 COMMIT""",
        is_anomaly=DIRTY,
    ),
    Scenario(
        "G1b",
        "intermediate read: T2 reads what T1 replaces before its commit",
        """T1 BEGIN; T2 BEGIN; T1 SET a[1] = 101; T2 SELECT * FROM a; T1 SET a[1] = 11; T1 COMMIT; T2 COMMIT;
           T2 SELECT * FROM a""",
        is_anomaly=DIRTY,
    ),
    Scenario(
        "G1c",
        "circular information flow: each reads what the other one writes",
        """T1 BEGIN; T2 BEGIN; T1 SET a[1] = 11; T2 SET b[1] = 22; T1 SELECT * FROM b; T2 SELECT * FROM a;
           T1 COMMIT; T2 COMMIT""",
        allowed=(WRITE_SKEW, WRITE_SKEW, SERIAL),
        is_anomaly=DIRTY,
        refused=("", "", "T2"),
    ),
    Scenario(
        "OTV",
        "observed transaction vanishes: T3 reads T1's a, then b, then a again, while T2 writes both",
        """T1 BEGIN; T2 BEGIN; T3 BEGIN; T1 SET a[1] = 11; T1 SET b[1] = 19; T2 SET a[1] = 12; T1 COMMIT;
           T3 SELECT * FROM a; T2 SET b[1] = 18; T3 SELECT * FROM b; T2 COMMIT; T3 SELECT * FROM a; T3 COMMIT""",
        refused=("T2", "T2", "T2"),
        refused_without=("T2 T3", "T2 T3"),
    ),
    Scenario(
        "OTV2",
        "observed transaction vanishes, one commit after the other: T3 reads T1's a, then T2's b",
        """T1 BEGIN; T1 SET a[1] = 11; T1 SET b[1] = 11; T1 COMMIT; T3 BEGIN; T3 SELECT * FROM a;
           T2 BEGIN; T2 SET a[1] = 12; T2 SET b[1] = 12; T2 COMMIT; T3 SELECT * FROM b; T3 SELECT * FROM a;
           T3 COMMIT""",
        allowed=(ANOMALY, SERIAL, SERIAL),
        refused_without=("T3", "T3"),
    ),
    Scenario(
        "PMP",
        "predicate-many-preceders: the same predicate twice, and another session inserts in between",
        """T1 BEGIN; T1 SELECT * FROM a WHERE value % 3 = 0; T2 INSERT INTO a VALUES (30, 3);
           T1 SELECT * FROM a WHERE value % 3 = 0; T1 COMMIT""",
        allowed=(ANOMALY, SERIAL, SERIAL),
        refused_without=("T1", "T1"),
    ),
    Scenario(
        "PMPw",
        "predicate-many-preceders of a write: T1 raises all values, T2 removes one by what it was before",
        """T1 BEGIN; T2 BEGIN; T1 INSERT OVERWRITE a SELECT value + 10, id FROM a;
           T2 INSERT OVERWRITE a SELECT value, id FROM a WHERE value <> 20; T1 COMMIT; T2 COMMIT""",
        refused=("T2", "T2", "T2"),
    ),
    Scenario(
        "P2",
        "fuzzy read: one table twice in a block",
        "T1 BEGIN; T1 SELECT * FROM a; T2 SET a[1] = 12; T1 SELECT * FROM a; T1 COMMIT",
        allowed=(ANOMALY, SERIAL, SERIAL),
        refused_without=("T1", "T1"),
    ),
    Scenario(
        "P2_late_collect",
        "fuzzy read: a DataFrame of the block, collected after another one's commit",
        """T1 BEGIN; T1 FRAME SELECT * FROM a; T2 SET a[1] = 12; T1 SELECT FRAME SELECT * FROM a; T1 SELECT * FROM a;
           T1 COMMIT""",
        allowed=(ANOMALY, SERIAL, SERIAL),
        certain=False,
        refused_without=("T1", "T1"),
    ),
    Scenario(
        "P2w",
        "fuzzy read of a table to which the block has appended",
        """T1 BEGIN; T1 INSERT INTO a VALUES (30, 3); T1 SELECT * FROM a; T2 SET a[1] = 12; T1 SELECT * FROM a;
           T1 COMMIT""",
        allowed=(ANOMALY, SERIAL, SERIAL),
        refused=("?", "?", "T1"),
        certain=False,
        refused_without=("T1", "T1"),
    ),
    Scenario(
        "P4_both_staged",
        "lost update: both read, both overwrite from what they read, then commit one after the other",
        """T1 BEGIN; T2 BEGIN; T1 SELECT * FROM a; T2 SELECT * FROM a;
           T1 INSERT OVERWRITE a VALUES ({1} + 1, 1), ({2}, 2); T2 INSERT OVERWRITE a VALUES ({1} + 1, 1), ({2}, 2);
           T1 COMMIT; T2 COMMIT""",
        refused=("T2", "T2", "T2"),
    ),
    Scenario(
        "P4_late_write",
        "lost update: T1 reads, T2 increments and commits, T1 overwrites from what it has read",
        """T1 BEGIN; T1 SELECT * FROM a; T2 SET a[1] = value + 1;
           T1 INSERT OVERWRITE a VALUES ({1} + 1, 1), ({2}, 2); T1 COMMIT""",
        refused=("T1", "T1", "T1"),
    ),
    Scenario(
        "P4_appended_row_lost",
        "lost update: T1 reads, T2 inserts a row, T1 overwrites with what it has read",
        """T1 BEGIN; T1 SELECT * FROM a; T2 INSERT INTO a VALUES (30, 3);
           T1 INSERT OVERWRITE a VALUES ({1}, 1), ({2}, 2); T1 COMMIT""",
        refused=("T1", "T1", "T1"),
    ),
    Scenario(
        "P4_one_statement",
        "lost update: INSERT OVERWRITE from the table itself, two concurrently",
        "T1 SET a[1] = value + 1 PAUSED AT core.reserve; T2 SET a[1] = value + 1; T1 RESUME",
        refused=("T1", "T1", "T1"),
    ),
    Scenario(
        "P4_old_dataframe",
        "lost update through a DataFrame that was made before another one's commit",
        """T1 FRAME SELECT value + 1 AS value, id FROM a; T2 SET a[1] = 12;
           T1 INSERT OVERWRITE a FRAME SELECT value + 1 AS value, id FROM a""",
        refused=("?", "?", "?"),
    ),
    Scenario(
        "Gsingle",
        "read skew: T1 reads a, T2 sets a and b, T1 reads b",
        """T1 BEGIN; T1 SELECT * FROM a; T2 BEGIN; T2 SET a[1] = 12; T2 SET b[1] = 18; T2 COMMIT;
           T1 SELECT * FROM b; T1 COMMIT""",
        allowed=(ANOMALY, SERIAL, SERIAL),
        refused_without=("T1", "T1"),
    ),
    Scenario(
        "Gsingle_write",
        "read skew that is written: T1 reads a, T2 sets a and b, T1 writes into b what it has read of a",
        """T1 BEGIN; T1 SELECT * FROM a; T2 BEGIN; T2 SET a[1] = 12; T2 SET b[1] = 18; T2 COMMIT;
           T1 SET b[1] = value + {1}; T1 COMMIT""",
        allowed=(ANOMALY, SERIAL, SERIAL),
        refused=("", "T1", "T1"),
    ),
    Scenario(
        "G2item",
        "write skew: both read a and b, T1 sets a, T2 sets b",
        """T1 BEGIN; T2 BEGIN; T1 SELECT * FROM a; T1 SELECT * FROM b; T2 SELECT * FROM a; T2 SELECT * FROM b;
           T1 SET a[1] = 11; T2 SET b[1] = 21; T1 COMMIT; T2 COMMIT""",
        allowed=(WRITE_SKEW, WRITE_SKEW, SERIAL),
        is_anomaly=WRITE_SKEW,
        refused=("", "", "T2"),
    ),
    Scenario(
        "G2",
        "write skew by predicate: both look for value % 3 = 0 in a and b, and insert one into a, into b",
        """T1 BEGIN; T2 BEGIN; T1 SELECT * FROM a WHERE value % 3 = 0; T1 SELECT * FROM b WHERE value % 3 = 0;
           T2 SELECT * FROM a WHERE value % 3 = 0; T2 SELECT * FROM b WHERE value % 3 = 0;
           T1 INSERT INTO a VALUES (30, 3); T2 INSERT INTO b VALUES (42, 3); T1 COMMIT; T2 COMMIT""",
        allowed=(WRITE_SKEW, WRITE_SKEW, SERIAL),
        is_anomaly=WRITE_SKEW,
        refused=("", "", "T2"),
    ),
    Scenario(
        "G2_one_table",
        "write skew in one table: both count its rows, and insert one",
        """T1 BEGIN; T2 BEGIN; T1 SELECT * FROM a; T2 SELECT * FROM a; T1 INSERT INTO a VALUES (30, 3);
           T2 INSERT INTO a VALUES (40, 4); T1 COMMIT; T2 COMMIT""",
        allowed=(WRITE_SKEW, WRITE_SKEW, SERIAL),
        is_anomaly=WRITE_SKEW,
        refused=("", "", "T2"),
    ),
    Scenario(
        "READ_EARLY_WRITE_LATE",
        "T1 reads a early, and writes b from a late; another one changes a in between",
        """T1 BEGIN; T1 SELECT * FROM a; T2 SET a[1] = 12;
           T1 INSERT INTO b SELECT CAST(sum(value) AS INT), 3 FROM a; T1 COMMIT""",
        allowed=(ANOMALY, SERIAL, SERIAL),
        refused=("", "", "T1"),
        refused_without=("T1", "T1"),
    ),
    Scenario(
        "OVERLAP",
        "two blocks overlap in b: T1 overwrites a and b, T2 overwrites b and c",
        """T1 BEGIN; T2 BEGIN; T1 SET a[1] = 11; T2 SET b[1] = 12; T1 SET b[1] = 11; T2 SET c[1] = 12; T1 COMMIT;
           T2 COMMIT""",
        refused=("T2", "T2", "T2"),
    ),
    Scenario(
        "OVERLAP_INSERT",
        "two blocks overlap in b, and only append: T1 to a and b, T2 to b and c",
        """T1 BEGIN; T2 BEGIN; T1 INSERT INTO a VALUES (31, 3); T2 INSERT INTO b VALUES (32, 4);
           T1 INSERT INTO b VALUES (31, 3); T2 INSERT INTO c VALUES (32, 4); T1 COMMIT; T2 COMMIT""",
    ),
    Scenario(
        "LONG_HOLDER",
        "a long block has written a twice and goes on; others append to it and overwrite it",
        """T1 BEGIN; T1 SET a[1] = 11; T1 SET a[2] = 21; T2 INSERT INTO a VALUES (30, 3); T3 SET a[1] = 13;
           T1 SELECT * FROM b; T1 COMMIT""",
        refused=("T1", "T1", "T1"),
    ),
    Scenario(
        "STARVED",
        "a long block that overwrites a, three times, beside another session that writes it again and again",
        """T1 BEGIN; T1 SET a[1] = 11; T2 SET a[2] = 21; T1 COMMIT; T1 BEGIN; T1 SET a[1] = 11; T2 SET a[2] = 22;
           T1 COMMIT; T1 BEGIN; T1 SET a[1] = 11; T2 SET a[2] = 23; T1 COMMIT""",
        refused=("T1", "T1", "T1"),
    ),
    Scenario(
        "DEADLOCK_OVERWRITE",
        "T1 overwrites a, then b; T2 overwrites b, then a",
        """T1 BEGIN; T2 BEGIN; T1 SET a[1] = 11; T2 SET b[1] = 12; T1 SET b[1] = 11; T2 SET a[1] = 12;
           T1 COMMIT; T2 COMMIT""",
        refused=("T2", "T2", "T2"),
    ),
    Scenario(
        "DEADLOCK_INSERT",
        "T1 appends to a, then b; T2 appends to b, then a",
        """T1 BEGIN; T2 BEGIN; T1 INSERT INTO a VALUES (31, 3); T2 INSERT INTO b VALUES (32, 4);
           T1 INSERT INTO b VALUES (31, 3); T2 INSERT INTO a VALUES (32, 4); T1 COMMIT; T2 COMMIT""",
    ),
    Scenario(
        "TWO_INSERTS",
        "two INSERT INTO one table concurrently",
        "T1 INSERT INTO a VALUES (31, 3) PAUSED AT core.reserve; T2 INSERT INTO a VALUES (32, 4); T1 RESUME",
    ),
    Scenario(
        "TWO_INSERTS_SAME_PARTITION",
        "two INSERT INTO one partition concurrently",
        "T1 INSERT INTO a VALUES (31, 1) PAUSED AT core.reserve; T2 INSERT INTO a VALUES (32, 1); T1 RESUME",
        partitions=True,
    ),
    Scenario(
        "TWO_INSERTS_OTHER_PARTITIONS",
        "two INSERT INTO different partitions concurrently",
        "T1 INSERT INTO a VALUES (31, 1) PAUSED AT core.reserve; T2 INSERT INTO a VALUES (32, 2); T1 RESUME",
        partitions=True,
    ),
    Scenario(
        "TWO_INSERTS_NEW_PARTITIONS",
        "two INSERT INTO different, new partitions concurrently",
        "T1 INSERT INTO a VALUES (31, 3) PAUSED AT core.reserve; T2 INSERT INTO a VALUES (32, 4); T1 RESUME",
        partitions=True,
    ),
    Scenario(
        "TWO_INSERTS_ONE_NEW_PARTITION",
        "two INSERT INTO one new partition concurrently",
        "T1 INSERT INTO a VALUES (31, 3) PAUSED AT core.reserve; T2 INSERT INTO a VALUES (32, 3); T1 RESUME",
        partitions=True,
    ),
    Scenario(
        "TWO_OVERWRITES_OTHER_PARTITIONS",
        "two INSERT OVERWRITE of different partitions concurrently",
        """T1 INSERT OVERWRITE a PARTITION (id = 1) SELECT 31 PAUSED AT core.reserve;
           T2 INSERT OVERWRITE a PARTITION (id = 2) SELECT 32; T1 RESUME""",
        partitions=True,
        refused=("?", "?", "?"),
    ),
    Scenario(
        "TWO_BLOCKS_OTHER_PARTITIONS",
        "two blocks overwrite different partitions",
        """T1 BEGIN; T2 BEGIN; T1 INSERT OVERWRITE a PARTITION (id = 1) SELECT 31;
           T2 INSERT OVERWRITE a PARTITION (id = 2) SELECT 32; T1 COMMIT; T2 COMMIT""",
        partitions=True,
        refused=("?", "?", "?"),
    ),
    Scenario(
        "READER_TWO_READS",
        "a reader of a, then of b; a block publishes both in between",
        """T1 BEGIN; T1 SET a[1] = 11; T1 SET b[1] = 11; T2 SNAPSHOT; T2 SELECT * FROM a; T1 COMMIT;
           T2 SELECT * FROM b; T2 COMMIT""",
        allowed=(ANOMALY, SERIAL, SERIAL),
        refused_without=("T2", "T2"),
    ),
    Scenario(
        "READER_ONE_QUERY",
        "a reader of a and b in one statement, while a block publishes one after the other",
        """T1 BEGIN; T1 SET a[1] = 11; T1 SET b[1] = 11; T1 COMMIT PAUSED AT core.publish 2; T2 SNAPSHOT;
           T2 SELECT value, id FROM a UNION ALL SELECT value, id FROM b; T1 RESUME;
           T2 SELECT value, id FROM a UNION ALL SELECT value, id FROM b; T2 COMMIT""",
        allowed=(DIRTY, SERIAL, SERIAL),
        certain=False,
    ),
]
SCENARIOS = {scenario.name: scenario for scenario in SEVERAL}
