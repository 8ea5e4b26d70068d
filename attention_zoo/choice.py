"""Which implementation a call runs: the reference, or the fast path if it takes the input.

The operation decides which kernel a fast path runs: `attention_zoo.ops.feature_product.choice`, `fused_softmax`.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attention_zoo.checks import check_choice
from attention_zoo.info import IMPLEMENTATIONS, AttentionInfo, Executed, UnsupportedError


class ImplementationChoice(nn.Module):
    """A module with a reference and perhaps a fast path; `executed` says what its last call ran.

    Args:
        impl: `reference`, `fused` or `auto`: `fused` if it takes the input, else `reference`.

    Raises:
        UnsupportedError: the mechanism has no such implementation.
        ValueError: `impl` is none of these.
    """

    info: ClassVar[AttentionInfo]
    # The mechanism is named after its kernel: `auto` refuses an input that the kernel does not take.
    is_kernel: ClassVar[bool] = False

    def __init__(self, impl: str) -> None:
        super().__init__()
        offered = self.info.implementations
        if check_choice("impl", impl, IMPLEMENTATIONS) != "auto" and impl not in offered:
            raise UnsupportedError(f"impl={impl}: {self.info.name} has {', '.join(offered)} only")
        self.impl = impl
        self._placed = torch.empty(0)
        self.executed: Executed | None = None

    def _run(
        self,
        reference: Callable[..., Tensor],
        fused: Callable[..., tuple[Tensor, str]],
        why_not_fused: Callable[..., str | None],
        *arguments: Any,
    ) -> Tensor:
        """Call the reference or the fast path with these arguments, and set `executed`.

        Args:
            reference: returns the output.
            fused: returns the output and the name of its kernel.
            why_not_fused: returns why `fused` cannot take the arguments; None if it can.
            arguments: passed to all three.

        Raises:
            UnsupportedError: `fused` was asked for, and cannot take the arguments.
        """
        if self._chooses_fused(why_not_fused, *arguments):
            out, backend = fused(*arguments)
            executed = Executed("fused", backend)
        else:
            out, executed = reference(*arguments), Executed("reference")
        if executed != self.executed:  # setting an attribute of a module is slow
            self.executed = executed
        return out

    def _chooses_fused(self, why_not_fused: Callable[..., str | None], *arguments: Any) -> bool:
        if self.impl == "reference" or "fused" not in self.info.implementations:
            return False
        reason = why_not_fused(*arguments)
        if reason is not None and (self.impl == "fused" or self.is_kernel):
            raise UnsupportedError(f"impl={self.impl}: {reason}")
        return reason is None

    @property
    def device(self) -> torch.device:
        """The device that the module was moved to, also if it has no parameters."""
        return self._placed.device

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **options: Any) -> Any:
        self._placed = fn(self._placed)
        return super()._apply(fn, *args, **options)
