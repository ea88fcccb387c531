"""Preserving dependent objects in PostgreSQL."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from twophase.catalogs.jdbc.dependents import Preserver

_OLD = "to_regclass(:name)"

_DEFAULTS = f"""
SELECT a.attname, pg_get_expr(d.adbin, d.adrelid), a.attidentity,
       (SELECT format('START %s INCREMENT %s MINVALUE %s MAXVALUE %s CACHE %s %sCYCLE', s.seqstart, s.seqincrement,
                      s.seqmin, s.seqmax, s.seqcache, CASE WHEN NOT s.seqcycle THEN 'NO ' END)
        FROM pg_sequence s JOIN pg_depend i ON i.objid = s.seqrelid AND i.classid = 'pg_class'::regclass
        WHERE i.refobjid = a.attrelid AND i.refobjsubid = a.attnum AND i.deptype = 'i')
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = {_OLD} AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
  AND (d.adbin IS NOT NULL OR a.attidentity <> '')
"""
_GENERATED = f"""
SELECT a.attname FROM pg_attribute a
WHERE a.attrelid = {_OLD} AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> ''
"""
_COLLATIONS = f"""
SELECT a.attname, format('%I.%I', n.nspname, c.collname)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid JOIN pg_collation c ON c.oid = a.attcollation
JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE a.attrelid = {_OLD} AND a.attnum > 0 AND NOT a.attisdropped AND a.attcollation <> t.typcollation
"""
#: An older server has no columns that an index only includes.
_INDEXES = f"""
SELECT c.relname, pg_get_indexdef(i.indexrelid), coalesce(k.contype, ''), i.indisunique,
       ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)),
       ARRAY(SELECT a.attname FROM unnest(i.indkey) WITH ORDINALITY u (number, place)
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = u.number
             WHERE u.place <= coalesce((to_jsonb(i) ->> 'indnkeyatts')::int, i.indnatts)),
       format('CREATE %sINDEX %I ON %I.%I ', CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END,
              c.relname, n.nspname, t.relname),
       concat(CASE WHEN k.condeferrable THEN ' DEFERRABLE' END, CASE WHEN k.condeferred THEN ' INITIALLY DEFERRED' END),
       s.spcname, i.indisclustered, obj_description(i.indexrelid, 'pg_class'), obj_description(k.oid, 'pg_constraint'),
       ARRAY(SELECT format('ALTER COLUMN %s SET STATISTICS %s', a.attnum, to_jsonb(a) ->> 'attstattarget')
             FROM pg_attribute a WHERE a.attrelid = i.indexrelid AND (to_jsonb(a) ->> 'attstattarget')::int >= 0)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
JOIN pg_namespace n ON n.oid = t.relnamespace LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace
LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.conrelid = i.indrelid AND k.contype IN ('p', 'u', 'x')
WHERE i.indrelid = {_OLD} ORDER BY c.relname
"""
_CONSTRAINTS = f"""
SELECT k.conname, pg_get_constraintdef(k.oid),
       ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = k.conrelid AND a.attnum = ANY(k.conkey)),
       obj_description(k.oid, 'pg_constraint'), k.conrelid = k.confrelid
