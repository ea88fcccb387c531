"""The web server: pages rendered here, on Starlette and Jinja; nothing can be changed through them.

A page of another site must not read them through the user's browser: requests with another host's name are refused (DNS
rebinding), and no other origin is allowed anything. Whatever looks like a secret is not shown.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import uvicorn
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.templating import Jinja2Templates

from twophase.errors import TwoPhaseError
from twophase.redaction import redact
from twophase.timeline.listings import size_text
from twophase.ui.pages import Pages

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_TEMPLATES = Path(__file__).with_name("templates")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def application(pages: Pages, hosts: Iterable[str] = (), *, refresh: int = 5) -> Starlette:
    """Return the web application.

    Parameters
    ----------
    pages : Pages
    hosts : iterable of str
        Names and addresses by which it may be asked, in addition to those of the loopback interface.
    refresh : int
        Seconds after which a page is loaded anew.
    """
    templates = Jinja2Templates(env=_environment())
    allowed = [f"[{host}]" if ":" in host else host.lower() for host in (*_LOOPBACK, *hosts)]

    def page(name: str, content: Callable[[], dict[str, Any]], *, is_live: bool = True) -> Route:
        def show(request: Request) -> Response:
            return _shown(templates, request, pages, f"{name}.html", content, refresh if is_live else 0)

        return Route("/" if name == "transactions" else f"/{name}", show, name=name)

    def transaction(request: Request) -> Response:
        transaction_id = request.path_params["transaction_id"]
        return _shown(templates, request, pages, "transaction.html", lambda: pages.transaction(transaction_id), refresh)

    def style(_: Request) -> Response:
        return Response((_TEMPLATES / "style.css").read_text(encoding="utf-8"), media_type="text/css", headers=_HEADERS)

    return Starlette(
        routes=[
            page("transactions", pages.transactions),
            page("locks", pages.locks),
            page("in-doubt", pages.in_doubt),
            # The search is repeated only when it is asked for: it lists the stores.
            page("leftovers", pages.leftovers, is_live=False),
            Route("/transaction/{transaction_id}", transaction, name="transaction"),
            Route("/style.css", style, name="style"),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=allowed, www_redirect=False)],
    )


def _shown(
    templates: Jinja2Templates,
    request: Request,
    pages: Pages,
    name: str,
    content: Callable[[], dict[str, Any] | None],
    refresh: int,
) -> Response:
    common = {"timeline": pages.timeline.display_url, "refresh": refresh, "now": datetime.now(UTC)}
    try:
        found = content()
    except TwoPhaseError as error:
        return templates.TemplateResponse(
            request, "error.html", {**common, "message": str(error)}, status_code=503, headers=_HEADERS
        )
    if found is None:
        message = "There is no such transaction on this timeline."
        return templates.TemplateResponse(
            request, "error.html", {**common, "message": message, "refresh": 0}, status_code=404, headers=_HEADERS
        )
    return templates.TemplateResponse(request, name, {**common, **found}, headers=_HEADERS)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_without_secrets,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"moment": _moment, "lasting": _lasting, "bytes": size_text}
    return environment


def _without_secrets(value: Any) -> Any:
    return redact(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _moment(value: float | datetime) -> str:
    moment = value if isinstance(value, datetime) else datetime.fromtimestamp(value, UTC)
    return moment.astimezone().isoformat(sep=" ", timespec="seconds")


def _lasting(seconds: float) -> str:
    """A duration in one unit, which is enough to see what hangs."""
    for limit, length, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def listen(host: str, port: int) -> socket.socket:
    """Open the port, and return its socket.

    Raises
    ------
    OSError
        It is in use, or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def server(app: Starlette) -> uvicorn.Server:
    """Return the server, to be run on the socket of :func:`listen`."""
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, ws="none", lifespan="off"))
