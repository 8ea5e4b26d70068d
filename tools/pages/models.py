"""docs/models.md, from trials of each mechanism in models: `python -m tools.pages.models` writes it in minutes."""

import copy
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import attention_zoo
from attention_zoo import UnsupportedError, hf
from bench.common import signals

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
HEADS, HEAD_DIM, LAYERS, LENGTH, VOCABULARY, NEW = 4, 8, 2, 11, 40, 5
PADDED, DROPOUT = 4, 0.3
WIDTH = {"hidden_size": HEADS * HEAD_DIM, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "intermediate_size": 32,
    "initializer_range": 0.25,
}
GROUPED = WIDTH | COMMON | {"num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None}
ENCODER = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
DROPOUT_KEYS = ("attn_pdrop", "attention_probs_dropout_prob", "attention_dropout")
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2": (
        "GPT2LMHeadModel",
        COMMON
        | {"n_embd": HEADS * HEAD_DIM, "n_layer": LAYERS, "n_head": HEADS}
        | {"bos_token_id": None, "eos_token_id": None, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    ),
    "Llama, grouped queries": ("LlamaForCausalLM", GROUPED),
    "Mistral": ("MistralForCausalLM", GROUPED | {"head_dim": HEAD_DIM, "sliding_window": None}),
    "Qwen2": ("Qwen2ForCausalLM", GROUPED),
    "BERT": ("BertForMaskedLM", WIDTH | COMMON | ENCODER),
    "ModernBERT": (
        "ModernBertForMaskedLM",
        WIDTH | COMMON | {f"{end}_token_id": 1 for end in ("bos", "cls", "eos", "sep")} | {"local_attention": 64},
    ),
    "ViT": (
        "ViTForImageClassification",
        WIDTH | ENCODER | {"initializer_range": 0.25, "image_size": 12, "patch_size": 4},
    ),
}
INTRODUCTION = f"""\
# Mechanisms in models

Made by `make models`, which tries every mechanism that runs on a CPU in small models of transformers with random
weights, in float32. `ok` is the outcome of a trial; the reasons of refusals are below the tables. An empty cell:
there is nothing to try (no padding in ViT, nothing to generate in an encoder).

- *forward*: outputs are finite; in a causal model no output changes with a later token (not asked of what is only
  nearly causal, *approx.* in [the zoo](zoo.md)); `softmax` and `flash` equal eager attention to 1e-5.
- *left*, *right*: {PADDED} of {LENGTH} tokens of one of two sequences are padding on that side; their values change no
  output of a token.
- *backward*: gradients are finite, and embeddings get some. *checkpointing*: the same with activation checkpoints.
- *dropout*: in training, attention dropout of the config changes gradients, and activation checkpoints give the same
  ones.
- *autocast*: outputs are finite under `torch.autocast` to bfloat16.
- *saved*: a model with an attached mechanism gives the same outputs after saving and loading. *saved (config)*: the
  same if the mechanism was chosen by `attn_implementation` alone.
- *generate*: {NEW} tokens after a padded batch are the same with and without a cache.
- *compile*: `torch.compile(fullgraph=True)` makes one graph of the whole model (traced, run without a code generator).
  Compiled code cannot look into a mask, so a mechanism gets a mask even if it hides nothing.
"""


