"""The cache of what was used last."""

from __future__ import annotations

import pytest

from twophase.lru import LruCache

pytestmark = pytest.mark.quick


def test_the_entries_that_were_used_last_are_kept() -> None:
    cache: LruCache[str, int] = LruCache(2)
    assert cache.put("a", 1) == 1 and cache.put("b", 2) == 2
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3] and len(cache) == 2


def test_an_entry_that_is_replaced_is_as_new() -> None:
    cache: LruCache[str, int] = LruCache(2)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        cache.put(key, value)
    assert [cache.get(key) for key in "abc"] == [3, None, 4]
    cache.clear()
    assert len(cache) == 0 and cache.get("a") is None
