"""The timeline's tables and their version.

They contain neither the user's SQL text nor options, and therefore no secrets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import sqlalchemy as sa

from twophase.errors import TimelineError
from twophase.model import ObjectPath

#: Version of the tables below. Each change of the tables needs a new number and an entry in :data:`UPGRADES`.
VERSION = 8

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
    # The same, by a clock of the owner's kernel that is never set; only if all users of the timeline share this kernel.
    sa.Column("lease_steady", sa.Double),
    sa.Column("lease_seconds", sa.Double),
    sa.Column("silent_since", sa.Double),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("decided", sa.Double),
    sa.Column("finished", sa.Double),
    sa.Column("level", sa.Integer),
    sa.Column("isolation", sa.String(16)),
    # The last commit number in its snapshot; NULL if it has none.
    sa.Column("snapshot", sa.BigInteger),
    # Its own commit number, once it is completed and has published anything.
    sa.Column("number", sa.BigInteger),
    # When its first attempt began: of two transactions in conflict, it says which one is older.
    sa.Column("first_begun", sa.Double),
    # The transaction that has rolled it back, because it needed a table that this one had reserved.
    sa.Column("wounded_by", sa.String(64)),
    # The transaction that it takes back.
    sa.Column("undoes", sa.String(64)),
    sa.Column("error", sa.Text),
    sa.Column("left_behind", sa.Text),
    sa.Index("twophase_transactions_finished", "finished", "created"),
    sa.Index("twophase_transactions_created", "created", "id"),
    sa.Index("twophase_transactions_coordinator", "coordinator", "created"),
    sa.Index("twophase_transactions_number", "number"),
)
(_NUMBERS,) = (index for index in transactions.indexes if index.name == "twophase_transactions_number")
#: Transactions with leftovers are few among millions. The literal is part of the index's condition: a database cannot
#: use the index with a parameter.
LEFT_BEHIND = transactions.c.left_behind != sa.literal_column("'[]'")
sa.Index(
    "twophase_transactions_left_behind",
    transactions.c.created,
    transactions.c.id,  # Both, in this order: otherwise a database uses the index of all, which has the right order.
    sqlite_where=LEFT_BEHIND,
    postgresql_where=LEFT_BEHIND,
)

#: The packed ids of pruned transactions, with how each of them ended; kept permanently.
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
    # A hash of catalog and path: names may be longer than a database allows in a key.
    sa.Column("target", sa.String(64), primary_key=True),
    sa.Column("transaction_id", sa.String(64), primary_key=True, index=True),
    sa.Column("catalog", sa.String(255), nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    # An older twophase without modes that is still running reserves whole tables for writing.
    sa.Column("mode", sa.String(8), nullable=False, server_default="write"),
    # A JSON list of partition keys; NULL: the whole table.
    sa.Column("scope", sa.Text),
)

#: The reservation for which a transaction waits. It is not granted to younger ones in the meantime.
waits = sa.Table(
    "twophase_waits",
    metadata,
    sa.Column("transaction_id", sa.String(64), primary_key=True),
    sa.Column("target", sa.String(64), nullable=False, index=True),
    sa.Column("catalog", sa.String(255), nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("mode", sa.String(8), nullable=False),
    sa.Column("scope", sa.Text),
    sa.Column("since", sa.Double, nullable=False),
)

#: One row: the last commit number. Whoever completes a transaction increments it and holds its lock until then, so
#: that commits become visible in the order of their numbers.
commit_clock = sa.Table(
    "twophase_commit_clock",
    metadata,
    sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("last", sa.BigInteger, nullable=False),
)

#: Which transaction changed which table. A row is inserted with the decision, numbered when the transaction is
#: completed, and deleted if it is rolled back: without a number, the change may or may not have been published yet.
changes = sa.Table(
    "twophase_changes",
    metadata,
    sa.Column("target", sa.String(64), primary_key=True),
    sa.Column("transaction_id", sa.String(64), primary_key=True, index=True),
    sa.Column("number", sa.BigInteger),
    sa.Column("mode", sa.String(8), nullable=False),
    sa.Column("scope", sa.Text),
    # What the catalog needs to read the state before it.
    sa.Column("before", sa.Text),
    sa.Index("twophase_changes_target", "target", "number"),
)

#: Named savepoints: states of tables that are kept until they are dropped or expire.
savepoints = sa.Table(
    "twophase_savepoints",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(255), nullable=False, unique=True),
    # CREATING, READY or DROPPING.
    sa.Column("state", sa.String(16), nullable=False),
    # The transaction that creates it: if that is gone before it is READY, no process will finish it.
    sa.Column("transaction_id", sa.String(64), nullable=False),
    sa.Column("user", sa.String(255), nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("expires", sa.Double),
    # The last commit number in it; NULL before it is READY.
    sa.Column("number", sa.BigInteger),
    # A JSON list of the databases that it contains as a whole, each as catalog and name.
    sa.Column("databases", sa.Text, nullable=False),
)

#: The tables of a savepoint, each with what its catalog needs to find the kept state.
savepoint_tables = sa.Table(
    "twophase_savepoint_tables",
    metadata,
    sa.Column("savepoint_id", sa.String(64), primary_key=True),
    sa.Column("ordinal", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("catalog", sa.String(255), nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
)

#: The versions of the tables' schemas, each with the transaction that has published it.
schemas = sa.Table(
    "twophase_schemas",
    metadata,
    sa.Column("target", sa.String(64), primary_key=True),
    sa.Column("ordinal", sa.Integer, primary_key=True, autoincrement=False),
    # NULL: not by a transaction.
    sa.Column("transaction_id", sa.String(64), index=True),
    # The commit number of a transaction that was pruned.
    sa.Column("number", sa.BigInteger),
    # NULL: not known.
    sa.Column("since", sa.Double),
    # NULL: there was no table.
    sa.Column("schema", sa.Text),
)


def _add_leases_and_indexes(connection: sa.Connection) -> None:
    """Upgrade to version 2: duration and clock of leases, tokens of processes, indexes, and ids of pruned ones."""
    for column in ("token", "lease_steady", "lease_seconds"):
        kind = transactions.c[column].type.compile(connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {transactions.name} ADD COLUMN {column} {kind}")
    there = {index["name"] for index in sa.inspect(connection).get_indexes(transactions.name)}
    for index in transactions.indexes - {_NUMBERS}:
        if index.name not in there:
            index.create(connection)
    ended.create(connection, checkfirst=True)


def _share_reservations(connection: sa.Connection) -> None:
    """Upgrade to version 3: several transactions may reserve one table.

    SQLite cannot change a primary key, so the table of reservations is created anew.
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


