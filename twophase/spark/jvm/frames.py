"""DataFrames of plans and datasets of the JVM."""

from __future__ import annotations

from typing import Any

from twophase.spark.jvm.gateway import Jvm, private_name


def data_frame(jvm: Jvm, dataset: Any) -> Any:
    """The Python DataFrame of a Java ``Dataset``."""
    from pyspark.sql.classic.dataframe import DataFrame

    return DataFrame(dataset, jvm.spark)


def frame_of(jvm: Jvm, plan: Any) -> Any:
    """The DataFrame of a logical plan."""
    with private_name("Dataset.ofRows", jvm.spark):
        return data_frame(jvm, jvm.kind("org.apache.spark.sql.classic.Dataset").ofRows(jvm.session, plan))
