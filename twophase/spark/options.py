"""The session's configuration, read and checked before anything else happens."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from twophase import monitoring
from twophase.catalog import Catalog, Environment
from twophase.catalogs.files import KINDS
from twophase.config.settings import (
    Flag,
    OptionalSeconds,
    Seconds,
    Settings,
    Text,
    lower,
    nearest,
    option,
    secret,
    secret_of,
)
from twophase.errors import CatalogError, ConfigurationError, TwoPhaseError
from twophase.redaction import logger, redact
from twophase.spark import catalog_kinds
from twophase.spark.catalog_kinds import CATALOG_PREFIX, KIND
from twophase.timeline.sqlite_files import network_file_system
from twophase.transactions.conflict_policy import DEFAULT_POLICY, conflict_policy

_log = logger("twophase.spark")

PREFIX = "spark.twophase."
#: The catalog that attach creates by itself: its name, and the alternative if that is taken.
OWN_NAME = "hive"
OTHER_NAME = "twophase_hive"

#: Hint of refused statements: the policy is read when a session is attached.
PREFER = "call detach(), set spark.twophase.atomicity=preferred, and attach again"

#: Names with a meaning of their own in Spark, never a catalog.
_SPARKS_OWN = frozenset({"global_temp", "system"})


@dataclass(frozen=True)
class CatalogOptions:
    """The options of one catalog.

    Attributes
    ----------
    name : str
        Its name in the session.
    kind : type of Catalog
    options : mapping of str to str
    is_own : bool
        Whether attach creates it by itself: its name was not chosen by the user.
    """

    name: str
    kind: type[Catalog]
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_own: bool = False

    @property
    def recorded_name(self) -> str:
        """Its name on the timeline and in stamps, by which other sessions find it: it never changes."""
        return OWN_NAME if self.is_own else self.name


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("must be more than 0 seconds.")
    return seconds


def _storage_kinds(value: object) -> dict[str, str]:
    """Read ``scheme=kind, ...``; both in lower case."""
    pairs = [pair.partition("=") for pair in str(value).lower().split(",") if pair.strip()]
    found = {scheme.strip(): kind.strip() for scheme, _, kind in pairs}
    for scheme, kind in found.items():
        if not scheme or scheme == "file" or kind not in KINDS:
            raise ValueError(f"is scheme=kind, as in abfss=hdfs, not {value!r}.", nearest(kind, KINDS))
    return found


class Options(Settings):
    """The whole configuration: the options below ``spark.twophase.``, and the catalogs."""

    prefix: ClassVar[str] = PREFIX

    #: After :func:`read` the catalog that exists; None if that is turned off.
    session_catalog: str | None = option(
        None,
        "which catalog serves unprefixed names; none leaves them to stock Spark",
        shown=OWN_NAME,
        alias="session.catalog",
    )
    timeline: Text = option(
        None,
        "SQLAlchemy URL of the timeline: an SQLite file for one machine, a PostgreSQL for several",
        shown="<warehouse>/.twophase/timeline.db",
        repr=False,
    )
    timeline_retention: Seconds = option(
        "30d", "how long the timeline keeps what has ended and left nothing behind", alias="timeline.retention"
    )
    timeline_local: Annotated[Literal["refuse", "allow"], lower] = option(
        "refuse",
        "refuse or allow: writes to tables on file systems that are not local while the timeline is an SQLite file",
        alias="timeline.local",
    )
    timeline_password: str | None = secret(
        "password of the timeline's database", plain=False, alias="timeline.password"
    )
    policy: Annotated[Literal["required", "preferred"], lower] = option(
        "required",
        "required refuses what cannot be made atomic; preferred runs it as stock Spark does",
        alias="atomicity",
    )
    retention: Seconds = option(
        "1d", "how long replaced versions of a table stay for readers in flight, such as 1d or 12h"
    )
    coordinator: Text = option(
        None, "whose transactions this session recovers when it attaches", shown="the application's name"
    )
    isolation: Annotated[Literal["read_committed", "snapshot", "serializable"], lower] = option(
        "snapshot",
        "what a block of several statements sees: snapshot, serializable or read_committed",
    )
    conflict: Text = option(
        DEFAULT_POLICY,
        "who gives way if two transactions need a table: first_committer_wins, wait_die, wound_wait, fail, or a class "
        "of your own as package.module:Class",
    )
    wait: Seconds = option("30s", "how long a write waits for others that have reserved its table; 0: not at all")
    timeout: OptionalSeconds = option(
        None, "how long a block of several statements may last before it is rolled back", alias="transaction.timeout"
    )
    fsync: Flag = option(True, "whether what is acknowledged survives a power cut, on local file systems")
    storage: Annotated[Mapping[str, str], "scheme=kind, ...", BeforeValidator(_storage_kinds)] = option(
        "",
        f"what file systems guarantee, by scheme, where twophase does not know it: {' or '.join(KINDS)}, as in "
        "abfss=hdfs",
        shown="hdfs for hdfs, viewfs, webhdfs and swebhdfs; object_store for s3, s3a, s3n and gs",
    )
    untested: Annotated[Literal["refuse", "allow"], lower] = option(
        "refuse", "refuse or allow: writes to tables on file systems that are not local", alias="storage.untested"
    )
    lease: Annotated[Seconds, AfterValidator(_positive)] = option(
        "60", "time without a heartbeat after which others may recover a transaction"
    )
    openlineage: Flag = option(
        False, "whether OpenLineage events of transactions are sent; needs the extra openlineage"
    )
    catalogs: tuple[CatalogOptions, ...] = Field((), exclude=True)

    @property
    def untested_storage(self) -> bool:
        """Return whether tables may be written on untested file systems."""
        return self.untested == "allow"

    @property
    def has_local_timeline(self) -> bool:
        """Return whether the timeline is a file of this machine, with which only local tables may be written."""
        backend = re.split(r"[:+]", self.timeline or "sqlite", maxsplit=1)[0]
        return backend == "sqlite" and self.timeline_local == "refuse"


#: All options below ``spark.twophase.``, with one line of help each.
KNOWN: Mapping[str, str] = Options.help()


def read(configuration: Mapping[str, str]) -> Options:
    """Read and check all options.

    Parameters
    ----------
    configuration : mapping of str to str
        The session's entries, with their full names.

    Raises
    ------
    ConfigurationError
        An unknown kind or option (with the nearest known one), two catalogs of one name, a wrong value.
    """
    found = read_own(configuration)
    values = {
        key.removeprefix(CATALOG_PREFIX): value
        for key, value in configuration.items()
        if key.startswith(CATALOG_PREFIX)
    }
    catalogs = [
        _catalog(name, kind, values) for name, kind in values.items() if "." not in name and catalog_kinds.is_ours(kind)
    ]
    session_catalog = _session_catalog(found.session_catalog, catalogs, values)
    _refuse_twins(catalogs)
    _refuse_orphans(catalogs, values)
    _refuse_dotted(values)
    catalog_kinds.refuse_dots(values)
    timeline_password(configuration)
    conflict_policy(found.conflict or DEFAULT_POLICY)
    _require_lineage(found)
    return found.model_copy(update={"catalogs": tuple(catalogs), "session_catalog": session_catalog})


def read_own(configuration: Mapping[str, str]) -> Options:
    """Read and check the options of the session, without those of its catalogs.

    Raises
    ------
    ConfigurationError
        An unknown option (with the nearest known one), a wrong value.
    """
    found = Options.read(_own(configuration))
    _refuse_other_prefixes(configuration)
    return found


def _require_lineage(found: Options) -> None:
    if found.openlineage and not monitoring.has_lineage():
        raise ConfigurationError(
            f"{PREFIX}openlineage is set, and OpenLineage's client is not installed.",
            hint="Install the extra: pip install 'twophase[openlineage]'.",
        )


def _own(configuration: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(PREFIX): value for key, value in configuration.items() if key.startswith(PREFIX)}


def beside_databases(found: Options, is_database: Callable[[str], bool]) -> Options:
    """The same options, without catalogs that have the name of a database: Spark would no longer find that database.

    Parameters
    ----------
    found : Options
    is_database : callable
        Whether the session catalog has a database of that name.

    Raises
    ------
    ConfigurationError
        A database has the name of a configured catalog, or both names that attach may choose.
    """
    catalogs = [_beside_database(item, is_database) for item in found.catalogs]
    renamed = {item.name: catalog.name for item, catalog in zip(found.catalogs, catalogs, strict=True)}
    if len(set(renamed.values())) < len(renamed):
        raise _hides_database(OWN_NAME)
    name = found.session_catalog
    facts = {"catalogs": tuple(catalogs), "session_catalog": renamed.get(name, name) if name else None}
    return found.model_copy(update=facts)


def _beside_database(item: CatalogOptions, is_database: Callable[[str], bool]) -> CatalogOptions:
    if not is_database(item.name):
        return item
    if not item.is_own or is_database(OTHER_NAME):
        raise _hides_database(item.name)
    return replace(item, name=OTHER_NAME)


def hidden_database(name: str) -> CatalogError:
    """The error for a database with the name of a catalog, created or used after :func:`~twophase.attach`."""
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


def refuse_unknown(name: str, known: Iterable[str], *, prefix: str) -> None:
    """Refuse an option that does not exist."""
    known = list(known)
    if name not in known:
        raise ConfigurationError(f"There is no option {prefix}{name}.", hint=nearest(name, known))


def _refuse_other_prefixes(configuration: Mapping[str, str]) -> None:
    """Refuse a twophase option below a misspelled prefix, which would have no effect."""
    for key in configuration:
        start, _, rest = key.partition(".")
        word, _, option = rest.partition(".")
        if f"{start}.{word}." == PREFIX or start.lower() != PREFIX.partition(".")[0]:
            continue
        if option.lower() in KNOWN and difflib.get_close_matches(word.lower(), [KIND.rstrip(".")], cutoff=0.75):
            raise ConfigurationError(
                f"{key} is set, and there is no such option.", hint=f"Did you mean {PREFIX}{option.lower()}?"
            )


# -- catalogs ----------------------------------------------------------------------------------------------------------


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
    return checked(name, catalog_kinds.find_kind(kind, f"{CATALOG_PREFIX}{name}"), options_below(name, values))


def options_below(name: str, values: Mapping[str, str]) -> dict[str, str]:
    """The options of one catalog, without its prefix."""
    start = name + "."
    return {key.removeprefix(start): value for key, value in values.items() if key.startswith(start)}


def checked(name: str, kind: type[Catalog], options: Mapping[str, str]) -> CatalogOptions:
    """A catalog's options, checked against those that it knows."""
    for key in options:
        refuse_unknown(key, kind.known_options, prefix=f"{CATALOG_PREFIX}{name}.")
    return CatalogOptions(name, kind, dict(options))


