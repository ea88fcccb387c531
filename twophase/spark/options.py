"""The session's configuration, read and checked before anything happens."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import unquote, urlsplit

from twophase.catalog import Catalog, Environment
from twophase.errors import CatalogError, ConfigurationError, TwoPhaseError
from twophase.placing import network_file_system
from twophase.redaction import logger, redact

_log = logger("twophase.spark")

CATALOG_PREFIX = "spark.sql.catalog."
PREFIX = "spark.twophase."
ENTRY_POINTS = "twophase.catalogs"
KIND = "twophase."
#: The catalog that attach makes by itself: its name, and the one that it has where the first is taken.
OWN_NAME = "hive"
OTHER_NAME = "twophase_hive"

#: Everything below ``spark.twophase.``, with one line of help each.
KNOWN: Mapping[str, str] = {
    "session.catalog": "which catalog serves unprefixed names; none turns that off (default: hive)",
    "timeline": "SQLAlchemy URL of the timeline (default: <warehouse>/.twophase/timeline.db)",
    "timeline.retention": "how long the timeline keeps what has ended and left nothing behind (default: 30d)",
    "timeline.password_env": "name of the environment variable that holds the password of the timeline's database",
    "timeline.password_file": "file that holds the password of the timeline's database",
    "atomicity": "required or preferred (default: required)",
    "retention": "how long replaced versions stay for readers in flight, such as 1d or 12h (default: 1d)",
    "coordinator": "whose transactions this session recovers when it attaches (default: the application's name)",
    "wait": "how long a write waits for others that publish its table, such as 30s or 5m; 0: not at all (default: 30s)",
    "fsync": "true or false: whether what is acknowledged survives a power cut (default: true)",
    "storage.untested": "refuse or allow writes to tables on file systems that are not local (default: refuse)",
    "lease": "seconds without a sign of life after which others may recover a transaction (default: 60)",
}

#: What to do where a statement is refused: the policy is read when a session is attached.
PREFER = "call detach(), set spark.twophase.atomicity=preferred, and attach again"

#: What Spark looks for by these names is never a catalog.
_SPARKS_OWN = frozenset({"global_temp", "system"})

#: What is added to a time must stay one that can be written down.
_LONGEST = 100 * 366 * 86_400.0
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


@dataclass(frozen=True)
class CatalogOptions:
    """One catalog.

    Attributes
    ----------
    name : str
        Its name in the session.
    kind : type of Catalog
    options : mapping of str to str
    is_own : bool
        Whether attach makes it by itself: nobody has chosen its name.
    """

    name: str
    kind: type[Catalog]
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_own: bool = False

    @property
    def recorded_name(self) -> str:
        """Its name on the timeline and in stamps, where another session must find it again: it never gives way."""
        return OWN_NAME if self.is_own else self.name


@dataclass(frozen=True)
class Options:
    """All that the configuration says.

    Attributes
    ----------
    catalogs : tuple of CatalogOptions
    session_catalog : str or None
        The one for unprefixed names; None where that is turned off.
    timeline : str or None
        None: below the warehouse.
    timeline_password : str or None
        From the environment or a file.
    timeline_retention : float
        Seconds.
    policy : str
        ``required`` or ``preferred``.
    retention, lease, wait : float
        Seconds.
    fsync : bool
        Whether what is published survives a power cut.
    coordinator : str or None
    untested_storage : bool
        Whether tables on file systems are written that were not tried.
    """

    catalogs: tuple[CatalogOptions, ...]
    session_catalog: str | None
    timeline: str | None = None
    timeline_password: str | None = field(default=None, repr=False)
    timeline_retention: float = 30 * 86_400.0
    policy: str = "required"
    retention: float = 86_400.0
    lease: float = 60.0
    wait: float = 30.0
    fsync: bool = True
    coordinator: str | None = None
    untested_storage: bool = False


def read(configuration: Mapping[str, str]) -> Options:
    """Read and check all options.

    Parameters
    ----------
    configuration : mapping of str to str
        The session's entries, with their full names.

    Raises
    ------
    ConfigurationError
        An unknown kind or option (with the nearest right one), two catalogs of one name, a wrong value.
    """
    own = {key.removeprefix(PREFIX): value for key, value in configuration.items() if key.startswith(PREFIX)}
    for name in own:
        refuse_unknown(name, KNOWN, prefix=PREFIX)
    _refuse_other_prefixes(configuration)
    values = {
        key.removeprefix(CATALOG_PREFIX): value
        for key, value in configuration.items()
        if key.startswith(CATALOG_PREFIX)
    }
    catalogs = [_catalog(name, kind, values) for name, kind in values.items() if "." not in name and _is_ours(kind)]
    session_catalog = _session_catalog(own.get("session.catalog"), catalogs, values)
    _refuse_twins(catalogs)
    _refuse_orphans(catalogs, values)
    _refuse_dotted(values)
    return Options(
        catalogs=tuple(catalogs),
        session_catalog=session_catalog,
        timeline=own.get("timeline") or None,
        timeline_password=timeline_password(configuration),
        timeline_retention=duration("timeline.retention", own.get("timeline.retention", "30d")),
        policy=_one_of("atomicity", own.get("atomicity", "required"), ("required", "preferred")),
        retention=duration("retention", own.get("retention", "1d")),
        lease=_positive("lease", duration("lease", own.get("lease", "60"))),
        wait=duration("wait", own.get("wait", "30s")),
        fsync=_one_of("fsync", own.get("fsync", "true"), ("true", "false")) == "true",
        coordinator=own.get("coordinator") or None,
        untested_storage=_one_of("storage.untested", own.get("storage.untested", "refuse"), ("refuse", "allow"))
        == "allow",
    )


def beside_databases(found: Options, is_database: Callable[[str], bool]) -> Options:
    """The same options, with no catalog that has the name of a database: Spark would not find that database any more.

    Parameters
    ----------
    found : Options
    is_database : callable
        Whether the session catalog has a database of that name.

    Raises
    ------
    ConfigurationError
        A database has the name that a catalog was given, or both of those that attach gives.
    """
    catalogs = [_beside_database(item, is_database) for item in found.catalogs]
    renamed = {item.name: catalog.name for item, catalog in zip(found.catalogs, catalogs, strict=True)}
    if len(set(renamed.values())) < len(renamed):
        raise _hides_database(OWN_NAME)
    name = found.session_catalog
    return replace(found, catalogs=tuple(catalogs), session_catalog=renamed.get(name, name) if name else None)


def _beside_database(item: CatalogOptions, is_database: Callable[[str], bool]) -> CatalogOptions:
    if not is_database(item.name):
        return item
    if not item.is_own or is_database(OTHER_NAME):
        raise _hides_database(item.name)
    return replace(item, name=OTHER_NAME)


def hidden_database(name: str) -> CatalogError:
    """The refusal of a database that would have the name of a catalog, made or met after :func:`~twophase.attach`."""
    return CatalogError(
        f"{name} is a twophase catalog of this session, so that Spark cannot find a database of that name by it.",
        path=name,
        hint="Call detach(), create the database, and attach again: the catalog is then refused, or takes the name "
        f"{OTHER_NAME} where it was attach that chose {OWN_NAME}. A database that is there is spark_catalog.{name}.",
    )


def _hides_database(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"There is a database {name}, and a catalog of that name would hide it with all its tables.",
        hint=f"Give the twophase catalog another name: {CATALOG_PREFIX}NAME = twophase.KIND, and for the catalog of "
        f"unprefixed names {PREFIX}session.catalog = NAME.",
    )


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the nearest right word, and all of them."""
    words = sorted(known)
    close = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.5)
    listed = f"Known: {', '.join(words) or 'none'}."
    return f"Did you mean {close[0]}? {listed}" if close else listed


