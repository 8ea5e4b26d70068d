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
KINDS = {}
"""By name: what it does with a tensor (None when it is made), how its cell ends by stage, what the reason says."""


def kind(status, reason="", *, init=None):
    """Decorator: a misbehaviour in every stage; `status` is one or several that are right, `init` others there."""

    def decorate(deed):
        KINDS[deed.__name__] = deed, {**dict.fromkeys(STAGES, status), "init": init or status}, reason
        return deed

    return decorate


def of_outputs(forward, backward):
    """Decorator: a misbehaviour that is an output's or a gradient's."""

    def decorate(deed):
        KINDS[deed.__name__] = deed, {"forward": forward, "backward": backward}, ""
        return deed

    return decorate


def once(deed):
    """Only the first call does anything."""
    done = []

    @functools.wraps(deed)
    def first(x):
        if not done:
            done.append(deed(x))
        return x

    return first


# --- Ends its process ------------------------------------------------------------------------------


@kind("crash", "SIGSEGV")
def segfault(x):
    ctypes.string_at(0)


@kind("crash", "SIGABRT")
def abort(x):
    os.abort()


@kind("crash", "SIGKILL")
def kill_9(x):
    os.kill(os.getpid(), signal.SIGKILL)


@kind("crash", "SIGKILL")
def kill_its_group(x):
    os.killpg(0, signal.SIGKILL)


@kind("crash", "exit code 0 and no result")
def exit_0(x):
    os._exit(0)


@kind("crash", "exit code 3 and no result")
def exit_3(x):
    os._exit(3)


@kind("crash error", "SystemExit|exit code 0 and no result")
def system_exit(x):
    raise SystemExit(0)


@kind("crash error", "KeyboardInterrupt|SIGINT|exit code")
def keyboard_interrupt(x):
    raise KeyboardInterrupt


# --- Raises ----------------------------------------------------------------------------------------


class Base(BaseException):
    pass


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no string")

    __repr__ = __str__


@kind("crash error", "Base|exit code")
def base_exception(x):
    raise Base("not an Exception")


@kind("error", "Unprintable")
def raise_unprintable(x):
    raise Unprintable


@kind("error", "ValueError: .*clear")
def raise_control_characters(x):
    raise ValueError("\x1b[2J clear \x07\x00 | cell")


@kind("error", "No space left on device")
def raise_a_full_disk(x):
    raise OSError(28, "No space left on device")


@kind("oom")
def raise_memory_error(x):
    raise MemoryError


@kind("unsupported", "odd=1: cannot")
def raise_unsupported(x):
    raise UnsupportedError("odd=1: cannot")


@kind("error", "RecursionError")
def recurse(x):
    return recurse(x)


# --- Does not end ----------------------------------------------------------------------------------


@kind("timeout", "timeout=")
def loop(x):
    while True:
        pass


@kind("timeout", "timeout=")
def loop_in_c(x):
    ctypes.PyDLL(None).sleep(600)  # no other thread runs meanwhile


@kind("timeout", "timeout=")
def ignore_sigterm(x):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


@kind("timeout", "timeout=")
def stop_itself(x):
    os.kill(os.getpid(), signal.SIGSTOP)


# --- Takes more than its share ---------------------------------------------------------------------


@kind("oom")
def allocate_much(x):
    torch.zeros(2**50)


@kind("oom")
def allocate_for_ever(x):
    kept = []
    while True:
        kept.append(torch.ones(2**20))


@kind("oom")
def allocate_in_python_for_ever(x):
    kept = []
    while True:
        kept.append(bytearray(2**22))


@kind("ok oom")
@once
def share_memory(x):
    mmap.mmap(-1, 2**28).write(bytes(2**27))


# --- Starts others ---------------------------------------------------------------------------------


@kind("ok")
@once
def fork(x):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)


@kind("ok")
@once
def start_process(x):
    subprocess.Popen(["sleep", "601"])


@kind("ok")
@once
def start_process_in_a_session(x):
    subprocess.Popen(["sleep", "601"], start_new_session=True, close_fds=False)


@kind("ok")
@once
def start_daemon(x):
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "601"])
        os._exit(0)
    os.waitpid(child, 0)


@kind("ok")
@once
def start_thread_that_raises(x):
    threading.Thread(target=lambda: 1 / 0).start()


@kind("ok")
@once
def start_thread_that_never_ends(x):
    threading.Thread(target=time.sleep, args=(600,)).start()


@kind("ok")
@once
def hang_at_exit(x):
    atexit.register(time.sleep, 600)


