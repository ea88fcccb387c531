"""The conformance suite: plugin authors subclass one class, and pytest does the rest.

::

    from twophase.testing.conformance import CatalogConformance

    class TestMyCatalog(CatalogConformance):
        capabilities = Capabilities(purposes=frozenset({Purpose.CREATE_TABLE_AS}), read=True)

        @pytest.fixture
        def catalog(self, tmp_path): ...
        @pytest.fixture
        def fresh_catalog(self, tmp_path): ...      # -> callable: the view of another process
        @pytest.fixture
        def fresh_process(self, tmp_path): ...      # -> FreshProcess: how a child process creates the catalog
        @pytest.fixture
        def read_rows(self): ...                    # -> callable(path): rows, bypassing the catalog

Everything that is not declared in ``capabilities`` must be *refused*, with the right error; the suite tests this and
skips nothing. ``pytest -k quick`` runs the tests that are worth running after each change. It is modelled on the suite
that SQLAlchemy provides to the authors of its dialects.
"""

from __future__ import annotations

from twophase.testing._suite_alterations import AlterationsChapter
from twophase.testing._suite_base import Driver, FreshProcess, SuiteBase
from twophase.testing._suite_contract import (
    DocumentChapter,
    IdempotenceChapter,
    OutcomeChapter,
    OwnershipChapter,
    VisibilityChapter,
)
from twophase.testing._suite_databases import StagedDatabasesChapter
from twophase.testing._suite_drops import DropsChapter
from twophase.testing._suite_interruptions import InterruptionChapter
from twophase.testing._suite_purposes import LayoutChapter, PurposesChapter
from twophase.testing._suite_savepoints import SavepointsChapter
from twophase.testing._suite_store import CatalogChapter, DatabasesChapter, DefinitionsChapter, TablesChapter
from twophase.testing._suite_transactions import LeftoversChapter, TransactionChapter

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
    DropsChapter,
    AlterationsChapter,
    StagedDatabasesChapter,
    SavepointsChapter,
    LeftoversChapter,
    InterruptionChapter,
    SuiteBase,
):
    """The contract of every catalog, as tests.

    Override the fixtures ``catalog``, ``fresh_catalog``, ``fresh_process`` and ``read_rows`` and the attribute
    ``capabilities``; ``make_frame`` if ``write`` accepts something other than Arrow tables in place of DataFrames;
    ``assert_nothing_left`` to check the store itself. For a catalog that writes by ``environment.partition_runner``,
    use a :class:`~twophase.testing.LocalRunner` there.
    """