FROM pg_constraint k WHERE k.conrelid = {_OLD} AND k.contype IN ('c', 'f') ORDER BY k.conname
"""
_SEQUENCES = f"""
SELECT format('%I.%I', n.nspname, s.relname), a.attname, d.deptype = 'i'
FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
JOIN pg_namespace n ON n.oid = s.relnamespace
JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_class'::regclass AND d.refobjid = {_OLD} AND d.deptype IN ('a', 'i')
"""
_GRANTS = f"""
SELECT NULL, x.grantee, coalesce(r.rolname, ''), x.privilege_type, x.is_grantable
FROM pg_class c CROSS JOIN aclexplode(c.relacl) x LEFT JOIN pg_roles r ON r.oid = x.grantee
WHERE c.oid = {_OLD} AND x.grantee <> c.relowner
UNION ALL
SELECT a.attname, x.grantee, coalesce(r.rolname, ''), x.privilege_type, x.is_grantable
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid CROSS JOIN aclexplode(a.attacl) x
LEFT JOIN pg_roles r ON r.oid = x.grantee
WHERE a.attrelid = {_OLD} AND NOT a.attisdropped AND x.grantee <> c.relowner
"""
_OWNER = f"""
SELECT r.rolname, r.rolname = current_user FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = {_OLD}
"""
#: Storage settings of the table. Older servers lack some of these columns.
_STORAGE = f"""
SELECT coalesce(c.reloptions, '{{}}'), coalesce(t.reloptions, '{{}}'), s.spcname, m.amname, c.relpersistence
FROM pg_class c LEFT JOIN pg_class t ON t.oid = c.reltoastrelid LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace
LEFT JOIN pg_am m ON m.oid = c.relam AND m.amname <> current_setting('default_table_access_method')
WHERE c.oid = {_OLD}
"""
_COLUMN_STORAGE = f"""
SELECT a.attname, coalesce(to_jsonb(a) ->> 'attstattarget', '-1'), nullif(a.attstorage, t.typstorage),
       coalesce(a.attoptions, '{{}}'), nullif(to_jsonb(a) ->> 'attcompression', '')
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = {_OLD} AND a.attnum > 0 AND NOT a.attisdropped
"""
_STORAGE_WORDS = {"p": "PLAIN", "e": "EXTERNAL", "m": "MAIN", "x": "EXTENDED"}
_COMPRESSION_WORDS = {"p": "pglz", "l": "lz4"}
#: Objects that would be lost, or would refer to another table, if a new table took the name. Row-level security and
#: policies decide who sees which rows; publications, who receives them; so none of them may ever be lost silently.
_DEPENDENTS = f"""
SELECT DISTINCT 'view ' || format('%I.%I', n.nspname, v.relname)
FROM pg_depend d JOIN pg_rewrite w ON w.oid = d.objid JOIN pg_class v ON v.oid = w.ev_class
JOIN pg_namespace n ON n.oid = v.relnamespace
WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = {_OLD}
  AND v.oid <> d.refobjid
