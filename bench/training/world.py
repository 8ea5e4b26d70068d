"""The processes that train one model together: started by torchrun or similar, connected by accelerate."""

import contextlib
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn

from bench.common.errors import package

# Rank 0 may have to wait for other cells on its device.
PATIENCE = timedelta(days=1)


class World:
    """One process alone, or this `rank` of `size` processes; each trains on its own rows of a batch."""

    def __init__(self, accelerator: Any = None) -> None:  # from the optional package accelerate
        self._accelerator = accelerator
        self.rank = accelerator.process_index if accelerator else 0
        self.size = accelerator.num_processes if accelerator else 1

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The model, wrapped so that gradients are averaged over all processes."""
        return self._accelerator.prepare(model) if self._accelerator else model

    def rows(self, count: int) -> slice:
        """The rows of a batch of `count` that this process reads."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def total(self, x: Tensor) -> Tensor:
        """The sum over all processes."""
        return self._accelerator.reduce(x, "sum") if self._accelerator else x

    def alone(self, model: Callable[..., Tensor]) -> contextlib.AbstractContextManager[Any]:
        """A context without gradient synchronisation, for all but the last part of a batch."""
        return self._accelerator.no_sync(model) if self._accelerator else contextlib.nullcontext()


def join(name: str, device: torch.device) -> World:
    """Connect the processes that the environment describes (`RANK`, `WORLD_SIZE`, ...), under a name for this cell.

    Raises:
        ModuleNotFoundError: there are several processes, and accelerate is missing.
    """
    size, rank = (int(os.environ.get(key, default)) for key, default in (("WORLD_SIZE", "1"), ("RANK", "0")))
    if size == 1:
        return World()
    accelerate = package("accelerate", f"WORLD_SIZE={size}", "-e '.[training]'")
    # torchrun's agent keeps its store while it runs: without a name, the next cell would find the values of the
    # previous one.
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = distributed.TCPStore(address, port, size, rank == 0 and not by_agent, timeout=PATIENCE)
    meeting = distributed.PrefixStore(f"{name}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=meeting, rank=rank, world_size=size)
    return World(accelerate.Accelerator(cpu=device.type == "cpu"))
