"""Spark's side of the bridge: what is asked of the JVM, by way of names that Spark does not promise to keep.

The list of these names is in :mod:`twophase.spark.jvm.private`; nobody below knows a transaction.
"""