def refuse_unknown(name: str, known: Iterable[str], *, prefix: str) -> None:
    """Refuse an option that does not exist."""
    known = list(known)
    if name not in known:
        raise ConfigurationError(f"There is no option {prefix}{name}.", hint=nearest(name, known))


def _refuse_other_prefixes(configuration: Mapping[str, str]) -> None:
    """Refuse an option of ours below nearly our prefix, which would do nothing."""
    for key in configuration:
        start, _, rest = key.partition(".")
        word, _, option = rest.partition(".")
        if f"{start}.{word}." == PREFIX or start.lower() != PREFIX.partition(".")[0]:
            continue
        if option.lower() in KNOWN and difflib.get_close_matches(word.lower(), [KIND.rstrip(".")], cutoff=0.75):
            raise ConfigurationError(
                f"{key} is set, and there is no such option.", hint=f"Did you mean {PREFIX}{option.lower()}?"
            )


def duration(name: str, text: str) -> float:
    """Seconds from ``90``, ``30s``, ``15m``, ``12h``, ``1d``."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w|)\s*", text.lower())
    if not found:
        raise ConfigurationError(
            f"{PREFIX}{name} is {text!r}, which is no duration.", hint="Write a number and a unit: 30s, 15m, 12h, 1d."
        )
    seconds = float(found[1]) * _UNITS[found[2]]
    if seconds > _LONGEST:
        raise ConfigurationError(f"{PREFIX}{name} is {text[:40]!r}, which is more than a hundred years.")
    return seconds


def _positive(name: str, seconds: float) -> float:
    if seconds <= 0:
        raise ConfigurationError(f"{PREFIX}{name} must be more than 0 seconds.")
    return seconds


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value.lower() not in known:
        raise ConfigurationError(f"{PREFIX}{name} is {value!r}.", hint=nearest(value, known))
    return value.lower()


# -- catalogs ----------------------------------------------------------------------------------------------------------


def _is_ours(kind: str) -> bool:
    # A Java class name, which Spark loads itself, has no colon; and none lives in a package named nearly as twophase.
    package, _, _ = kind.strip().lower().replace("/", ".").partition(".")
    return ":" in kind or bool(difflib.get_close_matches(package, [KIND.rstrip(".")], cutoff=0.85)) or _is_bare(kind)


def _is_bare(kind: str) -> bool:
    """Whether it is the name of a kind alone, without ``twophase.``."""
    return kind.strip().lower() in {point.name for point in entry_points(group=ENTRY_POINTS)}


def _catalog(name: str, kind: str, values: Mapping[str, str]) -> CatalogOptions:
    if not name or name.lower() in _SPARKS_OWN:
        raise ConfigurationError(
            f"{CATALOG_PREFIX}{name} is set: {name!r} can be no catalog, as Spark means something else by it.",
            hint=f"Give the twophase catalog another name: {CATALOG_PREFIX}NAME = {kind}",
        )
    if name.lower() == "spark_catalog":
        raise ConfigurationError(
            "spark_catalog is Spark's own and is never replaced.",
            hint="Remove spark.sql.catalog.spark_catalog: unprefixed names are served without it.",
        )
    return checked(name, find_kind(kind, f"{CATALOG_PREFIX}{name}"), options_below(name, values))


def options_below(name: str, values: Mapping[str, str]) -> dict[str, str]:
    """Options of one catalog, without its prefix."""
    start = name + "."
    return {key.removeprefix(start): value for key, value in values.items() if key.startswith(start)}


def checked(name: str, kind: type[Catalog], options: Mapping[str, str]) -> CatalogOptions:
    """A catalog's options, none of them unknown to it."""
    for option in options:
        refuse_unknown(option, kind.known_options, prefix=f"{CATALOG_PREFIX}{name}.")
    return CatalogOptions(name, kind, dict(options))


