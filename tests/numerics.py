"""How much of their tolerances the tests use: over seeds, and on other instructions and numbers of threads.

A tolerance that one processor nearly fills fails on the next. With `--seeds N` each test that compares numbers runs N
times, all that it draws drawn anew, and the run ends with a table of the worst error over its allowance, by family:
the mechanism that a test's id names, or its file. A ratio of `WORST` or more is a failure. `--slowest S` ends the
repetitions of a test after S seconds, for kernels in Triton's interpreter.

Run as a program (`make test-numerics`), it does that with 50 seeds, with three for kernels that multiply as a GPU does,
then repeats the worst case of each family and dtype with three seeds under each set of instructions that this processor
has, and with 1, 2 and 5 threads.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import closeness
import numpy as np
import pytest
import torch
from _pytest.terminal import TerminalReporter  # public from pytest 8.4 on

import attention_zoo

ApproxScalar = type(pytest.approx(1.0))
WORST = 0.5
SEEDS, SEEDS_ELSEWHERE, SLOWEST_S = 50, 3, 1.5
KEY = "ratio"
ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/attention_zoo",
    "tests/bench/models",
    "tests/bench/measures/test_sketch_error.py",
    "tests/bench/measures/test_spectral_norm.py",
    "tests/bench/training/test_loop.py",
)
KERNELS = "tests/attention_zoo/ops"
# Beyond this, what is allowed is chance or a difference of functions, not rounding.
COARSE = 0.03


class Seeds:
    """Moves every seed that is set by as much."""

    moved_by = 0

    def install(self, patch: pytest.MonkeyPatch) -> None:
        seeds, plain, of_numpy = self, torch.manual_seed, np.random.default_rng

        class Generator(torch.Generator):
            def manual_seed(self, seed: int) -> torch.Generator:
                return super().manual_seed(seed + seeds.moved_by)

        patch.setattr(torch, "Generator", Generator)
        patch.setattr(torch, "manual_seed", lambda seed: plain(seed + seeds.moved_by))
        patch.setattr(
            np.random, "default_rng", lambda seed=None: of_numpy(None if seed is None else seed + seeds.moved_by)
        )


class Ratios:
    """The worst ratio of a test, with its dtype and seed."""

    def __init__(self) -> None:
        self.worst: dict[str, tuple[float, int]] = {}
        self.seed = 0

    def note(self, error: float, allowed: float, dtype: object = "of norms") -> None:
        """An error over what is allowed; equality that is asked for to the bit says nothing of rounding."""
        if allowed == 0 or not np.isfinite(allowed):
            return
        ratio, name = float(error / allowed), str(dtype).removeprefix("torch.")
        if not ratio <= self.worst.get(name, (-1.0, 0))[0]:
            self.worst[name] = (ratio, self.seed)

    def note_tensors(self, actual: Any, expected: Any, rtol: float | None, atol: float | None) -> None:
        """As `torch.testing.assert_close` compares them."""
        if isinstance(actual, (tuple, list)):
            for one, other in zip(actual, expected, strict=True):
                self.note_tensors(one, other, rtol, atol)
            return
        actual, expected = torch.as_tensor(actual), torch.as_tensor(expected)
        if not actual.is_floating_point() or actual.numel() == 0 or actual.shape != expected.shape:
            return
        if rtol is None or atol is None:
            rtol, atol = torch.testing._comparison.get_tolerances(actual, expected, rtol=rtol, atol=atol)
        if max(rtol, atol) > COARSE or rtol == atol == 0:
            return
        one, other = actual.detach().cpu().double(), expected.detach().cpu().double()
        finite = one.isfinite() & other.isfinite()
        error, allowed = (one - other).abs()[finite], atol + rtol * other.abs()[finite]
        if len(error):
            # What is zero and must be is no rounding.
            at = torch.where(error > 0, error / allowed, 0).argmax()
            self.note(error[at].item(), allowed[at].item(), actual.dtype)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        of_torch, of_numpy, approx = torch.testing.assert_close, np.testing.assert_allclose, ApproxScalar.__eq__

        def assert_close(actual: Any, expected: Any, *args: Any, **given: Any) -> None:
            of_torch(actual, expected, *args, **given)
            self.note_tensors(actual, expected, given.get("rtol"), given.get("atol"))

        def assert_allclose(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 0, **given: Any) -> None:
            of_numpy(actual, desired, rtol=rtol, atol=atol, **given)
            self.note_tensors(*(torch.tensor(np.asarray(x, dtype=np.float64)) for x in (actual, desired)), rtol, atol)

        def equals(expected: Any, actual: Any) -> bool:
            tolerance = expected.tolerance
            if isinstance(actual, (float, np.floating)) and tolerance <= COARSE * abs(expected.expected):
                self.note(abs(actual - expected.expected), tolerance, "scalar")
            return approx(expected, actual)

        patch.setattr(torch.testing, "assert_close", assert_close)
        patch.setattr(np.testing, "assert_allclose", assert_allclose)
        patch.setattr(ApproxScalar, "__eq__", equals)
        patch.setattr(closeness, "listeners", [lambda error, allowed: self.note(error, allowed)])


class Numerics:
    def __init__(self, seeds: int, slowest_s: float) -> None:
        self.seeds, self.slowest_s = seeds, slowest_s
        self.table: dict[tuple[str, str], tuple[float, int, str]] = {}
        self.runs: Counter[str] = Counter()
        self.ratios, self.drawn = Ratios(), Seeds()

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Iterator[None]:
        """Run a test once, and again for each further seed where it compared numbers."""
        self.ratios.__init__()
        with pytest.MonkeyPatch.context() as patch:
            self.ratios.install(patch)
            self.drawn.install(patch)
            began = time.monotonic()
            with patches_of_its_own(pyfuncitem):
                result = yield
            for seed in range(1, self.seeds if self.ratios.worst else 0):
                if time.monotonic() - began > self.slowest_s:
                    break
                self.repeat(pyfuncitem, seed)
        pyfuncitem.user_properties.append((KEY, (self.ratios.seed + 1, self.ratios.worst)))
        return result

    def repeat(self, item: pytest.Function, seed: int) -> None:
        self.ratios.seed, self.drawn.moved_by = seed, 1000 * seed
        try:
            with patches_of_its_own(item):
                item.obj(**{name: item.funcargs[name] for name in item._fixtureinfo.argnames})
        except BaseException as error:
            error.add_note(f"with seeds moved by {self.drawn.moved_by}")
            raise
        finally:
            self.drawn.moved_by = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for key, noted in report.user_properties:
            if key == KEY and report.when == "call":
                runs, worst = noted
                family = family_of(report.nodeid)
                self.runs[family] += runs if worst else 0
                for dtype, (ratio, seed) in worst.items():
                    at = (family, dtype)
                    if ratio >= self.table.get(at, (-1.0,))[0]:
                        self.table[at] = (ratio, seed, report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        for (family, dtype), (ratio, seed, test) in sorted(self.table.items()):
            words = "" if ratio < WORST else f"  {test}, seed {seed}"
            terminalreporter.write_line(f"{family:24} {dtype:10} {ratio:8.3f} in {self.runs[family]} runs{words}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Too little room is a failure; the worst cases are kept for other machines' settings."""
        if hasattr(session.config, "workerinput"):
            return
        if session.exitstatus == 0 and any(ratio >= WORST for ratio, *_ in self.table.values()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if path := session.config.getoption("worst_cases"):
            Path(path).write_text(json.dumps(sorted({test for *_, test in self.table.values()})))


@contextlib.contextmanager
def patches_of_its_own(item: pytest.Function) -> Iterator[None]:
    """What a test patches is undone before it runs again; what its fixtures have patched stays."""
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in item.funcargs:
            patch.setitem(item.funcargs, "monkeypatch", patch)
        yield


def family_of(test: str) -> str:
    """The mechanism that the id of a case begins with, or the file of the test."""
    path, _, case = test.partition("::")
    named = re.search(r"\[([a-z0-9_]+)", case)
    known = named and next((n for n in attention_zoo.list_attentions() if n == named[1]), None)
    return known or Path(path).stem.removeprefix("test_")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, help="run each test that compares numbers with so many seeds")
    parser.addoption("--slowest", type=float, default=np.inf, help="seconds after which a test is not repeated again")
    parser.addoption("--worst-cases", help="a file for the ids of the worst cases")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("seeds"):
        config.pluginmanager.register(Numerics(config.getoption("seeds"), config.getoption("slowest")))


