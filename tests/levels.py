"""The levels that statements really had."""

from __future__ import annotations

from pyspark.sql import SparkSession

import twophase
from twophase.model import Level
from twophase.protocol.states import TransactionState


class Levels:
    """The levels of the transactions that an attached session has completed since this was made.

    A statement outside of a transaction has none.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._timeline = twophase.attach(spark).timeline
        self._before = {record.id for record in self._timeline.transactions()}

    def __call__(self) -> set[Level]:
        records = [record for record in self._timeline.transactions() if record.id not in self._before]
        completed = (record for record in records if record.state is TransactionState.COMPLETED)
        return {record.level for record in completed if record.level is not None}
