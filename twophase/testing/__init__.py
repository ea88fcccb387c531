"""For the tests of others: the conformance suite, and a catalog that fails on demand.

``twophase.testing.conformance.CatalogConformance`` is what a plugin author subclasses;
``twophase.testing.chaos.ChaosCatalog`` is the catalog to test one's own job against.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__all__ = ["CatalogConformance", "ChaosCatalog", "ChaosError", "Faults"]

_HOMES = {
    "CatalogConformance": "twophase.testing.conformance",
    "ChaosCatalog": "twophase.testing.chaos",
    "ChaosError": "twophase.testing.faults",
    "Faults": "twophase.testing.faults",
}

_ASSERTING = ("_suite_base", "_suite_store", "_suite_purposes", "_suite_contract", "_suite_transactions")

if "pytest" in sys.modules:
    # The suite's bare asserts shall tell their values in a plugin author's project too.
    sys.modules["pytest"].register_assert_rewrite(*(f"{__name__}.{name}" for name in _ASSERTING))


def __getattr__(name: str) -> Any:
    # pytest is no dependency of twophase: only who asks for the suite needs it.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
