"""The folder of a trained model: its cell's configuration and its weights, in a format that transformers reads."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from attention_zoo.checks import check_int, require
from bench.common.errors import one_line, package
from bench.records.disk import write_atomically

TYPE = "attention_zoo"
# transformers has no class for a model that is only a body, so our classes have the model as a part.
PREFIX = "model."
# The configuration keys that a model and its task depend on, with their types.
KINDS = {
    **dict.fromkeys(("attention", "model", "task"), dict),
    **dict.fromkeys(("seq_len", "num_heads", "head_dim", "seed"), int),
    "causal": bool,
    "impl": str,
}


class Saved(NamedTuple):
    """The contents of `config.json`: the cell's resolved configuration and other arguments of `bench.models.build`."""

    cell: dict[str, Any]
    vocabulary: int
    classes: int | None = None
    documents: int = 1


def save(folder: Path, model: nn.Module, contents: Saved, tokenizer: bytes | None = None) -> None:
    """Save a trained model to a folder; each file is written atomically.

    Args:
        folder: gets `config.json` and `model.safetensors`, with a tokenizer also its `tokenizer.json`.
        model: from `bench.models.build(*contents)`.
        contents: of `config.json`; the cell's configuration is that of the cell that trained the model.
        tokenizer: a file of tokenizers, for transformers' `AutoTokenizer`.
    """
    cell, vocabulary, classes, documents = contents
    tensors = ((name, value) for name, value in model.state_dict().items() if isinstance(value, Tensor))
    weights = {PREFIX + name: value.contiguous() for name, value in tensors}
    kind = "SequenceClassification" if classes is not None else "CausalLM" if cell["causal"] else "MaskedLM"
    described = {
        "architectures": [f"AttentionZooFor{kind}"],
        "model_type": TYPE,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "vocab_size": vocabulary,
        **({} if classes is None else {"classes": classes, "documents": documents}),
        "cell": cell,
    }
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        write_atomically(folder / "tokenizer.json", tokenizer)
        write_atomically(folder / "tokenizer_config.json", b'{"tokenizer_class": "PreTrainedTokenizerFast"}')
    write_atomically(folder / "model.safetensors", _safetensors().save(weights, metadata={"format": "pt"}))
    write_atomically(folder / "config.json", json.dumps(described, indent=1).encode())


def is_saved(folder: str | Path) -> bool:
    """Whether a folder was written by `save`; False also if it cannot be read."""
    try:
        return _described(Path(folder)).get("model_type") == TYPE
    except (OSError, ValueError):
        return False


def read(folder: str | Path) -> Saved:
    """Read the `config.json` of a folder that `save` wrote.

    Raises:
        ValueError: it cannot be read, or has other contents.
    """
    try:
        described = _described(Path(folder))
    except (OSError, ValueError) as error:
        raise ValueError(f"config.json cannot be read: {one_line(error)}") from None
    cell, vocabulary = described.get("cell"), check_int("config.json: vocab_size", described.get("vocab_size"))
    classes, documents = described.get("classes"), described.get("documents", 1)
    left = "what bench=train left there"
    require("config.json: classes", classes, classes is None or (type(classes) is int and classes > 0), left)
    require("config.json: documents", documents, type(documents) is int and documents in (1, 2), left)
    if not isinstance(cell, dict):
        raise ValueError("config.json: cell must be the configuration that bench=train left there")
    for key, kind in KINDS.items():
        value = cell.get(key)
        if type(value) is not kind or (isinstance(value, dict) and not isinstance(value.get("name"), str)):
            raise ValueError(f"config.json: cell.{key} must be {left}")
    return Saved(cell, vocabulary, classes, documents)


def load_weights(folder: str | Path) -> dict[str, Tensor]:
    """The state_dict of a saved model, on the CPU.

    Raises:
        ValueError: it cannot be read.
    """
    safetensors = _safetensors()
    try:
        tensors = safetensors.load_file(Path(folder) / "model.safetensors")
    except Exception as error:  # an OSError, or one of the library's own errors
        raise ValueError(f"model.safetensors cannot be read: {one_line(error)}") from None
    return {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}


def _safetensors() -> Any:
    return package("safetensors.torch", "a trained model", "-e '.[pretrained]'")


def _described(folder: Path) -> dict[str, Any]:
    described = json.loads((folder / "config.json").read_bytes())
    if not isinstance(described, dict):
        raise ValueError("no JSON object")
    return described
