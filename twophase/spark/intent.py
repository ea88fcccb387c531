"""What a statement wants of its write that Spark cannot say to a V1 write: a *dynamic* overwrite.

Spark refuses ``OverwritePartitionsDynamic`` for a V1 write. The router therefore runs such a statement as an append,
and says what it means in a local property, which follows the statement through the JVM's thread into the callbacks of
the native catalog. An entry names its table, so that a nested statement on another table never takes it for its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from twophase.model import ObjectPath, OverwriteScope
from twophase.spark.jvm import INTENT_PROPERTY


@contextmanager
def overwriting(context: Any, scopes: Mapping[ObjectPath, OverwriteScope]) -> Iterator[None]:
    """Carry the overwrite scopes of one statement, and afterwards whatever was carried before.

    Parameters
    ----------
    context : pyspark.SparkContext
    scopes : mapping of ObjectPath to OverwriteScope
        For each target of the statement that is overwritten dynamically; may be empty.
    """
    before = context.getLocalProperty(INTENT_PROPERTY)
    context.setLocalProperty(INTENT_PROPERTY, _dump(scopes) if scopes else None)
    try:
        yield
    finally:
        context.setLocalProperty(INTENT_PROPERTY, before)


def overwrite_of(intent: str | None, path: ObjectPath) -> OverwriteScope | None:
    """The scope that an append to ``path`` really means; None when it is an append.

    Parameters
    ----------
    intent : str or None
        Value of the local property, as read in the callback.
    path : ObjectPath
        The table that is written; names compare as in Spark's session catalog, without regard to case.
    """
    for entry in json.loads(intent)["overwrite"] if intent else ():
        if _folded(ObjectPath.from_document(entry["path"])) == _folded(path):
            return OverwriteScope.from_document(entry["scope"])
    return None


def _dump(scopes: Mapping[ObjectPath, OverwriteScope]) -> str:
    entries = [{"path": path.to_document(), "scope": scope.to_document()} for path, scope in scopes.items()]
    return json.dumps({"overwrite": entries})


def _folded(path: ObjectPath) -> tuple[str, ...]:
    return tuple(part.casefold() for part in path.to_document())
