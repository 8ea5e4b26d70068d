"""Exact softmax attention in one kernel (Dao et al. 2022, FlashAttention, Algorithm 1), by PyTorch or flash-attn."""

import importlib
import importlib.util
import warnings
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention_zoo.base import Attention
from attention_zoo.checks import check_choice
from attention_zoo.info import UnsupportedError
from attention_zoo.ops.decoding.states import KeyValueCache
from attention_zoo.registry import register
from attention_zoo.softmax import KernelSoftmax, Softmax, contiguous_heads

SDPA_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
BACKENDS = ("auto", *SDPA_BACKENDS, "flash_attn")
# In the order in which they are usually fastest; `auto` takes the first that accepts the input.
AUTO_ORDER = ("cudnn", "flash", "efficient")
FIRST_RIGHT_CUDNN, CUDNN_MULTIPLE = 91501, 128
# flash-attn-4 installs a namespace of the same name without this module.
FLASH_ATTN_MODULE = "flash_attn.flash_attn_interface"
# More shapes than a model has; a server that runs for long may see every length with every batch.
MOST_CHOICES = 1024


class Choice(NamedTuple):
    """The kernel for an input, or why none can take it."""

    backend: str
    refusal: str | None = None


@register
class Flash(KernelSoftmax):
    """Softmax attention without the n x n matrix, by a fused kernel; `executed.backend` is its name.

    With dropout a CPU has no fused kernel: PyTorch's `math` runs there, with the matrix in memory. Causal attention
    with padding gives the kernel a mask of `batch x n x n`.

    Args:
        backend: PyTorch's `flash`, `cudnn` or `efficient` kernel, the `flash_attn` package, or `auto`: the first of
            cudnn, flash, efficient that takes the input (a CPU has flash only).
        scale: factor of the scores; None is 1/sqrt(head_dim).
        dropout: probability of dropping a weight in training mode.

    Raises:
        UnsupportedError: the forced backend cannot run on this device or take this input.
    """

    info = replace(
        Softmax.info,
        name="flash",
        paper="Dao, Fu, Ermon, Rudra, Re 2022 (FlashAttention), Algorithm 1",
        implementations=("reference", "fused"),
    )

    drops_fused = True

    def __init__(
        self, *, backend: str = "auto", scale: float | None = None, dropout: float = 0.0, **common: Any
    ) -> None:
        super().__init__(scale=scale, dropout=dropout, **common)
        self.backend = check_choice("backend", backend, BACKENDS)
        self._choices: dict[tuple[object, ...], Choice] = {}
        if backend == "flash_attn" and not _is_installed(FLASH_ATTN_MODULE):
            raise UnsupportedError("backend=flash_attn: the package flash-attn is not installed")

    def _why_not_fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> str | None:
        return self._choose(query, key, value, padding is not None, self.causal and padding is None).refusal

    def _why_no_fused_read(self, state: KeyValueCache, query: Tensor) -> str | None:
        has_mask = state.has_padding or query.shape[2] > 1
        return self._choose(query, state.keys, state.values, has_mask, False).refusal

    def _continue(
        self, state: KeyValueCache, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None
    ) -> Tensor:
        # Token by token, a kernel needs no mask, so one that takes none can run.
        if self.impl != "reference" and self._choose(query, key, value, True, False).refusal is not None:
            return Attention._continue(self, state, query, key, value, padding)
        return super()._continue(state, query, key, value, padding)

    def _kernel(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
    ) -> tuple[Tensor, str]:
        backend = self._choose(query, key, value, mask is not None, is_causal).backend
        if backend == "flash_attn":
            kernel = importlib.import_module(FLASH_ATTN_MODULE).flash_attn_func
            by_position = (x.transpose(1, 2) for x in (query, key, value))
            out = kernel(*by_position, dropout_p=self.dropout_p, softmax_scale=self.scale, causal=is_causal)
            return out.transpose(1, 2), backend
        mask = None if mask is None else mask.expand(-1, -1, query.shape[2], -1)
        # A CPU has one backend per input, and to select it would take as long as a short attention.
        with nullcontext() if query.device.type == "cpu" else sdpa_kernel(SDPA_BACKENDS[backend]):
            out = F.scaled_dot_product_attention(
                query, key, value, mask, dropout_p=self.dropout_p, is_causal=is_causal, scale=self.scale
            )
        return out, backend

    def _choose(self, query: Tensor, key: Tensor, value: Tensor, has_mask: bool, is_causal: bool) -> Choice:
        # Asking the backends takes longer than a short attention. Their answer depends on the number of keys only by
        # its remainder and whether it is 1, so decoding asks only once for each of these.
        keys = min(key.shape[2], 2), key.shape[2] % CUDNN_MULTIPLE
        tensors = tuple((x.stride(), x.requires_grad) for x in (query, key, value))
        settings = torch.is_grad_enabled(), has_mask, is_causal, self.dropout_p
        asked = query.shape, keys, query.dtype, query.device, tensors, *settings
        if asked not in self._choices:
            if len(self._choices) >= MOST_CHOICES:
                self._choices.clear()
            self._choices[asked] = self._ask(query, key, value, has_mask, is_causal)
        return self._choices[asked]

    def _ask(self, query: Tensor, key: Tensor, value: Tensor, has_mask: bool, is_causal: bool) -> Choice:
        if self.backend == "flash_attn":
            return Choice(self.backend, _flash_attn_refusal(query, has_mask))
        wanted = AUTO_ORDER if self.backend == "auto" else (self.backend,)
        if query.device.type == "cpu":
            return self._ask_cpu(wanted)
        mask = None
        if has_mask:
            shape = len(query), 1, query.shape[2], key.shape[2]
            mask = query.new_ones(len(query), 1, 1, key.shape[2], dtype=torch.bool).expand(shape)
        reasons = []
        query, key, value = contiguous_heads(query, key, value)
        for name in wanted:
            reason = _backend_refusal(name, query, key, value, mask, self.dropout_p, is_causal)
            if reason is None and name == "cudnn" and self.backend == "auto":
                reason = _cudnn_error(query.shape[2], key.shape[2])
            if reason is None:
                return Choice(name)
            reasons.append(f"{name}: {reason}")
        return Choice("", f"backend={self.backend}: cannot take the input ({'; '.join(reasons)})")

    def _ask_cpu(self, wanted: tuple[str, ...]) -> Choice:
        if "flash" not in wanted:
            return Choice("flash", f"backend={self.backend}: needs a GPU; a CPU has flash only")
        if self.dropout_p == 0:
            return Choice("flash")
        refusal = f"backend=flash: drops no weights on a CPU (dropout={self.dropout}); auto takes PyTorch's math there"
        return Choice("math", None if self.backend == "auto" else refusal)