@dataclass(frozen=True)
class Case:
    """A mechanism in a model."""

    kind: str
    name: str

    @property
    def causal(self) -> bool:
        """Whether the model is causal, and therefore generates."""
        return "CausalLM" in MODELS[self.kind][0] or "LMHead" in MODELS[self.kind][0]

    def model(self, implementation: str = "eager", dropout: float = 0.0) -> Any:
        """The model with fixed random weights, without dropout except in the attention."""
        import transformers

        name, given = MODELS[self.kind]
        kind = getattr(transformers, name)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            config = kind.config_class(**given)
            (key,) = (key for key in DROPOUT_KEYS if hasattr(config, key))
            setattr(config, key, dropout)
            return kind._from_config(config, attn_implementation=implementation).eval()

    def attached(self, dropout: float = 0.0) -> Any:
        """The model with the mechanism in every layer."""
        model = self.model(dropout=dropout)
        hf.attach(model, self.interface, example=self.inputs(None))
        return model

    @property
    def interface(self) -> str:
        """The mechanism's name as an attention implementation of transformers."""
        name = self.name.replace("flash", "fused")
        if self.kind == "ViT":  # its config does not have the sequence length
            name += "_in_vit"
            hf.register(name, attention=self.name, max_seq_len=64)
        return name

    def inputs(self, side: str | None) -> dict[str, Any]:
        """A batch of two sequences; the second has padding on this side (None: no padding)."""
        generator = torch.Generator().manual_seed(1)
        if self.kind == "ViT":
            if side is not None:
                raise NotApplicable
            return {"pixel_values": torch.randn(2, 3, 12, 12, generator=generator)}
        inputs: dict[str, Any] = {"input_ids": torch.randint(3, VOCABULARY, (2, LENGTH), generator=generator)}
        inputs["attention_mask"] = torch.ones(2, LENGTH, dtype=torch.long)
        if side is not None:
            inputs["attention_mask"][1, slice(PADDED) if side == "left" else slice(-PADDED, None)] = 0
        return inputs | ({"use_cache": False} if self.causal else {})


class NotApplicable(Exception):
    """A trial that does not apply to this kind of model."""


def _logits(model: Any, inputs: Mapping[str, Any]) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(**inputs).logits
    assert logits.isfinite().all(), "not finite"
    return logits


def _same(a: Tensor, b: Tensor, tolerance: float, what: str) -> None:
    assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max().item()), what


def forward(case: Case) -> None:
    """Outputs are finite, and do not depend on later tokens."""
    model, inputs = case.attached(), case.inputs(None)
    logits = _logits(model, inputs)
    if case.name in ("softmax", "flash"):
        _same(logits, _logits(case.model(), inputs), 1e-5, "is not eager attention")
    if case.causal and not attention_zoo.info(case.name).approximately_causal:
        other = inputs["input_ids"].clone()
        other[:, -1] = (other[:, -1] + 1) % VOCABULARY
        changed = _logits(model, inputs | {"input_ids": other})
        _same(changed[:, :-1], logits[:, :-1], 1e-5, "the future leaks")
        assert not torch.equal(changed[:, -1], logits[:, -1])


def padding(case: Case, side: str) -> None:
    """Padding tokens on this side change no output of a token."""
    inputs = case.inputs(side)
    model, tokens = case.attached(), inputs["attention_mask"].bool()
    expected = _logits(model, inputs)[tokens]
    changed = _logits(model, inputs | {"input_ids": inputs["input_ids"].where(tokens, 7)})[tokens]
    _same(changed, expected, 1e-5, "padding is seen")


