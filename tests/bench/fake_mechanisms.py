"""Mechanisms from outside the package, each with an ending of its own: one Python file, one YAML each."""

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import torch

from attention_zoo import register
from attention_zoo.v_mean import VMean


def _fake(name, ending=lambda out: out, constructor=lambda: None):
    class Fake(VMean):
        info = replace(VMean.info, name=name)

        def __init__(self, **common):
            super().__init__(**common)
            constructor()

        def _attend(self, query, key, value, padding):
            return ending(super()._attend(query, key, value, padding))

    Fake.__qualname__ = name
    return register(Fake)


def _hang(out):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def _hang_with_grandchild(out):
    subprocess.Popen(["sleep", "601"])
    time.sleep(600)


def _raise(error):
    raise error


def _start_daemon(out):
    subprocess.Popen(["sleep", "601"], start_new_session=True)
    return out


def _change_directory(out):
    os.chdir("/")
    return out


def _log(out):
    with open(os.environ["FAKE_LOG"], "a") as file:
        file.write(f"{os.getpid()} {time.monotonic()}\n")
        time.sleep(0.1)
        file.write(f"{os.getpid()} {time.monotonic()}\n")
    return out


def _log_place(out, lasting=lambda: time.sleep(0.3)):
    """When it ran, and where: once for each cell."""
    began = time.monotonic()
    lasting()
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    with open(f"{os.environ['FAKE_LOG']}.{os.getpid()}", "w") as file:
        file.write(f"{began} {time.monotonic()} {cores} {os.environ['OMP_NUM_THREADS']} {torch.get_num_threads()}")
    return out


def _wait_for_another():
    """Until a second cell is measured, which the first one must not end before."""
    log = Path(os.environ["FAKE_LOG"])
    log.with_name(f"here.{os.getpid()}").touch()
    deadline = time.monotonic() + 30
    while len(list(log.parent.glob("here.*"))) < 2:
        if time.monotonic() > deadline:
            raise TimeoutError("alone for 30 s")
        time.sleep(0.01)


def _count(out):
    with open(os.environ["FAKE_COUNTER"], "a") as file:
        file.write(f"{os.getpid()}\n")
    return out


ENDINGS = {
    "fake_fine": lambda out: out,
    "fake_exit": lambda out: os._exit(3),
    "fake_hang": _hang,
    "fake_grandchild": _hang_with_grandchild,
    "fake_daemon": _start_daemon,
    "fake_chdir": _change_directory,
    "fake_error": lambda out: _raise(ValueError("a mistake in the mechanism")),
    "fake_oom": lambda out: torch.zeros(2**50),
    "fake_nan": lambda out: out * float("nan"),
    "fake_wrong": lambda out: out * 1.01,
    "fake_fine_too": lambda out: out,
    "fake_logged": _log,
    "fake_placed_beside": lambda out: _log_place(out, _wait_for_another),
    "fake_counted_exit": lambda out: (_count(out), os._exit(3)),
}
CONSTRUCTORS = {
    "fake_init_refuses": lambda: _raise(ValueError("pitch=3: must be even")),
    "fake_init_prints": lambda: print("{}", flush=True),
    "fake_init_hang": lambda: time.sleep(600),
    "fake_init_segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "fake_init_interrupts": lambda: os.kill(os.getpid(), signal.SIGINT),
    "fake_init_exit": lambda: _raise(SystemExit(0)),
}
for _name, _ending in ENDINGS.items():
    _fake(_name, _ending)
for _name, _constructor in CONSTRUCTORS.items():
    _fake(_name, constructor=_constructor)
