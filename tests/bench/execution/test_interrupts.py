"""Signals interrupt a sweep at once, but not in the middle of saving."""

import os
import signal
import threading

import pytest

from bench.execution.interrupts import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_what_saves_nothing_and_means_afterwards_what_it_meant(number):
    before = signal.getsignal(number)
    interrupts, saved = Interrupts(), []
    with pytest.raises(KeyboardInterrupt), interrupts.caught():
        os.kill(os.getpid(), number)
    with pytest.raises(KeyboardInterrupt), interrupts.caught():
        with interrupts.deferred():
            os.kill(os.getpid(), number)
            saved.append("record")
        saved.append("more")
    assert saved == ["record"] and signal.getsignal(number) == before


def test_an_error_while_saving_is_told_though_interrupted():
    interrupts = Interrupts()
    with pytest.raises(OSError, match="full"), interrupts.caught(), interrupts.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        raise OSError("full")


def test_who_ignores_a_signal_goes_on_ignoring_it_and_a_thread_leaves_signals_to_the_program():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    seen = []

    def sweep():
        with Interrupts().caught():
            seen.append(signal.getsignal(signal.SIGTERM))

    try:
        with Interrupts().caught():
            os.kill(os.getpid(), signal.SIGHUP)
        thread = threading.Thread(target=sweep)
        thread.start()
        thread.join()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert seen == [signal.getsignal(signal.SIGTERM)]
