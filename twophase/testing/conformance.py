"""The conformance suite: a plugin author subclasses one class, and pytest does the rest.

::

    from twophase.testing.conformance import CatalogConformance

    class TestMyCatalog(CatalogConformance):
        capabilities = Capabilities(purposes=frozenset({Purpose.CREATE_TABLE_AS}), read=True)

        @pytest.fixture
        def catalog(self, tmp_path): ...
        @pytest.fixture
        def fresh_catalog(self, tmp_path): ...      # -> callable: the view of another process
        @pytest.fixture
        def make_frame(self): ...                   # -> callable(rows, schema): what write() takes
        @pytest.fixture
        def read_rows(self): ...                    # -> callable(path): rows, past the catalog

Everything that is not declared in ``capabilities`` must be *refused*, with the right error; the suite tests that and
skips nothing. The idea is that of the suite which SQLAlchemy ships to the authors of its dialects.
"""

from __future__ import annotations

from twophase.testing._suite_base import Driver, FreshProcess, SuiteBase
from twophase.testing._suite_contract import (
    DocumentChapter,
    IdempotenceChapter,
    OutcomeChapter,
    OwnershipChapter,
    VisibilityChapter,
)
from twophase.testing._suite_purposes import LayoutChapter, PurposesChapter
from twophase.testing._suite_store import CatalogChapter, DatabasesChapter, DefinitionsChapter, TablesChapter
from twophase.testing._suite_transactions import ResiduesChapter, TransactionChapter

__all__ = ["CatalogConformance", "Driver", "FreshProcess"]


class CatalogConformance(
    CatalogChapter,
    DatabasesChapter,
    TablesChapter,
    DefinitionsChapter,
    PurposesChapter,
    LayoutChapter,
    VisibilityChapter,
    IdempotenceChapter,
    OutcomeChapter,
    OwnershipChapter,
    DocumentChapter,
    TransactionChapter,
    ResiduesChapter,
    SuiteBase,
):
    """What every catalog promises. Override the fixtures ``catalog``, ``fresh_catalog``, ``make_frame`` and
    ``read_rows`` and the attribute ``capabilities``; ``fresh_process`` where a child process can open the store;
    ``assert_nothing_left`` to look into the store itself."""