def made(item: CatalogOptions, environment: Environment) -> Catalog:
    """The catalog of these options.

    Raises
    ------
    ConfigurationError
        It refuses an option, or its class cannot be made.
    """
    try:
        return item.kind(item.recorded_name, item.options, environment)
    except TwoPhaseError:
        raise
    except Exception as error:  # a plugin may raise anything
        raise ConfigurationError(
            f"Catalog {item.name} cannot be made: {item.kind.__qualname__} raised {_told(error)}",
            hint=f"Check its options, {CATALOG_PREFIX}{item.name}.*, and the class itself.",
        ) from error


def find_kind(kind: str, where: str) -> type[Catalog]:
    """The catalog class that ``twophase.<kind>`` or ``package.module:Class`` names.

    Raises
    ------
    ConfigurationError
        There is none, it cannot be imported, or it is no catalog.
    """
    found = _dotted(kind, where) if ":" in kind else _entry_point(kind, where)
    if not (isinstance(found, type) and issubclass(found, Catalog)):
        raise ConfigurationError(f"{where} is {kind!r}, which is not a subclass of twophase.Catalog.")
    return found


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


def _told(error: Exception) -> str:
    """A plugin's own error, which may quote an option."""
    return f"{type(error).__name__}: {redact(str(error))}"


def _not_importable(where: str, kind: str, name: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{where} is {kind!r}, which cannot be imported: {_told(error)}.",
        hint="Write twophase.<kind>, or package.module:Class of an importable module. "
        f"Try it with: python -c 'import {name.partition(':')[0]}'",
    )


def _session_catalog(wanted: str | None, catalogs: list[CatalogOptions], values: Mapping[str, str]) -> str | None:
    """The catalog for unprefixed names; adds the Hive catalog that attach makes by itself."""
    if wanted is not None and wanted.lower() == "none":
        return None
    name = OWN_NAME if wanted is None else wanted
    if any(catalog.name == name for catalog in catalogs):
        return name
    if wanted not in (None, OWN_NAME):
        raise ConfigurationError(
            f"{PREFIX}session.catalog is {name!r}, which is not a twophase catalog of this session.",
            hint=nearest(name, [*(catalog.name for catalog in catalogs), OWN_NAME, "none"]),
        )
    if name in values:  # a foreign catalog has this name
        if wanted:
            raise ConfigurationError(
                f"{PREFIX}session.catalog is {name!r}, but spark.sql.catalog.{name} is a foreign catalog.",
                hint=f"Leave {PREFIX}session.catalog unset: the name {OTHER_NAME} is used then.",
            )
        name = OTHER_NAME
    options = options_below(name, values) if name not in values else {}
    made = checked(name, find_kind("twophase.hive", f"{PREFIX}session.catalog"), options)
    catalogs.append(replace(made, is_own=wanted is None))
    return name


