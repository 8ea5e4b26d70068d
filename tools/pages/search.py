"""In which settings of language modelling context helps, and what other learning rates change."""

from analysis.frame import load
from analysis.selection import series
from analysis.tables import settings
from analysis.training import with_settings
from tools.pages import readings, readme, zoo

SOFTMAX, WINDOW = "flash", "local_sliding"
N, RATE = 512, 0.01
"""Of the README's language models, which were first trained at this learning rate."""


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


def rates() -> str:
    """A row for each mechanism of language modelling at n = 512 that was trained at several learning rates.

    Validation losses, and their means over the seeds that a rate shares with the usual one, minus that one's.
    """
    frame = load(readings.RESULTS / "quality")
    ends = frame.query("bench == 'train' and inputs == 'language_modelling' and metric == 'validation_loss'")
    ends = with_settings(ends[ends["seq_len"] == N], {"rate": ("training", "learning_rate")})
    losses = ends.assign(series=series(ends)).pivot_table(index=["series", "seed"], columns="rate", values="value")
    others = sorted(set(losses) - {RATE})
    rows = []
    for name, own in losses.groupby("series"):
        changes = [(own[rate] - own[RATE]).dropna() for rate in others]
        if any(map(len, changes)):
            cells = (f"{change.mean():+.3f} ({len(change)})" if len(change) else "" for change in changes)
            rows.append([f"`{name}`", f"{own[RATE].mean():.3f} ({own[RATE].count()})", *cells])
    return zoo.table(" | ".join(["mechanism", f"loss at {RATE}", *(f"minus it, at {rate:g}" for rate in others)]), rows)
