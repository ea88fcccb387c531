"""Options as the fields of a model: their types, defaults, secrets and descriptions, and the validation of values."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from twophase.errors import ConfigurationError

_WAYS = ("", "_env", "_file")
#: Maximum duration in seconds: a time plus a duration must remain a valid time.
_LONGEST = 100 * 366 * 86_400.0
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


# -- types -------------------------------------------------------------------------------------------------------------
# An invalid value raises ValueError with the end of a sentence that begins with the option, and optionally a hint.


def _flag(value: object) -> bool:
    # Anything else is rejected, not interpreted as one of them: a password might then be sent in plain text.
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"is true or false, not {text!r}.", nearest(text, ("true", "false")))
    return text == "true"


def optional_flag(value: object) -> bool | None:
    """Validate a flag that may be left open: an empty one counts as None.

    Raises
    ------
    ValueError
        It is anything else than true or false.
    """
    return None if value in (None, "") else _flag(value)


def whole(most: int | None = None) -> BeforeValidator:
    """Validate a whole number of at least 1, up to an optional maximum."""

    def parse(value: object) -> int:
        text = str(value).strip()
        if not re.fullmatch("[0-9]{1,18}", text) or int(text) < 1 or (most and int(text) > most):
            kind = f"a number from 1 to {most}" if most else "a whole number from 1 on"
            raise ValueError(f"is {kind}, not {text!r}.")
        return int(text)

    return BeforeValidator(parse)


def _seconds(value: object) -> float:
    text = str(value)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w|)\s*", text.lower())
    if not match:
        raise ValueError(f"is {text!r}, which is no duration.", "Write a number and a unit: 30s, 15m, 12h, 1d.")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > _LONGEST:
        raise ValueError(f"is {text[:40]!r}, which is more than a hundred years.")
    return seconds


def duration(value: float | str | None, name: str) -> float | None:
    """Return the seconds of a duration that an argument gives, as in an option; None stays None.

    Parameters
    ----------
    value : float or str or None
    name : str
        The argument, for the message.

    Raises
    ------
    ConfigurationError
        It is no duration.
    """
    try:
        return None if value is None else _seconds(value)
    except ValueError as error:
        text, *hint = error.args
        raise ConfigurationError(f"{name} {text}", hint=hint[0] if hint else None) from None


Flag = Annotated[bool, BeforeValidator(_flag)]
Count = Annotated[int, whole()]
#: A number with an optional unit: ``90``, ``30s``, ``15m``, ``12h``, ``1d``.
Seconds = Annotated[float, "duration", BeforeValidator(_seconds)]
#: The same, or None for an empty one.
OptionalSeconds = Annotated[
    float | None, "duration", BeforeValidator(lambda text: _seconds(text) if str(text or "").strip() else None)
]
#: Any string; an empty one counts as None.
Text = Annotated[str | None, BeforeValidator(lambda text: text or None)]
#: For a ``Literal``: makes it case-insensitive.
lower = BeforeValidator(lambda text: text.strip().lower())
upper = BeforeValidator(lambda text: text.strip().upper())


def option(default: Any, description: str, *, shown: str | None = None, **facts: Any) -> Any:
    """Declare a field as an option; a default that is a string is parsed like a user's value.

    Parameters
    ----------
    default : object
    description : str
        One line of help.
    shown : str, optional
        The default in words, if the value is determined later.
    **facts
        Arguments of :func:`pydantic.Field`, such as ``alias`` and ``repr``.
    """
    more: dict[str, Any] = {"shown": shown}
    read = isinstance(default, str)
    return Field(default, description=description, validate_default=read, json_schema_extra=more, **facts)


def secret(description: str, *, plain: bool = True, **facts: Any) -> Any:
    """Declare a secret: ``NAME_env`` names a variable that contains it, ``NAME_file`` a file; ``NAME`` is the secret.

    Parameters
    ----------
    description : str
        A short description.
    plain : bool
        Whether the option ``NAME`` exists; without it, the secret cannot be part of the session's configuration.
    **facts
        Arguments of :func:`pydantic.Field`.
    """
    return Field(
        None,
        description=description,
        repr=False,
        json_schema_extra={"ways": [*(_WAYS if plain else _WAYS[1:])]},
        **facts,
    )


@dataclass(frozen=True)
class Option:
    """An option, as shown in the documentation.

    Attributes
    ----------
    name, type, default, description : str
        The default is empty if there is none.
    """

    name: str
    type: str
    default: str
    description: str

    @property
    def help(self) -> str:
        """The description and the default in one line."""
        return f"{self.description} (default: {self.default})" if self.default else self.description


class Settings(BaseModel):
    """Base class for the settings of a session or a catalog. Options are declared by :func:`option` or :func:`secret`.

    Attributes
    ----------
    catalog : str
        The catalog to be named in messages; empty for the session.
    """

    model_config = ConfigDict(frozen=True)
    #: What the full names of the options begin with, in messages.
    prefix: ClassVar[str] = ""

    catalog: str = Field("", exclude=True)

    @classmethod
    def read(cls, options: Mapping[str, str], catalog: str = "") -> Self:
        """Read and check all options.

        Parameters
        ----------
        options : mapping of str to str
        catalog : str
            The catalog to which they belong.

        Raises
        ------
        ConfigurationError
            An option does not exist or has an invalid value; the message suggests the closest match.
        """
        owner, known = f"Catalog {catalog}: " if catalog else "", cls.help()
        for name in options:
            if name not in known:
                there = "there" if owner else "There"
                raise ConfigurationError(f"{owner}{there} is no option {cls.prefix}{name}.", hint=nearest(name, known))
        secrets = [name for name, field in _fields(cls) if "ways" in _extra(field)]
        of_secrets = {name + way for name in secrets for way in _WAYS}
        values = {name: value for name, value in options.items() if name not in of_secrets}
        secret_values = {name: secret_of(options, name, owner or "The session: ") for name in secrets}
        secret_values = {name: value for name, value in secret_values.items() if value is not None}
        try:
            return cls.model_validate({**values, **secret_values, "catalog": catalog})
        except ValidationError as error:
            # Pydantic's own message repeats the values.
            name, what, *hints = _mistake(error)
            prefix = cls.prefix or "the option "
            raise ConfigurationError(f"{owner}{prefix}{name} {what}", hint="".join(hints) or None) from None

    @classmethod
    def options(cls) -> list[Option]:
        """All options, in the order of their declaration."""
        return [option for name, field in _fields(cls) for option in _described(name, field)]

    @classmethod
    def help(cls) -> dict[str, str]:
        """Return each option with one line of help."""
        return {option.name: option.help for option in cls.options()}

    def wrong(self, what: str, hint: str | None = None) -> ConfigurationError:
        """Create an error about a combination of options, or about an option that only the caller can validate."""
        return ConfigurationError(f"Catalog {self.catalog}: {what}", hint=hint)


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    return ((field.alias or name, field) for name, field in model.model_fields.items() if not field.exclude)


def _extra(field: FieldInfo) -> Mapping[str, Any]:
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    return extra


def _mistake(error: ValidationError) -> tuple[str, ...]:
    """Return the name of the first invalid option, the problem, and optionally a hint."""
    first = error.errors()[0]
    name, context = str(first["loc"][0]), first["ctx"]
    if "expected" in context:
        words = re.findall("'(.*?)'", context["expected"])
        return name, f"is {' or '.join(words)}, not {first['input']!r}.", nearest(first["input"], words)
    return name, *context["error"].args


def _described(name: str, field: FieldInfo) -> Iterator[Option]:
    text, more = field.description or "", _extra(field)
    for way in more.get("ways", ()):
        held = {"_env": f"environment variable that holds the {text}", "_file": f"file that holds the {text}"}
        yield Option(name + way, "text", "", held.get(way, f"{text}; better in a variable or a file"))
    if "ways" not in more:
        default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default or "")
        yield Option(name, _type(field), more["shown"] or default, text)


def _type(field: FieldInfo) -> str:
    words = re.findall(r"'(.*?)'", str(field.annotation)) if "Literal" in str(field.annotation) else []
    named = [part for part in field.metadata if isinstance(part, str)]
    kinds: Mapping[Any, str] = {bool: "true or false", int: "number"}
    return " or ".join(words or named) or kinds.get(field.annotation, "text")


# -- what other messages need ------------------------------------------------------------------------------------------


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint with the closest match, and all valid words."""
    words = sorted(known)
    close = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.5)
    listed = f"Known: {', '.join(words) or 'none'}."
    return f"Did you mean {close[0]}? {listed}" if close else listed


