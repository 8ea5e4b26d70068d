"""Tuning, on a small kernel with a clock that says what it is told."""

import itertools
import json

import pytest
import small_kernels
import torch

from attention_zoo.ops import launching
from tools.kernels import tune
from tools.kernels.call import Call
from tools.kernels.progress import Progress, kernel_code
from tools.kernels.tune import candidates

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OWN, WIDE, HALF, ODD = small_kernels.CANDIDATES["from shared memory"]


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    """What is tried: the candidates of the small kernels."""
    monkeypatch.setattr(tune, "candidates", lambda lookup: small_kernels.CANDIDATES.get(lookup.kernel, ()))


@pytest.fixture
def progress(tmp_path):
    """A file of progress that is not there yet."""
    return Progress(tmp_path / "runs" / "tuning.jsonl", "a machine")


@pytest.fixture(scope="module")
def call():
    """The product by a kernel that has candidates."""
    return small_kernels.calls(torch.float32)[0]


class Clock:
    """Captures launches and says of each how long it takes: nanoseconds by the order of captures."""

    def __init__(self, *times):
        self.times, self.captured, self.sampled = list(times), 0, []

    def __call__(self, launch):
        launch()
        number, self.captured = self.captured, self.captured + 1

        def sample():
            self.sampled.append(number)
            return self.times[number]

        return sample


def outcomes(progress):
    return {line["configuration"]: line["outcome"] for line in progress.lines(step="ended")}


def test_the_fastest_that_is_right_wins_and_is_a_row_to_paste(call, progress):
    clock = Clock(2e6, 1.5e6)
    (winner,) = tune.tune(call, DEVICE, progress, clock)
    assert winner.configuration == WIDE and winner.times == {OWN.name: 2e6, WIDE.name: 1.5e6}
    comment, row = str(winner).splitlines()
    assert comment == f"# from shared memory: 1.5 ms, 2 ms with {OWN.name}"
    arch = launching.architecture(DEVICE)
    assert row == (
        'Entry("from shared memory", Configuration({"M": 128, "N": 64, "BLOCK": 128}, 4, 2, registers=128), '
        f"arch=({arch}, {arch}), bits=32, at_most={{}}),"
    )
    found = outcomes(progress)
    assert (found[OWN.name], found[WIDE.name], found[HALF.name]) == ("is right", "is right", "is wrong")
    assert "power of 2" in found[ODD.name] or "power of two" in found[ODD.name]
    assert launching.configuration(small_kernels.PRODUCTS, "from shared memory", torch.empty(1)) == OWN


def test_the_table_and_neighbours_of_its_configuration_are_tried(call):
    ((lookup,), _) = tune.lookups(call, DEVICE)
    tried = {configuration.name for configuration in candidates(lookup)}
    sizes = ("m64_n64_block64_w4_s3", "m128_n64_block128_w4_s3", "m128_n64_block64_w8_s3", "m128_n64_block64_w4_s2")
    assert {OWN.name, *sizes} <= tried and len(tried) == 11


def test_the_table_keeps_what_nothing_beats_by_a_percent(call, progress):
    (winner,) = tune.tune(call, DEVICE, progress, Clock(1e6, 0.995e6))
    assert winner.configuration == OWN
    assert str(winner) == f"# from shared memory: 1 ms, from shared memory as in the table ({OWN.name})"


