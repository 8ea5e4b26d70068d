"""Every YAML is a cell that can be planned; files hold presets, the settings classes hold defaults."""

import os

import pytest
import yaml
from omegaconf import OmegaConf

from bench.common.errors import ConfigError
from bench.execution import sweep
from bench.plan import load
from bench.plan.cell import _measured, clear_caches, make_cell, merge_compared
from bench.plan.compose import compose_jobs, expand, grid_choices
from bench.plan.conf import CONF
from bench.plan.config import check, defaults
from bench.plan.load import Loader
from bench.plan.machine import choose_device
from bench.tasks import settings

FILES = sorted(path for path in CONF.glob("*/*.yaml") if path.parent.name != "experiment")
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
LOADER = Loader()
ALIKE = ("seed=", "training.learning_rate=")
pytestmark = pytest.mark.usefixtures("same_code")


def composed(*overrides, loader=LOADER):
    return compose_jobs(loader.load, expand(loader.load(grid_choices(overrides)), overrides))


def made(*overrides):
    return [make_cell(check(config), variant) for config, variant in composed(*overrides)]


def ids(*overrides):
    return [cell.cell_id for cell in made(*overrides)]


def test_a_training_on_a_file_is_another_one_after_the_file_changed(tmp_path):
    """And so is one on a folder; what packages bring has the ids of older records."""
    text, folder = tmp_path / "own.txt", tmp_path / "archive"
    (folder / "metadata").mkdir(parents=True)
    language = ("task=language_modelling", "model=transformer_tiny", "seq_len=16", f"task.text={text}")
    images = ("task=pathfinder", "model=classifier", f"task.data={folder}", "seq_len=1024")
    found, told = [], []
    for content in ("first", "other"):
        text.write_text(content)
        (folder / content).write_text("")
        (folder / "metadata" / "1.npy").write_text(f". {content} 0 1\n")
        clear_caches()
        found.append([ids("bench=train", *asked) for asked in (language, images)])
        told.append([made("bench=train", *asked)[0].config["files"] for asked in (language, images)])
    assert found[0][0] != found[1][0] and found[0][1] != found[1][1]
    assert told[0][0] != told[1][0] and told[0][1] != told[1][1]  # so figures do not compare them either
    assert "files" not in made("bench=train", "task=reversal", "model=encoder", "causal=false")[0].config
    assert settings({"name": "language_modelling"}).own_files() == {}
    assert settings({"name": "pathfinder"}).own_files() == {}


def test_an_id_names_the_version_of_what_examples_are_made_of_and_not_how_often_they_are_saved(monkeypatch):
    given = ("bench=train", "task=language_modelling", "model=transformer_tiny", "seq_len=64", "task.text=sympy")
    (before,), other = ids(*given), ("training.checkpoint_seconds=7",)
    assert ids(*given, *other) == [before]
    monkeypatch.setattr("bench.plan.cell.installed", lambda package: f"another {package}")
    assert ids(*given) != [before]


