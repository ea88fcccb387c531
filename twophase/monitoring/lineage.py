"""OpenLineage events of transactions: one run for each, which is COMPLETE only once everything is published.

The library's own client sends them, on a thread of its own: neither its errors nor its waiting reach a transaction.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import attr
from openlineage.client import OpenLineageClient, event_v2
from openlineage.client.facet_v2 import (
    DatasetFacet,
    RunFacet,
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    lifecycle_state_change_dataset,
)
from openlineage.client.uuid import generate_static_uuid

from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.hooks.status import is_cancellation_message
from twophase.model import ObjectPath, Purpose
from twophase.monitoring.datasets import dataset_name
from twophase.protocol.states import TransactionState
from twophase.redaction import logger
from twophase.timeline.ids import parts_of
from twophase.timeline.timeline import Timeline
from twophase.transactions.observer import Cause, Ended, Observer

_log = logger("twophase.monitoring")

PRODUCER = f"https://pypi.org/project/twophase/{version('twophase')}"
#: Seconds for which the end of a session waits for events that have not been sent.
PATIENCE = 10.0
#: Events that wait to be sent; further ones are dropped.
_LONGEST = 10_000

_CANCELLED = frozenset({"KeyboardInterrupt", "SystemExit", "CancelledError"})
_CHANGE = lifecycle_state_change_dataset.LifecycleStateChange
_CHANGES = {
    Purpose.CREATE_TABLE_AS: _CHANGE.CREATE,
    Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS: _CHANGE.CREATE,
    Purpose.REPLACE_TABLE_AS: _CHANGE.OVERWRITE,
    Purpose.CREATE_OR_REPLACE_TABLE_AS: _CHANGE.OVERWRITE,
    Purpose.INSERT_OVERWRITE: _CHANGE.OVERWRITE,
    Purpose.DROP_TABLE: _CHANGE.DROP,
    Purpose.ALTER_TABLE: _CHANGE.ALTER,
}


@attr.define
class TransactionRunFacet(RunFacet):
    """The transaction of a run, as ``twophase show`` takes it, and its state on the timeline."""

    transactionId: str  # noqa: N815
    state: str

    @staticmethod
    def _get_schema() -> str:
        return f"{PRODUCER}#TransactionRunFacet"


def run_id(transaction_id: str) -> str:
    """Return the id of a transaction's run, the same in each process that reports it."""
    parts = parts_of(transaction_id)
    began = datetime.now(UTC) if parts is None else datetime.strptime(parts.day + parts.time, "%Y%m%d%H%M%S")
    return str(generate_static_uuid(began.replace(tzinfo=UTC), transaction_id.encode()))


class Lineage(Observer):
    """Reports what transactions read and write.

    Parameters
    ----------
    client : OpenLineageClient, optional
        By default as its own environment and file say: ``OPENLINEAGE_URL``, ``OPENLINEAGE_CONFIG`` and so on.
    """

    wants_reads = True

    def __init__(self, client: OpenLineageClient | None = None) -> None:
        self._client = client
        self._queue: queue.Queue[event_v2.RunEvent | threading.Event] = queue.Queue(_LONGEST)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def began(self, transaction_id: str, title: str) -> None:
        self._send(_event(event_v2.RunState.START, transaction_id, title, TransactionState.INFLIGHT))

    def ended(self, end: Ended) -> None:
        if end.title is None:
            return  # It has only read.
        is_published = end.state is TransactionState.COMPLETED
        event = _event(_kind(end), end.transaction_id, end.title, end.state)
        event.inputs = list(_inputs(end))
        event.outputs = [
            _output(end, catalog, table, is_published)
            for catalog, table in end.written
            if not table.purpose.of_database
        ]
        if end.cause is not None and event.run.facets is not None:
            event.run.facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                message=f"{end.cause.kind}: {end.cause.text}", programmingLanguage="PYTHON"
            )
        self._send(event)

    def closed(self, timeline: Timeline) -> None:
        self.flush()

    def flush(self, seconds: float = PATIENCE) -> bool:
        """Wait until everything so far has been sent, or given up; return whether it was in time."""
        if self._thread is None or not self._thread.is_alive():  # A fork has none.
            return True
        done = threading.Event()
        try:
            self._queue.put(done, timeout=seconds)
        except queue.Full:
            return False
        return done.wait(seconds)

    def _send(self, event: event_v2.RunEvent) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # A fork has none.
                if self._thread is None:
                    atexit.register(self.flush)  # A job need not detach.
                self._thread = threading.Thread(target=self._run, name="twophase-lineage", daemon=True)
                self._thread.start()
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            _log.warning("An OpenLineage event of run %s is dropped: the transport is too slow.", event.run.runId)

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                if self._client is None:
                    self._client = OpenLineageClient()
                self._client.emit(item)
            except Exception as error:  # It says nothing about the transaction.
                _log.warning("An OpenLineage event of run %s could not be sent: %s", item.run.runId, error)


