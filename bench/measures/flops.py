"""FLOPs of one forward pass: the mechanism's own formula beside a counted run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from attention_zoo import UnsupportedError
from bench.measures.workbench import Workbench

aten = torch.ops.aten


@torch.no_grad()
def measure(workbench: Workbench) -> dict[str, Any]:
    """The analytic and the counted FLOPs of the forward pass over the whole batch; a multiply-add counts 2.

    Returns:
        `{"analytic": FLOPs, "counted": FLOPs, "operations": {operation: FLOPs}, "features": d or None}`.

    Raises:
        UnsupportedError: nothing was counted, because the mechanism runs in kernels that PyTorch does not see into.
    """
    attention, inputs = workbench.attention(), workbench.inputs()
    query, key, value = inputs
    gate = workbench.gate((query[:1], key[:1], value[:1]))
    gate.look(workbench.config["label"], attention)
    batch, _, seq_len, _ = inputs[0].shape
    operations = count(lambda: attention(*inputs))
    gate.close()
    size = attention.info.size
    if not operations:
        raise UnsupportedError(f"{attention.info.name} runs in kernels whose operations PyTorch cannot count")
    return {
        "analytic": attention.flops(batch, seq_len),
        "counted": sum(operations.values()),
        "operations": operations,
        "features": None if size is None else getattr(attention, size),
    }


def count(call: Callable[[], Any]) -> dict[str, int]:
    """The FLOPs of one call by operation, such as `{"bmm": 4096, "sum": 64}`.

    What is counted: matrix products and fused attention (2 for a multiply-add), convolutions, and sums (1 for each
    addend), the only arithmetic of a mean. What works entry by entry is not: no formula of a paper counts it.
    """
    with FlopCounterMode(display=False, custom_mapping=_UNKNOWN_TO_PYTORCH) as counter:
        call()
    counts = counter.get_flop_counts().get("Global", {})
    return {operation.__name__.lstrip("_"): flops for operation, flops in counts.items() if flops}


def _added_product(added: Any, left: Any, right: Any, **_: Any) -> int:
    return 2 * math.prod(left) * right[-1]


def _addends(summed: Any, *_: Any, **__: Any) -> int:
    return math.prod(summed)


def _fused_attention(
    query: Any, key: Any, value: Any, dropout: float = 0.0, is_causal: bool = False, *_: Any, **__: Any
) -> int:
    """Both products; PyTorch's own formula counts the future of a causal mask too, which the kernels skip."""
    *batch, queries, head_dim = query
    seen = queries * (queries + 1) // 2 if is_causal else queries * key[-2]
    return 2 * math.prod(batch) * seen * (head_dim + value[-1])


_UNKNOWN_TO_PYTORCH = {
    aten.baddbmm_: _added_product,
    aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention,
    aten._scaled_dot_product_flash_attention: _fused_attention,
    **dict.fromkeys((aten.sum, aten.mean, aten.cumsum), _addends),
}
