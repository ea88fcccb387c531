"""Py4J's callback server, through which the JVM calls Python objects.

It is PySpark's own, shared with ``foreachBatch`` and listeners of the user, and never shut down. PySpark opens its port
to any local client; here each connection must present a secret, which the JVM receives through its own gateway.
"""

from __future__ import annotations

import functools
import secrets
import threading
from collections.abc import Callable
from typing import Any

from twophase.spark.jvm import local_properties

_lock = threading.Lock()
#: Each gateway's former handling of Java exceptions.
_propagated: list[tuple[Any, bool]] = []


class JavaCallable:
    """Base of the Python objects that the JVM calls: it can access their public methods only."""


class _Guard:
    """The entry in Py4J's pool in place of such an object: Py4J would look up any name that it is sent."""

    def __init__(self, target: JavaCallable) -> None:
        object.__setattr__(self, "_target", target)

    def __getattribute__(self, name: str) -> Any:
        found = None if name.startswith("_") else getattr(object.__getattribute__(self, "_target"), name)
        if not callable(found):
            raise AttributeError(name)
        return functools.partial(_called, found)


def _called(method: Callable[..., Any], *arguments: Any) -> Any:
    with local_properties.read_once():
        return method(*arguments)


def start(gateway: Any) -> None:
    """Let the JVM of a gateway call Python objects. Idempotent."""
    from pyspark.java_gateway import ensure_callback_server_started

    with _lock:
        parameters = gateway.python_parameters
        parameters.auth_token = parameters.auth_token or secrets.token_hex(32)  # Existing connections stay.
        ensure_callback_server_started(gateway)
        _send_token(gateway, parameters.auth_token)
        _guard(gateway.gateway_property.pool)


def propagate_exceptions(gateway: Any) -> None:
    """Let Java exceptions that a callback raises reach Spark unchanged. Idempotent."""
    with _lock:
        if not any(known is gateway for known, _ in _propagated):
            _propagated.append((gateway, gateway.python_parameters.propagate_java_exceptions))
        gateway.python_parameters.propagate_java_exceptions = True


def restore_exceptions() -> None:
    """Restore each gateway's former handling of Java exceptions. Idempotent."""
    with _lock:
        while _propagated:
            gateway, before = _propagated.pop()
            gateway.python_parameters.propagate_java_exceptions = before


def _send_token(gateway: Any, token: str) -> None:
    """Give the JVM's client the token: PySpark may have created a new client, without one, since the last time."""
    from py4j.java_gateway import JavaObject

    client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()
    field = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("authToken")
    field.setAccessible(True)
    field.set(client, token)


def _guard(pool: Any) -> None:
    if "put" in vars(pool):
        return
    put = pool.put

    def guarded(found: Any, *more: Any, **named: Any) -> Any:
        return put(_Guard(found) if isinstance(found, JavaCallable) else found, *more, **named)

    pool.put = guarded
