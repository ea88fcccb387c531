"""Test support for plugins and jobs: the conformance suite, and a catalog that fails on demand.

``twophase.testing.conformance.CatalogConformance`` is the class that a plugin author subclasses;
``twophase.testing.chaos.ChaosCatalog`` is the catalog against which users can test their own jobs.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twophase.testing.chaos import ChaosCatalog
    from twophase.testing.conformance import CatalogConformance, FreshProcess
    from twophase.testing.faults import ChaosError, Faults
    from twophase.testing.runner import LocalRunner
    from twophase.testing.spark import SparkConformance

__all__ = [
    "CatalogConformance",
    "ChaosCatalog",
    "ChaosError",
    "Faults",
    "FreshProcess",
    "LocalRunner",
    "SparkConformance",
]

_HOMES = {
    "CatalogConformance": "twophase.testing.conformance",
    "ChaosCatalog": "twophase.testing.chaos",
    "ChaosError": "twophase.testing.faults",
    "Faults": "twophase.testing.faults",
    "FreshProcess": "twophase.testing.conformance",
    "LocalRunner": "twophase.testing.runner",
    "SparkConformance": "twophase.testing.spark",
}

if "pytest" in sys.modules:
    # The suite's bare asserts should show their values in a plugin author's project, too.
    sys.modules["pytest"].register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))


def __getattr__(name: str) -> Any:
    # pytest is not a dependency of twophase: it is needed only for the suite.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