def made(item: CatalogOptions, environment: Environment) -> Catalog:
    """Create the catalog of these options.

    Raises
    ------
    ConfigurationError
        It refuses an option, or its class cannot be instantiated.
    """
    try:
        return item.kind(item.recorded_name, item.options, environment)
    except TwoPhaseError:
        raise
    except Exception as error:  # a plugin may raise anything
        raise ConfigurationError(
            f"Catalog {item.name} cannot be made: {item.kind.__qualname__} raised {catalog_kinds.error_text(error)}",
            hint=f"Check its options, {CATALOG_PREFIX}{item.name}.*, and the class itself.",
        ) from error


def _session_catalog(wanted: str | None, catalogs: list[CatalogOptions], values: Mapping[str, str]) -> str | None:
    """The catalog for unprefixed names; adds the Hive catalog that attach creates by itself."""
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
    made = checked(name, catalog_kinds.find_kind("twophase.hive", f"{PREFIX}session.catalog"), options)
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
    """Refuse a twophase option below a catalog that does not exist, if one with a similar name accepts it."""
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
    """Refuse a catalog whose name has a dot: Spark takes it for another one's option, and would never load it."""
    for key, kind in values.items():
        name, _, option = key.partition(".")
        if option and name not in values and kind.startswith(KIND) and catalog_kinds.is_bare(kind.removeprefix(KIND)):
            raise ConfigurationError(
                f"{CATALOG_PREFIX}{key} is {kind!r}, and the name of a catalog has no dot.",
                hint=f"Write for instance: {CATALOG_PREFIX}{key.replace('.', '_')} = {kind}",
            )


