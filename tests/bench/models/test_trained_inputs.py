"""Inputs from models that were trained here: what their mechanisms are given, and the mechanisms themselves."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
import transformers
from model_cases import DECODERS, ENCODERS, config, turned
from reading import load
from refusals import refused
from safetensors.torch import load_file, save_file

import attention_zoo
import bench.inputs
from attention_zoo import UnsupportedError
from bench import models, tasks
from bench.common.errors import ConfigError
from bench.execution import child
from bench.inputs.base import inputs_seed
from bench.measures.context import CellContext
from bench.measures.spectral_norm import SpectralNorm
from bench.measures.train import Train
from bench.models.layers import MultiHead
from bench.plan import cell as plan_cell
from bench.plan.cell import Variant, make_cell, merge_compared
from bench.plan.config import check
from bench.training import inputs as trained_inputs
from bench.training import saved
from bench.training.inputs import Trained, attention_inputs
from bench.training.loop import Trainer

LEARNED = {"name": "polysketch", "sketch": "learned", "sketch_size": 8}
OF_KIND = {
    "decoder": {"task": {"name": "induction_heads"}, "model": {"name": "transformer", "layers": 2}, "causal": True},
    "encoder": {"task": {"name": "reversal"}, "model": {"name": "encoder", "layers": 2}, "causal": False},
    "classifier": {"task": {"name": "retrieval"}, "model": {"name": "classifier", "layers": 2}, "causal": False},
}
SIZES = {"seq_len": 12, "batch_size": 4, "num_heads": 2, "head_dim": 8, "device": "cpu", "tracking": {}}


def planned(attention, **values):
    attention = {"name": attention} if isinstance(attention, str) else attention
    checked = check({"inputs": {"name": "gaussian"}, **SIZES, **values, "attention": attention})
    return make_cell(checked, Variant(attention["name"], {"name": attention["name"]}))


def train(folder, attention=LEARNED, kind="decoder", steps=3, seed=5, **values):
    """A folder as `bench=train` leaves it."""
    training = {"steps": steps, "warmup": 0, "test_examples": 4, "evaluation_examples": 4, "learning_rate": 0.05}
    of_kind = {**OF_KIND[kind], "training": training, "seed": seed, **values}
    made = planned(attention, bench={"name": "train"}, **of_kind)
    (folder / "inputs").mkdir(parents=True, exist_ok=True)
    Train().measure(CellContext(made.config, folder / "inputs", keep=folder))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function of `train`'s arguments, each of which is trained once; nobody changes what it gives."""
    folders = {}

    def of(**given):
        key = json.dumps(given, sort_keys=True)
        if key not in folders:
            folders[key] = train(tmp_path_factory.mktemp("trained"), **given)
        return folders[key]

    return of


@pytest.fixture
def decoder(trained, tmp_path):
    """A folder of a decoder with a learned sketch, to be changed."""
    return Path(shutil.copytree(trained(), tmp_path / "decoder"))


def reading(folder, attention="softmax", bench_name="latency", inputs=None, **values):
    """A cell whose inputs come from a folder."""
    inputs = {"name": "pretrained", "model": str(folder), **(inputs or {})}
    return planned(attention, bench={"name": bench_name}, inputs=inputs, **values)


def check_inputs(config, cache_dir):
    bench.inputs.source(config["inputs"]).check(config, cache_dir)


def loaded(folder, tmp_path, **values):
    tmp_path.mkdir(exist_ok=True)
    return load(reading(folder, **values).config, tmp_path / "cache")


def context(folder, tmp_path, attention=LEARNED, **values):
    return CellContext(reading(folder, attention, **values).config, tmp_path / "cache")


def test_a_model_is_saved_before_its_test(tmp_path, monkeypatch):
    """The test may need more memory than training, and hours are lost with the weights."""

    evaluate = Trainer.evaluate

    def too_large(trainer, split, examples):
        if split == "test":
            raise MemoryError
        return evaluate(trainer, split, examples)

    monkeypatch.setattr(Trainer, "evaluate", too_large)
    with pytest.raises(MemoryError):
        train(tmp_path, "softmax")
    assert saved.load_weights(tmp_path)


