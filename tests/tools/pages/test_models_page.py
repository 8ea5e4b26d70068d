"""Mechanisms in models: what docs/models.md says is so."""

import pytest
import torch

import attention_zoo

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

from attention_zoo import hf  # noqa: E402
from tools.pages import models  # noqa: E402
from tools.pages.models import MODELS, PAGE, TRIALS, Case, mechanisms, outcome  # noqa: E402

hf.register()
LLAMA = "Llama, grouped queries"
QUICK = [name for name in TRIALS if name != "compile"]


def test_the_page_has_a_row_for_every_mechanism_in_every_model():
    text = PAGE.read_text()
    assert text.startswith(models.INTRODUCTION)
    sections = text.split("\n## ")[1:]
    assert [section.partition("\n")[0] for section in sections] == [*MODELS, "Reasons"]
    for section in sections[:-1]:
        rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
        assert [row[0].strip("`") for row in rows] == mechanisms()
        assert {cell.strip() for row in rows for cell in row[1:]} <= {"ok", ""} | {
            f"refused ({number})" for number in range(1, 1 + sections[-1].count("\n"))
        }


@pytest.mark.parametrize("trial", QUICK)
def test_what_is_ok_is_tried(trial):
    assert outcome(Case(LLAMA, "softmax"), TRIALS[trial]) == "ok"


def test_what_is_refused_says_why():
    refused = outcome(Case(LLAMA, "polysketch"), TRIALS["dropout"])
    assert refused.startswith("dropout=0.3: polysketch drops no attention weights")
    assert outcome(Case("BERT", "linformer"), TRIALS["generate"]) is None
    assert outcome(Case(LLAMA, "linformer"), TRIALS["forward"]).startswith("causal=true: linformer")
    assert "layer_idx" in outcome(Case("ViT", "performer"), TRIALS["saved (config)"])
    assert outcome(Case("ViT", "performer"), TRIALS["left"]) is None


def test_what_does_not_compile_says_where():
    refused = outcome(Case("BERT", "lucidrains_performer"), TRIALS["compile"])
    assert refused.startswith("torch.compile(fullgraph=True): ")
    assert "lucidrains_performer does not support key_padding_mask" in refused  # torch 2.11 puts words around it
    told = """Attempted to call it\n  Explanation: ...\n  Developer debug context: module: m\n\nfrom user code:
   File "/a/library/outer.py", line 943, in wrapper\n   File "/a/library/inner.py", line 7, in forward\n    it()"""
    assert models._break(told) == "Attempted to call it (module: m; inner.py, forward)"


WRONG = {"forward": "the future leaks", "left": "padding is seen", "generate": "a cache changes"}
WRONG["dropout"] = "nothing is dropped"


@pytest.mark.parametrize(("trial", "said"), WRONG.items())
def test_what_is_wrong_is_found(trial, said, monkeypatch):
    """A mechanism that sees everything."""
    everything = lambda self, query, key, value, padding=None: (query @ key.mT).softmax(-1) @ value  # noqa: E731
    monkeypatch.setattr(attention_zoo.attention_class("polynomial"), "forward", everything)
    with pytest.raises(AssertionError, match=said):
        outcome(Case(LLAMA, "polynomial"), TRIALS[trial])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "flash", "performer", "polysketch", "linear"])
@pytest.mark.parametrize("kind", [LLAMA, "BERT", "ModernBERT"])
def test_compiled_models_compute_and_learn_the_same(kind, name):
    case = Case(kind, name)
    model, inputs = case.attached(), case.inputs("right")
    torch._dynamo.reset()
    compiled, tokens = torch.compile(model, fullgraph=True), inputs["attention_mask"].bool()
    expected, found = (each(**inputs).logits[tokens] for each in (model, compiled))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    weight = model.get_input_embeddings().weight
    gradients = [torch.autograd.grad(logits.square().mean(), weight) for logits in (expected, found)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_the_page_is_current():
    assert PAGE.read_text() == models.page(), "make models writes it anew"