def _number_commits(connection: sa.Connection) -> None:
    """Upgrade to version 4: commit numbers, the changes of each table instead of its last publisher, and waits."""
    for column in ("isolation", "snapshot", "number", "first_begun", "wounded_by"):
        kind = transactions.c[column].type.compile(connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {transactions.name} ADD COLUMN {column} {kind}")
    changes.create(connection)
    waits.create(connection)
    _start_clock(connection)
    decided = sa.select(transactions.c.id).where(transactions.c.state.in_(["COMMITTING", "IN_DOUBT"]))
    held = [reservations.c[name] for name in ("target", "transaction_id", "mode", "scope")]
    pending = sa.select(*held).where(reservations.c.transaction_id.in_(decided))
    connection.execute(changes.insert().from_select([column.name for column in held], pending))
    connection.exec_driver_sql("DROP TABLE IF EXISTS twophase_publishers")


def _start_clock(connection: sa.Connection) -> None:
    commit_clock.create(connection, checkfirst=True)
    connection.execute(commit_clock.insert().values(one=1, last=0))


def _add_savepoints(connection: sa.Connection) -> None:
    """Upgrade to version 5: named savepoints."""
    savepoints.create(connection)
    savepoint_tables.create(connection)


def _add_schemas(connection: sa.Connection) -> None:
    """Upgrade to version 6: the versions of the tables' schemas."""
    schemas.create(connection)


def _add_undoes(connection: sa.Connection) -> None:
    """Upgrade to version 7: which transaction an undo takes back."""
    kind = transactions.c.undoes.type.compile(connection.dialect)
    connection.exec_driver_sql(f"ALTER TABLE {transactions.name} ADD COLUMN undoes {kind}")


def _index_numbers(connection: sa.Connection) -> None:
    """Upgrade to version 8: the transactions after a commit number are found without a look at all others."""
    _NUMBERS.create(connection)


#: Upgrades from a version to the next one; each runs in the transaction that increments the version.
UPGRADES: dict[int, Callable[[sa.Connection], None]] = {
    1: _add_leases_and_indexes,
    2: _share_reservations,
    3: _number_commits,
    4: _add_savepoints,
    5: _add_schemas,
    6: _add_undoes,
    7: _index_numbers,
}


def path_text(path: ObjectPath) -> str:
    """Return a path as it is stored in a row."""
    return json.dumps(path.to_document(), ensure_ascii=False)


def target_key(catalog: str, path: ObjectPath) -> str:
    """Return the key of a reservation."""
    return hashlib.sha256(json.dumps([catalog, *path.to_document()]).encode()).hexdigest()


def lock_order(catalog: str, path: ObjectPath) -> tuple[str, list[str]]:
    """The order in which all that lock several targets do so, so that none wait for each other in a circle."""
    return catalog, path.to_document()


def lock_target(connection: sa.Connection, target: str) -> None:
    """Lock a target, so that only one database transaction at a time can read its reservations and add to them."""
    if connection.dialect.name == "postgresql":
        key = int(target[:16], 16) - 2**63
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
    elif connection.dialect.name != "sqlite":  # which has a single writer anyway
        connection.execute(sa.select(schema_version.c.version).with_for_update())


def lock_for_all(connection: sa.Connection) -> None:
    """Lock the whole timeline, so that only one database transaction at a time can do global work."""
    if connection.dialect.name == "postgresql":  # SQLite has a single writer anyway.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))


def ensure_tables(connection: sa.Connection, *, create: bool) -> None:
    """Create or upgrade the tables, in one transaction for which other processes wait.

    Raises
    ------
    TimelineError
        The tables are newer than this code, too old for it, or missing and not to be created.
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
    _start_clock(connection)
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
