"""A benchmark is one file and one YAML; reading what it measured needs neither Hydra nor MLflow."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT, environment
from synthetic_records import everything

from bench import measures
from bench.common.errors import ConfigError
from bench.plan.conf import CONF
from bench.plan.config import check, split
from bench.records.store import Store

HERE = Path(__file__).parent
BENCHMARKS = measures.list_benchmarks()
TINY = ["attention=v_mean", "seq_len=32", "batch_size=1", "num_heads=1", "head_dim=4", "repeats=1"]
OUTSIDE = {"ATTENTION_ZOO_PLUGINS": "outside_benchmark"}


def outside():
    """An environment in which the benchmark from outside can be imported."""
    env = environment(**OUTSIDE)
    return {**env, "PYTHONPATH": os.pathsep.join([env["PYTHONPATH"], str(HERE)])}


def python(code, *arguments, env=None):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env or environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")
    (folder / "conf" / "bench").mkdir(parents=True)
    (folder / "conf" / "bench" / "output_norm.yaml").write_text("name: output_norm\npower: 1\nmemory_limit: null\n")
    overrides = ["bench=output_norm", "bench.power=1,2", *TINY, "tracking=none", f"results_dir={folder / 'runs'}"]
    command = [sys.executable, "-m", "bench", "--config-dir", str(folder / "conf"), *overrides]
    return folder / "runs", subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=outside())


@pytest.mark.commands
def test_a_benchmark_from_outside_is_recorded_printed_and_in_the_frame_the_tables_and_mlflow(measured):
    folder, done = measured
    assert done.returncode == 0, done.stderr
    norms = {str(r.config["bench"]["power"]): r.measurements["norm"] for r in Store(folder).load()}
    assert norms["2"] == pytest.approx(norms["1"] ** 2) and norms["1"] > 0
    for norm in norms.values():
        assert f"output_norm {norm / 1e3:.4g} kilo" in done.stdout
    code = """
import json, sys
from analysis.frame import load
from analysis.table import by_cell
from bench.records.store import Store
from bench.measures.summary import summarise
frame = load(sys.argv[1])
print(json.dumps({
    "frame": dict(zip(frame["settings"].str.extract(r'"power": (.)', expand=False), frame["value"])),
    "metrics": sorted(set(frame["metric"])),
    "table": by_cell(frame)["output_norm (kilo)"].tolist(),
    "summary": [summarise(record)["output_norm"] for record in Store(sys.argv[1]).load()],
}))
"""
    read = json.loads(python(code, folder, env=outside()))
    assert read["frame"] == norms and read["metrics"] == ["output_norm"]
    shown = sorted(norm / 1e3 for norm in norms.values())
    assert sorted(map(float, read["table"])) == pytest.approx(shown, rel=1e-3)
    assert sorted(read["summary"]) == pytest.approx(shown)
    # Without its file its numbers are still read.
    code = "import sys; from analysis.frame import load; frame = load(sys.argv[1]); print(*frame.metric, *frame.status)"
    assert python(code, folder) == "norm norm ok ok\n"


@pytest.mark.commands
def test_an_edit_of_a_benchmark_from_outside_measures_it_anew(tmp_path):
    """Its file is part of the content id of its cells."""
    code = """
from bench.plan.cell import Variant, make_cell
from bench.plan.config import check
names = {"attention": {"name": "v_mean"}, "bench": {"name": "output_norm"}, "inputs": {"name": "gaussian"}}
print(make_cell(check({**names, "tracking": {}}), Variant("v_mean", {"name": "v_mean"})).cell_id)
"""
    file = tmp_path / "outside_benchmark.py"
    ids = []
    for text in ("", "", "# edited\n"):
        file.write_text((HERE / file.name).read_text() + text)
        env = environment(**OUTSIDE)
        ids.append(python(code, env={**env, "PYTHONPATH": os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])}))
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.commands
def test_what_reading_records_loads(tmp_path):
    for record in everything():
        Store(tmp_path).write(record)
    code = """
import sys
from analysis.frame import load
from bench.records.store import Store
from bench.measures.summary import summarise
from bench.records.table import crossovers, table
frame, records = load(sys.argv[1]), Store(sys.argv[1]).load()
table(records), crossovers(records), [summarise(record) for record in records]
names = set(frame["bench"])
print(sorted(names), [heavy for heavy in ("hydra", "omegaconf", "mlflow") if heavy in sys.modules])
"""
    assert python(code, tmp_path) == f"{BENCHMARKS} []\n"


def test_every_yaml_is_a_benchmark_whose_settings_come_back_from_a_record_as_they_went_in():
    assert sorted(path.stem for path in (CONF / "bench").glob("*.yaml")) == BENCHMARKS
    for name in BENCHMARKS:
        settings = measures.check({"name": name, "memory_limit": 3})
        benchmark = measures.load({**settings, "against": []})
        assert isinstance(benchmark, measures.get(name)) and benchmark.memory_limit == 3
        assert {"name": name, **dataclasses.asdict(benchmark)} == settings


def config(**bench):
    return check({"attention": {"name": "flash"}, "bench": bench, "inputs": {"name": "gaussian"}, "tracking": {}})


def test_every_pass_is_a_cell():
    cells = split(config(name="latency", passes=["backward", "forward"], min_sample_ms=3))
    assert [cell.bench["passes"] for cell in cells] == [["backward"], ["forward"]]
    assert {cell.bench["min_sample_ms"] for cell in cells} == {3}
    assert [cell.bench["passes"] for cell in split(config(name="memory"))] == [["forward"], ["forward_backward"]]
    (whole,) = split(config(name="decode"))
    assert whole == config(name="decode")


@pytest.mark.parametrize("name", ["latncy", None, [], "context", "../latency"])
def test_a_name_that_is_no_benchmarks_is_refused(name):
    assert measures.find(name) is None
    with pytest.raises(ConfigError, match=r"^bench=.*: must be one of compare, compare_train_step, decode, flops, "):
        measures.check({"name": name})


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match=r"bench=latency: is registered already, by bench\.measures\.latency"):
        measures.register(type("Other", (measures.Benchmark,), {"name": "latency"}))
