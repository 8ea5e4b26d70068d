"""FLOPs of one forward pass: by the mechanism's own formula, and counted in a run."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.utils.flop_counter import FlopCounterMode

from attention_zoo import Attention, UnsupportedError
from bench.common.errors import IncorrectError
from bench.measures import Sized, register
from bench.measures.context import CellContext, num_features
from bench.records.metrics import Metric

GFLOP = ("GFLOP", 1e-9)
# How the names of backends begin that PyTorch sees nothing of. What a mechanism computes around them is not its FLOPs.
UNCOUNTED = ("triton", "flex_attention", "flash_attn", "fla.", "power_retention")


@register
@dataclass
class Flops(Sized):
    """FLOPs of one forward pass: by the mechanism's formula, and counted in a run."""

    name: ClassVar[str] = "flops"
    headline_format: ClassVar[str] = "{flops_analytic} by formula, {flops_counted} counted, ratio {flops_ratio}"

    def measure(self, context: CellContext) -> dict[str, Any]:
        """The analytic and the counted FLOPs of the forward pass over the whole batch; a multiply-add counts as 2.

        Returns:
            `{"analytic": FLOPs, "counted": FLOPs, "operations": {operation: FLOPs}, "features": d or None}`.

        Raises:
            UnsupportedError: the mechanism has no operations, or runs in kernels that PyTorch cannot look into.
        """
        attention, inputs = context.attention(), context.inputs()
        query, key, value = inputs
        check = context.correctness_check((query[:1], key[:1], value[:1]))
        check.check_forward(context.config["label"], attention)
        with torch.no_grad():
            operations = count(lambda: attention(*inputs))
        check.finish()
        formula, counted = analytic(attention, len(query), query.shape[2]), sum(operations.values())
        _require_countable(attention, formula, counted)
        features = num_features(attention)
        return {"analytic": formula, "counted": counted, "operations": operations, "features": features}

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """`flops_analytic`, `flops_counted`, and `flops_ratio`, the first over the second."""
        analytic, counted = measurements["analytic"], measurements["counted"]
        yield Metric("flops_analytic", analytic, "FLOP", name="gflop.analytic", shown=GFLOP)
        yield Metric("flops_counted", counted, "FLOP", name="gflop.counted", shown=GFLOP)
        yield Metric("flops_ratio", analytic / counted, name="flops.ratio", shown=None)


def _require_countable(attention: Attention, formula: int, counted: int) -> None:
    """Raise `UnsupportedError` unless all operations of the last call could be counted, and there were any."""
    name, backend = attention.info.name, attention.executed and attention.executed.backend
    if formula == counted == 0:
        raise UnsupportedError(f"{name} has no operations to count: its formula gives 0 FLOPs")
    if not counted or (backend or "").startswith(UNCOUNTED):
        raise UnsupportedError(f"{name} runs in kernels whose operations PyTorch cannot count")


def analytic(attention: Attention, batch: int, seq_len: int) -> int:
    """The FLOPs of one forward pass by the mechanism's own formula; a multiply-add counts as 2.

    Raises:
        IncorrectError: the formula gives something that is not a finite number of at least 0.
    """
    flops: object = attention.flops(batch, seq_len)
    if not isinstance(flops, int | float):
        raise IncorrectError(f"flops({batch}, {seq_len}): is {type(flops).__name__}, must be a number")
    if not (math.isfinite(flops) and flops >= 0):
        raise IncorrectError(f"flops({batch}, {seq_len}): is {flops}, must be a number of at least 0")
    return int(flops)


def count(call: Callable[[], Any]) -> dict[str, int]:
    """The FLOPs of one call by operation, such as `{"bmm": 4096, "sum": 64}`.

    Counts matrix products and fused attention (2 per multiply-add), convolutions, and sums (1 per addend), which are
    the only arithmetic of a mean. Elementwise operations are not counted: no paper's formula counts them.
    """
    aten = torch.ops.aten
    formulas = {
        aten.baddbmm_: lambda added, left, right, **_: 2 * math.prod(left) * right[-1],
        **dict.fromkeys((aten.sum, aten.mean, aten.cumsum), lambda summed, *_, **__: math.prod(summed)),
        aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention,
        aten._scaled_dot_product_flash_attention: _fused_attention,
        aten._scaled_dot_product_efficient_attention: _biased_attention,
        aten._scaled_dot_product_cudnn_attention: _biased_attention,
    }
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        call()
    counts = counter.get_flop_counts().get("Global", {})
    return {operation.__name__.lstrip("_"): flops for operation, flops in counts.items() if flops}


def _fused_attention(
    query: Any, key: Any, value: Any, dropout: float = 0.0, is_causal: bool = False, *_: Any, **__: Any
) -> int:
    """Both products. PyTorch's own formula also counts the masked half of causal attention, which kernels skip."""
    *batch, queries, head_dim = query
    seen = queries * (queries + 1) // 2 if is_causal else queries * key[-2]
    return 2 * math.prod(batch) * seen * (head_dim + value[-1])


def _biased_attention(query: Any, key: Any, value: Any, bias: Any, logsumexp: Any, *others: Any, **by_name: Any) -> int:
    """Like `_fused_attention`, for kernels with two more arguments."""
    return _fused_attention(query, key, value, *others, **by_name)
