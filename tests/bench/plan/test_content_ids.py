"""A results folder of version 0.1 sweeps on: what was recorded resolves to the same settings, and has the same id."""

import json
from pathlib import Path

import pytest

from bench import api
from bench.plan import cell, machine
from bench.plan.load import Loader
from bench.plan.sources import Source
from bench.records.store import Store

RECORDS = Store(Path(__file__).parents[3] / "results" / "laptop")
pytestmark = pytest.mark.usefixtures("same_code")
# The code that some records ran, as its commit had it.
SOURCES = json.loads((Path(__file__).parent / "recorded_sources.json").read_text())
OF_A_CELL = ("seq_len", "batch_size", "num_heads", "head_dim", "dtype", "causal", "device", "impl", "seed", "repeats")


def of_every_benchmark():
    """For each benchmark the configuration of a record of one mechanism that needs no data."""
    found = {}
    for name in RECORDS.names():
        config = json.loads(RECORDS.read_record(name))["config"]
        plain = config["inputs"]["name"] in ("gaussian", config.get("task", {}).get("name"))
        if plain and " " not in config["label"] and "against" not in config["bench"]:
            found.setdefault(config["bench"]["name"], config)
    return found


def typed(config):
    """A command line that asks for a cell."""
    groups = {"attention": config["label"], "bench": config["bench"]["name"]}
    if "task" in config:
        models = {"transformer": "transformer_tiny", "encoder": "encoder"}
        groups |= {"task": config["task"]["name"], "model": models[config["model"]["name"]]}
    settings = {key: config[key] for key in OF_A_CELL}
    for group in ("bench", "model", "task", "training"):
        settings |= {f"{group}.{key}": value for key, value in config.get(group, {}).items() if key != "name"}
    words = {**groups, **settings}
    return [f"{key}={'null' if value is None else value}" for key, value in words.items()]


@pytest.mark.parametrize("name", SOURCES)
def test_the_id_of_a_record_comes_out_for_its_settings_code_and_machine(name, monkeypatch):
    record = RECORDS.decode(name)
    # It was made before machines had vector instructions.
    facts = {name: record.machine[name] for name in machine.ON_CPU if name != "cpu_vectors"}
    monkeypatch.setattr(cell, "measuring_identity", lambda device, place: facts)
    sources = tuple(Source(name, "", sha256) for name, sha256 in SOURCES[name].items())
    assert cell.content_id(record.config, sources) == record.cell_id


def test_settings_resolve_to_what_was_recorded():
    configs = of_every_benchmark()
    assert len(configs) >= 7
    for bench, config in configs.items():
        (planned,) = api.planned(Loader(), [*typed(config), "tracking=none"]).cells
        for key, value in config.items():
            now = planned.config[key]
            assert (now | value if isinstance(value, dict) else value) == now, (bench, key)
