"""In which settings of language modelling context helps, what other learning rates change, and what more steps."""

from itertools import pairwise

import pandas as pd

from analysis.selection import series
from analysis.tables import settings
from analysis.training import over_seeds, trained_cells, with_settings
from tools.pages import language, readings, zoo

SOFTMAX, WINDOW = "flash", "local_sliding"
TASKS_AT = {0.01: ("language_modelling",), 0.003: ("associative_recall", "fuzzy_recall", "image", "retrieval", "text")}
"""The learning rates at which the models of these tasks were first trained."""
BY_STEPS = ("shorter", "quality", "longer")
"""Folders of the same models, each trained for more steps than those of the folder before it."""


def tried() -> str:
    """A row for each setting, softmax's largest advantage first: mean losses, their difference, seeds.

    Intervals are over seeds and units of the test text.
    """
    frame = readings.records("search")
    pair = frame[frame["attention"].isin((SOFTMAX, WINDOW)) & (frame["inputs"] == "language_modelling")]
    rows = []
    for one in settings.table(pair).to_dict("records"):
        change = one["setting"] if one["setting"] == settings.USUAL else f"`{one['setting']}`"
        losses = (f"{one[name]:.3f}" for name in ("softmax", "its loss"))
        rows.append(
            [change, *losses, language.difference(one), str(one["seeds"]), f"{one['units']} {one['tested on']}"]
        )
    return zoo.table("setting | softmax | window of 64 | softmax minus window (nats) | seeds | tested on", rows)


def rates(*tasks: str) -> str:
    """A row for each mechanism, task and length that was trained at several learning rates.

    Validation losses, and their means over the seeds that a rate shares with the usual one, minus that one's.
    """
    frame = readings.records("quality")
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
    minus = (f"change at {rate:g}" for rate in others)
    return zoo.table(" | ".join(["task", "mechanism", f"loss at {usual:g}", *minus]), rows)


def steps(task: str) -> str:
    """A row for each mechanism and length that was trained for two numbers of steps: what is right after each.

    Each mechanism has its best learning rate of those that were tried. Median, range and number of seeds.
    """
    folders = pairwise(_right(folder, task) for folder in BY_STEPS)
    both = pd.concat([few.join(more.add_suffix(" later"), how="inner") for few, more in folders]).reset_index()
    both["series"] = "`" + both["series"] + "`"
    header = "n | mechanism | steps | rate | right (%) | steps | rate | right (%)"
    return zoo.table(header, both.astype(str).to_numpy().tolist())


def _right(folder: str, task: str) -> pd.DataFrame:
    """By length and mechanism: steps, rate, and right answers in percent."""
    data, _ = trained_cells(readings.records(folder), [task])
    data = with_settings(data[data["metric"] == "token_accuracy"], {"steps": ("training", "steps")})
    seeds = data.groupby(["seq_len", "series"]).size()
    rows = over_seeds(data, "token_accuracy").set_index(["seq_len", "series"])
    middle, low, high = ((100 * rows[name]).map("{:.0f}".format) for name in ("value", "low", "high"))
    right = middle + " (" + low + "–" + high + "), " + seeds.astype(str)
    steps, rate = rows["steps"].map("{:,}".format), rows["rate"].map("{:g}".format)
    return pd.DataFrame({"steps": steps, "rate": rate, "right": right})