def _flash_attn_refusal(query: Tensor, has_mask: bool) -> str | None:
    if has_mask:
        return "backend=flash_attn: does not take a key_padding_mask"
    if query.device.type != "cuda" or query.dtype not in (torch.float16, torch.bfloat16):
        return "backend=flash_attn: needs a GPU and a 16-bit dtype"
    return None


def _cudnn_error(queries: int, keys: int) -> str | None:
    """Why not to use this cuDNN, or None: before 9.15.1 it is wrong where its tiles do not divide a length."""
    version = torch.backends.cudnn.version()
    if version < FIRST_RIGHT_CUDNN and (queries % CUDNN_MULTIPLE or keys % CUDNN_MULTIPLE):
        return f"version {version} errs where a length is not a multiple of {CUDNN_MULTIPLE}"
    return None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _backend_refusal(
    name: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, is_causal: bool
) -> str | None:
    """Why PyTorch's backend `name` cannot take a CUDA input, or None if it can."""
    params = torch.backends.cuda.SDPAParams(query, key, value, mask, dropout, is_causal, False)
    can_use = getattr(torch.backends.cuda, f"can_use_{name}_attention")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if can_use(params, debug=True):
            return None
    reasons = [str(warning.message).split("(Triggered")[0].strip().splitlines()[0] for warning in caught]
    return reasons[-1] if reasons else "not available on this device"
