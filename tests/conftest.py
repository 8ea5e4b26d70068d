"""Fixtures that several folders of tests share."""

import gc
import math
import os
import signal
import sys
from pathlib import Path

# Small tensors gain nothing from threads, and threads that wait for busy cores cost minutes. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Commands that the tests start keep what Python compiled, as they do for users: without, each compiles the suite anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Triton's kernels are interpreted where no device runs them. Before triton is imported.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch
from synthetic_everything import of_every_figure
from synthetic_records import written

from attention_zoo.ops import launching

pytest_plugins = ["fake_driver", "needs", "numerics", "promises", "tensor_cores"]

TESTS = Path(__file__).parent
# Long suites of one part of the project, by where they stand; each is a marker with a target of its own.
SUITES = {
    "kernels": ("attention_zoo/ops", "tools/kernels"),
    "analysis": ("analysis", "tools/pages", "test_results.py", "test_site.py"),
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)

# Who starts the tests in the background may ignore these, and so would all that they start.
for number, meaning in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, meaning)


@pytest.fixture(scope="session", autouse=True)
def a_device_of_its_own(tmp_path_factory):
    """Sweeps of the tests wait neither for other sweeps on this machine nor for other processes that test."""
    os.environ["ATTENTION_ZOO_SLOTS"] = str(tmp_path_factory.mktemp("slots"))


def pytest_sessionstart():
    """Interpreted kernels never pass for those of a GPU."""
    if launching.IS_INTERPRETED and torch.cuda.is_available():
        pytest.exit("TRITON_INTERPRET is set where there is a GPU: hide that (CUDA_VISIBLE_DEVICES=) or unset it", 4)


def pytest_itemcollected(item):
    """Whole folders are marked here, so that a new file in one of them cannot be forgotten."""
    for suite, places in SUITES.items():
        if any(item.path.is_relative_to(TESTS / place) for place in places):
            item.add_marker(suite)


def pytest_collection_modifyitems(items):
    """Whole commands first, and of these the longest, which stand in this folder: no process ends alone with one."""
    items.sort(key=lambda item: len(item.path.parts) if item.get_closest_marker("commands") else math.inf)


def pytest_collection_finish():
    """What tests start, starts as for users: the kernels are interpreted in this process alone.

    Thousands of tests and what they import stay to the end: nobody need look for garbage among them again.
    """
    if launching.HAS_KERNELS and launching.IS_INTERPRETED:
        sys.modules["triton"].knobs.runtime.interpret = True
    os.environ.pop("TRITON_INTERPRET", None)
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """One environment for all tests: a changed one brings a fresh server of child processes."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A CUDA error leaves a process without a device: no later test is blamed, and xdist starts another process."""
    report = yield
    if report.failed and "PYTEST_XDIST_WORKER" in os.environ and torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            print(item.nodeid, report.longreprtext, sep="\n", file=sys.__stderr__, flush=True)
            os._exit(70)
    return report


@pytest.fixture(scope="session")
def synthetic_results(tmp_path_factory):
    """A results folder of synthetic records, as `bench` would have written it."""
    return written(tmp_path_factory.mktemp("synthetic") / "runs", of_every_figure())


@pytest.fixture(scope="module")
def same_code():
    """Plans do not read and parse all code anew, which takes them longer than all else: here nobody edits it."""
    from bench.execution import sweep
    from bench.plan import cell

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "clear_caches", cell._identity.cache_clear)
        yield


@pytest.fixture(autouse=True)
def signals_mean_afterwards_what_they_meant():
    """A command that runs here may let SIGPIPE kill it: another test would die of a pipe that nobody reads."""
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.fixture
def signals_restored():
    """A command answers signals from its first line on, as if it had its process for itself."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, meaning in before.items():
        signal.signal(number, meaning)


@pytest.fixture
def rng():
    """A generator that is the same in every test."""
    return np.random.default_rng(0)
