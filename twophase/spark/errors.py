"""Errors across Py4J: our errors and the user's own reach the user's ``except`` unchanged.

A callback can only throw a Java exception. So an error of ours is stored under a token, a Java exception carries
the token through Spark, and Py4J's function for results, ``get_return_value``, is wrapped to raise the stored
error. PySpark wraps that function again with each new session; our wrapper is the inner one, so it stays. Spark's own
errors remain the Java exceptions that they are.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import py4j.protocol
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import install_exception_handler

from twophase.errors import (
    DatabaseAlreadyExistsError,
    DatabaseNotExistError,
    InvalidNameError,
    MissingLocationError,
    SnapshotTooOldError,
    TableAlreadyExistsError,
    TableNotExistError,
    TwoPhaseError,
)
from twophase.lru import LruCache
from twophase.model import quote_if_needed
from twophase.spark.jvm import exceptions, values
from twophase.spark.jvm.gateway import Jvm

_TOKEN = re.compile(r"\[twophase:([0-9a-f]{32})\]")
#: The end of the traceback of a task's Python, whose error is only text in the driver: a transaction must be run again.
_TOO_OLD = re.compile(r"^twophase\.errors\.SnapshotTooOldError: (.+)$", re.MULTILINE)
_UNDECLARED = "java.lang.reflect.UndeclaredThrowableException"

#: By token; an error may be asked for several times, or never.
_remembered: LruCache[str, BaseException] = LruCache(256)


def remember(error: BaseException) -> str:
    """Store an error for the user's thread; returns the text by which it is found again."""
    token = uuid.uuid4().hex
    _remembered.put(token, error)
    return f"[twophase:{token}]"


def recall(text: str) -> BaseException | None:
    """The stored error whose token occurs in a text."""
    found = _TOKEN.search(text)
    return _remembered.get(found.group(1)) if found else None


@contextmanager
def thrown_to_spark(jvm: Jvm, identifier: Any = None, namespace: Any = None) -> Iterator[None]:
    """Turn Python errors of a callback into the Java exceptions that Spark expects.

    Parameters
    ----------
    jvm : Jvm
    identifier : Java Identifier, optional
        For not-found and already-exists errors of a table.
    namespace : Java String[], optional
        For those of a database; derived from the identifier when None.
    """
    try:
        yield
    except Py4JJavaError:
        raise
    except BaseException as error:
        if isinstance(error, TwoPhaseError):
            _complete(jvm, error, identifier, namespace)
        if namespace is None and identifier is not None:
            namespace = identifier.namespace()
        raise _Thrown("", java_exception(jvm, error, identifier, namespace)) from error


def _complete(jvm: Jvm, error: TwoPhaseError, identifier: Any, namespace: Any) -> None:
    """Add the table or the database that Spark asked for to an error that names none."""
    if error.path is not None or (identifier is None and namespace is None):
        return
    parts = (
        values.parts(jvm, namespace)
        if identifier is None
        else (*values.parts(jvm, identifier.namespace()), identifier.name())
    )
    error.concerns(".".join(quote_if_needed(part) for part in parts if part))


def java_exception(jvm: Jvm, error: BaseException, identifier: Any = None, namespace: Any = None) -> Any:
    """The Java exception for a Python error: Spark's own if there is one, otherwise one that carries a token."""
    origin = getattr(error, "_origin", None)  # a PySpark error that came from the JVM
    if origin is not None:
        return origin
    if isinstance(error, TableAlreadyExistsError) and identifier is not None:
        return exceptions.exception(jvm, "TableAlreadyExistsException", identifier)
    if isinstance(error, TableNotExistError) and identifier is not None:
        return exceptions.exception(jvm, "NoSuchTableException", identifier)
    if isinstance(error, DatabaseNotExistError) and namespace is not None:
        return exceptions.exception(jvm, "NoSuchNamespaceException", namespace)
    if isinstance(error, DatabaseAlreadyExistsError) and namespace is not None:
        return exceptions.exception(jvm, "NamespaceAlreadyExistsException", namespace)
    if isinstance(error, InvalidNameError):
        return exceptions.invalid_name(jvm, error.name)
    if isinstance(error, MissingLocationError):
        return exceptions.missing_location(jvm)
    return exceptions.runtime_exception(jvm, f"{type(error).__name__}: {error} {remember(error)}")


class _Thrown(Py4JJavaError):
    """A Java exception thrown on purpose."""


class _Quiet(logging.Filter):
    """Keeps Py4J from logging, with a traceback, an error that the user gets as an exception anyway."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], _Thrown))


_quiet = _Quiet()
_loggers = ("py4j.clientserver", "py4j.java_gateway")


# -- the user's side ---------------------------------------------------------------------------------------------------


def _causes(throwable: Any) -> Iterator[Any]:
    for _ in range(20):
        if throwable is None:
            return
        yield throwable
        throwable = throwable.getCause()


def unmasked(error: Py4JJavaError) -> BaseException | None:
    """The error to raise in place of a Java exception; None if it is already Spark's own."""
    wrapped = None
    for throwable in _causes(error.java_exception):
        message = str(throwable.getMessage() or "")
        if remembered := recall(message):
            return remembered
        if too_old := _TOO_OLD.search(message):
            return SnapshotTooOldError(too_old[1])
        if wrapped is None and str(throwable.getClass().getName()) == _UNDECLARED:
            # A checked exception thrown through one of our proxies.
            wrapped = throwable.getCause()
    return None if wrapped is None else Py4JJavaError("An error occurred while running a statement.\n", wrapped)


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_return_value(*arguments: Any, **keywords: Any) -> Any:
        try:
            return original(*arguments, **keywords)
        except Py4JJavaError as error:
            better = _guarded(error)
            if better is None:
                raise
        # Raised outside the handler, so that Py4J's error is not its context and its own cause is kept.
        raise better

    get_return_value.__twophase_original__ = original  # type: ignore[attr-defined]
    return get_return_value


_looking = threading.local()


def _guarded(error: Py4JJavaError) -> BaseException | None:
    # Inspecting the exception calls the JVM, and so this function again.
    if getattr(_looking, "busy", False):
        return None
    _looking.busy = True
    try:
        return unmasked(error)
    except Exception:  # whatever fails in here, the user gets at least Py4J's error
        return None
    finally:
        _looking.busy = False


def install() -> None:
    """Wrap Py4J's result function. Idempotent."""
    for name in _loggers:
        logging.getLogger(name).addFilter(_quiet)
    if not hasattr(py4j.protocol.get_return_value, "__twophase_original__"):
        py4j.protocol.get_return_value = _wrap(py4j.protocol.get_return_value)
        install_exception_handler()


def uninstall() -> None:
    """Restore Py4J's result function. Idempotent."""
    for name in _loggers:
        logging.getLogger(name).removeFilter(_quiet)
    original = getattr(py4j.protocol.get_return_value, "__twophase_original__", None)
    if original is not None:
        py4j.protocol.get_return_value = original
        install_exception_handler()
