"""Redaction of secrets in everything that is recorded: texts for the timeline and the log, and options of tables.

All log messages go through :func:`logger`, so that no call site has to redact. The error that the user gets is never
changed.
"""

from __future__ import annotations

import logging
import re

_HIDDEN = "***"

#: Names in a text whose value is a secret.
_NAME = r"""
    (?: pass(?:word|wd|phrase|code) | pwd | secret | token | credential | bearer | hmac | aws[-_. ]?session
      | (?:api|access|account|client|encryption|master|private|sas|secret|service|shared|signing|ssh|storage)[-_. ]?key
    ) [\w.-]*
    | (?<!by)(?<!com)pass | sig(?:nature)? | \b(?:pat|salt)\b
"""
#: The separator after such a name: an operator or, in SQL, a quote.
_SIGN = r"""[\\"'`]* (?: \s*(?:[=:]+>?|->)\s* | \s+(?=["']) )"""
#: A value: quoted (also without the closing quote), or up to the next space.
_VALUE = r"""
    (?: (?:[bru]|\\+)?"(?:\\.|""|[^"\\])*"?
      | (?:[bru]|\\+)?'(?:\\.|''|[^'\\])*'?
      | \{[^}]*\}?
      | \S+
    )
"""
_SCHEMES = "(?:apikey|aws4-hmac-sha256|basic|bearer|digest|negotiate|token)"
_FLAGS = re.IGNORECASE | re.VERBOSE | re.DOTALL
_PATTERNS = (
    # A password in a URL may contain any character: it ends at the last @.
    re.compile(r"( :// [^/\s:]* : ) \S* (?=@)", _FLAGS),
    re.compile(r"( : (?:thin|oci8?) : [^/\s@]+ / ) \S* (?=@)", _FLAGS),
    re.compile(rf"( authorization {_SIGN} [\\\"']* (?:{_SCHEMES}\s+)? ) [^\s\"'\\]+", _FLAGS),
    re.compile(r"( \b bearer \s+ ) [^\s\"'\\]+", _FLAGS),
    re.compile(rf"( \b identified \s+ (?:with\s+\S+\s+)? (?:by|as) \s+ (?=[\"']) ) {_VALUE}", _FLAGS),
    re.compile(rf"( (?:{_NAME}) {_SIGN} ) {_VALUE}", _FLAGS),
    # Oracle's format: user/password@host, which without a preceding name might also be a path.
    re.compile(
        r"( \b (?:dsn|connect(?:ion)?[-_]?string) {_SIGN} [\"']? [^/\s@\"':]+ / ) [^\s@]+ (?=@)".replace(
            "{_SIGN}", _SIGN
        ),
        _FLAGS,
    ),
    # Secrets with a known format. The end may be missing if the text was truncated.
    re.compile(r"( -----BEGIN [^-]* (?:PRIVATE\ KEY|CERTIFICATE) [^-]* ----- ) .*? (?= -----END | \Z)", _FLAGS),
    re.compile(
        r"( \b (?:dapi|dose|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|sk-|sk_live_|hf_|pypi-) ) [0-9a-z_-]{16,}",
        _FLAGS,
    ),
    re.compile(r"( \b (?:AKIA|ASIA|AIza) ) [0-9A-Za-z_-]{12,}", re.VERBOSE),
    re.compile(r"( \b eyJ ) [\w-]{8,} \. [\w-]{8,} (?:\.[\w-]*)?", re.VERBOSE),
    re.compile(r"( https://hooks\.slack\.com/(?:services|workflows|triggers)/ ) [^\s\"']+", _FLAGS),
    re.compile(r"( https://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/ ) [^\s\"']+", _FLAGS),
    re.compile(r"( https://[\w.-]+\.webhook\.office\.com/ ) [^\s\"']+", _FLAGS),
)

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
#: Matched anywhere in the name of an option, or as one of its words.
_IN_NAMES = re.compile(
    r"(?i)passw|passphrase|passcode|pwd|secret|token|credential|signature|authorization|webhook|aws[-_.]?session"
    r"|(?:api|access|account|private)key"
)
_WORDS = frozenset("auth bearer cookie cred creds hmac jwt key keys pass pat pem pw salt sas sig".split())
#: Words before "key" that indicate the name of a column.
_OF_COLUMNS = frozenset(
    "bucket business cluster composite dedup distribution foreign hash join merge natural order partition primary "
    "range record row shard sort surrogate unique upsert".split()
)


#: An empty value and a switch are no secret, whatever their name; nor is a number whose name is that of a quantity.
_NO_SECRET = re.compile(r"(?i)\s*(?:true|false)?\s*")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_QUANTITIES = frozenset("bits count days length limit max min ms rate ratio seconds size ttl".split())


def redact(text: str) -> str:
    """Return a text without anything that looks like a secret."""
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\g<1>{_HIDDEN}", text)
    return text


def is_secret(name: str, value: str) -> bool:
    """Return whether an option or a property looks like a secret: by its name, or because its value contains one."""
    if _NO_SECRET.fullmatch(value) or (_NUMBER.fullmatch(value) and not _QUANTITIES.isdisjoint(_words(name)[-1:])):
        return False
    return _IN_NAMES.search(name) is not None or _has_secret_word(name) or redact(value) != value


def _has_secret_word(name: str) -> bool:
    words = _words(name)
    return any(
        word in _WORDS and not (word.startswith("key") and before in _OF_COLUMNS)
        for before, word in zip(["", *words], words, strict=False)
    )


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


class _Redacting(logging.Filter):
    """A filter that removes secrets from a log record, including its stack trace, before any handler gets it."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception:  # As in logging itself: a message that cannot be formatted must not fail the caller.
            text = f"{record.msg} (what belongs into this text cannot be printed)"
        record.msg, record.args = redact(text), None
        if record.exc_info:
            record.exc_text = redact(logging.Formatter().formatException(record.exc_info))
            record.exc_info = None
        return True


_redacting = _Redacting()


def logger(name: str) -> logging.Logger:
    """Return the logger of a twophase module; its records contain nothing that looks like a secret."""
    found = logging.getLogger(name)
    found.addFilter(_redacting)  # Adding the same filter again has no effect.
    return found