def own_text(folder):
    """A task whose text is a file of one's own."""
    (folder / "own.txt").write_text("".join(f"line {number} of them\n" for number in range(200)))
    return {"task": {"name": "language_modelling", "text": str(folder / "own.txt")}}


def own_pairs(folder):
    """A task whose data are a folder of one's own."""
    for split in ("train", "eval", "test"):
        (folder / f"aan.{split}.tsv").write_text("1\t1\t2\tsome words\tothers\n" * 20)
    return {"task": {"name": "retrieval", "data": str(folder)}}


@pytest.mark.parametrize(("own", "edited", "key"), [(own_text, "own.txt", "text"), (own_pairs, "aan.test.tsv", "data")])
def test_files_that_were_edited_since_the_plan_are_not_trained_on(own, edited, key, tmp_path):
    """As code that was: the record has the hash of the files that were planned."""
    kind = "decoder" if own is own_text else "classifier"
    task = own(tmp_path)
    training = {"steps": 2, "warmup": 0, "test_examples": 4, "evaluation_examples": 4}
    made = planned("v_mean", bench={"name": "train"}, **{**OF_KIND[kind], **task, "training": training})
    with (tmp_path / edited).open("a") as file:
        file.write((tmp_path / edited).read_text())
    result = child.measure_cell(made.config, tmp_path / "inputs", tmp_path / "progress")
    line = f"ConfigError: task.{key}={task['task'][key]!r}: must be what it was when the cell was planned"
    assert result["status"] == "error" and result["reason"].startswith(line)


# --- query, key and value


def tokens(kind, count=4, seed=5):
    given = {"task": OF_KIND[kind]["task"], "causal": OF_KIND[kind]["causal"], "seq_len": 12, "seed": seed}
    task = tasks.open_task(given, Path("/nowhere"))
    if kind != "classifier":
        return task.batch("test", range(count)).tokens
    read = task.batch("test", range(100)).tokens[:, 0]
    is_whole = (read != 0).all(1)
    assert count < is_whole.sum() < 100
    return read[is_whole][:count]


@pytest.mark.parametrize("kind", OF_KIND)
def test_every_layer_gives_what_its_projection_gave(kind, trained, tmp_path):
    folder = trained(kind=kind)
    model = models.build(*saved.read(folder)).eval()
    model.load_state_dict(saved.load_weights(folder))
    projected = []
    projection = [m for m in model.modules() if isinstance(m, MultiHead)][1].query_key_value
    projection.register_forward_hook(lambda module, given, out: projected.append(out))
    with torch.no_grad():
        read = tokens(kind)
        model(read if kind != "classifier" else read[:, None].expand(-1, 2, -1))
    query, key, value = projected[0].view(4, -1, 12, 3, 2, 8)[:, 0].permute(2, 0, 3, 1, 4)
    if kind == "decoder":
        query, key = turned(query.double()).float(), turned(key.double()).float()
    for tensor, expected in zip(loaded(folder, tmp_path, inputs={"layer": 1}), (query, key, value), strict=True):
        assert tensor.shape == (4, 2, 12, 8) and tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-5)


def test_shorter_inputs_and_smaller_batches_are_the_beginning_of_larger_ones(trained, tmp_path):
    whole = loaded(trained(), tmp_path)
    for part in (loaded(trained(), tmp_path, seq_len=7), loaded(trained(), tmp_path, batch_size=2)):
        batch, _, length, _ = part[0].shape
        for small, large in zip(part, whole, strict=True):
            torch.testing.assert_close(small, large[:batch, :, :length], rtol=1e-5, atol=1e-6)


