"""Signals interrupt a sweep at once, but not in the middle of saving."""

import os
import signal
import threading

import pytest

from bench.execution.interrupts import Interrupts

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_interrupts_and_means_afterwards_what_it_meant(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupts().caught():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", NUMBERS)
def test_what_is_being_saved_is_saved_first(number):
    interrupts, saved = Interrupts(), []
    with pytest.raises(KeyboardInterrupt), interrupts.caught():
        with interrupts.deferred():
            os.kill(os.getpid(), number)
            saved.append("record")
        saved.append("more")
    assert saved == ["record"]


def test_an_error_while_saving_is_told_though_interrupted():
    interrupts = Interrupts()
    with pytest.raises(OSError, match="full"), interrupts.caught(), interrupts.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        raise OSError("full")


def test_who_ignores_a_signal_goes_on_ignoring_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Interrupts().caught():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_thread_leaves_signals_to_the_program():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def sweep():
        with Interrupts().caught():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=sweep)
    thread.start()
    thread.join()
    assert seen == [before]
