"""Reports of transactions to the systems that watch jobs: each part needs a package, and is an extra."""

from __future__ import annotations

from importlib.util import find_spec

from twophase.transactions.observer import Observer


def observers(*, lineage: bool = False) -> tuple[Observer, ...]:
    """Return the observers of the installed packages; what is not installed is not loaded.

    Parameters
    ----------
    lineage : bool
        Whether OpenLineage's events are wanted; its client must be installed.
    """
    return (*_metrics(), *_lineage(lineage))


def has_lineage() -> bool:
    """Return whether OpenLineage's client is installed."""
    return _is_installed("openlineage", "openlineage.client")


def _metrics() -> tuple[Observer, ...]:
    if not _is_installed("opentelemetry", "opentelemetry.metrics"):
        return ()
    from twophase.monitoring.metrics import of_process

    return (of_process(),)


def _lineage(wanted: bool) -> tuple[Observer, ...]:
    if not wanted:
        return ()
    from twophase.monitoring.lineage import of_process

    return (of_process(),)


def _is_installed(*names: str) -> bool:
    return all(find_spec(name) is not None for name in names)
