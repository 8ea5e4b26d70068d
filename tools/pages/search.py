"""In which settings of language modelling context helps, and what other learning rates change."""

from analysis.frame import load
from analysis.selection import series
from analysis.tables import settings
from analysis.training import with_settings
from tools.pages import readings, readme, zoo

SOFTMAX, WINDOW = "flash", "local_sliding"
TASKS_AT = {0.01: ("language_modelling",), 0.003: ("associative_recall", "fuzzy_recall", "image", "retrieval", "text")}
"""The learning rates at which the models of these tasks were first trained."""


def tried() -> str:
    """A row for each setting, softmax's largest advantage first: mean losses, their difference, seeds.

    Intervals are over seeds and units of the test text.
    """
    frame = load(readings.RESULTS / "search")
    pair = frame[frame["attention"].isin((SOFTMAX, WINDOW)) & (frame["inputs"] == "language_modelling")]
    rows = []
    for one in settings.table(pair).to_dict("records"):
        change = one["setting"] if one["setting"] == settings.USUAL else f"`{one['setting']}`"
        losses = (f"{one[name]:.3f}" for name in ("softmax", "its loss"))
        rows.append([change, *losses, readme.difference(one), str(one["seeds"]), f"{one['units']} {one['tested on']}"])
    return zoo.table("setting | softmax | window of 64 | softmax minus window (nats) | seeds | tested on", rows)


def rates(*tasks: str) -> str:
    """A row for each mechanism, task and length that was trained at several learning rates.

    Validation losses, and their means over the seeds that a rate shares with the usual one, minus that one's.
    """
    frame = load(readings.RESULTS / "quality")
    ends = frame[(frame["bench"] == "train") & frame["inputs"].isin(tasks) & (frame["metric"] == "validation_loss")]
    ends = with_settings(ends, {"rate": ("training", "learning_rate")})
    models = ["inputs", "seq_len", "batch_size", "settings", "series", "seed"]
    losses = ends.assign(series=series(ends)).pivot_table(index=models, columns="rate", values="value")
    usual = next(rate for rate, of_rate in TASKS_AT.items() if tasks[0] in of_rate)
    others = sorted(set(losses) - {usual})
    batches = ends.groupby(["inputs", "seq_len"])["batch_size"].nunique()
    rows = []
    for (task, n, batch, _, name), own in losses.groupby(models[:-1]):
        changes = [(own[rate] - own[usual]).dropna() for rate in others]
        if any(map(len, changes)):
            cells = (f"{change.mean():+.3f} ({len(change)})" if len(change) else "" for change in changes)
            of = f"{task.replace('_', ' ')}, n = {n:,}{f', batch {batch}' if batches[task, n] > 1 else ''}"
            rows.append([of, f"`{name}`", f"{own[usual].mean():.3f} ({own[usual].count()})", *cells])
    minus = (f"minus it, at {rate:g}" for rate in others)
    return zoo.table(" | ".join(["task", "mechanism", f"loss at {usual:g}", *minus]), rows)
