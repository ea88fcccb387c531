"""Measurements; each is a module with a command line: ``python -m benchmarks.<name> --help``."""
