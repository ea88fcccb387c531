"""DataFrames of plans and datasets of the JVM."""

from __future__ import annotations

import json
from typing import Any

from twophase.spark.jvm.gateway import Jvm, private_name


def data_frame(jvm: Jvm, dataset: Any, schema: str | None = None) -> Any:
    """The Python DataFrame of a Java ``Dataset``.

    Parameters
    ----------
    jvm : Jvm
    dataset : py4j.java_gateway.JavaObject
    schema : str, optional
        The JSON of its ``StructType``, if known: PySpark would ask for it in two calls.
    """
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.types import StructType

    frame = DataFrame(dataset, jvm.spark)
    if schema is not None:
        frame.__dict__["schema"] = StructType.fromJson(json.loads(schema))  # a cached property
    return frame


def frame_of(jvm: Jvm, plan: Any) -> Any:
    """The DataFrame of a logical plan."""
    with private_name("Dataset.ofRows", jvm.spark):
        return data_frame(jvm, jvm.kind("org.apache.spark.sql.classic.Dataset").ofRows(jvm.session, plan))