def settings() -> Iterator[dict[str, str]]:
    """The instructions that this processor has, and numbers of threads."""
    known = ["default", "avx2", "avx512"]
    has = torch.backends.cpu.get_cpu_capability().lower()
    for capability in known[: known.index(has) + 1 if has in known else 1]:
        for threads in (1, 2, 5):
            limit = {"default": "SSE41", "avx2": "AVX2", "avx512": "AVX512_CORE"}[capability]
            yield {"ATEN_CPU_CAPABILITY": capability, "ONEDNN_MAX_CPU_ISA": limit, "OMP_NUM_THREADS": str(threads)}


def run(arguments: list[str], **environment: str) -> int:
    command = [sys.executable, "-m", "pytest", "-m", "not slow and not commands and not faults and not gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment).returncode


def main() -> int:
    cases = ROOT / ".pytest_cache" / "worst_cases.json"
    cases.parent.mkdir(exist_ok=True)
    options = ["-n", "auto", "--dist", "worksteal", f"--slowest={SLOWEST_S}", f"--worst-cases={cases}"]
    failed = run([*TESTS, *options, f"--seeds={SEEDS}"])
    print("kernels as on tensor cores", flush=True)
    failed |= run([KERNELS, *options[:4], "--tensor-cores", f"--seeds={SEEDS_ELSEWHERE}"])
    for environment in settings():
        print(" ".join(f"{key}={value}" for key, value in environment.items()), flush=True)
        failed |= run([*json.loads(cases.read_text()), f"--seeds={SEEDS_ELSEWHERE}"], **environment)
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