# -- the location of the timeline --------------------------------------------------------------------------------------


def default_timeline(warehouse: str) -> Path:
    """The timeline's file below a local warehouse.

    Raises
    ------
    ConfigurationError
        The warehouse is not on this machine, or may be visible to other machines.
    """
    parts = urlsplit(warehouse)
    if parts.scheme not in ("", "file"):
        raise ConfigurationError(
            f"The warehouse {warehouse} is not on this machine, so that the timeline has no default place.",
            hint="Set spark.twophase.timeline, for instance to postgresql+psycopg://user@host/database; or, where all "
            "drivers run on one machine, to a file, sqlite:////directory/timeline.db, and "
            f"{PREFIX}timeline.local=allow.",
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
    """The password of the timeline's database, if it is configured separately from the URL.

    Raises
    ------
    ConfigurationError
        It is given twice, is missing from the place that an option names, or there is no URL for it.
    """
    own = _own(configuration)
    password = secret_of(own, "timeline.password", "The session: ")
    if password is not None and not own.get("timeline"):
        raise ConfigurationError(
            f"The password of the timeline is given, and {PREFIX}timeline is not.", hint="Set it to a database's URL."
        )
    return password


def warn_of_passwords(found: Options) -> None:
    """Warn of passwords in URLs: Spark redacts options by their names, so that these appear in its event log."""
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
