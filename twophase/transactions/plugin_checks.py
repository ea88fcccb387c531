"""Validation of the objects that a plugin returns, before they are used."""

from __future__ import annotations

import json
from typing import Any
from weakref import WeakSet

from twophase.catalog import Catalog, SupportsGroupPublish, TwoPhaseCatalogTable
from twophase.errors import CatalogError
from twophase.model import ObjectPath
from twophase.timeline.records import name_error

#: Participant classes that could be restored from their documents: each class is checked once.
_restorable: WeakSet[type] = WeakSet()


def require_participant(found: object, catalog: Catalog, path: ObjectPath, transaction_id: str) -> None:
    """Refuse an object from a plugin that is not a participant, or that could not be published or recovered.

    Raises
    ------
    CatalogError
        It names the plugin and the problem; nothing was recorded.
    """
    if catalog.capabilities.group_publish:
        grouping(catalog)
    if not isinstance(found, TwoPhaseCatalogTable):
        raise CatalogError(
            f"Catalog {catalog.name} answered {type(found).__name__} for {path}, which is no TwoPhaseCatalogTable; "
            "nothing was recorded.",
            path=path,
            hint="Fix two_phase_create_table of the plugin: it answers a participant, or None.",
        )
    document = json.loads(document_text(catalog, found, path))
    _require_keys(document, catalog, found, path, transaction_id)
    if type(found) not in _restorable:
        _require_restored(document, catalog, found, path)
        _restorable.add(type(found))


def grouping(catalog: Catalog) -> SupportsGroupPublish:
    """Return a catalog that declares ``group_publish`` as the interface that publishes a group.

    Raises
    ------
    CatalogError
        It does not implement the interface.
    """
    if isinstance(catalog, SupportsGroupPublish):
        return catalog
    raise CatalogError(
        f"Catalog {catalog.name} declares Capabilities.group_publish, and its class {type(catalog).__name__} is no "
        "twophase.catalog.SupportsGroupPublish.",
        hint=f"Let {type(catalog).__name__} inherit SupportsGroupPublish, or do not declare group_publish.",
    )


def document_text(catalog: Catalog, participant: TwoPhaseCatalogTable, path: ObjectPath | None = None) -> str:
    """Serialize the document of a participant for the timeline.

    Raises
    ------
    CatalogError
        The document is not valid JSON; the error names the plugin and the key.
    """
    try:
        return json.dumps(participant.document, sort_keys=True)
    except (TypeError, ValueError) as error:
        key = next((key for key, value in participant.document.items() if not _is_json({key: value})), None)
        kind = type(participant.document[key]).__name__ if key is not None else str(error)
        raise _wrong(catalog, participant, path or participant.path, f"{key!r} is {kind}, which is no JSON") from error


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _require_keys(
    document: dict[str, Any], catalog: Catalog, found: TwoPhaseCatalogTable, path: ObjectPath, transaction_id: str
) -> None:
    for key in ("path", "purpose", "transaction_id"):
        if key not in document:
            raise _wrong(catalog, found, path, f"it has no {key!r}")
        try:
            value = getattr(found, key)
        except Exception as error:  # the document may cause any error
            raise _wrong(catalog, found, path, f"{key!r} is {document[key]!r}") from error
        if (key == "path" and catalog.canonical(value) != catalog.canonical(path)) or (
            key == "transaction_id" and value != transaction_id
        ):
            raise _wrong(catalog, found, path, f"{key!r} is {document[key]!r}, which is another one")


def _require_restored(
    document: dict[str, Any], catalog: Catalog, found: TwoPhaseCatalogTable, path: ObjectPath
) -> None:
    try:
        restored: Any = catalog.restore(document)
        is_equal = isinstance(restored, TwoPhaseCatalogTable) and restored.document == document
    except Exception as error:  # a plugin may raise anything
        raise _not_restored(catalog, found, path, f"raised {name_error(error)}") from error
    if not is_equal:
        what = "another document" if isinstance(restored, TwoPhaseCatalogTable) else repr(restored)
        raise _not_restored(catalog, found, path, f"answered {what}")


def _wrong(catalog: Catalog, found: TwoPhaseCatalogTable, path: ObjectPath, what: str) -> CatalogError:
    return CatalogError(
        f"The document of {type(found).__name__}, the participant that catalog {catalog.name} gave for {path}, cannot "
        f"be recorded: {what}.",
        path=path,
        hint="Fix the plugin: the document is plain JSON, with path.to_document() as 'path', purpose.value as "
        "'purpose' and the context's 'transaction_id'.",
    )


def _not_restored(catalog: Catalog, found: TwoPhaseCatalogTable, path: ObjectPath, what: str) -> CatalogError:
    return CatalogError(
        f"Catalog {catalog.name} cannot restore {type(found).__name__} for {path} from its own document: restore() "
        f"{what}. Nothing was recorded.",
        path=path,
        hint="Fix restore of the plugin: a recovery in another process carries on with what it answers.",
    )
