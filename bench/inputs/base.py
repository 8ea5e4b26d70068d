"""What a source of query, key and value is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from attention_zoo import Attention


class Source:
    """The settings `inputs.*` of a cell, a frozen dataclass, and what they describe."""

    name: ClassVar[str]

    is_read: ClassVar[bool] = False
    """Whether it comes from somewhere, and may be missing or not fit."""

    def load(self, config: Mapping[str, Any], cache_dir: Path) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, as `bench.inputs.load`."""
        raise NotImplementedError

    def check(self, config: Mapping[str, Any], cache_dir: Path) -> None:
        """Raise what `load` would raise, as far as that can be known without making the tensors; writes nothing."""

    def identity(self) -> dict[str, Any]:
        """What pins down what is read, where the settings alone do not."""
        return {}

    def mechanisms(self) -> frozenset[str]:
        """The names of mechanisms of the zoo that the tensors come through."""
        return frozenset()

    def mechanism(self, config: Mapping[str, Any], **changes: Any) -> Attention | None:
        """The trained mechanism that the tensors were made for, on the CPU; None where it is not the one of `config`.

        Args:
            config: a cell's resolved config; `attention` and what `bench.common.mechanism.build_attention` reads.
            **changes: as there.
        """
        return None
