"""A forked child and the connections of its parent."""

from __future__ import annotations

import os
from collections.abc import Callable

from twophase.catalog import Catalog


def check_fork(catalog: Catalog, server_process: Callable[[], int]) -> None:
    """Check that a child neither uses nor closes the connection that its parent has; close the catalog.

    Parameters
    ----------
    catalog : Catalog
    server_process : callable
        Asks the server for the number of the process that serves the connection.
    """
    before = server_process()
    child = os.fork()
    if not child:
        try:
            own = server_process()
            catalog.close()
        except BaseException:
            os._exit(2)
        os._exit(own == before)
    assert os.waitpid(child, 0)[1] == 0
    assert server_process() == before
    catalog.close()
