"""A hybrid without one of its branches, to measure what a trained model owes to each."""

import torch
from torch import Tensor, nn

from attention_zoo.base import Attention
from attention_zoo.checks import check_choice
from attention_zoo.info import UnsupportedError
from attention_zoo.ops.masking import denominator, visible_keys
from attention_zoo.polysketch import Polysketch

BRANCHES = ("window", "sketch")


def branches(attention: Attention) -> tuple[str, ...]:
    """The branches whose weights add up to those of this mechanism; none if it is not a hybrid."""
    return BRANCHES if isinstance(attention, Polysketch) and attention.local else ()


class WithoutBranch(nn.Module):
    """A hybrid with the weights of one branch set to zero and nothing else changed; it computes the n x n weights.

    For example, `WithoutBranch(attention, "sketch")` of a `polysketch` with `local=true` is the `local` attention
    inside it.

    Args:
        attention: the hybrid; its parameters are shared, not copied.
        branch: `window`, the exact weights inside a block, or `sketch`, the weights of the blocks before.
        keeps_denominator: the weights are removed from the sum over values only, not from the denominator.

    Raises:
        UnsupportedError: the mechanism has no branches.
        ValueError: no such branch.
    """

    def __init__(self, attention: Attention, branch: str, *, keeps_denominator: bool = False) -> None:
        super().__init__()
        if not isinstance(attention, Polysketch) or not branches(attention):
            raise UnsupportedError(f"{attention.info.name} has no branches here; polysketch with local=true has")
        self.attention = attention
        self.branch = check_choice("branch", branch, BRANCHES)
        self.keeps_denominator = keeps_denominator
        self.num_heads, self.head_dim = attention.num_heads, attention.head_dim

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """As `Attention.forward`."""
        n, hybrid = query.shape[2], self.attention
        positions = torch.arange(n, device=query.device)
        visible = visible_keys(n, n, True, key_padding_mask, query.device)
        weights = hybrid._row_weights(query, key, visible, positions).masked_fill(~visible, 0)
        block = positions // hybrid._block_size(query.device)
        own = block[:, None] == block
        kept = weights.masked_fill(own if self.branch == "window" else ~own, 0)
        total = denominator((weights if self.keeps_denominator else kept).sum(-1, keepdim=True), hybrid.bias)
        return (kept / total).to(value.dtype) @ value
