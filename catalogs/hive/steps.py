"""The failpoints of Hive writes, in a table, because one line of code can be a step of several recipes."""

from __future__ import annotations

from twophase.failpoints import Failpoint

#: Steps of every recipe.
_STAGING = ("hidden_table", "supersede", "drop_hidden", "undo", "fence", "remove_staging", "restore", "columns")
#: Steps of a version that stays where it is staged, and of files that are moved elsewhere.
_VERSION = ("stage", "write", "link", "register", "publish")
_MOVES = ("manifest", "add_partitions", "mark")
_BY_RECIPE = {
    "pointer": (
        *("own", "quarantine", "place", "back_up_name", "add_empty", "drop_partitions", "redefine", "root"),
        *("switch_partitions", "track"),
        *(*_STAGING, *_VERSION, *_MOVES),
    ),
    "rename": (
        *("back_up", "move_in", "back_up_name", "restore_files", "back_up_file", "file_in", "drop_partitions"),
        *(*_STAGING, *_VERSION, *_MOVES),
    ),
    "append": ("gather", "look_below", "back_up_file", "file_in", "read", "restore_files", *_STAGING, *_MOVES),
}

#: The failpoints, by recipe and step.
POINTS = {recipe: {name: Failpoint(f"hive.{recipe}.{name}") for name in names} for recipe, names in _BY_RECIPE.items()}