UNION
SELECT format('foreign key %I of %s', k.conname, k.conrelid::regclass)
FROM pg_constraint k WHERE k.confrelid = {_OLD} AND k.contype = 'f' AND k.conrelid <> k.confrelid
UNION
SELECT 'inheriting table ' || i.inhrelid::regclass FROM pg_inherits i WHERE i.inhparent = {_OLD}
UNION
SELECT 'its place in table ' || i.inhparent::regclass FROM pg_inherits i WHERE i.inhrelid = {_OLD}
UNION
SELECT 'its partitioning' FROM pg_class c WHERE c.oid = {_OLD} AND c.relkind = 'p'
UNION
SELECT 'row-level security' FROM pg_class c WHERE c.oid = {_OLD} AND (c.relrowsecurity OR c.relforcerowsecurity)
UNION
SELECT 'policy ' || quote_ident(p.polname) FROM pg_policy p WHERE p.polrelid = {_OLD}
UNION
SELECT 'trigger ' || quote_ident(t.tgname) FROM pg_trigger t WHERE t.tgrelid = {_OLD} AND NOT t.tgisinternal
UNION
SELECT 'rule ' || quote_ident(w.rulename) FROM pg_rewrite w WHERE w.ev_class = {_OLD}
UNION
SELECT 'its place in publication ' || quote_ident(p.pubname)
FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE r.prrelid = {_OLD}
UNION
SELECT 'its replica identity' FROM pg_class c WHERE c.oid = {_OLD} AND c.relreplident <> 'd'
UNION
SELECT 'statistics ' || quote_ident(s.stxname) FROM pg_statistic_ext s WHERE s.stxrelid = {_OLD}
UNION
SELECT 'a security label of ' || l.provider FROM pg_seclabel l
WHERE l.classoid = 'pg_class'::regclass AND l.objoid = {_OLD}
UNION
SELECT 'function ' || d.objid::regprocedure FROM pg_depend d JOIN pg_class c ON d.refobjid IN (c.oid, c.reltype)
WHERE c.oid = {_OLD} AND d.classid = 'pg_proc'::regclass AND d.deptype = 'n'
"""


class _Index(NamedTuple):
    """An index of the old table, as :data:`_INDEXES` finds it."""

    name: str
    sql: str
    #: The kind of its constraint: ``p``, ``u`` or ``x``; empty for none.
    kind: str
    unique: bool
    columns: list[str]
    keys: list[str]
    #: How its definition begins.
    head: str
    #: When its constraint is checked, in words of SQL.
    timing: str
    space: str | None
    clustered: bool
    comment: str | None
    #: The comment of its constraint.
    key_comment: str | None
    #: Clauses that set the statistics targets of its expressions.
    statistics: list[str]


class PostgreSQLPreserver(Preserver):
    """Preserver that builds indexes on the staging table, so that the publish itself is short."""

    _grants: list[Any]
    _indexes: list[_Index]
    _owner: tuple[str, bool]
    _sequences: list[Any]
    #: Foreign keys to the table itself, which no other table can have in the meantime.
    _own_keys: list[Any]

    def _of(self, sql: str) -> list[Any]:
        # Escaped, or a cast would be parsed as a parameter.
        return self.rows(sql.replace("::", "\\:\\:"), name=self.database.name(self.old))

    def dependents(self) -> list[str]:
        return sorted(name for (name,) in self._of(_DEPENDENTS))

    def attributes(self) -> dict[str, str]:
        found = {name: f"COLLATE {sql} " for name, sql in self._of(_COLLATIONS) if name in self.columns}
        for name, sql, identity, _ in self._of(_DEFAULTS):
            if not identity and self.keeps_default(name):
                found[name] = f"{found.get(name, '')}DEFAULT {sql}"
        return found

    def prepare(self) -> None:
        staging = self.database.name(self.staging)
        for name, _ in self._of(_COLLATIONS):
            self.survive([name], f"collation of column {name}")
        for name, _, identity, options in self._of(_DEFAULTS):
            if name not in self.columns:
                self.report_lost(f"default of column {name}", "the column is gone or has another type")
            elif identity and self.keeps_default(name):
                self._identity(staging, name, identity, options)
        for (name,) in self._of(_GENERATED):
            self.report_lost(f"generated column {name}", "the new rows have values of their own")
        for index in self._indexes_now():
            self._index(index)
        self._constrain(staging, [row for row in self._of(_CONSTRAINTS) if not row[4]])
        self._storage(staging)

    def _constrain(self, table: str, constraints: list[Any]) -> None:
        for name, sql, columns, comment, _ in constraints:
            what, quoted = f"constraint {name}", self.database.quote(name)
            if self.survive(columns, what):
                comments = self._comment(f"CONSTRAINT {quoted} ON {table}", comment)
                self.attempt(what, f"ALTER TABLE {table} ADD CONSTRAINT {quoted} {sql}", *comments)

    def _storage(self, staging: str) -> None:
        ((options, toast, space, method, persistence),) = self._of(_STORAGE)
        for option in (*options, *(f"toast.{option}" for option in toast)):
            key, _, value = option.partition("=")
            self.attempt(f"storage parameter {key}", f"ALTER TABLE {staging} SET ({key} = {self.database.text(value)})")
        if space:
            self.attempt(f"tablespace {space}", f"ALTER TABLE {staging} SET TABLESPACE {self.database.quote(space)}")
        if method:
            self.attempt(
                f"access method {method}", f"ALTER TABLE {staging} SET ACCESS METHOD {self.database.quote(method)}"
            )
        if persistence == "u":  # Staged rows must survive a crash of the server.
            self.report_lost("UNLOGGED", "the new table is an ordinary one")
        for column in self._of(_COLUMN_STORAGE):
            if column[0] in self.columns:
                self._column_storage(staging, *column)

    def _column_storage(
        self, staging: str, name: str, target: str, storage: str | None, options: list[str], compression: str | None
    ) -> None:
        column = f"ALTER TABLE {staging} ALTER COLUMN {self.database.quote(name)}"
        said = [f"SET STATISTICS {target}"] if target != "-1" else []
        said += [f"SET STORAGE {_STORAGE_WORDS[storage]}"] if storage else []
        said += [f"SET COMPRESSION {_COMPRESSION_WORDS[compression]}"] if compression else []
        said += [f"SET ({', '.join(options)})"] if options else []
        for words in said:
            self.attempt(f"{words.removeprefix('SET ')} of column {name}", f"{column} {words}")

    def _identity(self, staging: str, name: str, identity: str, options: str) -> None:
        column = self.database.quote(name)
        kind = "ALWAYS" if identity == "a" else "BY DEFAULT"
        self.attempt(
            f"identity of column {name}",
            f"ALTER TABLE {staging} ALTER COLUMN {column} SET NOT NULL",
            f"ALTER TABLE {staging} ALTER COLUMN {column} ADD GENERATED {kind} AS IDENTITY ({options})",
        )

    def _comment(self, on: str, text: str | None) -> list[str]:
        return [f"COMMENT ON {on} IS {self.database.text(text)}"] if text else []

    def _made(self, index: _Index) -> str:
        """Name of an index until the old index's name is free; the same at the publish if its definition is."""
        return f"{self.staging.name}_{hashlib.sha256(index.sql.encode()).hexdigest()[:8]}"

    def _indexes_now(self) -> list[_Index]:
        return [_Index(*row) for row in self._of(_INDEXES)]

    def _index(self, index: _Index) -> None:
        what = f"index {index.name}"
        if not self.survive(index.columns, what):
            return
        if not index.sql.startswith(index.head) or index.kind == "x":
            self.report_lost(what, "its definition cannot be carried over")
            return
        quote, staging, made = self.database.quote, self.database.name(self.staging), self._made(index)
        unique, rest = "UNIQUE " if index.unique else "", index.sql[len(index.head) :]
        required = [f"ALTER TABLE {staging} ALTER COLUMN {quote(column)} SET NOT NULL" for column in index.keys]
        place = f"INDEX {quote(self.staging.database)}.{quote(made)}"
        self.attempt(
            what,
            f"CREATE {unique}INDEX {quote(made)} ON {staging} {rest}",
            *(required if index.kind == "p" else ()),
            *self._comment(place, index.comment),
        )
        if index.space:
            self.attempt(f"tablespace {index.space} of {what}", f"ALTER {place} SET TABLESPACE {quote(index.space)}")
        for clause in index.statistics:
            self.attempt(f"{clause} of {what}", f"ALTER {place} {clause}")
        if index.clustered:
            self.attempt(f"CLUSTER ON {what}", f"ALTER TABLE {staging} CLUSTER ON {quote(made)}")

    def before_drop(self) -> None:
        self._grants, ((owner, own),) = self._of(_GRANTS), self._of(_OWNER)
        self._owner = (owner, own)
        self._indexes = self._indexes_now()
        self._own_keys = [row for row in self._of(_CONSTRAINTS) if row[4]]
        self._sequences = [(s, c, self._state(s) if inner else None) for s, c, inner in self._of(_SEQUENCES)]
        for sequence, column, state in self._sequences:
            if state is None and column in self.columns:
                self.database.run(self.connection, f"ALTER SEQUENCE {sequence} OWNED BY NONE")

    def _state(self, sequence: str) -> tuple[int, bool]:
        last, called = self.database.run(self.connection, f"SELECT last_value, is_called FROM {sequence}").one()
        return int(last), bool(called)

    def after_rename(self) -> None:
        self._rename_indexes()
        self._constrain(self.database.name(self.old), self._own_keys)
        self._restore_sequences()
        self._grant()

    def _rename_indexes(self) -> None:
        quote, target = self.database.quote, self.database.name(self.old)
        there = {index.name for index in self._indexes_now()}
        for index in self._indexes:
            made = self._made(index)
            if made not in there:
                self.report_lost(f"index {index.name}", "it was created or changed after the new table was filled")
                continue
            if index.kind in ("p", "u"):
                word = "PRIMARY KEY" if index.kind == "p" else "UNIQUE"
                added = f"ADD CONSTRAINT {quote(index.name)} {word} USING INDEX {quote(made)}{index.timing}"
                sql = f"ALTER TABLE {target} {added}"
            else:
                sql = f"ALTER INDEX {quote(self.old.database)}.{quote(made)} RENAME TO {quote(index.name)}"
            comments = self._comment(f"CONSTRAINT {quote(index.name)} ON {target}", index.key_comment)
            self.attempt(f"index {index.name}", sql, *comments)

    def _restore_sequences(self) -> None:
        target = self.database.name(self.old)
        for sequence, name, state in self._sequences:
            column = f"{target}.{self.database.quote(name)}"
            if state is None and name in self.columns:
                self.attempt(f"sequence {sequence}", f"ALTER SEQUENCE {sequence} OWNED BY {column}")
            elif state is not None and name in self.columns:
                found = [s for s, c, inner in self._of(_SEQUENCES) if c == name and inner]
                if found:
                    text, (last, called) = self.database.text(found[0]), state
                    self.attempt(f"sequence {sequence}", f"SELECT setval({text}, {last}, {str(called).lower()})")

    def _grant(self) -> None:
        target, quote = self.database.name(self.old), self.database.quote
        for column, grantee, role, privilege, grantable in self._grants:
            what = f"grant of {privilege} to {role or 'PUBLIC'}"
            if column is not None and not self.survive([column], what):
                continue
            who = "PUBLIC" if grantee == 0 else quote(role)
            part = f" ({quote(column)})" if column is not None else ""
            self.attempt(
                what, f"GRANT {privilege}{part} ON {target} TO {who}{' WITH GRANT OPTION' if grantable else ''}"
            )
        owner, own = self._owner
        if not own:
            self.attempt(f"owner {owner}", f"ALTER TABLE {target} OWNER TO {quote(owner)}")
