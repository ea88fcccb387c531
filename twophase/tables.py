"""The timeline's tables and their version.

No SQL text of the user's and no option stands in them: they hold no secrets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import sqlalchemy as sa

from twophase.errors import TimelineError
from twophase.model import ObjectPath

#: Version of the tables below. A change of them gets a new number and an entry in :data:`UPGRADES`.
VERSION = 3

_ADVISORY_LOCK = 0x7477_6F70_6861_7365  # "twophase"

metadata = sa.MetaData()

schema_version = sa.Table(
    "twophase_schema_version",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
)

transactions = sa.Table(
    "twophase_transactions",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("coordinator", sa.String(24), nullable=False),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("boot_id", sa.String(128), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("pid_started", sa.String(40), nullable=False),
    sa.Column("token", sa.String(32)),
    sa.Column("user", sa.String(255), nullable=False),
    sa.Column("application", sa.String(255), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("fencing", sa.Integer, nullable=False),
    sa.Column("lease_until", sa.Double, nullable=False),
    # The same by a clock that nobody sets, of the owner's kernel; only where all users of the timeline share that one.
    sa.Column("lease_steady", sa.Double),
    sa.Column("lease_seconds", sa.Double),
    sa.Column("silent_since", sa.Double),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("decided", sa.Double),
    sa.Column("finished", sa.Double),
    sa.Column("level", sa.Integer),
    sa.Column("error", sa.Text),
    sa.Column("left_behind", sa.Text),
    sa.Index("twophase_transactions_finished", "finished", "created"),
    sa.Index("twophase_transactions_created", "created", "id"),
    sa.Index("twophase_transactions_coordinator", "coordinator", "created"),
)
#: Those that have left something behind are few among millions. The text stands in the index's own condition: a
#: database does not see that a parameter fulfils it.
LEFT_BEHIND = transactions.c.left_behind != sa.literal_column("'[]'")
sa.Index(
    "twophase_transactions_left_behind",
    transactions.c.created,
    transactions.c.id,  # Both, in this order: else a database takes the index of all, which is in the order wanted.
    sqlite_where=LEFT_BEHIND,
    postgresql_where=LEFT_BEHIND,
)

#: The ids of transactions that have ended and whose rows are pruned, packed: how each ended is known for good.
ended = sa.Table(
    "twophase_ended",
    metadata,
    sa.Column("coordinator", sa.String(24), primary_key=True),
    sa.Column("day", sa.String(8), primary_key=True),
    sa.Column("ids", sa.LargeBinary, nullable=False),
)

participants = sa.Table(
    "twophase_participants",
    metadata,
    sa.Column("transaction_id", sa.String(64), primary_key=True),
    sa.Column("ordinal", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("catalog", sa.String(255), nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("purpose", sa.String(40), nullable=False),
    sa.Column("document", sa.Text),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("level", sa.Integer),
)

reservations = sa.Table(
    "twophase_reservations",
    metadata,
    # A hash of catalog and path: names may be longer than a store allows in a key.
    sa.Column("target", sa.String(64), primary_key=True),
    sa.Column("transaction_id", sa.String(64), primary_key=True, index=True),
    sa.Column("catalog", sa.String(255), nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    # A twophase that knows no modes and is still at work reserves whole tables for writing.
    sa.Column("mode", sa.String(8), nullable=False, server_default="write"),
    # A JSON list of partition keys; NULL: the whole table.
    sa.Column("scope", sa.Text),
)


#: Who decided last to publish to a table: what a reader compares to learn that somebody did since.
publishers = sa.Table(
    "twophase_publishers",
    metadata,
    sa.Column("target", sa.String(64), primary_key=True),
    sa.Column("transaction_id", sa.String(64), nullable=False),
    sa.Column("decided", sa.Double, nullable=False),
)


def _add_leases_and_indexes(connection: sa.Connection) -> None:
    """Version 2: how long a lease runs, by which clock, tokens of processes, indexes, and the ids of pruned ones."""
    for column in ("token", "lease_steady", "lease_seconds"):
        kind = transactions.c[column].type.compile(connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {transactions.name} ADD COLUMN {column} {kind}")
    there = {index["name"] for index in sa.inspect(connection).get_indexes(transactions.name)}
    for index in transactions.indexes:
        if index.name not in there:
            index.create(connection)
    ended.create(connection, checkfirst=True)


def _share_reservations(connection: sa.Connection) -> None:
    """Version 3: several transactions may hold one table, and a table knows who published last.

    SQLite changes no primary key, so the reservations are made anew.
    """
    for statement in (
        "CREATE TABLE twophase_reservations_3 (target VARCHAR(64) NOT NULL, transaction_id VARCHAR(64) NOT NULL, "
        "catalog VARCHAR(255) NOT NULL, path TEXT NOT NULL, mode VARCHAR(8) DEFAULT 'write' NOT NULL, scope TEXT, "
        "PRIMARY KEY (target, transaction_id))",
        "INSERT INTO twophase_reservations_3 (target, transaction_id, catalog, path) "
        "SELECT target, transaction_id, catalog, path FROM twophase_reservations",
        "DROP TABLE twophase_reservations",
        "ALTER TABLE twophase_reservations_3 RENAME TO twophase_reservations",
        "CREATE INDEX ix_twophase_reservations_transaction_id ON twophase_reservations (transaction_id)",
    ):
        connection.exec_driver_sql(statement)
    publishers.create(connection)


#: From a version to the next one; each runs inside the transaction that raises the version.
UPGRADES: dict[int, Callable[[sa.Connection], None]] = {1: _add_leases_and_indexes, 2: _share_reservations}


def path_text(path: ObjectPath) -> str:
    """A path as it stands in a row."""
    return json.dumps(path.to_document(), ensure_ascii=False)


def target_key(catalog: str, path: ObjectPath) -> str:
    """The key of a reservation."""
    return hashlib.sha256(json.dumps([catalog, *path.to_document()]).encode()).hexdigest()


def lock_target(connection: sa.Connection, target: str) -> None:
    """Let one transaction of the database at a time look at the reservations of a target, and add to them."""
    if connection.dialect.name == "postgresql":
        key = int(target[:16], 16) - 2**63
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
    elif connection.dialect.name != "sqlite":  # which has one writer anyway
        connection.execute(sa.select(schema_version.c.version).with_for_update())


def lock_for_all(connection: sa.Connection) -> None:
    """Let one transaction of the database at a time do what concerns the timeline as a whole."""
    if connection.dialect.name == "postgresql":  # SQLite has one writer anyway.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))


def ensure_tables(connection: sa.Connection, *, create: bool) -> None:
    """Create or upgrade the tables, inside one transaction that other processes wait for.

    Raises
    ------
    TimelineError
        The tables are newer than this code, too old for it, or not there and not to be made.
    """
    lock_for_all(connection)
    if not sa.inspect(connection).has_table(schema_version.name):
        _create(connection, create)
        return
    found = connection.scalar(sa.select(sa.func.max(schema_version.c.version)))
    if found is None:
        raise TimelineError("it has a version table without a version; it was not written by twophase")
    _upgrade(connection, found)


def _create(connection: sa.Connection, create: bool) -> None:
    if not create:
        raise TimelineError("there is no timeline yet: nothing was ever recorded there")
    metadata.create_all(connection)
    connection.execute(schema_version.insert().values(version=VERSION))


def _upgrade(connection: sa.Connection, found: int) -> None:
    if found > VERSION:
        raise TimelineError(
            f"it was written by a newer twophase (version {found} of its tables, this one knows {VERSION}); "
            "upgrade twophase here"
        )
    for version in range(found, VERSION):
        if version not in UPGRADES:
            raise TimelineError(
                f"it was written by a twophase too old for this one (version {version} of its tables, "
                f"this one knows {VERSION}); give spark.twophase.timeline another place, or open it with that release"
            )
        UPGRADES[version](connection)
        connection.execute(schema_version.update().values(version=version + 1))
