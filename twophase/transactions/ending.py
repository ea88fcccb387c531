"""The end of one transaction: its commit, or its rollback, and what is reported of it."""

from __future__ import annotations

from twophase.errors import LeaseLostError, TransactionAborted, TwoPhaseError, WoundedError
from twophase.protocol import machine
from twophase.protocol.actions import Verdict
from twophase.protocol.states import TransactionState
from twophase.redaction import logger
from twophase.timeline.records import name_error
from twophase.transactions import failures
from twophase.transactions.driver import Driver
from twophase.transactions.lifecycle import Lifecycle
from twophase.transactions.observer import Cause

_log = logger("twophase")


class Ending:
    """Commits a transaction, or rolls it back; the first call decides."""

    def __init__(self, life: Lifecycle) -> None:
        self._life = life

    def commit(self) -> None:
        """Publish all participants atomically; see :meth:`twophase.Transaction.commit`."""
        life = self._life
        with life.lock:
            if life.state is TransactionState.COMPLETED:
                return
            if life.doubt is not None:
                raise life.doubt
            try:
                life.require_open()
            except TransactionAborted as error:
                self.abort(error)
                raise
            if life.lease is None or life.forget():
                life.state = TransactionState.COMPLETED
                return
            self.prepare_all()
            driver = life.driver()
            self._conclude(driver, self._run_commit(driver))

    def abort(self, error: BaseException | None) -> None:
        """Remove everything that was staged; see :meth:`twophase.Transaction.abort`."""
        life = self._life
        with life.lock:
            if life.state is TransactionState.COMMITTING:
                life.release()  # Interrupted between two steps: recovery queries the stores.
            if not life.is_open:
                return
            life.state = TransactionState.ROLLED_BACK
            life.cause = None if error is None else Cause.of(error)
            if life.lease is None or life.forget():
                return
            driver = life.driver()
            problems: tuple[BaseException, ...]
            try:
                verdict: Verdict = driver.run(machine.rollback(driver.plan(), error))
                problems, life.left_behind = verdict.problems, verdict.left_behind
            except BaseException as interrupt:
                # Undecided on the timeline: recovery removes the rest.
                problems, driver.interrupt = (interrupt,), interrupt
            life.release()
            self._report(problems, error)
            if error is None and driver.interrupt is not None:
                raise driver.interrupt

    def prepare_all(self) -> None:
        """Reserve and prepare everything that will be published; roll it back if that fails."""
        life = self._life
        try:
            if life.broken is not None:
                raise life.broken
            members = life.members.taking_part()
            for member in members:
                if not member.written:
                    raise failures.unwritten(member, life.id)
            with life.fenced():
                driver = life.driver()
                claims = life.reads.claims()
                if claims or len(members) > 1:  # In one step, instead of one for each of them.
                    driver.reserve([*claims, *(member.claim() for member in members)])
                driver.run(machine.prepare(member.to_member() for member in members))
            life.reads.require_versions()
        except BaseException as error:
            life.note_conflict(error)
            self.abort(error)
            raise

    def _run_commit(self, driver: Driver) -> Verdict:
        plan = driver.plan()
        try:
            self._life.state = TransactionState.COMMITTING
            return driver.run(machine.commit(plan))
        except LeaseLostError as error:
            return self._fate(error)
        except BaseException as error:
            driver.interrupt = error
            return self._run_recovery(driver, error)

    def _run_recovery(self, driver: Driver, error: BaseException) -> Verdict:
        """Recover after an interruption between two steps (Ctrl-C): the timeline and the stores show the progress."""
        life = self._life
        try:
            if life.lease is not None:
                life.coordinator.timeline.renew(life.lease)  # It may just have been released, with IN_DOUBT.
            record = life.coordinator.timeline.transaction(life.id)
            state = record.state if record else TransactionState.INFLIGHT
            return driver.run(machine.recover(state, driver.plan(), certainly_dead=True))
        except LeaseLostError as lost:
            return self._fate(lost)
        except BaseException as second:
            return Verdict(TransactionState.IN_DOUBT, error, problems=(second,))

    def _fate(self, error: LeaseLostError) -> Verdict:
        """Return the verdict after another process took the transaction over; it may already have ended it."""
        life = self._life
        try:
            record = life.coordinator.timeline.transaction(life.id)
        except TwoPhaseError as problem:
            return Verdict(TransactionState.IN_DOUBT, error, problems=(problem,))
        if record is not None and record.wounded_by is not None:
            # It had not decided. Nothing of it is published, and whatever was prepared since is removed here.
            verdict: Verdict = life.driver().run(machine.rollback(life.driver().plan()))
            return Verdict(verdict.state, failures.wounded(record), verdict.left_behind)
        if record is not None and record.state.is_final:
            return Verdict(record.state, error, record.left_behind)
        return Verdict(TransactionState.IN_DOUBT, error)

    def _conclude(self, driver: Driver, verdict: Verdict) -> None:
        life = self._life
        life.state, life.left_behind = verdict.state, verdict.left_behind
        life.release()
        if verdict.state is not TransactionState.COMPLETED and verdict.error is not None:
            life.cause = Cause.of(verdict.error)
            life.note_conflict(verdict.error)
        error = verdict.error if verdict.state is not TransactionState.COMPLETED else driver.interrupt
        self._report(verdict.problems, error)
        if verdict.state is TransactionState.IN_DOUBT:
            life.doubt = life.in_doubt(driver.account(verdict), verdict.error)
            life.left_behind = tuple(life.doubt.left_behind)
            for problem in verdict.problems:  # Such as the files of others that prevent an undo.
                life.doubt.add_note(name_error(problem))
            raise life.doubt from verdict.error
        if driver.interrupt is not None:
            driver.interrupt.add_note(f"Transaction {life.id} ended as {life.state.name}.")
            raise driver.interrupt
        if verdict.state is TransactionState.ROLLED_BACK:
            raise failures.aborted(life.members.taking_part(), life.id, life.left_behind, verdict.error)

    def _report(self, problems: tuple[BaseException, ...], error: BaseException | None) -> None:
        """Report problems that occurred on the way, in the log and as notes of the error that the user gets.

        The log is needed because Spark replaces an error that passes through it, and drops these notes.
        """
        life = self._life
        reports = [
            f"While ending transaction {life.id}: {name_error(problem)}"
            for problem in problems
            if problem is not error and not (isinstance(error, WoundedError) and isinstance(problem, LeaseLostError))
        ]
        if error is not None and life.left_behind:
            places = ", ".join(life.left_behind)
            reports.append(f"Left behind by transaction {life.id}: {places}. Remove it with: twophase clean")
        for text in reports:
            _log.warning(text)
            if error is not None:
                error.add_note(text)
