"""How much the hidden states of a trained model change, layer by layer, if its attention is replaced.

    python examples/swap_attention.py softmax performer performer:num_features=1024 skeinformer polysketch
    python examples/swap_attention.py polysketch:degree=2 --model path/or/name --text pydoc --seq-len 512

Nothing is trained: a mechanism that approximates softmax should come close; one that computes another function cannot.
"""

from __future__ import annotations

import argparse
import ast
from typing import Any

import torch
import transformers
from torch import Tensor

import attention_zoo.hf
from bench.inputs import models, texts


def main(arguments: list[str] | None = None) -> None:
    """Print one row for each layer and one column for each mechanism."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attention", nargs="+", type=parse, help="a mechanism, or mechanism:hyperparameter=value,...")
    parser.add_argument("--model", default="minilm", help="minilm, a directory, or a repository on the hub")
    parser.add_argument("--text", default="kjv", help="kjv, pydoc, a file, or a dataset on the hub")
    parser.add_argument("--passages", type=int, default=4, help="how many passages of the text, a batch")
    parser.add_argument("--seq-len", type=int, default=512, help="tokens of a passage at most; shorter ones are padded")
    parser.add_argument("--seed", type=int, default=0, help="of the mechanisms")
    chosen = parser.parse_args(arguments)

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    origin = models.origin(chosen.model)
    model = transformers.AutoModel.from_pretrained(**origin, attn_implementation="eager", dtype=torch.float32)
    batch = tokenize(transformers.AutoTokenizer.from_pretrained(**origin), chosen)
    tokens = batch["attention_mask"].bool()
    exact = hidden_states(model, batch)

    columns = {"layer": [*map(str, range(1, len(exact) + 1)), "cosine"]}
    for index, (given, name, hyperparameters) in enumerate(chosen.attention):
        try:
            attention_zoo.hf.attach(model, f"swap_{index}", attention=name, seed=chosen.seed, **hyperparameters)
            swapped = hidden_states(model, batch)
        except (attention_zoo.UnsupportedError, ValueError) as error:
            print(f"{given}: refused: {error}")
            continue
        errors = [f"{relative_error(x, y, tokens):.2g}" for x, y in zip(swapped, exact, strict=True)]
        columns[given] = [*errors, f"{cosine(swapped[-1], exact[-1], tokens):.4f}"]

    if len(columns) == 1:
        parser.exit(2)
    print(f"{chosen.model} reads {len(tokens)} passages of {chosen.text}, {int(tokens.sum())} tokens.")
    print("Relative error of the hidden states after each layer, and cosine of the passages' mean-pooled embeddings:")
    widths = [max(len(cell) for cell in (head, *cells)) for head, cells in columns.items()]
    for row in (list(columns), *zip(*columns.values(), strict=True)):
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def parse(given: str) -> tuple[str, str, dict[str, Any]]:
    """Parse `name:key=value,...` into the text, name and hyperparameters; values are numbers, true/false or names."""
    name, _, pairs = given.partition(":")
    hyperparameters: dict[str, Any] = {}
    for pair in filter(None, pairs.split(",")):
        key, _, value = pair.partition("=")
        try:
            hyperparameters[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            hyperparameters[key] = value
    try:
        attention_zoo.info(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return given, name, hyperparameters


def tokenize(tokenizer: Any, chosen: argparse.Namespace) -> dict[str, Tensor]:
    """The first passages of the text as a padded batch: each has whole lines with at least `seq_len / 2` words."""
    passages = [""]
    for line in texts.lines(chosen.text):
        if len(passages[-1].split()) >= chosen.seq_len // 2:
            if len(passages) == chosen.passages:
                break
            passages.append("")
        passages[-1] += line
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return dict(tokenizer(passages, padding=True, truncation=True, max_length=chosen.seq_len, return_tensors="pt"))


@torch.inference_mode()
def hidden_states(model: Any, batch: dict[str, Tensor]) -> list[Tensor]:
    """The hidden states after each layer, `(batch, seq_len, features)` each."""
    return list(model(**batch, output_hidden_states=True).hidden_states[1:])


def relative_error(actual: Tensor, exact: Tensor, tokens: Tensor) -> float:
    """|actual - exact| / |exact| in Frobenius norms over all tokens."""
    return float((actual - exact)[tokens].norm() / exact[tokens].norm())


def cosine(actual: Tensor, exact: Tensor, tokens: Tensor) -> float:
    """Mean cosine similarity of the passages' embeddings, each the mean of the hidden states over its tokens."""
    first, second = ((x * tokens[..., None]).sum(1) / tokens.sum(1)[:, None] for x in (actual, exact))
    return float(torch.cosine_similarity(first, second).mean())


if __name__ == "__main__":
    main()