def _gradients(model: Any, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    model.train()(**inputs).logits.square().mean().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    assert all(gradient.isfinite().all() for gradient in gradients.values()), "gradients are not finite"
    assert any("embed" in name or "wte" in name for name, each in gradients.items() if each.any()), "no gradients"
    return gradients


def _gradients_with_checkpoints(model: Any, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """The gradients of the model, after a check that activation checkpoints do not change them."""
    torch.manual_seed(0)
    expected = _gradients(copy.deepcopy(model), inputs)
    model.activation_checkpointing_enable({"use_reentrant": False})
    torch.manual_seed(0)
    found = _gradients(model, inputs)
    assert expected.keys() == found.keys(), "other gradients"
    for name, gradient in expected.items():
        _same(found[name], gradient, 1e-5, f"another gradient of {name}")
    return expected


def dropout(case: Case) -> None:
    """Attention dropout changes gradients, and with activation checkpoints the same mask is drawn again."""
    dropped = _gradients_with_checkpoints(case.attached(DROPOUT), case.inputs(None))
    without = _gradients(case.attached(), case.inputs(None))
    differ = [name for name, gradient in without.items() if not torch.allclose(dropped[name], gradient, rtol=0.01)]
    assert differ, "nothing is dropped"


@torch.autocast("cpu", torch.bfloat16)
def autocast(case: Case) -> None:
    """Outputs are finite under autocast to bfloat16."""
    _logits(case.attached(), case.inputs(None))


def _saved(case: Case, model: Any) -> None:
    expected = _logits(model, case.inputs(None))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = type(model).from_pretrained(folder, attn_implementation=case.interface).eval()
    _same(_logits(loaded, case.inputs(None)), expected, 1e-6, "another answer")


def generate(case: Case) -> None:
    """Generation with a cache gives the same tokens as without."""
    if not case.causal:
        raise NotApplicable
    side = "left" if attention_zoo.info(case.name).padding else None
    model, inputs = case.attached(), case.inputs(side)
    inputs.pop("use_cache")
    length = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    cached, whole = (model.generate(**inputs, **length, use_cache=use) for use in (True, False))
    assert torch.equal(cached, whole), "a cache changes what is generated"


def compiled(case: Case) -> None:
    """`torch.compile` makes one graph, whose outputs are the same."""
    model, inputs = case.attached(), case.inputs(None)
    expected = _logits(model, inputs)
    torch._dynamo.reset()
    try:
        _same(_logits(torch.compile(model, fullgraph=True, backend="eager"), inputs), expected, 1e-5, "another answer")
    except torch._dynamo.exc.TorchDynamoException as error:
        raise UnsupportedError(f"torch.compile(fullgraph=True): {_break(str(error))}") from error


def _break(told: str) -> str:
    """The reason for a graph break: the mechanism's own message, or the compiler's with the place in the code."""
    first, context = told.partition("\n")[0], re.search(r"Developer debug context: (.*)", told)
    found = context[1] if context else ""
    if refused := re.fullmatch(r"raised exception UnsupportedError\(['\"](.*)['\"]\)", found):
        return refused[1]
    *_, (file, function) = [("", ""), *re.findall(r'File ".*?([^/"]+)", line \d+, in (\w+)', told)]
    return f"{first} ({found}; {file}, {function})"


# The trials by column; `INTRODUCTION` explains them.
TRIALS: dict[str, Callable[[Case], object]] = {
    "forward": forward,
    "left": lambda case: padding(case, "left"),
    "right": lambda case: padding(case, "right"),
    "backward": lambda case: _gradients(case.attached(), case.inputs(None)),
    "checkpointing": lambda case: _gradients_with_checkpoints(case.attached(), case.inputs(None)),
    "dropout": dropout,
    "autocast": autocast,
    "saved": lambda case: _saved(case, case.attached()),
    "saved (config)": lambda case: _saved(case, case.model(case.interface)),
    "generate": generate,
    "compile": compiled,
}


def outcome(case: Case, trial: Callable[[Case], object]) -> str | None:
    """`ok`, the reason of a refusal, or None if the trial does not apply to the model.

    Raises:
        AssertionError: the result is wrong.
    """
    try:
        trial(case)
    except NotApplicable:
        return None
    except UnsupportedError as error:
        return str(error).partition("\n")[0]
    return "ok"


def mechanisms() -> list[str]:
    """The mechanisms that run on a CPU."""
    return [name for name in attention_zoo.list_attentions() if "cpu" in attention_zoo.info(name).devices]


def page() -> str:
    """The whole page in Markdown; raises `AssertionError` if a result is wrong."""
    reasons: dict[str, int] = {}
    cases = [Case(kind, name) for kind in MODELS for name in mechanisms()]
    found = {case: dict(_outcomes(case, reasons)) for case in tqdm(cases, unit="model")}
    parts = [INTRODUCTION]
    for kind in MODELS:
        rows = [[f"`{case.name}`", *cells.values()] for case, cells in found.items() if case.kind == kind]
        lines = [["mechanism", *TRIALS], ["---"] * (1 + len(TRIALS)), *rows]
        parts += [f"## {kind}\n", *("| " + " | ".join(line) + " |" for line in lines), ""]
    parts += ["## Reasons\n", *(f"{number}. {reason}" for reason, number in reasons.items())]
    return "\n".join(parts) + "\n"


def _outcomes(case: Case, reasons: dict[str, int]) -> Iterator[tuple[str, str]]:
    for column, trial in TRIALS.items():
        try:
            told = outcome(case, trial)
        except Exception as error:
            raise AssertionError(f"{case.kind}, {case.name}, {column}: {error}") from error
        if told is None or told == "ok":
            yield column, told or ""
        else:
            reason = re.sub(rf"\b{case.name}\b", "it", told)
            yield column, f"refused ({reasons.setdefault(reason, len(reasons) + 1)})"


def main() -> int:
    """Write the page; returns the exit status."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    hf.register()
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(signals.run(main))
