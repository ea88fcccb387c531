"""Metrics through OpenTelemetry's API; an application that configures no SDK gets none, at the cost of a few calls.

There is one set of instruments for a process, whatever the number of its coordinators. Attributes have few values: no
name of a table, of a user or of a transaction is among them.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation, get_meter

from twophase.catalog import Catalog
from twophase.errors import TwoPhaseError
from twophase.redaction import logger
from twophase.timeline.records import TransactionRecord
from twophase.timeline.timeline import Timeline
from twophase.transactions.observer import Ended, Observer

_log = logger("twophase.monitoring")

NAME = "twophase"
STATE = "twophase.transaction.state"
STORE = "twophase.store"
PURPOSE = "twophase.purpose"
RECOVERY = "twophase.by_recovery"
ERROR = "error.type"

#: Where a transaction has written to stores of different kinds, or for different purposes; and where it has written
#: nothing.
SEVERAL = "several"
READ = "read"
_OUR_STORES = "twophase.catalogs."


@dataclass(frozen=True)
class Instrument:
    """One metric."""

    name: str
    kind: str
    unit: str
    attributes: tuple[str, ...]
    meaning: str


DURATION = Instrument(
    "twophase.transaction.duration",
    "histogram",
    "s",
    (STATE, STORE, PURPOSE, RECOVERY, ERROR),
    "how long a transaction has lasted, once it has ended or is in doubt; its count is the number of transactions",
)
CONFLICTS = Instrument(
    "twophase.transaction.conflicts",
    "counter",
    "{conflict}",
    (ERROR,),
    "statements and commits that were refused because of another transaction or writer",
)
WAITS = Instrument(
    "twophase.transaction.wait.duration",
    "histogram",
    "s",
    (ERROR,),
    "how long a statement or a commit has waited for other transactions; with an error where it was in vain",
)
OPEN = Instrument(
    "twophase.timeline.transactions",
    "gauge",
    "{transaction}",
    (STATE,),
    "transactions on the timeline with something left to do, those in doubt among them",
)
OLDEST = Instrument(
    "twophase.timeline.oldest.age",
    "gauge",
    "s",
    (),
    "the age of the oldest of them; 0 where there is none",
)
INSTRUMENTS = (DURATION, CONFLICTS, WAITS, OPEN, OLDEST)

#: What a job takes, from a row to a day.
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)


class Metrics(Observer):
    """Counts transactions, conflicts and waits; asks timelines only when the metrics are read.

    Parameters
    ----------
    provider : MeterProvider, optional
        The application's own when None.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        meter = get_meter(NAME, version("twophase"), provider)
        self._durations = _histogram(meter, DURATION)
        self._waits = _histogram(meter, WAITS)
        self._conflicts = meter.create_counter(CONFLICTS.name, CONFLICTS.unit, CONFLICTS.meaning)
        self._timelines: weakref.WeakSet[Timeline] = weakref.WeakSet()
        self._lock = threading.Lock()
        for instrument, observe in ((OPEN, _states), (OLDEST, _oldest)):
            meter.create_observable_gauge(instrument.name, [self._asking(observe)], instrument.unit, instrument.meaning)

    def opened(self, timeline: Timeline) -> None:
        with self._lock:
            self._timelines.add(timeline)

    def closed(self, timeline: Timeline) -> None:
        with self._lock:
            self._timelines.discard(timeline)

    def ended(self, end: Ended) -> None:
        attributes: dict[str, str | bool] = {
            STATE: end.state.value,
            STORE: _only(_kind(catalog) for catalog, _ in end.written),
            PURPOSE: _only(participant.purpose.value for _, participant in end.written),
            RECOVERY: end.by_recovery,
        }
        if end.cause is not None:
            attributes[ERROR] = end.cause.kind
        self._durations.record(end.seconds, attributes)

    def conflicted(self, error: BaseException) -> None:
        self._conflicts.add(1, {ERROR: type(error).__name__})

    def waited(self, seconds: float, error: BaseException | None) -> None:
        self._waits.record(seconds, {} if error is None else {ERROR: type(error).__name__})

    def _asking(
        self, observe: Callable[[list[TransactionRecord]], Iterator[Observation]]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def callback(_: CallbackOptions) -> Iterable[Observation]:
            opened = self._open()
            return [] if opened is None else list(observe(opened))

        return callback

    def _open(self) -> list[TransactionRecord] | None:
        """The open transactions of all timelines in use; None if there is no timeline, or one cannot be read."""
        with self._lock:
            timelines = {timeline.display_url: timeline for timeline in self._timelines}
        try:
            found = [record for timeline in timelines.values() for record in timeline.transactions(open_only=True)]
        except TwoPhaseError as error:
            _log.warning("The metrics lack the open transactions: %s", error)
            return None
        return found if timelines else None


def _histogram(meter: Meter, instrument: Instrument) -> Histogram:
    return meter.create_histogram(
        instrument.name, instrument.unit, instrument.meaning, explicit_bucket_boundaries_advisory=_SECONDS
    )


def _states(opened: list[TransactionRecord]) -> Iterator[Observation]:
    """The number of transactions in each state, 0 included: an alert waits for a change."""
    states = Counter(dict.fromkeys(("INFLIGHT", "COMMITTING", "IN_DOUBT"), 0))
    states.update(record.state.value for record in opened)
    for state, number in states.items():
        yield Observation(number, {STATE: state})


def _oldest(opened: list[TransactionRecord]) -> Iterator[Observation]:
    now = time.time()
    yield Observation(max((now - record.created for record in opened), default=0.0))


def _only(values: Iterable[str]) -> str:
    found = set(values)
    return READ if not found else found.pop() if len(found) == 1 else SEVERAL


def _kind(catalog: Catalog) -> str:
    """The kind of a catalog, as in ``spark.sql.catalog.NAME = twophase.KIND``; of a plugin, its class."""
    kind = type(catalog)
    is_ours = kind.__module__.startswith(_OUR_STORES)
    return kind.__module__.removeprefix(_OUR_STORES).partition(".")[0] if is_ours else kind.__name__


_process: Metrics | None = None
_process_lock = threading.Lock()


def of_process() -> Metrics:
    """Return the metrics of this process: an instrument of one name is made once."""
    global _process
    with _process_lock:
        if _process is None:
            _process = Metrics()
        return _process