def test_an_id_has_only_what_a_task_reads_of_files(tmp_path):
    """No weights beside a tokenizer, no other file beside the papers, and no name of the folder."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    papers = [tmp_path / name for name in ("papers", "copy")]
    for folder in papers:
        folder.mkdir()
        for split in ("train", "eval", "test"):
            (folder / f"aan.{split}.tsv").write_text("0\t1\t2\ta\tb\n")
            os.utime(folder / f"aan.{split}.tsv", ns=(10**18, 10**18))
    of_papers = [{"name": name, "data": str(papers[0])} for name in ("retrieval", "text")]
    asked = {"name": "language_modelling", "tokenizer": str(model)}, *of_papers
    before = [settings(own).own_files() for own in asked]
    assert settings({"name": "retrieval", "data": str(papers[1])}).own_files() == before[1]
    assert settings({"name": "text", "data": str(papers[1])}).own_files() == before[2]
    (model / "model.safetensors").write_text("weights")
    (papers[0] / "notes").write_text("mine")
    assert [settings(own).own_files() == old for own, old in zip(asked, before, strict=True)] == [True, True, False]
    (model / "tokenizer.json").write_text("{}")
    os.utime(papers[0] / "aan.test.tsv")
    assert all(settings(own).own_files() != old for own, old in zip(asked, before, strict=True))


def compared(*overrides):
    return merge_compared(made("bench=compare", *overrides))


def test_every_variant_has_its_name_as_label():
    variants = sorted(path.stem for path in (CONF / "attention").glob("*.yaml"))
    cells = made(f"attention={','.join(variants)}", "causal=true", "dtype=bfloat16", "bench.passes=forward")
    assert [cell.config["label"] for cell in cells] == variants


def test_a_file_repeats_no_default():
    for file in FILES:
        written, group = yaml.safe_load(file.read_text()), file.parent.name
        own = written.get(group, written)
        known = {} if group == "model" else defaults(group, own.get("name"))  # a size that a paper names is always said
        assert [key for key, value in own.items() if key != "name" and key in known and known[key] == value] == [], file


@pytest.mark.parametrize("group", ["attention", "bench", "inputs"])
def test_every_default_can_be_set(group):
    names = [file.stem for file in FILES if file.parent.name == group]
    for config, _ in composed(f"{group}={','.join(names)}"):
        assert config[group].keys() == {"name", *defaults(group, config[group]["name"])}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_can_be_planned(experiment):
    config, typed = LOADER.load([f"experiment={experiment}"]), {}
    for size in config.grids:
        jobs = expand(OmegaConf.merge(config, {"size": size}), [f"experiment={experiment}", f"size={size}"])
        assert len(jobs) > (2 if size == "minutes" else 10)
        # Another seed or rate changes nothing of a plan but itself: one is planned.
        typed[size] = {tuple(word for word in job if not word.startswith(ALIKE)): job for job in jobs}.values()
    configs = iter(compose_jobs(LOADER.load, [job for jobs in typed.values() for job in jobs]))
    for size, jobs in typed.items():
        assert sweep.plan([next(configs) for _ in jobs], []).cells, size


def test_the_command_line_replaces_what_an_experiment_sweeps():
    overrides = ["experiment=polysketch_figure1", "attention=flash,v_mean", "seq_len=256"]
    configs = [config for config, _ in composed(*overrides)]
    assert len(configs) == 2
    assert {config["attention"]["name"] for config in configs} == {"flash", "v_mean"}
    assert {config["seq_len"] for config in configs} == {256}
    assert {config["causal"] for config in configs} == {True}


def test_a_mechanism_of_the_command_line_has_no_settings_of_the_one_it_replaces():
    overrides = ["experiment=induction_small", "attention=softmax,polysketch", "seed=0"]
    _, (polysketch, _) = composed(*overrides)  # two grids, equal now
    assert polysketch["attention"]["block_size"] == made("attention=polysketch")[0].config["attention"]["block_size"]


def test_what_a_grid_sets_of_whatever_mechanism_stays():
    overrides = ["experiment=sketch_error", "attention=polysketch_random_r64"]
    configs = [config for config, _ in composed(*overrides)]
    assert {config["attention"]["sketch"] for config in configs} == {"gaussian", "srht", "learned"}


def test_values_set_on_copies_are_what_hydra_composes():
    job = ["attention=polysketch_learned_r64", "attention.degree=8", "seq_len=77", "bench.passes=[backward]"]
    config, variant = composed(*job)[0]
    assert config == {key: value for key, value in LOADER.load(job).items() if key not in ("grids", "hydra")}
    assert variant.name == "polysketch_learned_r64" and variant.overridden == {o.partition("=")[0] for o in job}


COMPARED = {
    "attention=flash,v_mean,softmax": ["flash", "v_mean", "softmax"],
    "attention=flash,flash_flash impl=reference,fused": [
        *("flash impl=reference", "flash impl=fused", "flash_flash impl=reference", "flash_flash impl=fused")
    ],
    "attention=flash,polysketch dtype=float32,bfloat16 causal=true": [
        *("flash dtype=float32", "flash dtype=bfloat16", "polysketch dtype=float32", "polysketch dtype=bfloat16")
    ],
    "attention=flash,v_mean dtype=bfloat16 impl=reference": ["flash", "v_mean"],
    "attention=polynomial,polynomial_p4,polynomial": ["polynomial", "polynomial_p4"],
}


@pytest.mark.parametrize("typed", COMPARED)
def test_a_comparison_is_one_cell_per_setting_and_its_labels_name_what_differs(typed):
    cells = compared(*typed.split(), "seq_len=64,128")
    assert [cell.config["seq_len"] for cell in cells] == [64, 128]
    for cell in cells:
        assert [entry["label"] for entry in cell.entries] == COMPARED[typed]
        said = [word.split("=") for entry in cell.entries for word in entry["label"].split()[1:]]
        assert said == [
            [key, entry[key]] for entry in cell.entries for key in ("impl", "dtype") if key in entry["label"]
        ]


def test_a_comparison_of_training_steps_has_every_model_and_names_what_differs():
    common = ["bench=compare_train_step", "task=language_modelling", "seq_len=64", "batch_size=2"]
    grids = [["attention=flash,softmax", "model=transformer_small"], ["attention=flash", "model=transformer_small_13"]]
    (cell,) = merge_compared([cell for grid in grids for cell in made(*common, *grid)])
    layers = {"flash model.layers=12": 12, "softmax model.layers=12": 12, "flash model.layers=13": 13}
    assert [(entry["label"], entry["model"]["layers"]) for entry in cell.entries] == [*layers.items()]
    (alike,) = merge_compared(made(*common, *grids[0]))
    assert alike.config["label"] == "flash" and alike.cell_id != cell.cell_id


FLOPS = "bench=flops attention"
# Nothing of the last one depends on d.
OF_SIZE = {"performer": "attention.num_features=64", "linformer": "attention.projection_dim=64", "v_mean": ""}


@pytest.mark.parametrize("typed", ["attention=flash,", "attention=flash, ", "attention=,flash", "seq_len=64,,128"])
def test_a_comma_without_a_value_is_said_in_words(typed):
    with pytest.raises(ConfigError, match=f"^{typed}: must have a value on both sides of each comma$"):
        composed(typed)


COEFFICIENTS = "attention=polynomial_square attention.coefficients"
SAME = [
    ("seq_len='64' causal=1 timeout=7", "seq_len=64 causal=true timeout=7.0"),
    ("bench.passes=forward", "bench.passes=[forward]"),
    ("seq_len=64 batch_size=${seq_len}", "seq_len=64 batch_size=64"),
    ("attention=performer_2048", "attention=performer attention.num_features=2048"),
    ("attention=polynomial attention.scale=1", "attention=polynomial attention.scale=1.0"),
    ("attention=softmax attention.dropout=-0.0", "attention=softmax"),
    ("attention=linear", "attention=linear ~attention.eps"),
    (f"{COEFFICIENTS}=[1,2]", f"{COEFFICIENTS}=[1.0,2.0]"),
    ("bench.min_sample_ms=0", "bench.min_sample_ms=-0.0"),
    ("tokens_per_batch=8192 seq_len=512", "seq_len=512 batch_size=16"),
    ("tokens_per_batch=8192 seq_len=4096", "seq_len=4096 batch_size=2"),
    ("device=auto", f"device={choose_device('auto')}"),
    *((f"{FLOPS}={name} bench.num_features=64", f"{FLOPS}={name} {own}") for name, own in OF_SIZE.items()),
    ("timeout=7 results_dir=elsewhere rerun=all tracking=none", ""),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_is_measured_alike_is_one_cell_however_it_was_written(one, other):
    assert ids(*one.split()) == ids(*other.split())


CHANGES = "seq_len=512 seed=1 dtype=bfloat16 causal=true repeats=3 num_heads=3 impl=reference attention.scale=0.5"
CHANGES += " attention=flash_flash inputs.score_scale=2 bench=memory bench.min_sample_ms=1"


def test_the_id_follows_what_is_measured():
    assert [change for change in CHANGES.split() if ids(change) == ids()] == []


def test_the_machine_says_which_gpu_and_the_configuration_that_it_is_one():
    config = {**made()[0].config, "device": "cuda:1"}
    assert _measured(config) == _measured({**config, "device": "cuda:0"}) == _measured({**config, "device": "cuda"})
    assert _measured(config) != _measured({**config, "device": "cpu"})


def test_a_sweep_measures_a_cell_of_two_names_once():
    cells = sweep.plan(composed("attention=polynomial_p4,polynomial"), []).cells
    assert {cell.config["label"] for cell in cells} == {"polynomial_p4"}
    assert len(cells) == len(sweep.plan(composed("attention=polynomial"), []).cells)


LABELS = {
    "attention=polysketch_learned_r64 attention.degree=8": ["polysketch_learned_r64 degree=8"],
    "attention=polynomial attention.degree=2,4": ["polynomial degree=2", "polynomial"],
    "attention=polynomial attention.scale=1,2": ["polynomial", "polynomial scale=2.0"],
    "attention=polysketch attention.qk_layernorm=false attention.block_size=64 attention.sketch=learned": [
        "polysketch sketch=learned block_size=64 qk_layernorm=false"
    ],
    "bench=flops attention=polysketch bench.num_features=16,64": ["polysketch"] * 2,
    "bench=flops attention=polysketch attention.sketch_size=64 bench.num_features=64": ["polysketch sketch_size=64"],
}


@pytest.mark.parametrize("typed", LABELS)
def test_a_label_is_the_file_and_what_differs_from_it(typed):
    assert [cell.config["label"] for cell in made(*typed.split())] == LABELS[typed]


def test_a_model_without_attention_is_named_by_itself_and_answers_are_of_one_kind():
    typed = ("bench=train", "task=listops", "attention=identity")
    cells = made(*typed, "model=classifier,bag_of_tokens,convolution")
    assert [cell.config["label"] for cell in cells] == ["identity", "bag_of_tokens", "convolution"]
    for wrong, said in {
        "attention=flash model=convolution task=listops": "attention=flash: must be identity with model.name=conv",
        "model=classifier task=reversal": "model.name=classifier: must have a task whose answers are classes",
        # Whatever their masks are.
        "model=classifier task=language_modelling": "model.name=classifier: must have a task whose answers are classes",
        "model=encoder task=listops": "model.name=encoder: must have a task whose answers are tokens",
    }.items():
        with pytest.raises(ConfigError, match=f"^{said}"):
            made("bench=train", *wrong.split())


def test_a_label_says_what_an_experiment_changed_in_a_variant(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "eighth.yaml").write_text("# @package _global_\nattention: {degree: 8}\n")
    configs = composed("experiment=eighth", "attention=polynomial,polynomial_p8", loader=Loader(str(tmp_path)))
    labels = [make_cell(check(config), variant).config["label"] for config, variant in configs]
    assert labels == ["polynomial degree=8", "polynomial_p8"]


def test_a_comparison_gives_every_mechanism_that_has_one_the_size_asked_for():
    cells = compared("attention=flash,skeinformer,linformer,reformer", "bench.num_features=32,64")
    assert [cell.config["bench"]["num_features"] for cell in cells] == [32, 64]
    for cell, size in zip(cells, (32, 64), strict=True):
        _, skeinformer, linformer, reformer = cell.entries
        assert skeinformer["attention"]["num_features"] == linformer["attention"]["projection_dim"] == size
        assert reformer["label"] == "reformer" and f"d={size}" in cell.title
    (own,) = compared("attention=flash,skeinformer,polysketch_random_r32")
    assert [other["attention"].get("num_features") for other in own.config["bench"]["against"]] == [256, None]
    assert own.config["bench"]["against"][1]["attention"]["sketch_size"] == 32
    # Asked for or not, it is what it is.
    asked = [compared("attention=flash,skeinformer", f"bench.num_features={size}")[0].cell_id for size in (256, 64)]
    assert compared("attention=flash,skeinformer")[0].cell_id == asked[0] != asked[1]
    with pytest.raises(ConfigError, match=r"^attention.num_features=8: contradicts bench.num_features=64$"):
        compared("attention=skeinformer,informer", "attention.num_features=8", "bench.num_features=64")


def test_the_id_of_a_comparison_follows_its_entries_and_their_order_and_not_their_names():
    (a,), (b,) = compared("attention=flash,polynomial"), compared("attention=flash,polynomial_p4")
    assert a.cell_id == b.cell_id
    for other in ("polynomial,flash", "flash,polynomial_p2", "flash,polynomial,v_mean"):
        assert compared(f"attention={other}")[0].cell_id != a.cell_id
    assert compared("attention=flash,polynomial", "impl=reference")[0].cell_id != a.cell_id
    names = ("float32,bfloat16", "bfloat16,float32", "float32,float64")
    dtypes = [compared("attention=flash", f"dtype={each}")[0].cell_id for each in names]
    assert len(set(dtypes)) == 3


def test_a_group_of_the_users_own_may_have_a_package(tmp_path):
    files = {"attention/mine": "causal: true\nattention: {name: flash, scale: 0.5}", "more/x": "seq_len: 77"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / f"{name}.yaml").write_text(f"# @package _global_\n{text}\n")
    configs = composed("attention=mine,flash", "+more=x", loader=Loader(str(tmp_path)))
    found = [(variant.name, config["causal"], config["seq_len"]) for config, variant in configs]
    assert found == [("mine", True, 77), ("flash", False, 77)]


def test_a_cell_more_costs_no_call_that_takes_long(monkeypatch):
    calls = []
    for owner, name in ((load, "_composed"), (OmegaConf, "merge"), (OmegaConf, "create")):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, real=real, **more: calls.append(args) or real(*args, **more))
    costs = []
    for seeds in (3, 3, 30):  # files are composed once in a process
        before = len(calls)
        assert len(composed(f"seed=range({seeds})", "attention=flash,softmax")) == 2 * seeds
        costs.append(len(calls) - before)
    assert costs[1] == costs[2] <= costs[0]
