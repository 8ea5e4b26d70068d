"""The schedules of training: the learning rate and AdamW's beta1 at each step."""

from bench.training.settings import Training


def learning_rate(settings: Training, step: int) -> float:
    """The learning rate at a step, counted from 0; pretraining and the steps after it each have their own schedule."""
    step, steps = _phase(settings, step)
    if settings.schedule == "one_cycle":
        height, is_rising = _one_cycle(step, settings.warmup, steps)
        lowest = settings.learning_rate / (25 if is_rising else 25e4)
        return lowest + (settings.learning_rate - lowest) * height
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    if settings.schedule == "constant":
        return settings.learning_rate
    return settings.learning_rate * (steps - step) / max(1, steps - settings.warmup)


def beta1(settings: Training, step: int) -> float:
    """AdamW's beta1 at a step: `one_cycle` moves it from 0.95 to 0.85 and back, as torch's OneCycleLR does."""
    step, steps = _phase(settings, step)
    if settings.schedule != "one_cycle":
        return settings.beta1
    return 0.95 - 0.1 * _one_cycle(step, settings.warmup, steps)[0]


def _phase(settings: Training, step: int) -> tuple[int, int]:
    """The step within its phase, which is pretraining or what follows, and the number of steps of that phase."""
    first = settings.pretrain_steps
    return (step, first) if step < first else (step - first, settings.steps - first)


def _one_cycle(step: int, warmup: int, steps: int) -> tuple[float, bool]:
    """The height of a step in the cycle, 0 to 1, and whether it is before the top, the last step of the warm-up."""
    top = warmup - 1
    if step <= top:
        return step / top if top else 1.0, True
    return (steps - 1 - step) / (steps - 1 - top), False