# --- Changes what it shares ------------------------------------------------------------------------


@kind("ok")
@once
def close_standard_files(x):
    os.closerange(0, 3)


@kind("ok crash error")
@once
def close_all_files(x):
    os.closerange(0, 1024)


@kind("ok")
@once
def install_handlers(x):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGSEGV, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)


@kind("ok crash error")
@once
def allow_no_files(x):
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))


@kind("crash error")
@once
def allow_empty_files_only(x):
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@kind("ok crash")
@once
def take_all_permissions(x):
    os.umask(0o777)


@kind("ok")
@once
def clear_the_environment(x):
    os.environ.clear()


@kind("ok")
@once
def write_a_file(x):
    Path("written").write_text("x")


@kind("incorrect", "working directory", init="ok incorrect")
@once
def change_directory(x):
    os.chdir("/")


@kind("incorrect", "random state", init="ok incorrect")
def seed_generators(x):
    torch.manual_seed(7)
    random.seed(7)
    return x


@kind("incorrect", "default dtype", init="ok incorrect error")
@once
def change_the_default_dtype(x):
    torch.set_default_dtype(torch.float64)


@kind("incorrect", "number of threads", init="ok incorrect")
@once
def change_the_number_of_threads(x):
    torch.set_num_threads(3)


# --- Is wrong --------------------------------------------------------------------------------------


@of_outputs("nonfinite", "nonfinite")
def return_nan(x):
    return x * torch.nan


@of_outputs("incorrect", "incorrect")
def return_something_else(x):
    return x * 1.01


@of_outputs("incorrect", "incorrect")
def return_zeros(x):
    return torch.zeros_like(x)


@of_outputs("incorrect", "incorrect")
def return_what_it_returned_before(x, seen={}):  # noqa: B006
    return seen.setdefault(x.shape, x.detach().clone()).clone() + 0 * x


@of_outputs("incorrect error", "incorrect error")
def return_another_shape(x):
    return x[..., :1]


@of_outputs("incorrect", "ok incorrect error")
def return_another_dtype(x):
    return x.double()


@of_outputs("incorrect error", "incorrect error")
def return_nothing(x):
    return None


# --- Goes for the sweep itself: each has a sweep of its own -----------------------------------------

AGAINST_THE_SWEEP = {}


def against_the_sweep(deed):
    AGAINST_THE_SWEEP[deed.__name__] = deed
    return deed


@against_the_sweep
def kill_its_parent(x):
    os.kill(os.getppid(), signal.SIGKILL)
    return x


@against_the_sweep
def stop_its_parent(x):
    os.kill(os.getppid(), signal.SIGSTOP)
    return x


@against_the_sweep
def delete_its_directory(x):
    shutil.rmtree(os.getcwd(), ignore_errors=True)
    return x


@against_the_sweep
def delete_its_scratch_folder(x):
    shutil.rmtree(Path(os.environ["ODD_RESULTS"]) / "scratch", ignore_errors=True)
    return x


@against_the_sweep
def delete_the_folder_of_locks(x):
    shutil.rmtree(Path(os.environ["ODD_RESULTS"]) / "locks", ignore_errors=True)
    return x


# --- Prints without end ----------------------------------------------------------------------------

FLOODS = {}


def flood(deed):
    FLOODS[deed.__name__] = deed
    return deed


def _print(gigabytes):
    block = b"x" * 2**20
    for number in range(int(gigabytes * 2**10)):
        os.write(1 + number % 2, block)


@flood
@once
def print_3_gigabytes(x):
    _print(3)


@flood
def print_without_end(x):
    _print(1000)


@flood
@once
def print_without_end_from_a_daemon(x):
    if os.fork() == 0:
        os.setsid()
        _print(1000)


# --- Does not end when it is asked to ---------------------------------------------------------------

STUBBORN = {}


def stubborn(deed):
    STUBBORN[deed.__name__] = deed
    return deed


@stubborn
def ignore_sigterm_asleep(x):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


@stubborn
def block_every_signal(x):
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    time.sleep(600)


@stubborn
def go_on_in_the_handler(x):
    signal.signal(signal.SIGTERM, lambda *_: time.sleep(600))
    time.sleep(600)


@stubborn
def stop_itself_and_its_family(x):
    start_process(x)
    os.killpg(0, signal.SIGSTOP)


@stubborn
def ignore_sigterm_as_a_family(x):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            break
    while True:
        pass


# --- The mechanisms --------------------------------------------------------------------------------


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
    start_process(x)
    start_process_in_a_session(x)
    start_daemon(x)


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
