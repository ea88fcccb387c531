"""Arranging a statement's rows in the order of a table's columns, for every catalog that Spark writes files for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twophase.model import quote


def aligned(df: Any, names: Sequence[str]) -> Any:
    """Return the rows with a table's column names, in the table's order.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        Columns are matched by name if all names fit, otherwise by position.
    names : sequence of str
    """
    wanted = list(names)
    if df.columns == wanted:
        return df
    if sorted(df.columns) == sorted(wanted) and len(set(wanted)) == len(wanted):
        return df.select(*(df[quote(name)] for name in wanted))
    return df.toDF(*wanted)


__all__ = ["aligned"]
