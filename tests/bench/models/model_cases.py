"""Small models of every mechanism that can be in one: a new mechanism is tested by existing."""

import pytest
import torch
from zoo_cases import CASES

import attention_zoo
from bench.models import build

VOCABULARY, SEQ_LEN = 11, 19
DECODERS = [name for name, causal in CASES if causal and attention_zoo.info(name).causal]
ENCODERS = [name for name, causal in CASES if not causal]
# Each mechanism once: whether it is causal is of no matter to the model around it.
OTHERS = [name for name in ENCODERS if name not in DECODERS]
MODELS = [*(("transformer", name) for name in DECODERS), *(("encoder", name) for name in ["softmax", *OTHERS])]

every_model = pytest.mark.parametrize("model, name", MODELS, ids=["-".join(case) for case in MODELS])
every_decoder = pytest.mark.parametrize("name", DECODERS)


def config(model="transformer", name="softmax", *, attention=(), settings=(), **changes):
    """Two layers of two heads; blocks, where the mechanism has them, are shorter than the sequence."""
    info, known = attention_zoo.info(name), attention_zoo.hyperparameters(name)
    small = {} if info.size is None else {info.size: 8}
    small |= {key: 4 for key in ("block_size", "bucket_size") if key in known}
    sizes = {"num_heads": 2, "head_dim": 16, "seq_len": SEQ_LEN, "causal": model == "transformer"}
    return {
        "attention": {"name": name, **small, **dict(attention)},
        "model": {"name": model, "layers": 2, **dict(settings)},
        **sizes,
        "seed": 0,
        "impl": "auto",
        **changes,
    }


def made(model="transformer", name="softmax", **given):
    """A model in evaluation, in float64 where the mechanism takes that."""
    return build(config(model, name, **given), VOCABULARY).to(best_dtype(name)).eval()


def best_dtype(name):
    return torch.float64 if torch.float64 in attention_zoo.info(name).dtypes else torch.float32


def tolerance(name):
    return {torch.float64: 1e-10, torch.float32: 1e-4}[best_dtype(name)]


def tokens(batch=3, length=SEQ_LEN, seed=0, vocabulary=VOCABULARY):
    return torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))


def attentions(model):
    return [block.multihead.attention for block in model.blocks]


def turned(x):
    """Rotary positions by complex numbers: coordinate i with i + h/2, position t by t 10000^(-2i/h)."""
    first, second = x.double().chunk(2, -1)
    half = first.shape[-1]
    angles = torch.outer(torch.arange(x.shape[2]).double(), 10000.0 ** (-torch.arange(half).double() / half))
    rotated = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([rotated.real, rotated.imag], -1)
