"""Signals wait while something is published or rolled back, and none is lost."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from twophase.hooks.interrupts import deferred_interrupts

pytestmark = pytest.mark.usefixtures("pythons_own_handler")


def test_ctrl_c_waits_for_the_end_of_the_block() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        signal.raise_signal(signal.SIGINT)
        steps.append("published")
    assert steps == ["published"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_that_the_process_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with deferred_interrupts():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_signal_is_delivered_when_the_block_fails_too() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, deferred_interrupts():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("the store refused")
    assert isinstance(caught.value.__context__, ValueError)


def test_sigterm_goes_to_its_own_handler_afterwards() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with deferred_interrupts():
            signal.raise_signal(signal.SIGTERM)
            assert received == []
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_sigterm_is_not_lost_when_ctrl_c_came_too() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    ours = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(KeyboardInterrupt), deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
        assert received == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is ours
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_sigterm_that_ends_the_process_goes_before_a_ctrl_c_that_a_job_may_catch() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    try:
        with pytest.raises(SystemExit), deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_child_that_is_forked_meanwhile_is_ended_by_its_signals(number: signal.Signals) -> None:
    """It has inherited the handler; a worker of multiprocessing would never see the end of the block."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with deferred_interrupts():
            if not (child := os.fork()):
                signal.raise_signal(number)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -number
    finally:
        signal.signal(number, before)
