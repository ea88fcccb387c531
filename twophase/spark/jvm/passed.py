"""The objects that Spark passes to the interfaces of a catalog, each read in one call (``java/Passed.java``)."""

from __future__ import annotations

import json
from typing import Any

from twophase.model import ObjectPath
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.java_sources import java_object


def object_path(jvm: Jvm, identifier: Any) -> ObjectPath:
    """The path of a v2 ``Identifier``."""
    facts = json.loads(str(_reader(jvm).name(identifier)))
    return ObjectPath(tuple(facts["namespace"]), facts["name"])


def write_info(jvm: Jvm, info: Any) -> tuple[dict[str, str], str]:
    """The options of a ``LogicalWriteInfo``, and the JSON of the ``StructType`` of its rows."""
    facts = json.loads(str(_reader(jvm).write(info)))
    return facts["options"], facts["schema"]


def _reader(jvm: Jvm) -> Any:
    return jvm.once(("Passed",), lambda: java_object(jvm, "Passed"))
