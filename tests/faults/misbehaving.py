"""Mechanisms that misbehave, each in one way, when they are made, in their forward or in their backward pass.

`KINDS` says how a cell with each must end. A kind is registered as `odd_STAGE_KIND`, well-behaved ones as `odd_fine_N`.
"""

import atexit
import ctypes
import functools
import mmap
import os
import random
import resource
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import torch

from attention_zoo import UnsupportedError, register
from attention_zoo.v_mean import VMean

STAGES = ("init", "forward", "backward")
FINE = 10


def once(deed):
    """Only the first call does anything."""
    done = []

    @functools.wraps(deed)
    def first(x):
        if not done:
            done.append(deed(x))
        return x

    return first


def throws(error):
    def deed(x):
        raise error

    return deed


class Base(BaseException):
    pass


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no string")

    __repr__ = __str__


def recurse(x):
    return recurse(x)


def loop(x):
    while True:
        pass


def sleep(x):
    time.sleep(600)


def ignore_sigterm(x):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep(x)


def keep_for_ever(make):
    def deed(x):
        kept = []
        while True:
            kept.append(make())

    return deed


def fork(x):
    if os.fork() == 0:
        sleep(x)


def start_process(x, **options):
    subprocess.Popen(["sleep", "601"], **options)


def start_in_a_session(x):
    start_process(x, start_new_session=True, close_fds=False)


def start_daemon(x):
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "601"])
        os._exit(0)
    os.waitpid(child, 0)


def start_thread(target, *args):
    return lambda x: threading.Thread(target=target, args=args).start()


def install_handlers(x):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGSEGV, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)


def seed_generators(x):
    torch.manual_seed(7)
    random.seed(7)
    return x


def return_what_it_returned_before(x, seen={}):  # noqa: B006
    return seen.setdefault(x.shape, x.detach().clone()).clone() + 0 * x


# By name: what it does with a tensor (None when it is made), the statuses of its cell that are right, what the reason
# says, and other statuses for `init`.
EVERYWHERE = {
    # Ends its process.
    "segfault": (lambda x: ctypes.string_at(0), "crash", "SIGSEGV"),
    "abort": (lambda x: os.abort(), "crash", "SIGABRT"),
    "kill_9": (lambda x: os.kill(os.getpid(), signal.SIGKILL), "crash", "SIGKILL"),
    "kill_its_group": (lambda x: os.killpg(0, signal.SIGKILL), "crash", "SIGKILL"),
    "exit_0": (lambda x: os._exit(0), "crash", "exit code 0 and no result"),
    "exit_3": (lambda x: os._exit(3), "crash", "exit code 3 and no result"),
    "system_exit": (throws(SystemExit(0)), "crash error", "SystemExit|exit code 0 and no result"),
    "keyboard_interrupt": (throws(KeyboardInterrupt()), "crash error", "KeyboardInterrupt|SIGINT|exit code"),
    # Raises.
    "base_exception": (throws(Base("not an Exception")), "crash error", "Base|exit code"),
    "raise_unprintable": (throws(Unprintable()), "error", "Unprintable"),
    "raise_control_characters": (throws(ValueError("\x1b[2J clear \x07\x00 | cell")), "error", "ValueError: .*clear"),
    "raise_a_full_disk": (throws(OSError(28, "No space left on device")), "error", "No space left on device"),
    "raise_memory_error": (throws(MemoryError()), "oom", ""),
    "raise_unsupported": (throws(UnsupportedError("odd=1: cannot")), "unsupported", "odd=1: cannot"),
    "recurse": (recurse, "error", "RecursionError"),
    # Does not end.
    "loop": (loop, "timeout", "timeout="),
    "loop_in_c": (lambda x: ctypes.PyDLL(None).sleep(600), "timeout", "timeout="),  # no other thread runs meanwhile
    "ignore_sigterm": (ignore_sigterm, "timeout", "timeout="),
    "stop_itself": (lambda x: os.kill(os.getpid(), signal.SIGSTOP), "timeout", "timeout="),
    # Takes more than its share.
    "allocate_much": (lambda x: torch.zeros(2**50), "oom", ""),
    "allocate_for_ever": (keep_for_ever(lambda: torch.ones(2**20)), "oom", ""),
    "allocate_in_python_for_ever": (keep_for_ever(lambda: bytearray(2**22)), "oom", ""),
    "share_memory": (once(lambda x: mmap.mmap(-1, 2**28).write(bytes(2**27))), "ok oom", ""),
    # Starts others.
    "fork": (once(fork), "ok", ""),
    "start_process": (once(start_process), "ok", ""),
    "start_process_in_a_session": (once(start_in_a_session), "ok", ""),
    "start_daemon": (once(start_daemon), "ok", ""),
    "start_thread_that_raises": (once(start_thread(lambda: 1 / 0)), "ok", ""),
    "start_thread_that_never_ends": (once(start_thread(time.sleep, 600)), "ok", ""),
    "hang_at_exit": (once(lambda x: atexit.register(time.sleep, 600)), "ok", ""),
    # Changes what it shares.
    "close_standard_files": (once(lambda x: os.closerange(0, 3)), "ok", ""),
    "close_all_files": (once(lambda x: os.closerange(0, 1024)), "ok crash error", ""),
    "install_handlers": (once(install_handlers), "ok", ""),
    "allow_no_files": (once(lambda x: resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))), "ok crash error", ""),
    "allow_empty_files_only": (once(lambda x: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))), "crash error", ""),
    "take_all_permissions": (once(lambda x: os.umask(0o777)), "ok crash", ""),
    "clear_the_environment": (once(lambda x: os.environ.clear()), "ok", ""),
    "write_a_file": (once(lambda x: Path("written").write_text("x")), "ok", ""),
    "change_directory": (once(lambda x: os.chdir("/")), "incorrect", "working directory", "ok incorrect"),
    "seed_generators": (seed_generators, "incorrect", "random state", "ok incorrect"),
    "change_the_default_dtype": (
        once(lambda x: torch.set_default_dtype(torch.float64)),
        "incorrect",
        "default dtype",
        "ok incorrect error",
    ),
    "change_the_number_of_threads": (
        once(lambda x: torch.set_num_threads(3)),
        "incorrect",
        "number of threads",
        "ok incorrect",
    ),
}
# What it does with an output or a gradient; the statuses that are right in the forward and in the backward pass.
OF_OUTPUTS = {
    "return_nan": (lambda x: x * torch.nan, "nonfinite", "nonfinite"),
    "return_something_else": (lambda x: x * 1.01, "incorrect", "incorrect"),
    "return_zeros": (torch.zeros_like, "incorrect", "incorrect"),
    "return_what_it_returned_before": (return_what_it_returned_before, "incorrect", "incorrect"),
    "return_another_shape": (lambda x: x[..., :1], "incorrect error", "incorrect error"),
    "return_another_dtype": (lambda x: x.double(), "incorrect", "ok incorrect error"),
    "return_nothing": (lambda x: None, "incorrect error", "incorrect error"),
}
KINDS = {
    name: (deed, {**dict.fromkeys(STAGES, status), "init": (*init, status)[0]}, reason)
    for name, (deed, status, reason, *init) in EVERYWHERE.items()
} | {name: (deed, {"forward": one, "backward": other}, "") for name, (deed, one, other) in OF_OUTPUTS.items()}
"""By name: what it does, how its cell ends by stage, what the reason says."""


