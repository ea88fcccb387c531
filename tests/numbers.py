"""Numbers that a run of the tests tells at its end, also where several processes share it."""

from __future__ import annotations

import pytest

#: What is told: a line each.
NUMBERS = pytest.StashKey[list[object]]()
