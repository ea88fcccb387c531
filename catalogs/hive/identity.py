"""The identity of a catalog's metastore, so that the tables of one metastore are never judged by another.

A version directory without a reference in *this* metastore may be the live version of a table of *another* one, and a
publish that is not visible here may be visible there. Therefore everything that is staged names its metastore, and is
recovered or cleaned only with the same one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twophase.errors import ConfigurationError
from twophase.timeline.owners import Owner, this_process

#: Key in stamps and documents.
STORE = "metastore"
_MEMORY = "memory:"
_DATABASE = "database:"
#: The sign before the options of a JDBC URL; what stands before an ``@`` may be of a password.
_OPTIONS = re.compile(r"[;?](?=[^@;?=]*=|[^@]*$)")
#: A login among the properties of an address.
_LOGIN = re.compile(r"(?i)\(\s*(?:user\w*|pass\w*|pwd)\s*=[^(),]*\)|,?\s*\b(?:user\w*|pass\w*|pwd)\s*=[^(),]*")
#: What is before a login.
_SCHEME = re.compile(r"(?i)jdbc:oracle:\w+:|[\w:.+-]*//")


def of_memory() -> str:
    """Identity of a catalog in the memory of this process, which ends with it."""
    owner = this_process()
    return _MEMORY + json.dumps([owner.host, owner.boot_id, owner.pid, owner.pid_started])


def of_services(uris: str) -> str:
    """Identity of a Hive metastore service, from ``hive.metastore.uris``; the order of several URIs does not matter."""
    return "service:" + ",".join(sorted(uri.strip() for uri in uris.split(",") if uri.strip()))


def of_database(url: str, directory: str) -> str:
    """Identity of an embedded Hive metastore, from its JDBC URL without options and secrets.

    Parameters
    ----------
    url : str
        ``javax.jdo.option.ConnectionURL``.
    directory : str
        The directory in which Derby resolves a relative database path.
    """
    if url.strip().startswith("jdbc:derby:memory:"):
        return of_memory()
    derby = re.fullmatch(r"jdbc:derby:(?!//)([^;]*)(;.*)?", url.strip(), re.DOTALL)
    if derby:
        named = re.search(r"databaseName=([^;]*)", url)
        place = derby[1].removeprefix("directory:") or (named[1] if named else "metastore_db")
        return f"derby:{(Path(directory) / place).resolve()}"
    return _DATABASE + _without_login(url.strip())


def _without_login(url: str) -> str:
    """Remove options and login of a JDBC URL: a password may hold any character, and ends at the last ``@``."""
    place = _LOGIN.sub("", _OPTIONS.split(url, maxsplit=1)[0])
    login, found, address = place.rpartition("@")
    if not found:
        return place
    scheme = _SCHEME.match(login)
    if scheme is None:
        return hashlib.sha256(place.encode()).hexdigest()
    return scheme[0] + ("" if scheme[0].endswith("//") else "@") + address


def _told(identity: str) -> str:
    """An identity without the login that an older version of twophase may have recorded in it."""
    is_database = identity.startswith(_DATABASE)
    return _DATABASE + _without_login(identity.removeprefix(_DATABASE)) if is_database else identity


def is_embedded(identity: str) -> bool:
    """Whether the metastore, including its database, runs in one process at a time, and ends with it."""
    return identity.startswith((_MEMORY, "derby:"))


def in_words(identity: str) -> str:
    """Describe an identity for messages."""
    kind, _, rest = _told(identity).partition(":")
    if kind == "memory":
        host, _, pid, _ = json.loads(rest)
        return f"the catalog in memory of process {pid} on {host}"
    places = {"derby": "the Hive metastore in", "hiveserver2": "the metastore of the HiveServer2 at"}
    return f"{places.get(kind, 'the Hive metastore at')} {rest}"


def is_other(theirs: Any, ours: str) -> bool:
    """Whether an identity is that of another metastore, which may be in use.

    An in-memory catalog ends with its process; then anyone may clean up its leftovers.
    """
    if not theirs or not ours or _told(str(theirs)) == ours:
        return False
    if str(theirs).startswith(_MEMORY):
        host, boot, pid, started = json.loads(str(theirs).removeprefix(_MEMORY))
        return not Owner(host, boot, pid, started).is_gone()
    return True


def refusal(what: str, theirs: str, ours: str, **facts: Any) -> ConfigurationError:
    """Return the error for an object of another metastore."""
    return ConfigurationError(
        f"{what} belongs to {in_words(theirs)}; this session uses {in_words(ours)}. Nothing was touched.",
        hint="Run it with the metastore settings of the job: in its directory, with its hive-site.xml, or with --conf "
        "(spark.sql.catalogImplementation, spark.hadoop.hive.metastore.uris, "
        "spark.hadoop.javax.jdo.option.ConnectionURL).",
        **facts,
    )


def check_document(document: Mapping[str, Any], ours: str) -> None:
    """Refuse a participant of another metastore.

    Raises
    ------
    ConfigurationError
        It belongs to another metastore, which may be in use.
    """
    theirs = document.get(STORE)
    if is_other(theirs, ours):
        transaction_id = document.get("transaction_id")
        raise refusal(f"Transaction {transaction_id}", str(theirs), ours, transaction_id=transaction_id)