def _refuse_twins(catalogs: list[CatalogOptions]) -> None:
    seen: dict[str, str] = {}
    for catalog in catalogs:
        twin = seen.setdefault(catalog.name.lower(), catalog.name)
        if twin != catalog.name:
            raise ConfigurationError(
                f"Two catalogs have one name: spark.sql.catalog.{twin} and spark.sql.catalog.{catalog.name}.",
                hint="Give one of them another name; case does not tell them apart.",
            )


def _refuse_orphans(catalogs: list[CatalogOptions], values: Mapping[str, str]) -> None:
    """Refuse an option of ours below a catalog that there is not, where one of nearly that name takes it."""
    kinds = {catalog.name: catalog.kind for catalog in catalogs}
    for key in values:
        name, _, option = key.partition(".")
        if not option or name in values or name in kinds:
            continue
        folded = {known.lower(): known for known, kind in kinds.items() if option in kind.known_options}
        if close := difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.7):
            raise ConfigurationError(
                f"{CATALOG_PREFIX}{key} is set, and there is no catalog {name}.",
                hint=f"Did you mean {CATALOG_PREFIX}{folded[close[0]]}.{option}?",
            )


def _refuse_dotted(values: Mapping[str, str]) -> None:
    """Refuse a catalog whose name has a dot: Spark takes it for the option of another one, and nobody would load it."""
    for key, kind in values.items():
        name, _, option = key.partition(".")
        if option and name not in values and kind.startswith(KIND) and _is_bare(kind.removeprefix(KIND)):
            raise ConfigurationError(
                f"{CATALOG_PREFIX}{key} is {kind!r}, and the name of a catalog has no dot.",
                hint=f"Write for instance: {CATALOG_PREFIX}{key.replace('.', '_')} = {kind}",
            )


# -- the timeline's place ----------------------------------------------------------------------------------------------


def default_timeline(warehouse: str) -> Path:
    """The timeline's file below a local warehouse.

    Raises
    ------
    ConfigurationError
        The warehouse is not on this machine, or other machines may see it too.
    """
    parts = urlsplit(warehouse)
    if parts.scheme not in ("", "file"):
        raise ConfigurationError(
            f"The warehouse {warehouse} is not on this machine, so that the timeline has no default place.",
            hint="Set spark.twophase.timeline, for instance to postgresql+psycopg://user@host/database.",
        )
    file = Path(unquote(parts.path) if parts.scheme else warehouse) / ".twophase" / "timeline.db"
    if kind := network_file_system(file):
        raise ConfigurationError(
            f"The warehouse {warehouse} is on a network file system ({kind}), where the timeline has no default place: "
            "drivers on two machines would damage it.",
            hint="Set spark.twophase.timeline to a database, postgresql+psycopg://user@host/database; or, where all "
            f"processes that use it are on one machine, to a file: sqlite:///{file} or one on a local disk.",
        )
    return file


def timeline_password(configuration: Mapping[str, str]) -> str | None:
    """The password of the timeline's database, from where the configuration says that it is.

    Parameters
    ----------
    configuration : mapping of str to str
        The session's entries, with their full names.

    Raises
    ------
    ConfigurationError
        It is given twice, or is not there.
    """
    url = configuration.get(f"{PREFIX}timeline")
    places = {way: value for way in ("env", "file") if (value := configuration.get(f"{PREFIX}timeline.password_{way}"))}
    if not places:
        return None
    names = [f"{PREFIX}timeline.password_{way}" for way in places]
    if len(places) > 1:
        raise ConfigurationError(f"The password of the timeline is given twice, by {' and '.join(names)}.")
    if not url:
        raise ConfigurationError(f"{names[0]} is set, and {PREFIX}timeline is not.", hint="Set it to a database's URL.")
    if variable := places.get("env"):
        if variable not in os.environ:
            raise ConfigurationError(f"The environment variable {variable} of {names[0]} is not set.")
        return os.environ[variable]
    try:
        return Path(places["file"]).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise ConfigurationError(
            f"The file {places['file']} of {names[0]} cannot be read: {error.strerror}."
        ) from error


def warn_of_passwords(found: Options) -> None:
    """Warn of passwords in URLs: Spark hides options by their names, and these stand in its event log."""
    places = [(f"{PREFIX}timeline", found.timeline)]
    places += [
        (f"{CATALOG_PREFIX}{catalog.name}.{name}", value)
        for catalog in found.catalogs
        for name, value in catalog.options.items()
        if name in ("url", "uri")
    ]
    for name, value in places:
        if value and redact(value) != value:
            below = name if name == f"{PREFIX}timeline" else name.rpartition(".")[0]
            _log.warning(
                "%s holds a password, which Spark writes into its event log and shows to whoever runs SET: "
                "leave it out of the URL and set %s.password_env.", name, below
            )  # fmt: skip
