"""In which settings of language modelling context helps, from the records in results/search."""

from analysis.frame import load
from analysis.tables import settings
from tools.pages import readings, readme, zoo

SOFTMAX, WINDOW = "flash", "local_sliding"


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
