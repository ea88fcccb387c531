"""Parsing and validation of the user's configuration."""
