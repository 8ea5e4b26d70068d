"""Mistakes in a configuration: one line that names the key, before any cell starts, and exit code 2."""

import os

import pytest
from command import TINY, bench, environment
from hydra.core.global_hydra import GlobalHydra

from bench.__main__ import main
from bench.execution import sweep

# What is typed, and what the line must name.
MALFORMED = [
    ("attention=flsh", "attention=flsh: unknown; did you mean flash"),
    ("attention=flash,flsh", "attention=flsh"),
    ("attention=$(rm -rf .)", "$(rm -rf .)"),
    ("attention=../../etc/passwd", "attention"),
    ("attention.name=../../etc/passwd", "attention='../../etc/passwd'"),
    ("attention.name=os.system", "attention='os.system'"),
    ("+attention._target_=os.system", "attention._target_"),
    ("bench=latncy", "bench=latncy: unknown; did you mean latency"),
    ("experiment=nothing", "experiment=nothing"),
    ("tracking=wandb", "tracking=wandb"),
    ("inputs.name=os.system", "inputs.name='os.system'"),
    ("seq_ln=5", "seq_ln: unknown; did you mean seq_len"),
    ("+x=1", "x=1: unknown"),
    ("seq_len=abc", "seq_len='abc'"),
    ("seq_len=0", "seq_len=0: must be"),
    ("seq_len=-4", "seq_len=-4: must be"),
    ("seq_len=1.5", "seq_len=1.5"),
    ("seq_len=???", "seq_len"),
    ("seq_len=null", "seq_len"),
    ("seq_len=${foo}", "seq_len"),
    ("seq_len=${oc.env:HOME}", "seq_len='${oc.env:HOME}': must not use a resolver"),
    ("seq_len=[1,2", "seq_len=[1,2"),
    ("num_heads=1e400", "num_heads"),
    ("num_heads=0", "num_heads=0"),
    ("batch_size=0", "batch_size=0"),
    ("tokens_per_batch=100 batch_size=null", "tokens_per_batch=100: must be at least seq_len"),
    ("dtype=float8", "dtype='float8': must be one of"),
    ("causal=maybe", "causal='maybe'"),
    ("device=tpu", "device='tpu'"),
    ("impl=fast", "impl='fast'"),
    ("impl=reference,fast", "impl='fast'"),
    ("repeats=0", "repeats=0"),
    ("timeout=abc", "timeout='abc'"),
    ("timeout=-1", "timeout=-1"),
    ("timeout=nan", "timeout=nan"),
    ("rerun=sometimes", "rerun='sometimes'"),
    ("max_cells=0", "max_cells=0: must be"),
    ("max_cells=abc seed=range(0,1000000000)", "max_cells='abc': must be"),
    ("seed=range(0,1000000)", "max_cells=10000: the sweep has 1,000,000 cells; max_cells=1000000 allows them"),
    ("seed=range(0,1000000000000)", "1,000,000,000,000 cells"),
    ("seed=range(0,1000) seq_len=range(1,1001)", "1,000,000 cells"),
    ("seed=1,2,3 max_cells=2", "max_cells=2: the sweep has 3 cells"),
    ("experiment=decode max_cells=5", "max_cells=5: the sweep has"),
    ("grids=5", "grids=5: must be grids by size"),
    ("seq_len=9223372036854775808", "seq_len=9223372036854775808: must fit into 64 bits"),
    ("seed=1,100000000000000000000000000", "seed=100000000000000000000000000: must fit into 64 bits"),
    ("attention=performer attention.num_features=100000000000000000000", "must fit into 64 bits"),
    ("results_dir=", "results_dir='': must be a folder"),
    ("hydra.mode=RUN", "hydra.mode=RUN: not allowed"),
    ("hydra.launcher._target_=os.system", "hydra.launcher._target_='os.system': must be a plugin of Hydra"),
    ("hydra.sweeper._target_=os.system", "hydra.sweeper._target_='os.system': must be a plugin of Hydra"),
    ("+hydra.callbacks.x._target_=os.getcwd", "hydra.callbacks.x._target_=os.getcwd: not allowed"),
    ("+hydra/callbacks=mine", "hydra/callbacks=mine: not allowed"),
    ("seed=range(0,10,0)", "seed=range(0,10,0): a range's step must not be 0"),
    ("--nope", "--nope: unknown"),
    ("--config-dir", "--config-dir"),
    ("--experimental-rerun x", "--experimental-rerun"),
    ("--run", "--run"),
    ("size=huge", "size='huge'"),
    ("size=laptop,paper", "size=laptop,paper: must have one value"),
    ("experiment=demo,decode", "experiment=demo,decode: must have one value"),
    ("experiment=[demo,decode]", "experiment=[demo,decode]: must have one value"),
    ("seed=-1", "seed=-1"),
    ("results_dir=a,b", "results_dir='b': must have one value"),
    ("bench.passes=[sideways]", "bench.passes='sideways'"),
    ("bench.passes=[]", "bench.passes=[]"),
    ("bench.passes=forward", "bench.passes='forward'"),
    ("bench.memory_limit=-1", "bench.memory_limit=-1"),
    ("bench=spectral_norm bench.num_features=0", "bench.num_features=0"),
    (
        "bench=flops attention=polysketch attention.sketch_size=32 bench.num_features=64",
        "attention.sketch_size=32: contradicts bench.num_features=64",
    ),
    ("bench=compare", "attention=flash: bench=compare needs two or more"),
    ("inputs.score_scale=0", "inputs.score_scale=0"),
    ("inputs=pretrained inputs.weights=stolen", "inputs.weights='stolen'"),
    ("inputs=pretrained inputs.layer=-1", "inputs.layer=-1"),
    ("attention=polynomial attention.degree=3", "attention.degree=3: must be even"),
    ("attention=polynomial attention.degre=4", "attention.degre: unknown; did you mean degree"),
    ("attention=polynomial +attention.foo=4", "attention.foo=4: unknown; polynomial takes degree"),
    ("attention=polysketch attention.sketch=none", "attention.sketch='none': must be one of gaussian"),
    ("attention=polysketch attention.sketch_size=0", "attention.sketch_size=0"),
    ("attention=polysketch_srht_r32 head_dim=48", "head_dim=48: must be a power of two"),
    ("attention=polysketch_random_local_r32", "local=true: polysketch has exact diagonal blocks only with causal"),
    ("attention=linformer causal=true", "causal=true: linformer cannot"),
    ("attention=performer attention.num_features=many", "attention.num_features='many'"),
    ("attention=flash impl=fused attention.backend=warp", "attention.backend='warp'"),
    ("attention=performer impl=fused", "impl=fused: performer has reference only"),
]


