"""Hadoop path strings: ``file:/a/b``, ``s3a://bucket/a``, ``/a/b``, never percent-encoded."""

from __future__ import annotations

import functools
import os
import posixpath
import re

from twophase.catalogs.location_identity import Identities, are_same

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]*):")
#: A user and a password, which ends at the last @; a number after a host is its port.
_LOGIN = re.compile(r"(?<=://)[^/@:]*:(?!\d*(?:/|$))\S*@")
#: How the canonical spelling of a local path begins.
LOCAL = "file:"


def join(location: str, *parts: str) -> str:
    """A location below another one."""
    return "/".join([location.rstrip("/"), *parts])


def parent(location: str) -> str:
    """The directory that holds a location."""
    return location.rstrip("/").rpartition("/")[0]


def base_name(location: str) -> str:
    """Last part of a location."""
    return location.rstrip("/").rpartition("/")[2]


@functools.lru_cache(1024)
def normal(location: str) -> str:
    """The canonical spelling of a location: local paths as ``file:/...``, no slash at the end."""
    scheme = _SCHEME.match(location)
    if scheme is None or scheme[1].lower() == "file":
        rest = location[scheme.end() :] if scheme else location
        return LOCAL + posixpath.normpath("/" + rest.lstrip("/"))
    # Hadoop writes both, where there is no authority.
    return re.sub(r"^([^:/]+):///+", r"\1:/", location).rstrip("/")


def file_system_of(location: str) -> str:
    """The file system of a location: its scheme and authority, as ``s3a://bucket``; ``file:`` of a local path."""
    uri = normal(location)
    scheme, _, rest = uri.partition(":")
    return f"{scheme}://{rest[2:].partition('/')[0]}" if rest.startswith("//") else f"{scheme}:"


def shown_file_system(location: str) -> str:
    """The file system of a location, as :func:`file_system_of`, without a user and password that its URI may hold."""
    return file_system_of(_LOGIN.sub("***@", location))


def same(one: str | None, other: str | None) -> bool:
    """Whether two locations are the same directory, however they are spelled."""
    return one is not None and other is not None and are_same(normal(one), normal(other))


def is_below(location: str, root: str) -> bool:
    """Whether a location is the root or inside it; use :class:`Root` for many locations."""
    return Root(root).holds(location)


class Root:
    """A directory, for checking many locations whether they are inside it."""

    def __init__(self, location: str) -> None:
        self._text = normal(location)
        self._identities = Identities()

    def holds(self, location: str) -> bool:
        """Whether a location is this directory or inside it, however it is spelled."""
        text = normal(location)
        if text == self._text or text.startswith(self._text.rstrip("/") + "/"):
            return True
        # Looked up by directory, so that the files of one directory share the result.
        known = self._identities
        return known.key(self._text) in known.chain(text)

    def really_holds(self, location: str) -> bool:
        """Same as :meth:`holds`, but with symbolic links resolved: their destination must be inside, too."""
        uri = normal(location)
        if not uri.startswith(LOCAL):
            return self.holds(uri)
        return self.holds(join(LOCAL + os.path.realpath(parent(uri).removeprefix(LOCAL)), base_name(uri)))

    def name_of(self, location: str) -> str | None:
        """The path of a location relative to this directory; None if it is not inside."""
        text, top = normal(location), self._text.rstrip("/") + "/"
        if text.startswith(top):
            return text.removeprefix(top)
        key, names = self._identities.key(self._text), [base_name(text)]
        while "/" in (text := parent(text)):
            if self._identities.key(text) == key:
                return "/".join(reversed(names))
            names.append(base_name(text))
        return None