def test_what_was_read_once_is_kept_until_the_weights_change(decoder, tmp_path, monkeypatch):
    first = loaded(decoder, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(models, "build", None)
        assert all(torch.equal(a, b) for a, b in zip(loaded(decoder, tmp_path), first, strict=True))
    shift(decoder, "blocks.0.attention_norm.bias")
    assert not torch.equal(loaded(decoder, tmp_path)[0], first[0])
    assert len(list((tmp_path / "cache").iterdir())) == 2


def shift(folder, name, by=0.5):
    """Change a weight of a folder."""
    holding(**{name: load_file(folder / "model.safetensors")[f"model.{name}"] + by})(folder)


def test_the_kept_tensors_are_of_one_model_layer_task_and_seed(trained, tmp_path, monkeypatch):
    keys = []
    keep = lambda key, *_: keys.append(json.dumps(key, sort_keys=True)) or [torch.empty(0)]  # noqa: E731
    monkeypatch.setattr(trained_inputs, "cached_tensors", keep)
    variants = [
        {}, {"seq_len": 11}, {"batch_size": 3}, {"inputs": {"layer": 1}},
        {"inputs": {"weights": "initialised"}}, {"inputs": {"weights": "initialised"}, "seed": 1},
    ]  # fmt: skip
    for variant in variants:
        loaded(trained(), tmp_path, **variant)
    loaded(trained(seed=6), tmp_path)
    assert len(set(keys)) == len(keys) == 7
    loaded(trained(), tmp_path, seed=1)
    assert keys[-1] == keys[0], "trained weights do not depend on the cell's seed"
    assert str(trained()) not in keys[0]


def test_initialised_is_the_same_model_as_new(trained, tmp_path):
    state = torch.get_rng_state()
    new = {"weights": "initialised", "layer": 1}
    first, again, other = (loaded(trained(), tmp_path / str(n), inputs=new, seed=s) for n, s in enumerate((0, 0, 1)))
    assert torch.equal(torch.get_rng_state(), state)
    found = saved.read(trained())
    model = models.build({**found.cell, "seed": inputs_seed(0)}, found.vocabulary).eval()
    expected = attention_inputs(model, tokens("decoder"), 1)
    for a, b, c, d in zip(first, again, other, expected, strict=True):
        assert torch.equal(a, b) and torch.equal(a, d) and not torch.equal(a, c)
    assert not torch.equal(first[0], loaded(trained(), tmp_path, inputs={"layer": 1})[0])


def test_a_length_at_which_all_examples_have_padding_is_refused(trained, tmp_path, monkeypatch):
    """A classifier does not see padding, but a mechanism that is measured would take it for keys."""
    monkeypatch.setattr("bench.training.inputs.TRIED", 1)
    with pytest.raises(ValueError, match=r"^seq_len=12: must be shorter: only \d of 4 examples of .* without padding$"):
        loaded(trained(kind="classifier"), tmp_path)


def test_a_text_is_read_by_the_model_that_was_trained_on_it(trained, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {number * number} of a text\n" for number in range(100)))
    task = {"name": "language_modelling", "text": str(text)}
    (tmp_path / "model").mkdir()
    folder = train(tmp_path / "model", "softmax", task=task)
    test = tasks.open_task(saved.read(folder).cell, tmp_path / "cache")
    windows = test.size("test")
    assert loaded(folder, tmp_path, batch_size=windows)[0].shape[0] == windows
    with pytest.raises(ValueError, match=f"^batch_size={windows + 1}: must be at most {windows}, as many examples as"):
        loaded(folder, tmp_path, batch_size=windows + 1)
    text.unlink()
    with pytest.raises(ValueError, match=r"^inputs.model='.*': task.text='.*text.txt': must be kjv"):
        loaded(folder, tmp_path, batch_size=1)


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (lambda file: file.write_text(file.read_text().upper()), "must be what it was when the cell was planned, it"),
        (Path.unlink, "must be kjv, pydoc, sympy, an existing file, or a hub dataset"),
    ],
)
def test_a_model_reads_no_other_text_than_the_one_that_it_was_trained_on(edit, line, tmp_path):
    text = own_text(tmp_path)
    folder = train(tmp_path / "model", "v_mean", **text)
    cell = reading(folder)
    check_inputs(cell.config, tmp_path)
    edit(tmp_path / "own.txt")
    for read in (check_inputs, load):
        with refused(f"inputs.model='{folder}': task.text={text['task']['text']!r}: {line}", ValueError):
            read(cell.config, tmp_path)


