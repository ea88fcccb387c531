"""DDL statements of the surrounding transaction, and ``ALTER TABLE`` by a rewrite."""
