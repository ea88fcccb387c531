"""What belongs to a table survives its replacement, or is named."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from tests.jdbc.conftest import make_place
from tests.jdbc.places import Place, ordered
from tests.jdbc.statements import ROWS, SCHEMA, run, stage, table
from twophase.catalog import TableChange
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.errors import CatalogError, WriteConflictError
from twophase.model import ObjectPath, Outcome, Purpose, TableDefinition, WriteContext

REPLACE = Purpose.CREATE_OR_REPLACE_TABLE_AS
WIDER = pa.schema([*SCHEMA, pa.field("more", pa.float64())])
WIDER_ROWS = [(7, "seven", 0.5), (8, "eight", None)]


@pytest.fixture
def name(place: Place, path: ObjectPath) -> str:
    return place.name(path)


def test_an_index_is_there_after_a_replace(place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str) -> None:
    run(catalog, path, schema=pa.schema([("id", pa.int64()), ("k", pa.int32())]), rows=[(1, 1)])
    where = "" if place.kind == "sqlite" else f" ON {name} (k)"
    place.execute(f"CREATE UNIQUE INDEX daily_k{where or ' ON daily (k)'}", path.database)
    schema = pa.schema([("k", pa.int32()), ("x", pa.float64())])
    replaced = run(catalog, path, REPLACE, [(5, 0.1), (6, 0.2)], schema)
    assert replaced.document["lost"] == []
    with pytest.raises(Exception, match=r"(?i)duplicate|unique"):
        place.execute(f"INSERT INTO {name} (k) VALUES (5)", path.database)
    again = run(catalog, path, REPLACE, [(5, 0.1), (5, 0.2)], schema)
    assert ["daily_k" in lost for lost in again.document["lost"]] == [True], "What could not be kept must be named."


def test_an_index_is_there_after_a_replace_and_an_insert_of_one_transaction(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
) -> None:
    run(catalog, path)
    where = "" if place.kind == "sqlite" else f" ON {name} (id)"
    place.execute(f"CREATE UNIQUE INDEX daily_k{where or ' ON daily (id)'}", path.database)
    first = stage(catalog, path, REPLACE, ROWS)
    context = WriteContext(first.transaction_id, 1, base=first.document)
    second = catalog.two_phase_create_table(path, TableDefinition(SCHEMA), purpose=Purpose.INSERT_INTO, context=context)
    assert second is not None
    second.begin()
    second.write(table([(77, "more")]))
    second.prepare()
    second.commit()
    second.finish()
    first.abort()
    assert second.document["lost"] == []
    with pytest.raises(Exception, match=r"(?i)duplicate|unique"):
        place.execute(f"INSERT INTO {name} (id) VALUES (77)", path.database)


def test_a_default_is_there_after_a_replace(place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str) -> None:
    kinds = {"sqlite": "BIGINT", "postgresql": "bigint", "mariadb": "bigint"}
    place.execute(f"CREATE TABLE {name} (id {kinds[place.kind]} DEFAULT 42, name text)", path.database)
    run(catalog, path, REPLACE, WIDER_ROWS, WIDER)
    place.execute(f"INSERT INTO {name} (name) VALUES ('by default')", path.database)
    assert place.execute(f"SELECT id FROM {name} WHERE name = 'by default'", path.database) == [(42,)]


def test_a_default_of_a_column_of_another_type_is_named(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
) -> None:
    place.execute(f"CREATE TABLE {name} (id integer DEFAULT 42, name text)", path.database)
    replaced = run(catalog, path, REPLACE, [("a", "b")], pa.schema([("id", pa.string()), ("name", pa.string())]))
    assert ["default of column id" in lost for lost in replaced.document["lost"]] == [True]


def test_a_collation_is_there_after_a_replace_or_named(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
) -> None:
    """It says which texts are equal, and so what a unique index refuses."""
    collation = {"sqlite": "NOCASE", "postgresql": '"C"', "mariadb": "utf8mb4_bin"}[place.kind]
    kind = {"sqlite": "TEXT", "postgresql": "text", "mariadb": "longtext"}[place.kind]
    # MySQL takes no plain default for a text.
    default = "('x')" if place.kind == "mariadb" else "'x'"
    place.execute(f"CREATE TABLE {name} (id bigint, name {kind} COLLATE {collation} DEFAULT {default})", path.database)
    replaced = run(catalog, path, REPLACE, WIDER_ROWS, WIDER)
    if place.kind == "sqlite":
        assert ["collations" in lost for lost in replaced.document["lost"]] == [True]
        return
    assert replaced.document["lost"] == []
    told = {
        "postgresql": "SELECT collation_name FROM information_schema.columns",
        "mariadb": "SELECT COLLATION_NAME FROM information_schema.COLUMNS",
    }[place.kind]
    found = place.execute(
        f"{told} WHERE table_schema = '{path.database}' AND table_name = '{path.name}' AND column_name = 'name'",
        path.database,
    )
    assert found == [(collation.strip('"'),)]
    place.execute(f"INSERT INTO {name} (id) VALUES (9)", path.database)
    assert place.execute(f"SELECT name FROM {name} WHERE id = 9", path.database) == [("x",)]


def test_what_a_column_of_mariadb_cannot_keep_is_named(request: pytest.FixtureRequest, tmp_path: Any) -> None:
    place = make_place("mariadb", request, tmp_path)
    catalog, path = place.catalog(), ObjectPath.of("twophase", "columns_of_old")
    place.execute(
        f"CREATE TABLE {place.name(path)} (id bigint, name longtext COLLATE latin1_bin, "
        "code varchar(9) COLLATE utf8mb4_bin, at timestamp(6) NULL DEFAULT NULL ON UPDATE current_timestamp(6))"
    )
    schema = catalog.load_table(path).schema
    replaced = run(catalog, path, REPLACE, [(1, "ж", "ж", None)], schema)
    catalog.drop_table(path)
    catalog.close()
    named = " ".join(replaced.document["lost"])
    assert "ON UPDATE of column at" in named
    assert "latin1_bin of column name (it does not hold" in named
    assert "utf8mb4_bin of column code (the column has another type)" in named


def test_checks_and_keys_of_sqlite_that_go_are_named(request: pytest.FixtureRequest, tmp_path: Any) -> None:
    place = make_place("sqlite", request, tmp_path)
    catalog, path = place.catalog(), ObjectPath.of("main", "checked")
    place.execute(
        "CREATE TABLE checked (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT CHECK (name <> 'COLLATE'))", "main"
    )
    replaced = run(catalog, path, REPLACE, WIDER_ROWS, WIDER)
    named = " ".join(replaced.document["lost"])
    assert all(word in named for word in ("primary key", "checks", "AUTOINCREMENT"))
    assert "collations" not in named
    catalog.close()


@pytest.mark.promise("preserved", "in SQLite no row of a table that refers to a replaced or altered one is deleted")
def test_rows_that_refer_to_a_table_of_sqlite_are_not_deleted_with_it(
    request: pytest.FixtureRequest, tmp_path: Any
) -> None:
    place = make_place("sqlite", request, tmp_path)
    catalog, path = place.catalog(), ObjectPath.of("main", "parent")
    place.execute("CREATE TABLE parent (id INTEGER UNIQUE, name TEXT)", "main")
    place.execute("CREATE TABLE child (of INTEGER REFERENCES Parent (id) ON DELETE CASCADE)", "main")
    place.execute("INSERT INTO parent VALUES (1, 'x')", "main")
    place.execute("INSERT INTO child VALUES (1)", "main")

    def obeyed(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA foreign_keys = ON")

    sa.event.listen(sa.engine.Engine, "connect", obeyed)
    try:
        with pytest.raises(CatalogError, match="rows of table child"):
            stage(catalog, path, REPLACE, WIDER_ROWS, WIDER)
        with pytest.raises(CatalogError, match="rows of table child"):
            catalog.alter_table(path, [TableChange("move_column", ("name",), {"position": "first"})])
    finally:
        sa.event.remove(sa.engine.Engine, "connect", obeyed)
    assert place.execute("SELECT * FROM child", "main") == [(1,)]
    catalog.close()


def test_comments_are_there_after_a_replace(catalog: JdbcCatalog, path: ObjectPath) -> None:
    schema = pa.schema([SCHEMA.field(0).with_metadata({"comment": "who's it"}), SCHEMA.field(1)])
    run(catalog, path, schema=schema, comment="what \\ it's for")
    run(catalog, path, REPLACE, WIDER_ROWS, WIDER)
    loaded = catalog.load_table(path)
    assert loaded.comment == "what \\ it's for"
    assert loaded.schema.field("id").metadata == {b"comment": b"who's it"}


def test_a_view_answers_after_a_replace(place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str) -> None:
    run(catalog, path)
    view = place.name(ObjectPath.of(path.database, "seen"))
    place.execute(f"CREATE VIEW {view} AS SELECT id FROM {name}", path.database)
    run(catalog, path, REPLACE, [(3, "three")])
    assert place.execute(f"SELECT * FROM {view}", path.database) == [(3,)]
    with pytest.raises(CatalogError, match="view"):
        catalog.drop_table(ObjectPath.of(path.database, "seen"))


def test_a_replace_that_would_lose_a_view_is_refused_before_any_work(
    request: pytest.FixtureRequest, tmp_path: Any
) -> None:
    place = make_place("postgresql", request, tmp_path)
    catalog, path = place.catalog(), ObjectPath.of("public", "seen_from_afar")
    run(catalog, path)
    place.execute("CREATE VIEW public.afar AS SELECT id FROM public.seen_from_afar")
    with pytest.raises(CatalogError, match=r"view public\.afar"):
        stage(catalog, path, REPLACE, WIDER_ROWS, WIDER)
    assert ordered(place.rows(path)) == ROWS
    place.execute("DROP TABLE public.seen_from_afar CASCADE")
    catalog.close()


class TestPostgreSQL:
    """What only PostgreSQL has."""

    @pytest.fixture
    def place(self, request: pytest.FixtureRequest, tmp_path: Any) -> Place:
        return make_place("postgresql", request, tmp_path)

    @pytest.mark.promise(
        "preserved",
        "a replace keeps indexes, comments, defaults and collations; on PostgreSQL grants, constraints and "
        "sequences, too",
    )
    def test_grants_keys_checks_and_sequences_are_there(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        place.execute("DO $$ BEGIN CREATE ROLE reader; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        place.execute(
            f"CREATE TABLE {name} (id bigint PRIMARY KEY, name text CHECK (name <> ''), "
            "n bigserial, m bigint GENERATED BY DEFAULT AS IDENTITY)"
        )
        place.execute(f"INSERT INTO {name} (id, name) VALUES (1, 'a'), (2, 'b')")
        place.execute(f"GRANT SELECT ON {name} TO reader")
        place.execute(f"GRANT UPDATE (name) ON {name} TO reader WITH GRANT OPTION")
        schema = pa.schema([*SCHEMA, pa.field("n", pa.int64()), pa.field("m", pa.int64())])
        replaced = run(catalog, path, REPLACE, [(7, "seven", 1, 1)], schema)
        assert replaced.document["lost"] == []
        place.execute(f"INSERT INTO {name} (id, name) VALUES (8, 'eight')")
        assert place.execute(f"SELECT n, m FROM {name} WHERE id = 8") == [(3, 3)]
        for bad in ("(8, 'again')", "(9, '')"):
            with pytest.raises(Exception, match="violates"):
                place.execute(f"INSERT INTO {name} (id, name) VALUES {bad}")
        rights = f"SELECT has_table_privilege('reader', '{name}', 'SELECT'), has_column_privilege('reader', '{name}', "
        assert place.execute(rights + "'name', 'UPDATE WITH GRANT OPTION')") == [(True, True)]
        place.execute(f"DROP TABLE {name}")

    #: What belongs to the table itself: how it is made, and what its refusal calls it.
    ITS_OWN = (
        ("ALTER TABLE {} ENABLE ROW LEVEL SECURITY", "row-level security"),
        ("CREATE POLICY mine ON {} USING (name = current_user)", "policy mine"),
        (
            "CREATE TRIGGER watch BEFORE UPDATE ON {} FOR EACH ROW "
            "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "trigger watch",
        ),
        ("CREATE PUBLICATION changes FOR TABLE {}", "publication changes"),
        ("ALTER TABLE {} REPLICA IDENTITY FULL", "replica identity"),
        ("CREATE STATISTICS shop_statistics ON id, name FROM {}", "statistics shop_statistics"),
        ("CREATE RULE calm AS ON DELETE TO {} WHERE old.id = 99 DO INSTEAD NOTHING", "rule calm"),
        (
            # Without a provider of the server's operating system SECURITY LABEL itself is refused.
            "SET allow_system_table_mods = on; "
            "INSERT INTO pg_seclabel VALUES ('{}'::regclass, 'pg_class'::regclass, 0, 'selinux', 'secret')",
            "security label of selinux",
        ),
    )

    @pytest.mark.promise("row-security", "who sees one row before a replace sees one row after it")
    def test_who_sees_one_row_before_a_replace_sees_one_row_after_it(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        run(catalog, path, rows=[(1, "alice"), (2, "bob"), (3, "carol")])
        place.execute("DO $$ BEGIN CREATE ROLE alice; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        place.execute(f"GRANT USAGE ON SCHEMA {path.database} TO alice")
        place.execute(f"GRANT SELECT ON {name} TO alice")
        for sql, _ in self.ITS_OWN:
            place.execute(sql.format(name))
        alice = Place("postgresql", f"{place.url}?options=-crole%3Dalice")
        assert alice.rows(path) == [(1, "alice")]
        assert run(catalog, path, REPLACE, [(4, "alice"), (5, "bob")]).document["effect"] == "overwrite"
        assert alice.rows(path) == [(4, "alice")]
        assert len(place.rows(path)) == 2
        with pytest.raises(CatalogError, match="other columns") as refused:
            stage(catalog, path, REPLACE, WIDER_ROWS, WIDER)
        assert [what for _, what in self.ITS_OWN if what not in str(refused.value)] == []
        assert place.execute(
            "SELECT relrowsecurity, relreplident, (SELECT count(*) FROM pg_publication_rel r WHERE r.prrelid = c.oid) "
            f"FROM pg_class c WHERE oid = '{name}'::regclass"
        ) == [(True, "f", 1)]
        place.execute("DROP PUBLICATION changes")

    @pytest.mark.promise("row-security", "row security that is switched on while a replace runs is a conflict")
    def test_security_that_comes_while_a_replace_runs_is_a_conflict(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        run(catalog, path)
        replaced = stage(catalog, path, REPLACE, WIDER_ROWS, WIDER)
        place.execute(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY")
        with pytest.raises(WriteConflictError, match="row-level security"):
            replaced.commit()
        replaced.abort()
        assert ordered(place.rows(path)) == ROWS

    @pytest.mark.promise("row-security", "an overwrite by a role that does not see all rows is refused")
    def test_an_overwrite_by_a_role_that_does_not_see_all_rows_is_refused(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        """It would delete the rows that it sees, and call that an overwrite."""
        run(catalog, path, rows=[(1, "alice"), (2, "bob")])
        place.execute("DO $$ BEGIN CREATE ROLE writer; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        place.execute(f"GRANT ALL ON SCHEMA {path.database} TO writer")
        place.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {path.database} TO writer")
        writer = Place("postgresql", f"{place.url}?options=-crole%3Dwriter").catalog()
        staged = stage(writer, path, Purpose.INSERT_OVERWRITE)
        place.execute(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY")
        place.execute(f"CREATE POLICY first ON {name} USING (id = 1)")
        with pytest.raises(WriteConflictError, match="row-level security"):
            staged.commit()
        staged.abort()
        with pytest.raises(CatalogError, match="row-level security"):
            stage(writer, path, Purpose.INSERT_OVERWRITE)
        assert len(place.rows(path)) == 2
        writer.close()

    @pytest.mark.promise(
        "row-security",
        "default privileges of new tables go neither to a replaced table nor to staged rows",
    )
    def test_rights_that_new_tables_get_by_default_are_not_given_to_a_replaced_or_a_staged_one(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        place.execute("DO $$ BEGIN CREATE ROLE curious; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        place.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA {path.database} GRANT SELECT ON TABLES TO curious")
        run(catalog, path)
        readable = "SELECT has_table_privilege('curious', '{}', 'SELECT')"
        assert place.execute(readable.format(name)) == [(True,)]
        place.execute(f"REVOKE ALL ON {name} FROM curious")
        staged = stage(catalog, path, REPLACE)
        table = place.name(ObjectPath.of(path.database, staged.place.staging.name))
        assert place.execute(readable.format(table)) == [(False,)]
        staged.commit()
        staged.finish()
        assert place.execute(readable.format(name)) == [(False,)]

    def test_what_a_table_is_stored_by_is_there(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        run(catalog, path)
        place.execute(f"ALTER TABLE {name} SET (fillfactor = 70, toast.autovacuum_enabled = off)")
        place.execute(f"ALTER TABLE {name} ALTER name SET STATISTICS 7, ALTER name SET STORAGE EXTERNAL")
        place.execute(f"ALTER TABLE {name} ALTER id SET (n_distinct = 5)")
        # A place of its own, in the directory of the server.
        maker = Place("postgresql", f"{place.url}?options=-callow_in_place_tablespaces%3Don")
        for space in ("fast", "faster"):
            maker.execute(f"CREATE TABLESPACE {space}_{path.database} LOCATION ''")
        place.execute(f"ALTER TABLE {name} SET TABLESPACE fast_{path.database}")
        place.execute(f"CREATE INDEX quick ON {name} (name) TABLESPACE faster_{path.database}")
        place.execute(f"ALTER TABLE {name} CLUSTER ON quick")
        assert run(catalog, path, REPLACE, WIDER_ROWS, WIDER).document["lost"] == []
        facts = f"""
            SELECT c.reloptions, t.reloptions, a.attstattarget, a.attstorage, b.attoptions, s.spcname FROM pg_class c
            JOIN pg_class t ON t.oid = c.reltoastrelid JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'name'
            JOIN pg_attribute b ON b.attrelid = c.oid AND b.attname = 'id'
            JOIN pg_tablespace s ON s.oid = c.reltablespace WHERE c.oid = '{name}'::regclass"""
        assert place.execute(facts) == [
            (["fillfactor=70"], ["autovacuum_enabled=off"], 7, "e", ["n_distinct=5"], f"fast_{path.database}")
        ]
        index = f"""
            SELECT s.spcname, i.indisclustered FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
            LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace WHERE i.indrelid = '{name}'::regclass"""
        assert place.execute(index) == [(f"faster_{path.database}", True)]

    def test_indexes_that_come_while_a_table_is_replaced_do_not_exchange_the_others(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        run(catalog, path)
        place.execute(f"CREATE INDEX b ON {name} (lower(name))")
        place.execute(f"CREATE UNIQUE INDEX c ON {name} (id)")
        place.execute(f"ALTER INDEX {path.database}.b ALTER COLUMN 1 SET STATISTICS 77")
        staged = stage(catalog, path, REPLACE)
        place.execute(f"CREATE INDEX a ON {name} (name)")
        staged.commit()
        staged.finish()
        indexes = f"""
            SELECT c.relname, i.indisunique, a.attstattarget = 77
            FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
            JOIN pg_attribute a ON a.attrelid = c.oid WHERE i.indrelid = '{name}'::regclass ORDER BY 1"""
        found = [(index, unique, bool(target)) for index, unique, target in place.execute(indexes)]
        assert found == [("b", False, True), ("c", True, False)]
        assert [text.partition(" (")[0] for text in staged.document["lost"]] == ["index a"]

    def test_keys_are_checked_when_they_were_and_of_the_same_columns(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        place.execute(
            f"CREATE TABLE {name} (id bigint, name text, PRIMARY KEY (id) INCLUDE (name) DEFERRABLE, "
            "CONSTRAINT late UNIQUE (name) DEFERRABLE INITIALLY DEFERRED)"
        )
        keys = f"""
            SELECT pg_get_constraintdef(k.oid), (SELECT array_agg(a.attname::text) FROM pg_attribute a
            WHERE a.attrelid = k.conrelid AND a.attnotnull AND a.attnum > 0) FROM pg_constraint k
            WHERE k.conrelid = '{name}'::regclass AND k.contype IN ('p', 'u') ORDER BY 1"""
        before = place.execute(keys)
        assert run(catalog, path, REPLACE, [(1, None), (2, "b")]).document["lost"] == []
        assert place.execute(keys) == before

    def test_comments_of_indexes_and_constraints_are_there(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        place.execute(
            f"CREATE TABLE {name} (id bigint CONSTRAINT key PRIMARY KEY, name text CONSTRAINT odd CHECK (name <> ':a'))"
        )
        place.execute(f"CREATE INDEX quick ON {name} (name)")
        for of in ("key", "quick"):
            place.execute(f"COMMENT ON INDEX {path.database}.{of} IS 'index: it''s 100% {of}'")
        for of in ("key", "odd"):
            place.execute(f"COMMENT ON CONSTRAINT {of} ON {name} IS 'constraint {of}'")
        said = f"""
            SELECT description FROM pg_description d
            WHERE d.objoid IN (SELECT indexrelid FROM pg_index WHERE indrelid = '{name}'::regclass
                               UNION SELECT oid FROM pg_constraint WHERE conrelid = '{name}'::regclass) ORDER BY 1"""
        before = place.execute(said)
        assert len(before) == 4
        assert run(catalog, path, REPLACE, ROWS).document["lost"] == []
        assert place.execute(said) == before

    @pytest.mark.promise("preserved", "a foreign key of a PostgreSQL table to itself is kept by a replace")
    def test_a_foreign_key_to_the_table_itself_is_there(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        place.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, boss bigint CONSTRAINT up REFERENCES {name})")
        schema = pa.schema([SCHEMA.field("id"), pa.field("boss", pa.int64())])
        assert run(catalog, path, REPLACE, [(1, None), (2, 1)], schema).document["lost"] == []
        with pytest.raises(Exception, match="violates foreign key"):
            place.execute(f"INSERT INTO {name} VALUES (3, 99)")
        lost = run(catalog, path, REPLACE, [(1, None), (2, 77)], schema).document["lost"]
        assert ["constraint up (" in text for text in lost] == [True]

    def test_options_of_an_identity_are_there(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        place.execute(
            f"CREATE TABLE {name} (id bigint GENERATED BY DEFAULT AS IDENTITY "
            "(INCREMENT -10 MINVALUE -25 MAXVALUE 5 START 5 CACHE 1 CYCLE), name text)"
        )
        assert run(catalog, path, REPLACE, [(7, "seven")]).document["lost"] == []
        place.execute(f"INSERT INTO {name} (name) VALUES ('a'), ('b'), ('c'), ('d'), ('e')")
        assert place.execute(f"SELECT id FROM {name} WHERE name < 'seven'") == [(5,), (-5,), (-15,), (-25,), (5,)]

    def test_a_generated_column_that_becomes_an_ordinary_one_is_named(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        place.execute(f"CREATE TABLE {name} (id bigint, twice bigint GENERATED ALWAYS AS (id * 2) STORED)")
        schema = pa.schema([SCHEMA.field("id"), pa.field("twice", pa.int64())])
        lost = run(catalog, path, REPLACE, [(1, 2)], schema).document["lost"]
        assert [text.split(" (")[0] for text in lost] == ["generated column twice"]


class TestMariaDB:
    """What only MariaDB and MySQL have."""

    @pytest.fixture
    def place(self, request: pytest.FixtureRequest, tmp_path: Any) -> Place:
        return make_place("mariadb", request, tmp_path)

    def test_keys_and_auto_increment_are_there(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        place.execute(f"CREATE TABLE {name} (id bigint AUTO_INCREMENT PRIMARY KEY, name longtext, KEY part (name(5)))")
        replaced = run(catalog, path, REPLACE, [(7, "seven")])
        assert replaced.document["lost"] == []
        place.execute(f"INSERT INTO {name} (name) VALUES ('eight')")
        assert place.execute(f"SELECT id FROM {name} WHERE name = 'eight'") == [(8,)]
        assert place.execute(f"SHOW KEYS FROM {name} WHERE Key_name = 'part'")

    @pytest.mark.promise("preserved", "a table with triggers or foreign keys keeps them, or its replace is refused")
    def test_a_table_with_triggers_or_foreign_keys_keeps_its_place_or_is_not_replaced(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        other = place.name(ObjectPath.of(path.database, "other"))
        place.execute(f"CREATE TABLE {other} (id bigint PRIMARY KEY)")
        place.execute(f"INSERT INTO {other} VALUES (7), (8)")
        place.execute(
            f"CREATE TABLE {name} (id bigint, name longtext, CONSTRAINT its FOREIGN KEY (id) REFERENCES other (id))"
        )
        trigger = place.name(ObjectPath.of(path.database, "watch"))
        place.execute(f"CREATE TRIGGER {trigger} BEFORE UPDATE ON {name} FOR EACH ROW SET NEW.name = 'seen'")
        replaced = run(catalog, path, REPLACE, [(8, "eight")])
        assert (replaced.document["effect"], replaced.level) == ("overwrite", 3)
        place.execute(f"UPDATE {name} SET id = 7")
        assert place.rows(path) == [(7, "seen")]
        with pytest.raises(Exception, match="foreign key constraint fails"):
            place.execute(f"INSERT INTO {name} VALUES (99, 'none')")
        with pytest.raises(CatalogError, match=r"foreign key its, trigger watch would be lost"):
            stage(catalog, path, REPLACE, WIDER_ROWS, WIDER)
        place.execute(f"DROP TABLE {name}")

    @pytest.mark.promise("preserved", "a trigger that is made while a replace runs is a conflict")
    def test_a_trigger_that_comes_while_a_replace_runs_is_a_conflict(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        run(catalog, path)
        replaced = stage(catalog, path, REPLACE, WIDER_ROWS, WIDER)
        trigger = place.name(ObjectPath.of(path.database, "watch"))
        place.execute(f"CREATE TRIGGER {trigger} BEFORE UPDATE ON {name} FOR EACH ROW SET NEW.name = 'seen'")
        with pytest.raises(WriteConflictError, match="trigger watch"):
            replaced.commit()
        replaced.abort()
        assert ordered(place.rows(path)) == ROWS

    def test_a_table_that_others_refer_to_keeps_its_place_or_is_not_replaced(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        other = place.name(ObjectPath.of(path.database, "other"))
        place.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, name longtext)")
        place.execute(f"CREATE TABLE {other} (id bigint, FOREIGN KEY mine (id) REFERENCES daily (id))")
        with pytest.raises(CatalogError, match=r"foreign key .* of other"):
            stage(catalog, path, REPLACE, WIDER_ROWS, WIDER)
        run(catalog, path, REPLACE, ROWS, pa.schema([SCHEMA.field("id").with_nullable(False), SCHEMA.field("name")]))
        assert ordered(place.rows(path)) == ROWS
        with pytest.raises(Exception, match="foreign key constraint fails"):
            place.execute(f"INSERT INTO {other} VALUES (99)")

    @pytest.mark.promise(
        "ddl-in-blocks", "a table to which a foreign key refers is not dropped, nor renamed for a drop"
    )
    def test_a_table_that_others_refer_to_is_not_dropped(
        self, place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
    ) -> None:
        other = place.name(ObjectPath.of(path.database, "other"))
        place.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, name longtext)")
        early, late = (catalog.two_phase_drop_table(path) for _ in range(2))
        assert early is not None and late is not None
        late.begin()
        late.prepare()
        place.execute(f"CREATE TABLE {other} (id bigint, FOREIGN KEY mine (id) REFERENCES daily (id))")
        early.begin()
        with pytest.raises(CatalogError, match=r"foreign key .* of other refers to it"):
            early.prepare()
        with pytest.raises(CatalogError, match=r"foreign key .* of other refers to it"):
            late.commit()
        assert late.outcome() is Outcome.NOT_PUBLISHED
        for participant in (early, late):
            participant.abort()
        assert place.rows(path) == []
