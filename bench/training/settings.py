"""The settings `training.*` of a cell that trains."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.common.errors import ConfigError
from bench.common.schema import checked, setting


@dataclass
class Training:
    """AdamW with a warm-up; files in conf/training/ say what differs from the defaults.

    Matrices decay, vectors (biases, norms) do not.
    """

    steps: int = setting(1000, minimum=1)
    learning_rate: float = setting(1e-3, minimum=0)  # the peak
    warmup: int = setting(100, minimum=0)  # steps from 0 to the peak
    schedule: str = setting("linear", choices=("linear", "constant"))  # after the warm-up, to 0 or not
    weight_decay: float = setting(0.01, minimum=0)
    beta1: float = setting(0.9, minimum=0, maximum=0.9999999)
    beta2: float = setting(0.98, minimum=0, maximum=0.9999999)
    clip: float | None = setting(1.0, above=0)  # of the norm of all gradients; null does not
    accumulate: int = setting(1, minimum=1)  # parts of a batch, one after the other
    compile: bool = False  # by torch.compile
    evaluate_every: int = setting(100, minimum=1, condition=False)  # steps
    evaluation_examples: int = setting(1024, minimum=1, condition=False)  # of the validation split
    test_examples: int = setting(4096, minimum=1, condition=False)  # of the test split, at the end
    test_lengths: list[int] | None = setting(None, minimum=1, condition=False)  # others at which it is tested, too
    checkpoint_seconds: float = setting(60.0, minimum=0, condition=False)  # what a kill may cost

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * (self.steps - step) / max(1, self.steps - self.warmup)


def check(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a configuration describes, with their defaults.

    Raises:
        ConfigError: naming the key, its value and what is allowed.
    """
    settings = checked(Training, values, "training.")
    if settings.warmup > settings.steps:
        raise ConfigError(f"training.warmup={settings.warmup}: must be at most training.steps={settings.steps}")
    return dataclasses.asdict(settings)


def require_parts(settings: Mapping[str, Any], batch_size: int) -> None:
    """Raise `ConfigError` where a batch cannot be accumulated from equal parts."""
    parts = settings["accumulate"]
    if batch_size % parts:
        raise ConfigError(f"training.accumulate={parts}: must divide batch_size={batch_size}")
