"""Recall without training: how many random key-value pairs a state can store, and in how many bytes."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_zoo import Attention, UnsupportedError
from attention_zoo.ops.decoding.states import State
from bench.common.mechanism import SEEDS
from bench.common.schema import setting
from bench.inputs.base import inputs_seed
from bench.measures import Benchmark, register
from bench.measures.context import CellContext, num_features
from bench.measures.decode import LastSteps
from bench.measures.memory import largest_fitting
from bench.measures.progress import Point
from bench.measures.reference import require_finite
from bench.records.metrics import Metric, fraction, mean

KINDS = ("gaussian", "orthonormal")
CHECKED = 256  # tokens of the inputs for the check; its steps are the last STEPS
STEPS = 8
FORKED_BYTES = 2**24  # of copied states at once; a CPU allocates larger tensors anew at every step


@register
@dataclass
class Capacity(Benchmark):
    """The largest number of pairs (at most seq_len) of which a state recalls 90 %; `repeats` draws; causal only.

    Keys are random, `gaussian` or `orthonormal` (then at most head_dim of them); both have an expected squared norm of
    `key_scale^2 head_dim`. Values are uniform on the unit sphere, so the nearest value to an output is the same by dot
    product, angle and distance. So the length of outputs does not matter, which are short with a bias in the
    denominator, nor does a mean of all values in them, and no distance has to be chosen.
    """

    name: ClassVar[str] = "capacity"
    replicates: ClassVar[str] = "draws"  # of pairs and of the mechanism's features; the heads of a draw share them
    headline_format: ClassVar[str] = "{capacity} pairs in {state_bytes}, {capacity_per_byte}"

    keys: str = setting("gaussian", "distribution of the keys: gaussian or orthonormal", choices=KINDS)
    key_scale: float = setting(1.0, "factor on the keys; 1 gives entries of variance 1", above=0)
    share: float = setting(0.9, "share of the pairs that must be recalled correctly", above=0, maximum=1)
    reads: int = setting(128, "largest number of pairs read back, per draw and head", minimum=1, condition=False)

    def measure(self, context: CellContext) -> dict[str, Any]:
        """Recall by the number of pairs, doubled until all draws fail, then the capacity of each draw.

        The capacity is found by bisection between the last doubling that succeeds and the first that fails: exact up
        to 128 pairs, else to 1/64. With more pairs, a draw keeps its earlier ones. Inputs are used only to check the
        decoding steps; a trained model as inputs gives the mechanism its weights.

        Returns:
            `right`: for each number of pairs, the share of correct answers of each draw. For each draw, per head:
            `capacity`, 0 if not even one pair is recalled, and `state_bytes` of a state with that many pairs (at least
            one). `most`: the largest number of pairs tried. `features`: the mechanism's size d, or None.

        Raises:
            UnsupportedError: the mechanism cannot decode, or cannot with `causal=false`; seq_len is below 4.
            IncorrectError: its steps do not give the last rows of the forward pass.
            NonFiniteError: NaN or infinity in an output.
        """
        config = context.config
        most = config["seq_len"] if self.keys == "gaussian" else min(config["seq_len"], config["head_dim"])
        attention = context.attention(max_seq_len=config["seq_len"] + 1)  # one more token, for reading
        with torch.no_grad():
            _check(context, attention)
            draws = [self._drawn(context, attention, number, most) for number in range(config["repeats"])]
            right: dict[int, list[float]] = {}
            for count in doubled(most):
                right[count] = [draw.right(count) for draw in draws]
                context.progress(len(right), len(doubled(most)), f"{count} pairs")
                if max(right[count]) < self.share:
                    break
            capacity = [draw.capacity(self.share, most) for draw in draws]
            size = [draw.state_bytes(max(1, count)) for draw, count in zip(draws, capacity, strict=True)]
        shares = {str(count): of_draws for count, of_draws in right.items()}
        found = {"right": shares, "capacity": capacity, "state_bytes": size}
        return {**found, "most": most, "features": num_features(attention)}

    def _drawn(self, context: CellContext, attention: Attention, number: int, most: int) -> "Draw":
        config = context.config
        # Multiplied, so that cells that differ only in their seed share no draw.
        seed = (config["seed"] * config["repeats"] + number) % SEEDS
        generator = torch.Generator().manual_seed(inputs_seed(seed, "pairs"))
        size = config["batch_size"], config["num_heads"], most, config["head_dim"]
        key = drawn_keys(self.keys, size, generator) * self.key_scale
        value = F.normalize(torch.randn(size, generator=generator, dtype=torch.float64), dim=-1)
        order = torch.rand(most, generator=generator).to(context.device)
        is_drawn = attention.info.random and config["label"] not in context.trained
        key, value = (x.to(context.device, context.dtype) for x in (key, value))
        return Draw(attention, seed if is_drawn else None, key, value, order, self.reads)

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """Per head, means over draws: `capacity`, `state_bytes`, `capacity_per_byte`; `right_at_N` with N pairs.

        `reached` is the share of draws that recalled the largest number tried: their capacity is at least that.
        """
        pairs, size = measurements["capacity"], measurements["state_bytes"]
        yield mean("capacity", pairs, name="capacity.pairs")
        of_state = mean("state_bytes", size, name="capacity.state_kib", shown=("KiB", 2.0**-10))
        yield dataclasses.replace(of_state, unit="bytes")
        per_byte = [one / of for one, of in zip(pairs, size, strict=True)]
        yield mean("capacity_per_byte", per_byte, name="capacity.per_kib", shown=("/KiB", 2.0**10))
        reached = sum(one >= measurements["most"] for one in pairs) / len(pairs)
        yield fraction("reached", reached, name="capacity.reached_pct")
        for count, shares in measurements["right"].items():
            yield mean(f"right_at_{count}", shares, name=f"capacity.right_at_{count}", shown=None)

    @classmethod
    def curves(cls, measurements: Mapping[str, Any]) -> dict[str, list[Point]]:
        """The share of `right` answers over the number of pairs, as the mean over draws."""
        return {"right": [Point(int(n), sum(shares) / len(shares)) for n, shares in measurements["right"].items()]}


class Draw:
    """One draw of pairs and, given a `seed`, of the mechanism's random features; None keeps the features.

    `key` and `value` are `(batch, heads, pairs, head_dim)`; `order` has a random number for each pair, which decides
    which pairs are read.
    """

    def __init__(
        self, attention: Attention, seed: int | None, key: Tensor, value: Tensor, order: Tensor, reads: int
    ) -> None:
        self.attention, self.seed, self.key, self.value = attention, seed, key, value
        self.order, self.reads = order, reads
        self.shares: dict[int, float] = {}
        """The share of right answers, by the numbers of pairs asked so far."""

    def _written(self, count: int) -> State:
        if self.seed is not None:
            self.attention.resample(self.seed)
        return written(self.attention, self.key[:, :, :count], self.value[:, :, :count])

    def right(self, count: int) -> float:
        """The share of right answers with `count` pairs."""
        if count not in self.shares:
            asked = self.order[:count].argsort()[: self.reads]
            outputs = read(self.attention, self._written(count), self.key[:, :, asked])
            require_finite(outputs, f"what is read of {count} pairs")
            self.shares[count] = is_nearest(outputs, self.value[:, :, :count], asked).double().mean().item()
        return self.shares[count]

    def capacity(self, share: float, most: int) -> int:
        """The largest number of pairs with at least this share right, up to the first doubling that fails."""
        return largest_fitting(lambda count: self.right(count) >= share, 1, most)

    def state_bytes(self, count: int) -> float:
        """Bytes of one head's state with `count` pairs."""
        return self._written(count).num_bytes / self.key.shape[:2].numel()