# --- the mechanism


def test_the_mechanism_of_the_model_is_measured_as_it_was_trained(trained, tmp_path):
    weights = load_file(trained() / "model.safetensors")
    for layer in (0, 1):
        bench_ = context(trained(), tmp_path, causal=True, inputs={"layer": layer})
        attention = bench_.attention()
        assert len(attention.state_dict()) > 4 and not attention.training
        for name, value in attention.state_dict().items():
            assert torch.equal(value, weights[f"model.blocks.{layer}.multihead.attention.{name}"])
        label = bench_.config["label"]
        bench_.note_implementation(label, attention)
        assert bench_.implementations[label]["weights"] == "trained"
        pairs = zip(attention.parameters(), bench_.reference(label).parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("attention", "inputs"),
    [({**LEARNED, "sketch": "gaussian"}, {}), ({"name": "polynomial"}, {}), (LEARNED, {"weights": "initialised"})],
)
def test_any_other_mechanism_is_as_new(attention, inputs, trained, tmp_path):
    bench_ = context(trained(), tmp_path, attention, causal=True, inputs=inputs)
    made, label = bench_.attention(), bench_.config["label"]
    fresh = attention_zoo.create(**attention, head_dim=8, num_heads=2, causal=True, max_seq_len=12)
    assert made.state_dict().keys() == fresh.state_dict().keys()
    assert all(torch.equal(value, fresh.state_dict()[name]) for name, value in made.state_dict().items())
    bench_.note_implementation(label, made)
    assert not bench_.trained and "weights" not in bench_.implementations[label]


def test_transformers_reads_a_text_as_the_model_that_was_trained_on_it(tmp_path):
    text = "".join(f"line {number} of the text, {number % 7} again\n" for number in range(400))
    (tmp_path / "own.txt").write_text(text)
    task = {"name": "language_modelling", "text": str(tmp_path / "own.txt")}
    folder = train(tmp_path / "bpe", task={**task, "tokenizer": "bpe", "vocabulary": 300})
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    made = tasks.open_task(saved.read(folder).cell, folder / "inputs")
    ids = tokenizer(text)["input_ids"]
    assert made.tokens["train"].tolist() == ids[: len(made.tokens["train"])]
    assert len(tokenizer) == saved.read(folder).vocabulary == 300 and tokenizer.decode(ids) == text
    assert not (train(tmp_path / "bytes", task=task) / "tokenizer.json").exists()


def test_in_a_comparison_each_mechanism_is_asked_by_itself(trained, tmp_path):
    both = ({**LEARNED, "sketch": sketch} for sketch in ("learned", "gaussian"))
    (cell,) = merge_compared([reading(trained(), attention, "compare", causal=True) for attention in both])
    bench_ = CellContext(cell.config, tmp_path)
    labels = list(bench_.attentions())
    assert len(labels) == 2 and bench_.trained == {labels[0]}


def test_a_checkpoint_that_knows_fewer_hyperparameters_had_their_defaults(decoder, tmp_path):
    attention = saved.read(decoder).cell["attention"]
    del attention["per_head"]
    saying({"attention": attention})(decoder)
    bench_ = context(decoder, tmp_path, causal=True)
    bench_.attention()
    assert bench_.trained