@pytest.fixture
def no_cell_may_start(monkeypatch):
    def forbidden(cell, *args, **kwargs):
        assert cell.unsupported, f"{cell.title} was started"
        return real(cell, *args, **kwargs)

    real = sweep.run_cell
    monkeypatch.setattr(sweep, "run_cell", forbidden)


@pytest.mark.parametrize(("typed", "named"), MALFORMED, ids=[typed for typed, _ in MALFORMED])
def test_one_line_names_the_mistake(typed, named, tmp_path, monkeypatch, capsys, no_cell_may_start):
    GlobalHydra.instance().clear()
    words = [typed] if typed.startswith("attention=$") else typed.split(" ")
    common = [] if "results_dir" in typed else [f"results_dir={tmp_path}"]
    common += [] if "tracking" in typed else ["tracking=none"]
    monkeypatch.setattr("sys.argv", ["bench", *common, *words])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1 and len(printed.err) < 800, printed.err
    assert printed.err.startswith("error: ") and named in printed.err


@pytest.mark.parametrize("folder", ["file", "file/below", "/proc/1/nope", "name" * 100])
def test_a_results_folder_that_is_none_is_one_line(folder, tmp_path, monkeypatch, capsys, no_cell_may_start):
    GlobalHydra.instance().clear()
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["bench", "tracking=none", f"results_dir={folder}"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert printed.err.count("\n") == 1 and printed.err.startswith(f"error: results_dir='{folder}': ")


BROKEN_YAML = [
    (b"seq_len: [1\n", "line 2"),
    (b"seq_len: 5\nseq_len: 6\n", "duplicate key seq_len"),
    (b"seq_len: !!python/object/apply:os.system [exit]\n", "could not determine a constructor"),
    (b"\xff\xfe\x00seq", "not UTF-8"),
    (b"grids: " + b"[" * 3000 + b"]" * 3000, "nested too deeply"),
]


@pytest.mark.parametrize(("text", "named"), BROKEN_YAML, ids=[named for _, named in BROKEN_YAML])
def test_a_broken_experiment_is_one_line(text, named, tmp_path, monkeypatch, capsys, no_cell_may_start):
    GlobalHydra.instance().clear()
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "x.yaml").write_bytes(text)
    # The flag between the overrides, as people type it.
    monkeypatch.setattr("sys.argv", ["bench", "tracking=none", "--config-dir", str(tmp_path), "experiment=x"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert printed.err.count("\n") == 1 and printed.err.startswith("error: ") and named in printed.err


PLUGINS = ["nothere.x", "a b", "..", "raises", "ends", "interrupts", "half"]


@pytest.mark.commands
@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_that_cannot_be_imported_is_one_line(plugin, tmp_path):
    for name, text in {
        "raises": "raise RuntimeError('boo\\nmore')",
        "ends": "raise SystemExit(0)",
        "interrupts": "raise GeneratorExit",
        "half": "x = (",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    path = os.pathsep.join([environment()["PYTHONPATH"], str(tmp_path)])
    result = bench(*TINY, f"results_dir={tmp_path}/runs", ATTENTION_ZOO_PLUGINS=plugin, PYTHONPATH=path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1 and result.stderr.startswith(f"error: ATTENTION_ZOO_PLUGINS={plugin!r}: ")
    assert not (tmp_path / "runs").exists()


def test_a_yaml_with_a_mistake_is_one_line(tmp_path, monkeypatch, capsys, no_cell_may_start):
    GlobalHydra.instance().clear()
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "mine.yaml").write_text("name: flash\nscale: [1\n")
    monkeypatch.setattr("sys.argv", ["bench", "--config-dir", str(tmp_path), "tracking=none", "attention=mine"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert printed.err.count("\n") == 1 and "mine.yaml" in printed.err and "line 3" in printed.err


@pytest.mark.commands
def test_the_real_command_says_the_same(tmp_path):
    result = bench("attention=polynomial", "attention.degree=3", f"results_dir={tmp_path}", *TINY)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: attention.degree=3: must be even, so that weights are not negative\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.commands
def test_help_lists_the_mechanisms():
    result = bench("--help")
    assert result.returncode == 0
    assert "polysketch_learned_local_r32" in result.stdout and "spectral_norm" in result.stdout