# Goes for the sweep itself: each has a sweep of its own.
RESULTS = Path(os.environ.get("ODD_RESULTS", "/nowhere"))
AGAINST_THE_SWEEP = {
    "kill_its_parent": once(lambda x: os.kill(os.getppid(), signal.SIGKILL)),
    "stop_its_parent": once(lambda x: os.kill(os.getppid(), signal.SIGSTOP)),
    "delete_its_directory": once(lambda x: shutil.rmtree(os.getcwd(), ignore_errors=True)),
    "delete_its_scratch_folder": once(lambda x: shutil.rmtree(RESULTS / "scratch", ignore_errors=True)),
    "delete_the_folder_of_locks": once(lambda x: shutil.rmtree(RESULTS / "locks", ignore_errors=True)),
}


def prints(gigabytes):
    block = b"x" * 2**20
    for number in range(int(gigabytes * 2**10)):
        os.write(1 + number % 2, block)


def print_from_a_daemon(x):
    if os.fork() == 0:
        os.setsid()
        prints(1000)


# Prints without end.
FLOODS = {
    "print_3_gigabytes": once(lambda x: prints(3)),
    "print_without_end": lambda x: prints(1000),
    "print_without_end_from_a_daemon": once(print_from_a_daemon),
}


def block_every_signal(x):
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    sleep(x)


def go_on_in_the_handler(x):
    signal.signal(signal.SIGTERM, lambda *_: sleep(x))
    sleep(x)


def stop_itself_and_its_family(x):
    start_process(x)
    os.killpg(0, signal.SIGSTOP)


def ignore_sigterm_as_a_family(x):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            break
    loop(x)


# Does not end when it is asked to.
STUBBORN = {
    "ignore_sigterm_asleep": ignore_sigterm,
    "block_every_signal": block_every_signal,
    "go_on_in_the_handler": go_on_in_the_handler,
    "stop_itself_and_its_family": stop_itself_and_its_family,
    "ignore_sigterm_as_a_family": ignore_sigterm_as_a_family,
}


class _InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, deed):
        ctx.deed = deed
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.deed(gradient), None


def _register(name, stage, deed):
    class Odd(VMean):
        info = replace(VMean.info, name=name)

        def __init__(self, **common):
            super().__init__(**common)
            if stage == "init":
                deed(None)

        def _attend(self, query, key, value, padding):
            out = super()._attend(query, key, value, padding)
            if stage == "backward":
                return _InBackward.apply(out, deed)
            return deed(out) if stage == "forward" else out

    Odd.__qualname__ = name
    register(Odd)


def names(stage):
    """The mechanisms that misbehave in a stage."""
    return {f"odd_{stage}_{name}": name for name, (_, ends, _) in KINDS.items() if stage in ends}


@once
def _start_a_family(x):
    for start in (start_process, start_in_a_session, start_daemon):
        start(x)


def _register_all():
    for stage in STAGES:
        for name, kind in names(stage).items():
            _register(name, stage, KINDS[kind][0])
    for kind, deed in {**AGAINST_THE_SWEEP, **FLOODS, **STUBBORN}.items():
        _register(f"odd_{kind}", "forward", deed)
    for number in range(FINE):
        _register(f"odd_fine_{number}", "none", None)
    _register("odd_family", "forward", _start_a_family)


# Tests import this for `KINDS`, and must not find such mechanisms in the zoo.
if __name__ in os.environ.get("ATTENTION_ZOO_PLUGINS", ""):
    _register_all()
