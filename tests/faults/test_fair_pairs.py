"""A mechanism against itself: what compares finds no difference where there is none, whatever runs beside it."""

import os

import pytest
from command import TINY, bench

from bench.records.store import Store
from bench.records.summary import quantities

PAIRS, MOST = 200, 0.05
TWO = ["hydra/launcher=devices", "hydra.launcher.cores_per_worker=1", "hydra.launcher.timings_alone=false"]
FEW_CORES = not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2

pytestmark = pytest.mark.faults


def two_labels(folder):
    """One mechanism under two names, in a folder for `--config-dir`."""
    attention = folder / "conf" / "attention"
    attention.mkdir(parents=True)
    for label in ("one", "other"):
        (attention / f"{label}.yaml").write_text("name: v_mean\n")
    return folder / "conf"


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(["hydra/launcher=cells"], id="alone"),
        pytest.param(TWO, id="two workers", marks=pytest.mark.needs("two_cores")),
    ],
)
def test_a_mechanism_does_not_differ_from_itself(tmp_path, launcher, promise):
    """A mechanism compared with itself, alone and with another such comparison beside it, is called different in at
    most 5 % of all pairs
    """
    pairs = ["bench=compare", "attention=one,other", "bench.min_sample_ms=1", "repeats=8", f"seed=range({PAIRS})"]
    tiny = [word for word in TINY if not word.startswith(("bench.", "repeats="))]
    where = ["--config-dir", str(two_labels(tmp_path)), f"results_dir={tmp_path}/runs", "tracking=none"]
    done = bench(*where, *tiny, *pairs, *launcher, timeout=1800)
    assert done.returncode == 0, done.stderr
    records = Store(tmp_path / "runs").load()
    verdicts = [
        quantity.verdict for record in records for quantity in quantities(record) if quantity.metric == "speedup"
    ]
    different = len(verdicts) - verdicts.count("tie")
    assert len(verdicts) == PAIRS and different <= MOST * PAIRS, verdicts
    promise(pairs=PAIRS, called_different=different)
