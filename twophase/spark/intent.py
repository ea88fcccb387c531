"""What a statement wants of its write that Spark does not carry to a native catalog in time.

- A *dynamic* overwrite: Spark refuses ``OverwritePartitionsDynamic`` for a V1 write, so the router runs such a
  statement as an append that says what it means. In a text each INSERT says it for itself, in an option of its own
  (``INSERT INTO t WITH ('twophase.overwrite' = '...')``): a script or multi-insert may append to the very table that it
  overwrites elsewhere. A ``DataFrameWriter`` writes once, and its intent travels in a local property.
- The options of a ``DataFrameWriter``: Spark tells them only when the table is staged already. They may hold secrets,
  so they stay in this process, and only a token of them travels.

The local property follows the statement through the JVM's thread into the catalog's callbacks.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote

from twophase.model import ObjectPath, OverwriteScope
from twophase.spark.afterwards import afterwards
from twophase.spark.jvm.bridge import INTENT_PROPERTY

#: Option of an INSERT that runs as an append and means an overwrite.
OVERWRITE_OPTION = "twophase.overwrite"

_options: dict[str, Mapping[ObjectPath, Mapping[str, str]]] = {}


@contextmanager
def intending(
    context: Any,
    scopes: Mapping[ObjectPath, OverwriteScope],
    options: Mapping[ObjectPath, Mapping[str, str]] | None = None,
) -> Iterator[None]:
    """Carry what one statement intends, and afterwards whatever was carried before.

    Parameters
    ----------
    context : pyspark.SparkContext
    scopes : mapping of ObjectPath to OverwriteScope
        For the target of a ``DataFrameWriter`` whose overwrite runs as an append; may be empty.
    options : mapping of ObjectPath to mapping, optional
        Options that a new table is to have.
    """
    before = context.getLocalProperty(INTENT_PROPERTY)
    if before is None and not scopes and not options:
        yield
        return
    token = secrets.token_hex(8)
    if options:
        _options[token] = options
    try:
        with afterwards(lambda: context.setLocalProperty(INTENT_PROPERTY, before)):
            context.setLocalProperty(INTENT_PROPERTY, _dump(scopes, token) if scopes or options else None)
            yield
    finally:
        _options.pop(token, None)


def options_of(intent: str | None, path: ObjectPath) -> dict[str, str]:
    """Options that the statement's new table is to have beside those in its definition.

    Parameters
    ----------
    intent : str or None
        Value of the local property, as read in the callback.
    path : ObjectPath
        The table that is made.
    """
    for other, options in _options.get(json.loads(intent)["options"], {}).items() if intent else ():
        if _folded(other) == _folded(path):
            return {key: value for key, value in options.items() if key.lower() != "path"}
    return {}


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


def option_clause(scope: OverwriteScope) -> str:
    """The option that says what an append means, as SQL text: the same however a session reads its literals."""
    value = quote(json.dumps(scope.to_document()), safe='{}[]":,._-')
    return f"'{OVERWRITE_OPTION}' = '{value}'"


def stated_overwrite(options: Mapping[str, str]) -> tuple[OverwriteScope | None, dict[str, str]]:
    """The scope that an append's own options state, and the rest of the options."""
    rest = dict(options)
    stated = rest.pop(OVERWRITE_OPTION, None)
    return (OverwriteScope.from_document(json.loads(unquote(stated))) if stated else None), rest


def _dump(scopes: Mapping[ObjectPath, OverwriteScope], token: str) -> str:
    entries = [{"path": path.to_document(), "scope": scope.to_document()} for path, scope in scopes.items()]
    return json.dumps({"overwrite": entries, "options": token})


def _folded(path: ObjectPath) -> tuple[str, ...]:
    return tuple(part.casefold() for part in path.to_document())
