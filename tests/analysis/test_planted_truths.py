"""What controls and attribution say of models that the suite trained, where the truth is planted in text or weights."""

import planted
import pytest
import torch
from synthetic_records import record
from test_attribution import only as only_hybrid
from test_diagnosis import only

from analysis.attribution import ALONE, REMOVED, table
from analysis.controls import BLIND, DIAGNOSTIC, control_comparisons
from analysis.frame import tidy
from attention_zoo.polysketch import SketchNetwork
from bench.measures import train
from bench.measures.context import CellContext

SEEDS = 5
COPY, TEXT = 200, 2000  # letters between a stretch and its copy; documents of two copies


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("planted")


@pytest.fixture(scope="module")
def copied():
    return planted.documents(TEXT, COPY // planted.ALPHABETS, copies=2)


@pytest.mark.slow
def test_copies_200_tokens_before_are_diagnostic_and_what_is_recalled_is_where_softmax_wins(folder, copied):
    text = planted.written(folder, "copied", copied)
    records = planted.trained(folder / "copied", text, "flash,local,local_sliding")
    found = only(records)
    assert found.word == DIAGNOSTIC, found.sentence
    assert (found.positive, found.negative) == ("flash", "local_sliding")
    rows = control_comparisons(tidy(records)).set_index(["attention", "against"])
    assert set(rows.loc[[("local", "flash"), ("local_sliding", "flash")], "verdict"]) == {"worse"}
    gains = gained(records, "local_sliding")
    rows_say = rows.loc[("local_sliding", "flash"), "difference (nats)"]
    assert sum(gains.values()) == pytest.approx(rows_say, abs=1e-3)
    assert gains["recalled_128_255"] > 0.8 * sum(gains.values()), gains


def gained(records, control):
    """By how much softmax's loss is below a control's, nats over seeds, as a sum over kinds of tokens."""
    gains = {}
    for one in records:
        sign = {"flash": -1, control: 1}.get(one.config["label"], 0)
        parts = one.measurements["test"]["parts"]
        answers = sum(part["answers"] for part in parts.values())
        for kind, part in parts.items():
            gains[kind] = gains.get(kind, 0.0) + sign * part["loss"] / answers / SEEDS
    return gains


@pytest.mark.slow
def test_the_same_letters_in_random_order_are_not_diagnostic(folder, copied, rng):
    """In no order is there anything to recall; all that can be learned is how frequent letters are."""
    text = planted.written(folder, "shuffled", rng.permutation(copied))
    records = planted.trained(folder / "shuffled", text, "flash,local", training__steps=75)
    found = only(records)
    assert found.word == BLIND and found.sentence.startswith("flash against local: "), found.sentence
    assert set(control_comparisons(tidy(records))["verdict"]) == {BLIND}
    assert all(one.measurements["test"]["loss"] > one.measurements["baselines"]["unigram"] - 0.01 for one in records)


SMALL = {"seq_len": 64, "batch_size": 16, "num_heads": 1, "head_dim": 16, "training__test_examples": 640}
"""Settings of a model that learns in seconds what comes again 32 tokens later."""


@pytest.fixture(scope="module")
def small_text(folder):
    return planted.written(folder, "small", planted.documents(12_500, 8, copies=2))


def no_sketch(attention):
    """Zeros that stay: a sketch is a product of two networks, whose derivative by each is a multiple of the other."""
    networks = [module for module in attention.sketch.modules() if isinstance(module, SketchNetwork)]
    for network in networks:
        torch.nn.init.zeros_(network.weights[-1])


def no_window(attention):
    """Zeros that stay: a weight is a power of the product of a query and a key, which are zero both."""
    for norm in attention.local_norms:
        torch.nn.init.zeros_(norm.weight)
        torch.nn.init.zeros_(norm.bias)


def trained_here(folder, text, attention, plant=lambda attention: None, **settings):
    """Records of models in whose attention something was planted before they were trained, in this process."""

    def planted_trainer(context, make=train.make_trainer):
        trainer = make(context)
        for block in trainer.model.blocks:
            plant(block.multihead.attention)
        return trainer

    configs = planted.configs(folder, text, attention, **SMALL, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "make_trainer", planted_trainer)
        contexts = [CellContext(config, folder / "inputs") for config in configs]
        return [record(one.config, train.Train().measure(one)) for one in contexts]


HYBRID = {"attention": "polysketch_learned_local_r16", "attention__sketch_size": 8}


@pytest.mark.slow
def test_a_hybrid_without_a_sketch_is_the_work_of_its_window(folder, small_text):
    """And learns step by step what its window learns alone, until rounding has grown to what a seed does."""
    records = trained_here(folder, small_text, **HYBRID, attention__block_size=16, plant=no_sketch)
    removed = only_hybrid(records)
    assert removed.owner == "window" and removed.of("window").how == REMOVED, removed.sentence
    assert abs(removed.of("sketch").difference.value) < 1e-6 and removed.of("window").difference.value > 0.1
    alone = trained_here(folder, small_text, "local_polynomial_norms", attention__block_size=16)
    for one, other in zip(records, alone, strict=True):
        first, second = (each.measurements["curve"]["train_loss"][:20] for each in (one, other))
        assert first == pytest.approx(second, abs=1.5e-3)  # the curve has four digits
    records += alone
    found = only_hybrid(records)
    assert found.owner == "window" and found.of("sketch").how == ALONE, found.sentence
    assert abs(found.of("sketch").difference.value) < 0.01
    assert set(table(tidy(records))["work of"]) == {"window"}


@pytest.mark.slow
def test_a_hybrid_without_a_window_is_the_work_of_its_sketch(folder, small_text):
    sizes = {"attention__block_size": 4, "training__steps": 300}
    found = only_hybrid(trained_here(folder, small_text, **HYBRID, **sizes, plant=no_window))
    assert found.owner == "sketch" and abs(found.of("window").difference.value) < 1e-6, found.sentence
    assert found.of("sketch").difference.value > 0.1
