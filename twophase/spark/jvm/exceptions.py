"""Exceptions of the JVM that Spark understands."""

from __future__ import annotations

from typing import Any

from twophase.model import quote
from twophase.spark.jvm.gateway import Jvm, private_name


def exception(jvm: Jvm, kind: str, *arguments: Any) -> Any:
    """An exception of ``org.apache.spark.sql.catalyst.analysis``, created from an identifier or a namespace."""
    return jvm.kind(f"org.apache.spark.sql.catalyst.analysis.{kind}")(*arguments)


def invalid_name(jvm: Jvm, name: str) -> Any:
    """Spark's exception for a table or database name with unsupported characters."""
    from pyspark.errors import PySparkException

    with private_name("QueryCompilationErrors.invalidNameForTableOrDatabaseError", jvm.spark):
        errors = jvm.kind("org.apache.spark.sql.errors.QueryCompilationErrors")
        try:
            return errors.invalidNameForTableOrDatabaseError(name)
        except PySparkException:  # Spark parses the name for its message, and cannot parse every name
            return errors.invalidNameForTableOrDatabaseError(quote(name))


def missing_location(jvm: Jvm) -> Any:
    """Spark's exception for an external table without a location."""
    with private_name("QueryCompilationErrors.createExternalTableWithoutLocationError", jvm.spark):
        errors = jvm.kind("org.apache.spark.sql.errors.QueryCompilationErrors")
        return errors.createExternalTableWithoutLocationError()


def runtime_exception(jvm: Jvm, message: str) -> Any:
    """A plain ``RuntimeException``."""
    return jvm.kind("java.lang.RuntimeException")(message)
