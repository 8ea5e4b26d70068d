"""What a mechanism says of itself, what a call ran, and the error of what it cannot do."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

IMPLEMENTATIONS = ("auto", "reference", "fused")
# Powers, exponentials and sums over keys leave float16's range, of at most 65504.
WIDE_DTYPES = (torch.float64, torch.float32, torch.bfloat16)
# For weights between 0 and 1 of scores in range, and sums that are made in float32.
ALL_DTYPES = (*WIDE_DTYPES, torch.float16)


class UnsupportedError(Exception):
    """The mechanism cannot do what was asked of it; the message says why."""


class Executed(NamedTuple):
    """What a call ran: `impl` is `reference` or `fused`, `backend` the name of its kernel where it has one."""

    impl: str
    backend: str | None = None


@dataclass(frozen=True)
class AttentionInfo:
    """What a mechanism is and what it can do; a new one says only what differs from the defaults.

    Args:
        name: in the registry, and of `create`.
        paper: authors, year, section.
        approximates: the exact function that its output estimates (`softmax`, `polynomial`); None for a function of
            its own.
        causal: it can hide the future from the past.
        padding: it takes a `key_padding_mask`.
        cross: query and key lengths may differ.
        random: its function depends on the seed.
        complexity: of a forward pass, `O(n h)`.
        exact: it computes the very function that it approximates, as a function of its own always does.
        data_dependent: comparisons of input numbers decide which rows or columns are computed, so that rounding may
            change whole rows.
        cancels: its weights are powers of sums that may vanish, so that rounding may decide a row that sees few keys.
        decode: it has `init_state`, `prefill` and `step`.
        approximately_causal: with `causal=True` it attends to the past only, but what it sees of the past depends on
            the future; `causal` is then False.
        bidirectional: it can be made with `causal=False`.
        size: the hyperparameter that a paper's "number of features d" means.
        package: what it needs from the package index.
        devices: where it runs.
        implementations: `reference`, and `fused` where it has a fast path.
        dtypes: of its inputs.
        control: it is no candidate but what candidates are compared with: it sees a window, itself, or all alike.
    """

    name: str
    paper: str
    approximates: str | None = None
    causal: bool = False
    padding: bool = False
    cross: bool = False
    random: bool = False
    complexity: str = ""
    exact: bool = False
    data_dependent: bool = False
    cancels: bool = False
    decode: bool = False
    approximately_causal: bool = False
    bidirectional: bool = True
    size: str | None = None
    package: str | None = None
    devices: tuple[str, ...] = ("cpu", "cuda")
    implementations: tuple[str, ...] = ("reference",)
    dtypes: tuple[torch.dtype, ...] = WIDE_DTYPES
    control: bool = False

    def __post_init__(self) -> None:
        if self.approximates is None:
            object.__setattr__(self, "exact", True)
