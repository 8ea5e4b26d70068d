"""What the command line takes and says beside its measurements."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from command import TINY, bench, code_of
from synthetic_records import config, record

import attention_zoo
from bench import api
from bench.cli import main as app
from bench.common.errors import ConfigError
from bench.execution.dry_run import dry_run
from bench.plan.load import Loader
from bench.records.plans import OF_SIZE, Durations, duration
from bench.records.store import Store

pytestmark = pytest.mark.usefixtures("same_code")
NOWHERE = Path("nowhere")
"""No records that come with the code."""
SIZES = ["batch_size=1", "num_heads=1", "head_dim=4", "device=cpu", "tracking=none"]


def planned(*overrides):
    return api.planned(Loader(), [*SIZES, *overrides])


def test_the_version_is_the_suites(capsys):
    assert code_of(app.run, ["--version"]) == 0
    assert capsys.readouterr().out == f"attention-zoo {attention_zoo.__version__}\n"


def test_cells_take_as_long_as_those_that_have_the_most_in_common():
    def cell(label, length, heads=2):
        return config(label, {"name": "latency"}, length, num_heads=heads)

    durations = Durations([(cell("flash", 64), 1.0), (cell("flash", 64), 3.0), (cell("v_mean", 64), 8.0)])
    assert durations.expected(cell("flash", 64), OF_SIZE) == 2.0
    assert durations.expected(cell("informer", 64), OF_SIZE) == 4.0
    longer, on_gpu = {**cell("flash", 64), "training": {"steps": 5}}, {**cell("flash", 64), "device": "cuda:0"}
    deeper = {**cell("flash", 64), "model": {"layers": 24}}
    assert [durations.expected(other, OF_SIZE) for other in (longer, on_gpu, deeper)] == [None] * 3
    assert Durations([(on_gpu, 5.0)]).expected({**on_gpu, "device": "cuda:1"}, OF_SIZE) == 5.0
    assert durations.expected(cell("flash", 128), OF_SIZE) is durations.expected(cell("flash", 64, 4), OF_SIZE) is None
    assert durations.expected(cell("flash", 128)) == 2.0
    assert durations.expected(config("flash", {"name": "flops"}, 64)) == 4.0


def test_durations_are_for_people():
    assert [duration(seconds) for seconds in (0.4, 99, 600, 7260)] == ["0 s", "99 s", "10 min", "2 h 1 min"]


def test_a_dry_run_says_what_is_missing_and_writes_nothing(tmp_path):
    folder = tmp_path / "runs"
    given = [f"results_dir={folder}", "bench.passes=forward", "causal=true", "timeout=60", "repeats=5"]
    sweep = planned(*given, "attention=flash,linformer", "seq_len=32,64")
    said = dry_run(sweep, NOWHERE)[0]
    assert "4 cells, 0 done already, 2 to measure, 2 unsupported" in said and not folder.exists()
    assert "latency linformer n=64: unsupported, causal=true" in said
    assert "latency flash n=32: unknown, at most 60 s (its timeout)" in said  # five samples of 20 ms
    assert "time: unknown, at most 2 min (their timeouts) for 2 cells" in said
    many = dry_run(planned(*given[:-1], "repeats=100", "attention=flash", "seq_len=32"), NOWHERE)[0]
    assert "latency flash n=32: from 2 s to 60 s (its timeout)" in many
    short, long = sweep.cells[:2]
    assert (short.config["seq_len"], long.config["seq_len"]) == (32, 64)
    done = record(short.config, {"passes": {"forward": {"samples": [2e6] * 5}}, "tokens": 32}, status="ok")
    beside = {"host_state": {"during": {"others_s": 4.0}}, "numerics": {"threads": 2}}
    Store(folder).write(replace(done, cell_id=short.cell_id, duration_s=7.0, **beside))
    bad = record(long.config, {"passes": {"forward": {"samples": []}}, "tokens": 64}, status="ok")
    unreadable = Store(folder).write(replace(bad, cell_id=long.cell_id))
    again = dry_run(planned(*given, "attention=flash,linear", "seq_len=32,64"), NOWHERE)[0]
    assert "4 cells, 1 done already, 3 to measure" in again and "latency flash n=32" not in again
    assert "latency linear n=32: about 7 s" in again and "about 7 s for 1 cells" in again
    assert "2 cells in turn, of whose sizes there is no record" in again
    assert "others of bench" not in again
    unreadable.write_text("[]")  # as if somebody had edited it
    elsewhere = planned("results_dir=other", *given[1:], "attention=flash,linear", "seq_len=32,64")
    published = dry_run(elsewhere, tmp_path)[0]  # as if this folder had come with the code
    # Other programs had one of its two cores for four seconds, or both for two.
    assert "latency flash n=32: about 5 s" in published and "time: about 10 s" in published
    assert f"for 2 cells in turn, as others of their sizes took on the machine of {tmp_path.name}/" in published
    assert f"others of bench=latency took 5 s to 5 s each (median 5 s) on the machine of {tmp_path.name}/" in published
    short = dry_run(planned("results_dir=other", *given[1:3], "timeout=4", "repeats=5", "seq_len=32"), tmp_path)[0]
    assert "about 5 s, longer than its timeout of 4 s" in short and "longer" not in published


def test_a_dry_run_refuses_where_no_cell_is_supported(tmp_path):
    given = ["attention=linformer", "causal=true", "seq_len=32,64", f"results_dir={tmp_path}"]
    said, refused = dry_run(planned(*given), NOWHERE)
    assert "0 to measure, 6 unsupported" in said and str(refused).startswith("causal=true: linformer cannot hide")


def test_a_dry_run_refuses_the_folder_that_the_sweep_would_refuse(tmp_path):
    (tmp_path / "file").write_text("mine")
    said, refused = dry_run(planned(f"results_dir={tmp_path / 'file'}", "seq_len=32"), NOWHERE)
    assert "to measure" in said and str(refused).startswith(f"results_dir={str(tmp_path / 'file')!r}: is no folder")


def test_a_dry_run_says_what_is_drawn_once_before_the_first_step(tmp_path):
    given = ["bench=train", "model=classifier", "task=pathfinder", "attention=flash,skeinformer"]
    given.append(f"results_dir={tmp_path}")
    lines = dry_run(planned(*given), NOWHERE)[0].splitlines()
    said = "once, before the first step: 200,000 images of task.name=pathfinder to draw, about 40 min"
    assert lines.count(said) == 1 and not list(tmp_path.iterdir())
    assert "once" not in dry_run(planned(*given, "task.examples=1000"), NOWHERE)[0]


def test_a_dry_run_prices_what_cannot_start_here_and_says_why(tmp_path, capsys, monkeypatch):
    def refuse(cells, cache_dir, *, elsewhere):
        raise ConfigError("task.data: out of reach")

    monkeypatch.setattr("bench.execution.dry_run.check_cells", refuse)
    monkeypatch.setattr(api, "dry_run", partial(dry_run, published=NOWHERE))
    with pytest.raises(ConfigError, match="out of reach"):
        api.run([*SIZES, "attention=flash,v_mean", "seq_len=32", "dry_run=true", f"results_dir={tmp_path}"])
    assert "6 cells, 0 done already, 6 to measure" in capsys.readouterr().out and not list(tmp_path.iterdir())


MISSING = {"hydra/launcher=slurm": "there is no sbatch here", "tracking.uri=gopher://here": "must start with one of"}


@pytest.mark.parametrize("override", MISSING)
def test_a_dry_run_says_what_the_sweep_would_miss_here(tmp_path, capsys, monkeypatch, override):
    monkeypatch.setattr("shutil.which", lambda tool: None)
    monkeypatch.setattr(api, "dry_run", partial(dry_run, published=NOWHERE))
    folder = tmp_path / "runs"
    with pytest.raises(ConfigError, match=MISSING[override]):
        api.run([*SIZES, "tracking=mlflow", override, "seq_len=32", "dry_run=true", f"results_dir={folder}"])
    assert "0 done already" in capsys.readouterr().out and not folder.exists()


@pytest.mark.commands
def test_a_log_has_lines_only_and_the_last_one_draws_the_sweep(tmp_path):
    overrides = ["attention=flash,v_mean", f"results_dir={tmp_path}", "tracking=none", *TINY]
    swept = bench(*overrides)
    assert "\r" not in swept.stderr and "(2 of 2)" in swept.stderr.splitlines()[-1]
    (sweep_id,) = re.findall("^sweep ([0-9a-f]{16}): 2 cells", swept.stderr)
    last = swept.stdout.splitlines()[-1]
    assert last == f"figures: python -m analysis figures --results {tmp_path} --sweep {sweep_id}"


@pytest.mark.commands
def test_help_lists_the_mechanisms_and_the_settings_of_what_is_chosen(capsys):
    alone, helped = bench(), bench("--help")
    assert alone.returncode == helped.returncode == 0 and helped.stdout.startswith(alone.stdout)
    assert "polysketch_learned_local_r32" in helped.stdout and "spectral_norm" in helped.stdout
    app.run(["attention=polysketch_learned_r16,flash", "bench=latency", "hydra/launcher=slurm", "--help"])
    told = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if "=" in line]
    lines = dict(words for words in told if len(words) > 1)
    assert lines["attention.degree=4"] == "p, a power of two"
    assert lines["attention.sketch_size=16"].startswith("r.") and lines["batch_size=null"].startswith("sequences;")
    assert lines["bench.passes=[forward,backward,forward_backward]"] and lines["hydra.launcher.gpus_per_node=0"]