def test_what_is_done_is_not_done_again_but_on_another_machine(call, progress):
    first = list(tune.tune(call, DEVICE, progress, Clock(2.0, 1.0)))
    with progress.file.open("a") as file:
        file.write('{"machine": "a mach')  # of a process that was killed
    assert list(tune.tune(call, DEVICE, progress, None)) == first
    progress.file.write_text(progress.file.read_text() + "\n")
    clock = Clock(1.0, 2.0)
    list(tune.tune(call, DEVICE, Progress(progress.file, "another"), clock))
    assert clock.captured == 2 and clock.sampled == [0, 1, 1, 0] * (tune.ROUNDS // 2)


def test_a_candidate_that_ends_the_process_is_tried_twice(call, progress):
    class Killed(BaseException):
        pass

    def deadly(launch):
        if deadly.calls == 1:
            raise Killed
        deadly.calls += 1
        return Clock(2.0)(launch)

    for _ in range(tune.TRIES):
        deadly.calls = 0
        with pytest.raises(Killed):
            list(tune.tune(call, DEVICE, progress, deadly))
    (winner,) = tune.tune(call, DEVICE, progress, Clock(2.0))
    assert list(winner.times) == [OWN.name]


def test_so_is_one_after_which_the_device_can_no_longer_be_used(call, progress, monkeypatch):
    def lost(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_initialized", lambda: True)
        patched.setattr(torch.cuda, "synchronize", lost)
        for _ in range(tune.TRIES):
            with pytest.raises(RuntimeError, match="illegal memory access"):
                list(tune.tune(call, DEVICE, progress, lost))
    (winner,) = tune.tune(call, DEVICE, progress, Clock(2.0))
    assert list(winner.times) == [WIDE.name]


def test_a_kernel_without_candidates_is_left_as_it_is(progress):
    assert list(tune.tune(small_kernels.calls(torch.float32)[1], DEVICE, progress, None)) == []
    assert not progress.file.exists()


def test_only_the_kernel_that_is_tuned_gets_another_configuration(call, progress):
    x = torch.ones(1, device=DEVICE)
    seen = []

    def launch():
        for kernel in ("from shared memory", "squared"):
            seen.append(launching.configuration(small_kernels.PRODUCTS, kernel, x, h=3))
        return x

    both = Call("both", torch.float32, lambda device: launch)
    (winner,) = tune.tune(both, DEVICE, progress, Clock(*itertools.repeat(1.0, 4)))
    assert winner.lookup.dims == {"h": 3}
    assert all(configuration in seen[::2] for configuration in (OWN, WIDE, HALF, ODD))
    assert all(configuration == seen[1] for configuration in seen[1::2])


def test_a_launch_that_changes_its_inputs_has_fresh_ones_for_each_result(call, progress):
    def make(device):
        state, launch = torch.randn(4, device=device), call.make(device)
        return lambda: (launch(), state.add_(1).clone())

    (winner,) = tune.tune(Call("step", torch.float32, make), DEVICE, progress, Clock(1.0, 2.0))
    assert set(winner.times) == {OWN.name, WIDE.name}


@pytest.mark.parametrize(
    ("result", "expected", "difference"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([3.0, 4.5], [3.0, 4.0], 0.1),
        ([3.0, float("nan")], [3.0, 4.0], float("inf")),
        ([3.0, 7.0], [3.0, float("nan")], 0.0),
    ],
)
def test_results_differ_by_the_norm_and_what_no_kernel_writes_is_left_out(result, expected, difference):
    x, y = torch.tensor(result), torch.tensor(expected)
    assert tune._difference(x, y) == pytest.approx(difference)
    assert tune._difference((y, None, x), (y, None, y)) == pytest.approx(difference)


def test_without_a_gpu_the_command_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert tune.main([]) == 2
    assert capsys.readouterr().err == "kernels are tuned on a CUDA device, and there is none\n"


def test_the_command_tunes_what_matches(call, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "fake")
    monkeypatch.setattr(tune, "captured", Clock(2e6, 1e6))
    here = Call(call.name, call.dtype, lambda device: call.make(DEVICE))
    monkeypatch.setattr(tune, "catalogue", lambda: {"small": [here, Call("other", torch.float32, None)]})
    assert tune.main(["--match", "shared", "--progress", str(tmp_path / "p.jsonl")]) == 0
    assert capsys.readouterr().out.startswith("# from shared memory: 1 ms, 2 ms with")
    assert json.loads((tmp_path / "p.jsonl").read_text().splitlines()[0])["origin"] == f"fake, {kernel_code()}"


@pytest.mark.gpu
def test_a_launch_is_captured_and_takes_time(call):
    assert tune.captured(call.make(DEVICE))() > 0
