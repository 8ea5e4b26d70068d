"""What a mechanism is and can do (`AttentionInfo`), what a call ran (`Executed`), and `UnsupportedError`."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

IMPLEMENTATIONS = ("auto", "reference", "fused")
# Powers, exponentials and sums over keys may exceed float16's largest number, 65504.
WIDE_DTYPES = (torch.float64, torch.float32, torch.bfloat16)
# For mechanisms whose weights are between 0 and 1, and whose sums are computed in float32.
ALL_DTYPES = (*WIDE_DTYPES, torch.float16)


class UnsupportedError(Exception):
    """The mechanism cannot do what was asked of it; the message says why."""


class Executed(NamedTuple):
    """What a call ran: `impl` is `reference` or `fused`, `backend` the name of its kernel, if it has one."""

    impl: str
    backend: str | None = None


@dataclass(frozen=True)
class AttentionInfo:
    """What a mechanism is and can do; a new mechanism sets only what differs from the defaults.

    Args:
        name: its name in the registry, for `create`.
        paper: authors, year, section.
        approximates: the exact function that its output approximates (`softmax`, `polynomial`); None if it is a
            function of its own.
        causal: it can hide the future from the past.
        padding: it takes a `key_padding_mask`.
        cross: query and key lengths may differ.
        random: with the default hyperparameters, its function depends on the seed.
        complexity: of a forward pass, `O(n h)`.
        exact: it computes exactly the function in `approximates`; always True if that is None.
        data_dependent: comparisons of input values decide which rows or columns are computed, so that rounding may
            change whole rows.
        cancels: its weights are powers of sums that may cancel, so that rounding may dominate a row that sees few keys.
        decode: it has `init_state`, `prefill` and `step`.
        approximately_causal: with `causal=True` it attends to the past only, but which keys of the past it attends to
            depends on the future; `causal` is then False.
        bidirectional: it can be created with `causal=False`.
        size: the hyperparameter that papers call the "number of features d".
        package: the package that must be installed.
        devices: the devices it runs on.
        implementations: `reference`, and `fused` where it has a fast path.
        dtypes: of its inputs.
        reads: those of its inputs whose numbers it reads; of the others at most the shape.
        control: it is a baseline for comparison, not a candidate: it sees a window, itself, or all keys alike.
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
    reads: tuple[str, ...] = ("query", "key", "value")
    control: bool = False

    def __post_init__(self) -> None:
        if self.approximates is None:
            object.__setattr__(self, "exact", True)
