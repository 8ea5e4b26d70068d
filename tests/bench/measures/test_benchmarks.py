"""A benchmark is one file and one YAML; reading what it measured needs neither Hydra nor MLflow."""

import dataclasses
import json
import os
import re

import pytest
from command import ROOT, environment, python

from bench import measures
from bench.common.errors import ConfigError
from bench.plan.conf import CONF
from bench.plan.config import check, split
from bench.records.store import Store

PAGE = (ROOT / "docs" / "tutorials" / "add_a_benchmark.md").read_text()
OUTSIDE, YAML = re.findall(r"^```\{code-block\} \w+\n:caption: \S+\n\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
BENCHMARKS = measures.list_benchmarks()
TINY = ["attention=v_mean", "seq_len=32", "batch_size=1", "num_heads=1", "head_dim=4", "repeats=1"]


def printed(*arguments, outside=None):
    """What a program says, perhaps with the tutorial's benchmark, which lies in a folder outside."""
    path = f"{environment()['PYTHONPATH']}{os.pathsep}{outside}"
    done = python(*arguments, **({"ATTENTION_ZOO_PLUGINS": "output_norm", "PYTHONPATH": path} if outside else {}))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.commands
def test_a_benchmark_from_outside_is_recorded_printed_and_in_the_frame_the_tables_and_mlflow(tmp_path):
    (tmp_path / "conf" / "bench").mkdir(parents=True)
    (tmp_path / "conf" / "bench" / "output_norm.yaml").write_text(YAML)
    (tmp_path / "output_norm.py").write_text(OUTSIDE)
    overrides = ["bench=output_norm", "bench.power=1,2", *TINY, "tracking=none", f"results_dir={tmp_path / 'runs'}"]
    table = printed("-m", "bench", "--config-dir", tmp_path / "conf", *overrides, outside=tmp_path)
    norms = {str(r.config["bench"]["power"]): r.measurements["norm"] for r in Store(tmp_path / "runs").load()}
    assert norms["2"] == pytest.approx(norms["1"] ** 2) and norms["1"] > 0
    assert all(f"output_norm {norm:.4g}" in table for norm in norms.values())
    code = """
import json, sys
from analysis.frame import load
from analysis.table import by_cell
from bench.records.store import Store
from bench.records.summary import summarise
frame = load(sys.argv[1])
print(json.dumps({
    "frame": dict(zip(frame["settings"].str.extract(r'"power": (.)', expand=False), frame["value"])),
    "metrics": sorted(set(frame["metric"])),
    "table": by_cell(frame)["output_norm"].tolist(),
    "summary": [summarise(record)["output_norm"] for record in Store(sys.argv[1]).load()],
}))
"""
    read = json.loads(printed("-c", code, tmp_path / "runs", outside=tmp_path))
    assert read["frame"] == norms and read["metrics"] == ["output_norm"]
    assert sorted(map(float, read["table"])) == pytest.approx(sorted(norms.values()), rel=1e-3)
    assert sorted(read["summary"]) == pytest.approx(sorted(norms.values()))
    # Without its file a record says the same; an older one gives its numbers.
    code = """
import sys, dataclasses
from analysis.frame import load, tidy
from bench.records.store import Store
older = [dataclasses.replace(record, summary={}) for record in Store(sys.argv[1]).load()]
print(*load(sys.argv[1]).metric, *tidy(older).metric)
"""
    assert printed("-c", code, tmp_path / "runs") == "output_norm output_norm norm norm\n"


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
    known = "capacity, compare, compare_train_step, decode, flops, "
    with pytest.raises(ConfigError, match=f"^bench=.*: must be one of {known}"):
        measures.check({"name": name})


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match=r"bench=latency: is registered already, by bench\.measures\.latency"):
        measures.register(type("Other", (measures.Benchmark,), {"name": "latency"}))