@pytest.mark.parametrize("name", sorted({*DECODERS, *ENCODERS}))
def test_every_mechanism_with_weights_or_draws_is_taken_over(name, tmp_path):
    kind = "encoder" if name in ENCODERS else "transformer"
    cell = config(kind, name, task={"name": "reversal" if kind == "encoder" else "induction_heads"}, seed=3)
    model = models.build(cell, 17)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1)
    saved.save(tmp_path, model, saved.Saved(cell, 17))
    own = [module for module in model.modules() if isinstance(module, MultiHead)][1].attention
    shorter = {**cell, "seq_len": 16, "seed": 0}
    taken = Trained(str(tmp_path), layer=1).mechanism(shorter)
    assert (taken is None) == (not [*own.parameters(), *own.buffers()])
    if taken is not None:
        assert taken.seed == own.seed == 4
        for key, value in own.state_dict().items():
            assert torch.equal(taken.state_dict()[key], value) if isinstance(value, torch.Tensor) else True
        x = torch.randn(2, 2, 16, 16, generator=torch.Generator().manual_seed(0))
        assert torch.equal(taken.eval()(x, x, x), own.eval()(x, x, x))


def test_what_is_exact_has_the_trained_weights_that_it_shares(trained, tmp_path):
    """Degree 2 is no sketch: exact, but for the affine layer norm, which was trained."""
    exactly = {"name": "polysketch", "degree": 2}
    folder = Path(shutil.copytree(trained(attention=exactly), tmp_path / "model"))
    shift(folder, "blocks.0.multihead.attention.layernorm.weight", torch.linspace(-1, 1, 8))
    bench_ = context(folder, tmp_path, exactly, bench_name="spectral_norm", dtype="float64", causal=True)
    result = SpectralNorm().measure(bench_)
    assert len(result["relative"]) == 4 and max(max(by_head) for by_head in result["relative"]) < 1e-12


# --- planning


