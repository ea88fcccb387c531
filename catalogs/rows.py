"""The rows of a statement, brought into the order of a table: for every catalog that Spark writes files for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twophase.model import quote


def aligned(df: Any, names: Sequence[str]) -> Any:
    """The rows with a table's column names, in the table's order.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        Columns by name where all names fit, else by position.
    names : sequence of str
    """
    wanted = list(names)
    if df.columns == wanted:
        return df
    if sorted(df.columns) == sorted(wanted) and len(set(wanted)) == len(wanted):
        return df.select(*(df[quote(name)] for name in wanted))
    return df.toDF(*wanted)


__all__ = ["aligned"]
