"""What a convolution and a block learn of Pathfinder in longer trainings, from the records in results/pathfinder."""

import json

from analysis.controls import ACCURACY
from tools.pages import readings, zoo


def learned() -> str:
    """A row for each model and difficulty, the easier first: steps, and how many are right.

    Intervals are over groups of test images, given the trained model.
    """
    frame = readings.records("pathfinder")
    rows = []
    for one in frame[frame["metric"] == ACCURACY].to_dict("records"):
        settings = json.loads(one["settings"])
        task, training = settings["task"], settings["training"]
        right = f"{100 * one['value']:.1f} ({100 * one['low']:.1f} to {100 * one['high']:.1f})"
        length, radius = task["contour_length"], task["marker_radius"]
        cells = [str(length), f"{radius:g}", f"`{one['attention']}`", f"{training['steps']:,}", right]
        rows.append(((length, -radius, one["attention"]), cells))
    header = "contour (paddles) | radius of marks | model | steps | right (%)"
    return zoo.table(header, [cells for _, cells in sorted(rows)])