def secret_of(options: Mapping[str, str], name: str, owner: str) -> str | None:
    """Return a secret from options: directly, from a variable or from a file; None if it is not configured.

    Parameters
    ----------
    options : mapping of str to str
    name : str
        Without ``_env`` and ``_file``.
    owner : str
        The start of messages: ``Catalog lake: ``.

    Raises
    ------
    ConfigurationError
        It is specified twice, or the variable or file does not exist.
    """
    ways = {name + way: way for way in _WAYS if options.get(name + way)}
    if len(ways) > 1:
        raise ConfigurationError(f"{owner}the {name} is given twice, by {' and '.join(ways)}.")
    for key, way in ways.items():
        return _READERS[way](options[key], f"(option {key})", owner)
    return None


def _variable(name: str, said_by: str, owner: str) -> str:
    if name not in os.environ:
        raise ConfigurationError(f"{owner}the environment variable {name} {said_by} is not set.")
    return os.environ[name]


def _file(place: str, said_by: str, owner: str) -> str:
    try:
        return Path(place).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise ConfigurationError(f"{owner}the file {place} {said_by} cannot be read: {error.strerror}.") from error


_READERS: Mapping[str, Callable[[str, str, str], str]] = {"": lambda text, *_: text, "_env": _variable, "_file": _file}
