"""The command line."""

from twophase.cli.commands import main

__all__ = ["main"]
