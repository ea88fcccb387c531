"""Columns of session tables and how they evolve: by ALTER TABLE, by rows that bring columns, in a transaction."""