def test_a_plan_says_what_is_read_without_a_model_that_is_built_and_without_transformers(trained, monkeypatch):
    inputs = {"name": "trained", "model": str(trained()), "weights": "pretrained", "layer": 0}
    monkeypatch.setattr(models, "build", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert reading(trained()).config["inputs"] == inputs
    assert reading(trained(), inputs={"text": None, "window": None}).config["inputs"] == inputs
    assert bench.inputs.source(inputs) == Trained(str(trained()))


def test_a_cell_is_another_one_when_the_weights_change_and_no_other_is(decoder):
    def ids():
        return reading(decoder).cell_id, planned("softmax", bench={"name": "latency"}).cell_id

    read, drawn = ids()
    shift(decoder, "blocks.1.multihead.out.weight")
    plan_cell._identity.cache_clear()
    now = ids()
    assert now[0] != read and now[1] == drawn


def test_the_code_of_a_cell_is_that_of_its_inputs_too(trained):
    cells = reading(trained()), planned("softmax", bench={"name": "latency"})
    read, drawn = ({source.name for source in one.sources} for one in cells)
    own = {"bench/training/inputs.py", "bench/models/transformer.py", "bench/tasks/generated.py"}
    assert read >= own | {"attention_zoo/polysketch.py"}
    assert not drawn & (own | {"bench/inputs/pretrained.py", "bench/tasks/__init__.py", "attention_zoo/polysketch.py"})


def holding(**changes):
    """With other weights; None takes one away."""

    def change(folder):
        weights = {**load_file(folder / "model.safetensors"), **{f"model.{name}": x for name, x in changes.items()}}
        save_file({name: x for name, x in weights.items() if x is not None}, folder / "model.safetensors")

    return change


def saying(of_cell=(), **changes):
    """With a changed description."""

    def spoil(folder):
        described = json.loads((folder / "config.json").read_text()) | changes
        if of_cell:
            described["cell"] |= of_cell
        (folder / "config.json").write_text(json.dumps(described))

    return spoil


BROKEN = [
    (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors cannot be read: "),
    (lambda folder: os.truncate(folder / "model.safetensors", 1000), "model.safetensors cannot be read: "),
    (holding(bias=torch.zeros(3)), "model.safetensors: bias is [3], must be [17] as config.json has it"),
    (holding(bias=None), "model.safetensors: bias is missing, must be [17] as config.json has it"),
    (saying(vocab_size="many"), "config.json: vocab_size='many': must be an integer of at least 1"),
    (saying(cell=None), "config.json: cell must be the configuration that bench=train left there"),
    (saying({"seq_len": "long"}), "config.json: cell.seq_len must be what bench=train left there"),
    (saying({"attention": {}}), "config.json: cell.attention must be what bench=train left there"),
    (saying({"model": {"name": "oracle"}}), "model.name='oracle': must be one of"),
    (saying({"task": {"name": "chess"}}), "task.name='chess': must be one of"),
    (saying(vocab_size=5), "model.safetensors: bias is [17], must be [5] as"),
    (saying({"model": {"name": "transformer", "layers": 3}}), "model.safetensors: blocks.2."),
    (lambda folder: (folder / "config.json").write_text("{"), "cannot be read: "),
    (shutil.rmtree, "must be minilm, a directory, or repository[@revision]"),
]
UNFIT = [
    ({"num_heads": 4}, "num_heads=4: must be 2, as in inputs.model={}"),
    ({"head_dim": 32}, "head_dim=32: must be 8, as in inputs.model={}"),
    ({"seq_len": 13}, "seq_len=13: must be at most 12, as in inputs.model={}"),
    ({"inputs": {"layer": 2}}, "inputs.layer=2: must be between 0 and 1: {} has 2 layers"),
    ({"inputs": {"text": "kjv"}}, "inputs.text='kjv': must be null: {} reads its own task's test split"),
    ({"inputs": {"depth": 64}}, "inputs.depth=64: unknown; known are model, weights, layer"),
]


@pytest.mark.parametrize(("spoil", "line"), BROKEN, ids=range(len(BROKEN)))
def test_a_folder_that_is_no_whole_model_is_one_line(spoil, line, decoder, tmp_path):
    good = reading(decoder).config
    spoil(decoder)
    with refused(f"inputs.model='{decoder}': {line}", ValueError):
        check_inputs({**good, "inputs": {"name": "pretrained", "model": str(decoder)}}, tmp_path)
    with pytest.raises(ValueError, match=r"^inputs\.model="):
        load(good, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_folder_whose_mechanism_is_unknown_is_one_line_while_it_is_planned(decoder):
    saying({"attention": {"name": "magic"}})(decoder)
    with pytest.raises(ConfigError, match=rf"^inputs\.model='{decoder}': attention='magic': unknown; known are .*$"):
        reading(decoder)


@pytest.mark.parametrize(("changes", "line"), UNFIT, ids=range(len(UNFIT)))
def test_cells_that_do_not_fit_the_model_are_one_line(changes, line, trained, tmp_path):
    with refused(line.format(trained()), (ConfigError, ValueError)):
        check_inputs(reading(trained(), **changes).config, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_trained_mechanism_is_made_for_longer_sequences_unless_its_weights_are_not(trained, tmp_path):
    """`bench=capacity` reads one token more than the model, and the search for the largest seq_len many more."""
    assert context(trained(), tmp_path).attention(max_seq_len=40).max_seq_len == 40
    linformer = {"name": "linformer", "projection_dim": 4}
    own = context(trained(attention=linformer, kind="encoder"), tmp_path, linformer, causal=False)
    assert own.attention(max_seq_len=12).max_seq_len == 12
    with pytest.raises(UnsupportedError, match="linformer was trained for 12 tokens, and takes no more"):
        own.attention(max_seq_len=13)


def test_a_model_is_made_and_taken_over_with_the_largest_seed(tmp_path):
    """Its second layer draws from a larger one."""
    folder = train(tmp_path / "model", {"name": "performer", "num_features": 8}, seed=2**63 - 1)
    layers = models.build(*saved.read(folder)).state_dict()
    first, second = (layers[name] for name in layers if name.endswith("projection"))
    assert not torch.equal(first, second)
    own = context(folder, tmp_path, {"name": "performer", "num_features": 8}, inputs={"layer": 1}).attention()
    assert torch.equal(own.projection, second)
