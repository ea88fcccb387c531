"""Which metastore a catalog stands on, so that nobody judges the tables of one by looking into another.

A version directory that no table of *this* metastore refers to may be the live version of a table of *that* one, and
a publish that cannot be seen here may be there. So whatever is staged names its metastore, and only over the same one
is it recovered or cleaned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twophase.errors import ConfigurationError
from twophase.liveness import Owner, this_process

#: Key in stamps and documents.
STORE = "metastore"
_MEMORY = "memory:"


def of_memory() -> str:
    """Identity of a catalog that lives in this process, and ends with it."""
    owner = this_process()
    return _MEMORY + json.dumps([owner.host, owner.boot_id, owner.pid, owner.pid_started])


def of_services(uris: str) -> str:
    """Identity of a Hive metastore service, from ``hive.metastore.uris``; the order of several says nothing."""
    return "service:" + ",".join(sorted(uri.strip() for uri in uris.split(",") if uri.strip()))


def of_database(url: str, directory: str) -> str:
    """Identity of an embedded Hive metastore, from its JDBC URL without options and secrets.

    Parameters
    ----------
    url : str
        ``javax.jdo.option.ConnectionURL``.
    directory : str
        Where Derby looks for a database that is given by a relative path.
    """
    if url.strip().startswith("jdbc:derby:memory:"):
        return of_memory()
    derby = re.fullmatch(r"jdbc:derby:(?!//)([^;]*)(;.*)?", url.strip(), re.DOTALL)
    if derby:
        named = re.search(r"databaseName=([^;]*)", url)
        place = derby[1].removeprefix("directory:") or (named[1] if named else "metastore_db")
        return f"derby:{(Path(directory) / place).resolve()}"
    return "database:" + re.split(r"[;?]", re.sub(r"//[^/@]*@", "//", url.strip()), maxsplit=1)[0]


def is_embedded(identity: str) -> bool:
    """Whether all of the metastore, its database too, lives in one process at a time, and ends with it."""
    return identity.startswith((_MEMORY, "derby:"))


def in_words(identity: str) -> str:
    """For people."""
    kind, _, rest = identity.partition(":")
    if kind == "memory":
        host, _, pid, _ = json.loads(rest)
        return f"the catalog in memory of process {pid} on {host}"
    places = {"derby": "the Hive metastore in", "hiveserver2": "the metastore of the HiveServer2 at"}
    return f"{places.get(kind, 'the Hive metastore at')} {rest}"


def is_other(theirs: Any, ours: str) -> bool:
    """Whether something belongs to another metastore, which may be in use.

    What a catalog in memory held is gone with its process: then anybody may tidy up after it.
    """
    if not theirs or not ours or theirs == ours:
        return False
    if str(theirs).startswith(_MEMORY):
        host, boot, pid, started = json.loads(str(theirs).removeprefix(_MEMORY))
        return not Owner(host, boot, pid, started).is_gone()
    return True


def refusal(what: str, theirs: str, ours: str, **facts: Any) -> ConfigurationError:
    """The error for what belongs to another metastore."""
    return ConfigurationError(
        f"{what} belongs to {in_words(theirs)}; this session stands on {in_words(ours)}. Nothing was touched.",
        hint="Run it with the metastore settings of the job: in its directory, with its hive-site.xml, or with --conf "
        "(spark.sql.catalogImplementation, spark.hadoop.hive.metastore.uris, "
        "spark.hadoop.javax.jdo.option.ConnectionURL).",
        **facts,
    )


def check_document(document: Mapping[str, Any], ours: str) -> None:
    """Refuse to work on a participant of another metastore.

    Raises
    ------
    ConfigurationError
        It is of another one, which may be in use.
    """
    theirs = document.get(STORE)
    if is_other(theirs, ours):
        transaction_id = document.get("transaction_id")
        raise refusal(f"Transaction {transaction_id}", str(theirs), ours, transaction_id=transaction_id)
