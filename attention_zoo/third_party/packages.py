"""What mechanisms from other packages share: whether one is installed, torch's defaults, and calls of its layers."""

import contextlib
import importlib
import importlib.util
import io
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from attention_zoo.base import ALL, Attention
from attention_zoo.info import AttentionInfo, UnsupportedError


def require_package(info: AttentionInfo, *modules: str) -> None:
    """Check that the `modules` of `info.package` exist, without importing them: an import may initialise a GPU.

    Raises:
        UnsupportedError: a module is missing.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            why = f"needs the package {info.package}: pip install {info.package} (no module {module})"
            raise UnsupportedError(f"{info.name}: {why}")


@contextlib.contextmanager
def usual_defaults() -> Iterator[None]:
    """A context in which a tensor without a dtype and a device is float32 on the CPU: packages rely on that."""
    if torch.compiler.is_compiling():  # a graph cannot ask for the default device
        yield
        return
    default = torch.get_default_dtype()
    if default == torch.float32 and torch.get_default_device() == torch.device("cpu"):
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(default)


class PortedAttention(Attention):
    """A layer of a package: `fused` is the layer, for any input; the reference is its attention matrix.

    Raises:
        UnsupportedError: the package is not installed.
    """

    is_kernel = True
    source: ClassVar[str]  # module and name of the layer

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        require_package(self.info, self.source.partition(".")[0])

    @property
    def weight_degree(self) -> int:
        """Packages keep features and sums in the inputs' dtype, so one factor more is rounded than in ours."""
        return 2

    def _make_layer(self, **settings: Any) -> Any:
        """The package's layer. Its own random numbers will be replaced, so torch's generator is restored after them."""
        module, _, name = self.source.rpartition(".")
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # one reads versions by distutils, and prints that it has no CUDA code
            return getattr(importlib.import_module(module), name)(**settings)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        return self._matrix(query, key, value, padding, ALL) @ value

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        with usual_defaults():
            return self._run_layer(query, key, value, padding), self.source

    def _run_layer(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        """The package's output."""
        raise NotImplementedError

    def _why_not_fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> str | None:
        return None


class CapturedArguments(NamedTuple):
    """Query, key and value `(batch, n, h)`, passed to a layer in place of the hidden state that it would project."""

    query: Tensor
    key: Tensor
    value: Tensor

    @property
    def shape(self) -> torch.Size:
        """The shape of the queries."""
        return self.query.shape

    def chunk(self, chunks: int, dim: int) -> "CapturedArguments":
        """The query, key and value into which a layer splits its joint projection."""
        return self
