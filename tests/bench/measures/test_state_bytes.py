"""What training records of the decoding state: closed forms for all layers, and null where nothing decodes."""

import pytest
from cells import config, said

from bench import measures
from bench.measures.context import CellContext

LAYERS, HEADS, H, N = 2, 2, 8, 12
FLOAT = 4


def trained(tmp_path, seq_len=N, dtype="float32", causal=True, **attention):
    changes = {"model": {"name": "transformer" if causal else "encoder", "layers": LAYERS}, "batch_size": 2}
    changes |= {"task": {"name": "compression" if causal else "reversal"}, "num_heads": HEADS, "head_dim": H}
    changes["training"] = {"steps": 2, "warmup": 0, "evaluation_examples": 2, "test_examples": 2}
    cell = config(attention["name"], {"name": "train"}, seq_len=seq_len, dtype=dtype, causal=causal, **changes)
    return measures.get("train")().measure(CellContext({**cell, "attention": attention}, tmp_path))


def cache(tokens, size=FLOAT):
    """Keys and values, and whether each token is padding."""
    return LAYERS * (2 * tokens * H * HEADS * size + tokens)


@pytest.mark.parametrize(
    ("attention", "dtype", "expected"),
    [
        ({"name": "softmax"}, "bfloat16", cache(N, 2)),
        # Sums over h features of h values and a one, in float32 whatever the dtype.
        ({"name": "linear"}, "bfloat16", LAYERS * HEADS * H * (H + 1) * FLOAT),
        ({"name": "local", "block_size": 5}, "float32", cache(5)),
        ({"name": "local", "block_size": 64}, "float32", cache(64)),
    ],
)
def test_the_state_of_all_layers_is_the_closed_form(attention, dtype, expected, tmp_path):
    measurements = trained(tmp_path, dtype=dtype, **attention)
    assert measurements["state_bytes"] == expected
    metric = said("train", measurements)["state_bytes"]
    assert (metric.value, metric.unit) == (expected, "bytes")


def test_what_does_not_decode_has_none(tmp_path):
    """Nor has a record of before."""
    measurements = trained(tmp_path, causal=False, name="softmax")
    assert measurements["state_bytes"] is None and "state_bytes" not in said("train", measurements)
    del measurements["state_bytes"]
    assert "state_bytes" not in said("train", measurements)


def test_measuring_it_leaves_training_as_it_was(tmp_path, monkeypatch):
    sketch = {"name": "polysketch", "sketch": "learned", "sketch_size": 4, "dtype": "bfloat16"}
    found = trained(tmp_path, **sketch)["test"]
    monkeypatch.setattr("bench.measures.train._state_bytes", lambda trainer, seq_len: 0)
    assert trained(tmp_path, **sketch)["test"] == found
