"""The settings `training.*` of a cell that trains."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.common.schema import checked, require_setting, setting


@dataclass
class Training:
    """How a model learns; files in conf/training/ say what differs from the defaults."""

    steps: int = setting(1000, "updates of the weights", minimum=1)
    optimizer: str = setting(
        "adamw", "what changes the weights: adamw, or muon for the layers' matrices", choices=("adamw", "muon")
    )
    learning_rate: float = setting(1e-3, "the highest, after the warm-up", minimum=0)
    warmup: int = setting(100, "steps from 0 to the peak", minimum=0)
    schedule: str = setting(
        "linear",
        "of the learning rate: to 0 after the warm-up, constant, or one_cycle (torch's OneCycleLR, linear: from and to "
        "near 0, beta1 against it)",
        choices=("linear", "constant", "one_cycle"),
    )
    weight_decay: float = setting(0.01, "decay of the matrices' weights", minimum=0)
    beta1: float = setting(0.9, "of AdamW: the mean of gradients", minimum=0, maximum=0.9999999)
    beta2: float = setting(0.98, "of AdamW: the mean of their squares", minimum=0, maximum=0.9999999)
    epsilon: float = setting(1e-8, "of AdamW: added to the root of that mean", above=0)
    clip: float | None = setting(1.0, "longest norm of all gradients; null: none", above=0)
    accumulate: int = setting(1, "parts of a batch, one after the other", minimum=1)
    order: str = setting(
        "shuffled",
        "of the examples in an epoch: one of its own, or always the split's",
        choices=("shuffled", "sequential"),
    )
    pretrain_steps: int = setting(
        0, "of the steps the first ones, in which a classifier names hidden tokens of its examples", minimum=0
    )
    checkpoint: str = setting(
        "last", "weights that are tested: the last, or those with the least validation loss", choices=("last", "best")
    )
    patience: int | None = setting(
        None, "looks at the validation split without a lower loss after which it ends; null: never", minimum=1
    )
    compile: bool = setting(False, "whether torch.compile compiles the model")
    evaluate_every: int = setting(100, "steps between two looks at the validation split", minimum=1)
    evaluation_examples: int = setting(1024, "examples of the validation split at each look", minimum=1)
    test_examples: int = setting(4096, "examples of the test split, at the end", minimum=1)
    test_lengths: list[int] | None = setting(None, "other lengths at which it is tested, too", minimum=1)
    checkpoint_seconds: float = setting(60.0, "seconds between two checkpoints: what a kill may cost", minimum=0)


def check(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a configuration describes, with their defaults.

    Raises:
        ConfigError: naming the key, its value and what is allowed.
    """
    settings = checked(Training, values, "training.")
    steps, warmup, first = settings.steps, settings.warmup, settings.pretrain_steps
    require_setting("training.warmup", warmup, warmup <= steps, f"at most training.steps={steps}")
    least = max(1, warmup)
    most = steps - least
    allowed = f"0, or {least} to {most}" if least <= most else "0"
    why = f"training.steps={steps} counts both phases, first hidden tokens, then classes, a training.warmup={warmup}"
    fits = first == 0 or least <= first <= most
    require_setting("training.pretrain_steps", first, fits, f"{allowed}: {why} in each")
    return dataclasses.asdict(settings)
