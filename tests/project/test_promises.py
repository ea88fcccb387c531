"""The guarantees for users, the markers of the tests that hold them, and what is generated into the pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import generate_docs
from tests.project import readme

pytestmark = pytest.mark.quick


def test_every_guarantee_is_held_by_tests_and_every_marked_test_by_a_guarantee() -> None:
    """By tests that ``make test`` runs: not by those of details alone."""
    marked = generate_docs.promises()
    assert {promise.topic for promise in marked} == set(generate_docs.topics())
    assert {promise.topic for promise in marked if not promise.is_detail} == set(generate_docs.topics())


def test_every_guarantee_links_its_tests() -> None:
    """Each row of the table of levels, and each list item that begins with a name, is a guarantee."""
    page = re.sub(r"\n +", " ", readme.page("guarantees"))
    rows = readme.rows(page)
    sentences = [line for line in page.splitlines() if re.match(r"- \*\*[A-Z]", line)]
    assert len(rows) >= 10
    assert 25 <= len(sentences) <= 32, "Some thirty: more is not read."
    for text in [*(row[-1] for row in rows), *sentences]:
        assert re.search(r"\[tests\]\(promises\.md#[a-z0-9-]+\)", text), text


def test_the_sentence_of_a_marker_stands_alone() -> None:
    """The index sorts them by files: nothing may refer to the one before."""
    for promise in generate_docs.promises():
        assert not re.match(r"(the same|so |but |and )", promise.sentence), promise


@pytest.mark.parametrize(
    "page", [page for page in readme.pages() if "<!-- generated:" in page.read_text()], ids=lambda page: page.name
)
def test_what_is_generated_is_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert generate_docs.filled(text) == text, f"{page} is not what the code says now. Run: make docs"