def _kind(end: Ended) -> event_v2.RunState:
    if end.state is TransactionState.COMPLETED:
        return event_v2.RunState.COMPLETE
    if end.state is TransactionState.IN_DOUBT:
        return event_v2.RunState.OTHER  # Neither is known: the recovery reports it.
    return event_v2.RunState.ABORT if end.cause is None or _is_cancelled(end.cause) else event_v2.RunState.FAIL


def _is_cancelled(cause: Cause) -> bool:
    return cause.kind in _CANCELLED or is_cancellation_message(cause.text)


def _event(kind: event_v2.RunState, transaction_id: str, title: str, state: TransactionState) -> event_v2.RunEvent:
    facet = TransactionRunFacet(transactionId=transaction_id, state=state.value, producer=PRODUCER)
    parts = parts_of(transaction_id)
    job_type = job_type_job.JobTypeJobFacet("BATCH", "TWOPHASE", "TRANSACTION", producer=PRODUCER)
    return event_v2.RunEvent(
        eventType=kind,
        eventTime=datetime.now(UTC).isoformat(),
        run=event_v2.Run(run_id(transaction_id), {"twophase_transaction": facet}),
        job=event_v2.Job(
            os.environ.get("OPENLINEAGE_NAMESPACE", "default"),
            f"{parts.coordinator}.{title}" if parts else title,
            {"jobType": job_type},
        ),
        inputs=[],
        outputs=[],
        producer=PRODUCER,
    )


def _inputs(end: Ended) -> Iterator[event_v2.InputDataset]:
    own = {(catalog.name, catalog.canonical(table.path)) for catalog, table in end.written}
    for catalog, path, read in _each_once(end.read):
        if read is None and (catalog.name, catalog.canonical(path)) in own:
            continue  # Its own rows.
        yield event_v2.InputDataset(*dataset_name(catalog, path), facets=_version(read))


def _each_once(read: Iterable[tuple[Catalog, ObjectPath, Any]]) -> Iterator[tuple[Catalog, ObjectPath, Any]]:
    known: set[tuple[str, ObjectPath]] = set()
    for catalog, path, found in read:
        key = catalog.name, catalog.canonical(path)
        if key not in known:
            known.add(key)
            yield catalog, path, found


def _output(
    end: Ended, catalog: Catalog, participant: TwoPhaseCatalogTable, is_published: bool
) -> event_v2.OutputDataset:
    facets: dict[str, DatasetFacet] = {}
    if is_published:
        facets = _version(_published_version(end, catalog, participant.path))
        if (change := _CHANGES.get(participant.purpose)) is not None:
            facets["lifecycleStateChange"] = lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(
                change, producer=PRODUCER
            )
    return event_v2.OutputDataset(*dataset_name(catalog, participant.path), facets=facets)


def _version(found: Any) -> dict[str, DatasetFacet]:
    if found is None:
        return {}
    text = found if isinstance(found, str) else json.dumps(found, sort_keys=True)
    return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(text, producer=PRODUCER)}


def _published_version(end: Ended, catalog: Catalog, path: ObjectPath) -> Any:
    """The version of a table that the transaction has published; None if another one has changed it since."""
    try:
        record = end.timeline.transaction(end.transaction_id)
        found = catalog.table_version(path)
        if record is None or record.number is None:
            return None
        target = catalog.canonical(path)
        is_ours = not end.timeline.changes_since(catalog.name, target, record.number, end.transaction_id)
    except Exception as error:
        _log.warning("The version of %s.%s is not reported: %s", catalog.name, path, error)
        return None
    return found if is_ours else None


_process: Lineage | None = None
_process_lock = threading.Lock()


def of_process() -> Lineage:
    """Return the lineage of this process, with one client."""
    global _process
    with _process_lock:
        if _process is None:
            _process = Lineage()
        return _process
