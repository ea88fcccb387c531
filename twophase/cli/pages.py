"""``twophase ui``: the web pages over the timeline, until they are interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from socket import socket

import click

from twophase.errors import ConfigurationError
from twophase.timeline.timeline import Timeline
from twophase.transactions.clean import Cleaned

_PACKAGES = ("starlette", "uvicorn", "jinja2")


def _listening(host: str, port: int) -> socket:
    from twophase.ui.server import listen

    try:
        return listen(host, port)
    except OSError as error:
        raise ConfigurationError(
            f"Nothing can listen on {host} port {port}: {error.strerror or error}.", hint="Give another --port."
        ) from error


def serve(
    timeline: Timeline,
    search: Callable[[], Sequence[Cleaned]] | None,
    host: str,
    port: int,
    names: Sequence[str],
    refresh: int,
) -> None:
    """Serve the pages.

    Raises
    ------
    ConfigurationError
        The web framework is not installed, or the address cannot be used.
    """
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise ConfigurationError(
            f"twophase ui needs {', '.join(missing)}, and it is not installed.",
            hint="Install the extra: pip install 'twophase[ui]'.",
        )
    from twophase.ui.pages import Pages
    from twophase.ui.server import application, server

    with _listening(host, port) as listening:
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"http://{shown}:{listening.getsockname()[1]}/")
        server(application(Pages(timeline, search), [host, *names], refresh=refresh)).run(sockets=[listening])
