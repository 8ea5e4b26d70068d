"""Whatever asks a command to end is answered from the first half second on: one line, 130, nothing begun."""

import signal
import time

import pytest
from command import start

from bench.common import signals
from bench.execution.interrupts import Interrupts

pytestmark = pytest.mark.usefixtures("signals_restored")


def test_who_ignores_a_signal_goes_on_ignoring_it():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    signals.answer(signals.leave)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGINT) is signals.leave


def test_after_a_sweep_there_is_something_to_end():
    signals.answer(signals.leave)
    with Interrupts().caught():
        pass
    for number in signals.TO_END:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


@pytest.mark.commands
@pytest.mark.parametrize(("number", "moment"), [(signal.SIGINT, 0.5), (signal.SIGHUP, 2.0)])
def test_before_a_sweep_begins_a_signal_ends_the_command_in_one_line(number, moment, tmp_path):
    process = start(f"results_dir={tmp_path / 'runs'}", "seq_len=64", "tracking=none")
    time.sleep(moment)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and stderr.splitlines()[-1].startswith("interrupted: "), stderr
    assert "Traceback" not in stderr and stdout == ""
