"""A mechanism against itself: what compares finds no difference where there is none, whatever runs beside it."""

import pytest
from aftermath import A_WORKER_PER_CORE, CHEAP, Sweep

from bench.records.summary import quantities

PAIRS, MOST = 200, 0.05


@pytest.mark.faults
@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(["hydra/launcher=cells"], id="alone"),
        pytest.param(A_WORKER_PER_CORE, id="two workers", marks=pytest.mark.needs("two_cores")),
    ],
)
def test_a_mechanism_does_not_differ_from_itself(tmp_path, launcher, promise):
    """A mechanism compared with itself, alone and with another such comparison beside it, is called different in at
    most 5 % of all pairs
    """
    settings = ["bench=compare", "bench.min_sample_ms=1", "repeats=8", *launcher]
    sweep = Sweep(tmp_path, *settings, cells=2 * PAIRS, attention="odd_fine_0,odd_fine_1", cheap=CHEAP[:4])
    done = sweep.run(timeout=1800)
    assert done.returncode == 0, done.stderr
    told = (quantity for record in sweep.records() for quantity in quantities(record))
    verdicts = [quantity.verdict for quantity in told if quantity.metric == "speedup"]
    different = len(verdicts) - verdicts.count("tie")
    assert len(verdicts) == PAIRS and different <= MOST * PAIRS, verdicts
    promise(pairs=PAIRS, called_different=different)
