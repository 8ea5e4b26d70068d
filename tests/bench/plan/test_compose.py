"""Every YAML is a cell that can be built, and says what the Python says."""

import re

import pytest
import yaml
from hydra import compose, initialize_config_dir

import attention_zoo
from bench import api
from bench.execution.sweep import plan
from bench.plan.cell import make_cell, merge_compared
from bench.plan.compose import CONF, compose_jobs, expand
from bench.plan.config import check

VARIANTS = sorted(path.stem for path in (CONF / "attention").glob("*.yaml"))
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@pytest.fixture(autouse=True)
def hydra_is_ready():
    api.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def load(job):
    return compose("config", job, return_hydra_config=True)


def composed(*overrides):
    return compose_jobs(load, expand(compose("config"), overrides))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_can_be_built(variant):
    config, label = composed(f"attention={variant}", "causal=true", "dtype=bfloat16")[0]
    cell = make_cell(check(config), label)
    assert cell.config["label"] == variant
    if cell.unsupported:
        config.causal = False
        cell = make_cell(check(config), label)
    assert cell.unsupported is None or re.search("package .* is not installed|needs the package", cell.unsupported)


@pytest.mark.parametrize("name", attention_zoo.list_attentions())
def test_the_yaml_of_a_mechanism_lists_its_hyperparameters_with_their_defaults(name):
    written = yaml.safe_load((CONF / "attention" / f"{name}.yaml").read_text())
    assert written == {"name": name, **attention_zoo.hyperparameters(name)}


@pytest.mark.parametrize("size", ["laptop", "paper"])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_can_be_planned(experiment, size):
    overrides = [f"experiment={experiment}", f"size={size}"]
    composed = compose_jobs(load, expand(compose("config", overrides), overrides))
    cells = plan(composed, overrides).cells
    assert len(cells) > 10
    assert len({cell.cell_id for cell in cells}) == len(cells)


def test_the_command_line_replaces_what_an_experiment_sweeps():
    overrides = ["experiment=polysketch_figure1", "attention=flash,v_mean", "seq_len=256"]
    jobs = expand(compose("config", overrides[:1]), overrides)
    assert len(jobs) == 2
    configs = [config for config, _ in compose_jobs(load, jobs)]
    assert {config.attention.name for config in configs} == {"flash", "v_mean"}
    assert {config.seq_len for config in configs} == {256}
    assert {config.causal for config in configs} == {True}


def test_values_set_on_copies_are_what_hydra_composes():
    job = [
        "attention=polysketch_learned_r64",
        "attention.degree=8",
        "seq_len=77",
        "bench.passes=[backward]",
        "dtype=bfloat16",
    ]
    config, label = composed(*job)[0]
    direct = compose("config", job)
    assert config == {key: value for key, value in direct.items() if key != "grids"}
    assert label == "polysketch_learned_r64 degree=8"


def test_batch_keeps_the_tokens_constant():
    cells = [make_cell(check(config), label) for config, label in composed("seq_len=512,4096", "tokens_per_batch=8192")]
    assert [cell.config["batch_size"] for cell in cells] == [16, 2]


def test_the_number_of_features_is_what_each_mechanism_means():
    jobs = composed("bench=spectral_norm", "attention=skeinformer,linformer,v_mean", "bench.num_features=16,32")
    cells = [make_cell(check(config), label) for config, label in jobs]
    assert [c.config["attention"].get("num_features") for c in cells[:2]] == [16, 32]
    assert [c.config["attention"].get("projection_dim") for c in cells[2:4]] == [16, 32]
    # Nothing of V-Mean depends on d: it is measured once.
    assert cells[4].cell_id == cells[5].cell_id


def test_a_comparison_is_one_cell_per_setting_and_the_first_is_the_baseline():
    jobs = composed("bench=compare", "attention=flash,v_mean,softmax", "seq_len=64,128")
    cells = merge_compared([make_cell(check(config), label) for config, label in jobs])
    assert [cell.config["seq_len"] for cell in cells] == [64, 128]
    for cell in cells:
        assert cell.config["label"] == "flash"
        assert [other["label"] for other in cell.config["bench"]["against"]] == ["v_mean", "softmax"]


def test_the_id_follows_what_is_measured_and_nothing_else():
    def ids(*overrides):
        return [make_cell(check(config), label).cell_id for config, label in composed(*overrides)]

    (base,) = ids()
    assert ids("timeout=7", "results_dir=elsewhere", "rerun=all", "tracking=none") == [base]
    for change in ("seq_len=512", "seed=1", "dtype=bfloat16", "causal=true", "repeats=3", "attention.scale=0.5"):
        assert ids(change) != [base], change


def test_the_id_follows_the_code_of_the_mechanism(monkeypatch, tmp_path):
    from bench.plan import cell

    (before,) = [make_cell(check(config), label) for config, label in composed("attention=v_mean")]
    edited = tmp_path / "v_mean.py"
    edited.write_text("# edited")
    real = cell.inspect.getsourcefile
    monkeypatch.setattr(cell.inspect, "getsourcefile", lambda c: edited if c.__name__ == "VMean" else real(c))
    cell._hash_sources.cache_clear()
    (after,) = [make_cell(check(config), label) for config, label in composed("attention=v_mean")]
    cell._hash_sources.cache_clear()
    assert before.config == after.config and before.cell_id != after.cell_id
