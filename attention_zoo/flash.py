"""The exact fused softmax (Dao et al. 2022, FlashAttention, Algorithm 1), by the kernels of PyTorch and flash-attn."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention_zoo.base import AttentionInfo, UnsupportedError, register
from attention_zoo.checks import check_choice
from attention_zoo.ops.masking import visible_keys
from attention_zoo.softmax import Softmax

SDPA_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
BACKENDS = ("auto", *SDPA_BACKENDS, "flash_attn")
# In the order in which they are usually fastest; `auto` takes the first that accepts the input.
AUTO_ORDER = ("cudnn", "flash", "efficient")
# flash-attn-4 installs a namespace of the same name without this module.
FLASH_ATTN_MODULE = "flash_attn.flash_attn_interface"


@register
class Flash(Softmax):
    """Softmax attention without the n x n matrix, by a fused kernel that is named, never chosen behind one's back.

    Args:
        backend: PyTorch's `flash`, `cudnn` or `efficient` kernel, the `flash_attn` package, or `auto`: the first of
            cudnn, flash, efficient that takes the input (a CPU has flash only). `backend_used` says which one ran.
        scale: factor of the scores; None is 1/sqrt(head_dim).

    Raises:
        UnsupportedError: the forced backend cannot run on this device or take this input.
    """

    info = AttentionInfo(
        name="flash",
        paper="Dao, Fu, Ermon, Rudra, Re 2022 (FlashAttention), Algorithm 1",
        approximates="softmax",
        causal=True,
        padding=True,
        cross=True,
        random=False,
        exact=True,
        complexity="O(n^2 h)",
        decode=True,
        implementations=("reference", "fused"),
    )

    def __init__(self, *, backend: str = "auto", scale: float | None = None, **common: Any) -> None:
        super().__init__(scale=scale, **common)
        self.backend = check_choice("backend", backend, BACKENDS)
        self.backend_used: str | None = None
        self._chosen: dict[tuple[object, ...], str] = {}
        if backend == "flash_attn" and not _is_installed(FLASH_ATTN_MODULE):
            raise UnsupportedError("backend=flash_attn: the package flash-attn is not installed")

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        if self.impl == "reference":
            return super()._attend(query, key, value, padding)
        if self.backend == "flash_attn":
            self.backend_used = "flash_attn"
            return self._flash_attn(query, key, value, padding)
        visible, blind = None, None
        if padding is not None:
            # The kernels answer NaN to a row that sees nothing: let it see everything, then clear it.
            visible = visible_keys(query.shape[2], key.shape[2], self.causal, padding, query.device)
            blind = ~visible.any(-1, keepdim=True)
            visible = (visible | blind).expand(-1, -1, query.shape[2], -1)
        self.backend_used = self._choose(query, key, value, visible)
        with sdpa_kernel(SDPA_BACKENDS[self.backend_used]):
            out = F.scaled_dot_product_attention(
                query, key, value, visible, is_causal=self.causal and visible is None, scale=self.scale
            )
        return out if blind is None else out.masked_fill(blind, 0)

    def _choose(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> str:
        wanted = AUTO_ORDER if self.backend == "auto" else (self.backend,)
        if query.device.type == "cpu":
            if "flash" not in wanted:
                raise UnsupportedError(f"backend={self.backend}: needs a GPU; a CPU has flash only")
            return "flash"
        # Asking the backends takes longer than a short attention.
        asked = (query.shape, key.shape, query.dtype, query.device, query.requires_grad, mask is None)
        if asked in self._chosen:
            return self._chosen[asked]
        reasons = []
        for name in wanted:
            reason = _refusal(name, query, key, value, mask, self.causal and mask is None)
            if reason is None:
                return self._chosen.setdefault(asked, name)
            reasons.append(f"{name}: {reason}")
        raise UnsupportedError(f"backend={self.backend}: cannot take the input ({'; '.join(reasons)})")

    def _flash_attn(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        if padding is not None:
            raise UnsupportedError("backend=flash_attn: does not take a key_padding_mask")
        if query.device.type != "cuda" or query.dtype not in (torch.float16, torch.bfloat16):
            raise UnsupportedError("backend=flash_attn: needs a GPU and a 16-bit dtype")
        kernel = importlib.import_module(FLASH_ATTN_MODULE).flash_attn_func
        by_position = (x.transpose(1, 2) for x in (query, key, value))
        return kernel(*by_position, softmax_scale=self.scale, causal=self.causal).transpose(1, 2)

    def _flops(self, seq_len: int) -> int:
        """Two n x n x h products, half of them if causal: the kernels skip the blocks of the future."""
        return super()._flops(seq_len) // (2 if self.causal and self.impl == "fused" else 1)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _refusal(name: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool) -> str | None:
    """Why PyTorch's backend `name` cannot take a CUDA input, or None if it can."""
    params = torch.backends.cuda.SDPAParams(query, key, value, mask, 0.0, is_causal, False)
    can_use = {
        "flash": torch.backends.cuda.can_use_flash_attention,
        "cudnn": torch.backends.cuda.can_use_cudnn_attention,
        "efficient": torch.backends.cuda.can_use_efficient_attention,
    }[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if can_use(params, debug=True):
            return None
    said = [str(warning.message).split("(Triggered")[0].strip().splitlines()[0] for warning in caught]
    return said[-1] if said else "not available on this device"
