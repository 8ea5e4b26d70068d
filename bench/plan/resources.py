"""Where cells will run, as far as their ids depend on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """This machine, or what a scheduler is asked for.

    Attributes:
        name: empty for this machine, whose facts are in the ids of its cells. No node is known when cells are planned
            for a scheduler: ids hold what it is asked for, such as `slurm a100`, and records say which node it was.
        cores: processors of a worker; None: all that this process may use.
        gpus: whether workers elsewhere have one.
    """

    name: str = ""
    cores: int | None = None
    gpus: bool = False


THIS_MACHINE = Resources()
