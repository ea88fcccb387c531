"""The classes of catalogs: found by entry point or by name, and checked before one is created."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from inspect import Parameter, signature

from twophase import catalog as interfaces
from twophase.catalog import Catalog
from twophase.config.settings import nearest
from twophase.errors import ConfigurationError
from twophase.redaction import redact

CATALOG_PREFIX = "spark.sql.catalog."
ENTRY_POINTS = "twophase.catalogs"
KIND = "twophase."

#: Arguments that the host passes to ``two_phase_create_table`` by name.
_KEYWORDS = frozenset({"purpose", "ignore_if_exists", "is_streaming_mode", "context"})


def is_ours(kind: str) -> bool:
    """Return whether the value of ``spark.sql.catalog.NAME`` is meant for twophase."""
    # A Java class name, which Spark loads itself, contains no colon; and no Java package is named almost like twophase.
    package, _, _ = kind.strip().lower().replace("/", ".").partition(".")
    return ":" in kind or bool(difflib.get_close_matches(package, [KIND.rstrip(".")], cutoff=0.85)) or is_bare(kind)


def is_bare(kind: str) -> bool:
    """Return whether it is only the name of a kind, without ``twophase.``."""
    return kind.strip().lower() in {point.name for point in entry_points(group=ENTRY_POINTS)}


def find_kind(kind: str, where: str) -> type[Catalog]:
    """The catalog class named by ``twophase.<kind>`` or ``package.module:Class``.

    Raises
    ------
    ConfigurationError
        It does not exist, cannot be imported, or is not a catalog.
    """
    found = _dotted(kind, where) if ":" in kind else _entry_point(kind, where)
    if not (isinstance(found, type) and issubclass(found, Catalog)):
        raise ConfigurationError(f"{where} is {kind!r}, which is not a subclass of twophase.Catalog.")
    _require_whole(found, kind, where)
    return found


def _require_whole(found: type[Catalog], kind: str, where: str) -> None:
    """Refuse a plugin without a method of the interface, or without a keyword that the host passes."""
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise ConfigurationError(
            f"{where} is {kind!r}, which does not implement {', '.join(missing)} of twophase.Catalog.",
            hint="Write these methods: their docstrings are the contract, and docs/plugins.md has a whole plugin.",
        )
    _require_interfaces(found, kind, where)
    keywords = signature(Catalog.two_phase_create_table).parameters
    given = signature(found.two_phase_create_table).parameters
    takes_all = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in given.values())
    if not takes_all and (absent := [name for name in keywords if name in _KEYWORDS and name not in given]):
        raise ConfigurationError(
            f"{where} is {kind!r}, whose two_phase_create_table does not take {', '.join(absent)}.",
            hint="Its signature is that of twophase.Catalog.two_phase_create_table.",
        )


def _require_interfaces(found: type[Catalog], kind: str, where: str) -> None:
    """Refuse a plugin with methods that nothing would ever call, such as those of a clean-up."""
    for interface in (vars(interfaces)[name] for name in interfaces.__all__ if name.startswith("Supports")):
        methods = [name for name in vars(interface) if not name.startswith("_") and not hasattr(Catalog, name)]
        given = [name for name in methods if hasattr(found, name)]
        if given and not issubclass(found, interface):
            raise ConfigurationError(
                f"{where} is {kind!r}, which has {', '.join(given)} without inheriting "
                f"twophase.catalog.{interface.__name__}.",
                hint=f"Let the class inherit it: {given[0]} is not called without that.",
            )


def refuse_dots(values: Mapping[str, str]) -> None:
    """Refuse ``package.module.Class`` for a twophase catalog: Spark would look for a Java class of that name."""
    for name, kind in values.items():
        module, _, last = kind.strip().rpartition(".")
        if "." in name or is_ours(kind) or not module or not _can_be_imported(module.partition(".")[0]):
            continue
        try:
            found = getattr(import_module(module), last, None)
        except Exception:  # whatever it is, it is not a twophase catalog
            continue
        if isinstance(found, type) and issubclass(found, Catalog):
            raise ConfigurationError(
                f"{CATALOG_PREFIX}{name} is {kind!r}, by which Spark looks for a Java class.",
                hint=f"That of Python has a colon before the class: {CATALOG_PREFIX}{name} = {module}:{last}",
            )


def _can_be_imported(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _entry_point(kind: str, where: str) -> object:
    points = entry_points(group=ENTRY_POINTS)
    known = {point.name: point for point in points}
    name = kind.removeprefix(KIND)
    if len(given := sorted({point.value for point in points if point.name == name})) > 1:
        raise ConfigurationError(
            f"{where} is {kind!r}, and several packages offer a catalog kind {name!r}: {', '.join(given)}.",
            hint=f"Uninstall all but one of them, or name the class: {where} = {given[0]}",
        )
    if not kind.startswith(KIND) or name not in known:
        hint = nearest(re.split(r"[./]", kind.strip())[-1], known).replace("Did you mean ", f"Did you mean {KIND}")
        raise ConfigurationError(f"{where} is {kind!r}: there is no catalog kind {name!r}.", hint=hint)
    try:
        return known[name].load()
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{where} is {kind!r}, whose package cannot be imported: {error}.",
            hint=f"Install what it needs: pip install 'twophase[{name}]'."
            if known[name].value.startswith(KIND)
            else f"Install what {known[name].value} needs.",
        ) from error
    except Exception as error:  # a plugin's module may raise anything
        raise _not_importable(where, kind, known[name].value, error) from error


def _dotted(kind: str, where: str) -> object:
    module, _, name = kind.partition(":")
    try:
        return getattr(import_module(module), name)
    except Exception as error:  # a plugin's module may raise anything
        raise _not_importable(where, kind, kind, error) from error


def error_text(error: Exception) -> str:
    """The text of a plugin's own error, which may quote an option."""
    return f"{type(error).__name__}: {redact(str(error))}"


def _not_importable(where: str, kind: str, name: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{where} is {kind!r}, which cannot be imported: {error_text(error)}.",
        hint="Write twophase.<kind>, or package.module:Class of an importable module. "
        f"Try it with: python -c 'import {name.partition(':')[0]}'",
    )
