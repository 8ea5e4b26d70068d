"""The processes that train one model together: started by torchrun or alike, joined by accelerate."""

import contextlib
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn

from bench.common.errors import package

# Rank 0 may have to wait for others that measure on its device.
PATIENCE = timedelta(days=1)


class World:
    """One process alone, or of `size` ones the one of this `rank`; each learns from its own rows of a batch."""

    def __init__(self, accelerator: Any = None) -> None:  # of the optional package accelerate
        self._accelerator = accelerator
        self.rank = accelerator.process_index if accelerator else 0
        self.size = accelerator.num_processes if accelerator else 1

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The model, whose gradients are the mean over all processes."""
        return self._accelerator.prepare(model) if self._accelerator else model

    def rows(self, count: int) -> slice:
        """Which rows of a batch of `count` are this process's."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def total(self, x: Tensor) -> Tensor:
        """The sum over all processes."""
        return self._accelerator.reduce(x, "sum") if self._accelerator else x

    def alone(self, model: Callable[..., Tensor]) -> contextlib.AbstractContextManager[Any]:
        """Inside it gradients stay in this process: another part of the batch is to come."""
        return self._accelerator.no_sync(model) if self._accelerator else contextlib.nullcontext()


def join(name: str, device: torch.device) -> World:
    """Meet the processes that the environment tells of (`RANK`, `WORLD_SIZE`, ...) under a name of their own.

    Raises:
        ModuleNotFoundError: there are several, and accelerate is missing.
    """
    size, rank = (int(os.environ.get(key, default)) for key, default in (("WORLD_SIZE", "1"), ("RANK", "0")))
    if size == 1:
        return World()
    accelerate = package("accelerate", f"WORLD_SIZE={size}", "-e '.[training]'")
    # The agent of torchrun keeps the store for as long as it lives: without a name, the next cell would meet in what
    # the one before has left there.
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = distributed.TCPStore(address, port, size, rank == 0 and not by_agent, timeout=PATIENCE)
    meeting = distributed.PrefixStore(f"{name}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=meeting, rank=rank, world_size=size)
    return World(accelerate.Accelerator(cpu=device.type == "cpu"))
