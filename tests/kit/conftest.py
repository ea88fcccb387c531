"""What of the suite is left to ``make test-exhaustive``."""

from __future__ import annotations

import pytest

#: Where the kind of storage matters: publishes of several ways, what undoes and recovers them, and what keeps rows.
ON_OTHER_STORAGE = {
    "test_it_declares_what_is_expected_of_it",
    "test_nothing_is_visible_before_commit",
    "test_each_method_twice_is_as_once",
    "test_abort_leaves_nothing",
    "test_an_overwrite_replaces_its_scope_and_no_more",
    "test_an_insert_adds_to_old_and_new_partitions",
    "test_inserts_side_by_side_lose_no_rows",
    "test_a_publish_is_undone_only_where_that_is_declared",
    "test_what_was_undone_is_published_again_wholly_or_not_at_all",
    "test_a_published_drop_is_undone_where_the_catalog_says_so",
    "test_what_a_savepoint_keeps_comes_back_however_often",
    "test_what_the_dead_left_is_found_and_removed",
}
#: And on one of them in a fresh process, which takes long.
IN_A_FRESH_PROCESS = ("TestHiveOnAnObjectStore", "test_it_survives_into_a_fresh_process[insert_into]")


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    owner = item.parent.name if item.parent else ""
    if owner.startswith("TestHiveOn"):
        is_fresh = (owner, item.name) == IN_A_FRESH_PROCESS
        if not is_fresh and item.name.partition("[")[0] not in ON_OTHER_STORAGE:
            item.add_marker(pytest.mark.exhaustive)
