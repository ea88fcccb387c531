"""TCP keepalive: it ends the wait for a server that has disappeared without a word, and never that for a slow one."""

from __future__ import annotations

import socket

#: Seconds of silence before the first probe, seconds between probes, and number of probes.
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


def keepalive_options() -> list[tuple[int, int, int]]:
    """Return arguments of ``setsockopt``: those that this system has."""
    probes = [(socket.IPPROTO_TCP, getattr(socket, name), n) for name, n in _PROBES.items() if hasattr(socket, name)]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *probes]


def keep_alive(connected: socket.socket) -> None:
    """Have the system ask from time to time whether the other end of a connection is there."""
    if connected.family in (socket.AF_INET, socket.AF_INET6):
        for option in keepalive_options():
            connected.setsockopt(*option)


__all__ = ["keep_alive", "keepalive_options"]