def doubled(most: int) -> list[int]:
    """1, 2, 4, ..., and `most`."""
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def drawn_keys(kind: str, size: tuple[int, int, int, int], generator: torch.Generator) -> Tensor:
    """Random keys `(batch, heads, pairs, head_dim)` in float64, with an expected squared norm of head_dim.

    Orthonormal keys are rows of a Haar matrix times the root of head_dim; there are at most head_dim of them.
    """
    *leading, pairs, head_dim = size
    if kind == "gaussian":
        return torch.randn(size, generator=generator, dtype=torch.float64)
    square = torch.randn(*leading, head_dim, head_dim, generator=generator, dtype=torch.float64)
    rotation, upper = torch.linalg.qr(square)
    # Without the signs of R the matrix is not uniform: Mezzadri 2007, How to Generate Random Matrices, section 5.
    rotation = rotation * upper.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    return rotation[..., :pairs, :] * head_dim**0.5


def written(attention: Attention, key: Tensor, value: Tensor) -> State:
    """The state with these pairs, `(batch, heads, pairs, head_dim)`, from the mechanism's own prefill."""
    return attention.prefill(key, key, value)[1]


def read(attention: Attention, state: State, query: Tensor) -> Tensor:
    """The output for each of these queries, `(batch, heads, queries, head_dim)`, each as the next token.

    Each query is the next step of its own copy of the state, so queries do not see each other, and windows move by one
    token only. A step appends its token before it reads. Here the token is padding, whose key has no weight in any
    mechanism: the output is over the stored pairs alone, with their own denominator. The token takes a place, though:
    if the last block of `local` or `polysketch` is full, it begins a new block, and a sliding window of b tokens has
    b - 1 pairs. Every token that reads does so.
    """
    batch, at_once = len(query), max(1, FORKED_BYTES // state.num_bytes)
    outputs = []
    for some in query.split(at_once, 2):
        forks = copy.deepcopy(state)
        forks.select(torch.arange(batch).repeat_interleave(some.shape[2]))
        token = some.transpose(1, 2).flatten(0, 1).unsqueeze(2)
        padding = torch.ones(len(token), 1, dtype=torch.bool, device=token.device)
        out, _ = attention.step(token, token, torch.zeros_like(token), forks, padding)
        outputs.append(out.squeeze(2).unflatten(0, (batch, -1)).transpose(1, 2))
    return torch.cat(outputs, 2)


def is_nearest(output: Tensor, value: Tensor, own: Tensor) -> Tensor:
    """Whether the value nearest to an output is its own one: bool `(batch, heads, outputs)`.

    False if another value is equally near, and for an output of zeros.

    Args:
        output: `(batch, heads, outputs, head_dim)`.
        value: `(batch, heads, pairs, head_dim)`, of norm 1.
        own: the index of each output's own value, `(outputs,)`.
    """
    products = output @ value.mT
    index = own[:, None].expand(*products.shape[:3], 1)
    theirs = products.scatter(-1, index, -torch.inf).amax(-1)
    return (products.gather(-1, index).squeeze(-1) > theirs) & output.any(-1)


def _check(context: CellContext, attention: Attention) -> None:
    """Check that steps after a prompt give the last rows of the forward pass, as the mechanism's recurrence should."""
    if context.config["seq_len"] < 4:
        raise UnsupportedError(f"seq_len={context.config['seq_len']}: must be at least 4")
    query, key, value = (x[:1, :, :CHECKED].contiguous() for x in context.inputs())
    length = query.shape[2]
    steps, label = min(STEPS, length - 2), context.config["label"]
    check = context.correctness_check((query, key, value), torch.arange(length - steps, length))
    check.check_before(label, attention)
    measured = LastSteps(attention, (query, key, value), steps)
    measured.run(measured.prepare())
    check.check_first(label, "steps", (measured.rows(),))
    check.finish()
