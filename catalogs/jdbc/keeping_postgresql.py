"""What a replace keeps in PostgreSQL."""

from __future__ import annotations

from typing import Any

from twophase.catalogs.jdbc.keeping import Keeper

_OLD = "to_regclass(:name)"

_DEFAULTS = f"""
SELECT a.attname, pg_get_expr(d.adbin, d.adrelid), a.attidentity
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = {_OLD} AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
  AND (d.adbin IS NOT NULL OR a.attidentity <> '')
"""
_COLLATIONS = f"""
SELECT a.attname, format('%I.%I', n.nspname, c.collname)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid JOIN pg_collation c ON c.oid = a.attcollation
JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE a.attrelid = {_OLD} AND a.attnum > 0 AND NOT a.attisdropped AND a.attcollation <> t.typcollation
"""
_INDEXES = f"""
SELECT c.relname, pg_get_indexdef(i.indexrelid), coalesce(k.contype, ''), i.indisunique,
       ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)),
       format('CREATE %sINDEX %I ON %I.%I ', CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END,
              c.relname, n.nspname, t.relname)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
JOIN pg_namespace n ON n.oid = t.relnamespace
LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.conrelid = i.indrelid AND k.contype IN ('p', 'u', 'x')
WHERE i.indrelid = {_OLD} ORDER BY c.relname
"""
_CONSTRAINTS = f"""
SELECT k.conname, pg_get_constraintdef(k.oid),
       ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = k.conrelid AND a.attnum = ANY(k.conkey))
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
_TRIGGERS = f"SELECT tgname FROM pg_trigger WHERE tgrelid = {_OLD} AND NOT tgisinternal"
_POLICIES = f"SELECT polname FROM pg_policy WHERE polrelid = {_OLD}"
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
"""


class PostgreSQLKeeper(Keeper):
    """Indexes are built on the staging table, so that the publish itself stays short."""

    _grants: list[Any]
    _indexes: list[Any]
    _owner: tuple[str, bool]
    _sequences: list[Any]

    def _of(self, sql: str) -> list[Any]:
        # A cast would be read as a parameter.
        return self.rows(sql.replace("::", "\\:\\:"), name=self.database.name(self.old))

    def dependents(self) -> list[str]:
        return sorted(name for (name,) in self._of(_DEPENDENTS))

    def attributes(self) -> dict[str, str]:
        found = {name: f"COLLATE {sql} " for name, sql in self._of(_COLLATIONS) if name in self.columns}
        for name, sql, identity in self._of(_DEFAULTS):
            if not identity and name in self.columns:
                found[name] = f"{found.get(name, '')}DEFAULT {sql}"
        return found

    def prepare(self) -> None:
        staging = self.database.name(self.staging)
        for name, _ in self._of(_COLLATIONS):
            self.survive([name], f"collation of column {name}")
        for name, _, identity in self._of(_DEFAULTS):
            if name not in self.columns:
                self.lose(f"default of column {name}", "the column is gone or has another type")
            elif identity:
                self._identity(staging, name, identity)
        for number, index in enumerate(self._of(_INDEXES)):
            self._index(number, *index)
        for name, sql, columns in self._of(_CONSTRAINTS):
            what = f"constraint {name}"
            if self.survive(columns, what):
                self.attempt(what, f"ALTER TABLE {staging} ADD CONSTRAINT {self.database.quote(name)} {sql}")
        for (name,) in self._of(_TRIGGERS):
            self.lose(f"trigger {name}", "it belongs to the old table")
        for (name,) in self._of(_POLICIES):
            self.lose(f"policy {name}", "it belongs to the old table")

    def _identity(self, staging: str, name: str, identity: str) -> None:
        column = self.database.quote(name)
        kind = "ALWAYS" if identity == "a" else "BY DEFAULT"
        self.attempt(
            f"identity of column {name}",
            f"ALTER TABLE {staging} ALTER COLUMN {column} SET NOT NULL",
            f"ALTER TABLE {staging} ALTER COLUMN {column} ADD GENERATED {kind} AS IDENTITY",
        )

    def _made(self, number: int) -> str:
        """Name of an index until the old one's is free."""
        return f"{self.staging.name}_{number}"

    def _index(self, number: int, name: str, sql: str, kind: str, unique: bool, columns: list[str], head: str) -> None:
        what = f"index {name}"
        if not self.survive(columns, what):
            return
        if not sql.startswith(head) or kind == "x":
            self.lose(what, "its definition cannot be carried over")
            return
        quote, staging = self.database.quote, self.database.name(self.staging)
        made = f"CREATE {'UNIQUE ' if unique else ''}INDEX {quote(self._made(number))} ON {staging} {sql[len(head) :]}"
        required = [f"ALTER TABLE {staging} ALTER COLUMN {quote(column)} SET NOT NULL" for column in columns]
        self.attempt(what, made, *(required if kind == "p" else ()))

    def before_drop(self) -> None:
        self._grants, ((owner, own),) = self._of(_GRANTS), self._of(_OWNER)
        self._owner = (owner, own)
        self._indexes = self._of(_INDEXES)
        self._sequences = [(s, c, self._state(s) if inner else None) for s, c, inner in self._of(_SEQUENCES)]
        for sequence, column, state in self._sequences:
            if state is None and column in self.columns:
                self.database.run(self.connection, f"ALTER SEQUENCE {sequence} OWNED BY NONE")

    def _state(self, sequence: str) -> tuple[int, bool]:
        last, called = self.database.run(self.connection, f"SELECT last_value, is_called FROM {sequence}").one()
        return int(last), bool(called)

    def after_rename(self) -> None:
        self._rename_indexes()
        self._restore_sequences()
        self._grant()

    def _rename_indexes(self) -> None:
        quote, target = self.database.quote, self.database.name(self.old)
        there = {name for (name, *_) in self._of(_INDEXES)}
        for number, (name, _, kind, *_) in enumerate(self._indexes):
            made = self._made(number)
            if made not in there:
                continue
            if kind in ("p", "u"):
                word = "PRIMARY KEY" if kind == "p" else "UNIQUE"
                sql = f"ALTER TABLE {target} ADD CONSTRAINT {quote(name)} {word} USING INDEX {quote(made)}"
            else:
                sql = f"ALTER INDEX {quote(self.old.database)}.{quote(made)} RENAME TO {quote(name)}"
            self.attempt(f"index {name}", sql)

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
