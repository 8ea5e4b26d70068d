"""In which of the tried settings exact softmax learns more than the best control."""

import json
from typing import Any

import pandas as pd

from analysis.controls import NEEDS, best_of, compared, losses, mean, numbers, units_of
from analysis.frame import LATER
from analysis.paired import BETTER, EQUIVALENT, WORSE, Difference, verdicts
from analysis.selection import MissingRecords, controls, disturbance, exact_softmax, require_ok, series, unless_quiet

AHEAD = {BETTER: "softmax", WORSE: "the control", EQUIVALENT: "neither"}
USUAL = "the usual"
"""The name of the setting with most of the most frequent values."""
_NOT_LEARNED = "test_examples"
"""A setting of training that changes on what a model is tested, not what it learns."""


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """Softmax against the best control in the same model, in every setting in which both have two or more common seeds.

    `setting` lists what differs from the setting with most of the most frequent values. Losses are means over seeds on
    the test split, and compare if they were `tested on` the same. Below 0 nats softmax is better; `p (Holm)` is
    corrected over all rows. With fewer seeds than a diagnosis needs (`analysis.controls`), a row only says where to
    look, not that a task is diagnostic.
    """
    rows = frame[frame["bench"] == "train"]
    require_ok(rows, "bench=train")
    found = [one for _, own in rows.groupby("inputs") for one in _of_task(own)]
    if not found:
        raise MissingRecords(f"{NEEDS}, in several settings of one task")
    made = []
    for (said, one), (p, word) in zip(found, verdicts(one for _, one in found), strict=True):
        made.append(said | numbers(one, p) | {"better": AHEAD.get(word, word)})
    table = pd.DataFrame(made).sort_values(["task", "difference (nats)"], kind="stable", ignore_index=True)
    return unless_quiet(table)


def _of_task(rows: pd.DataFrame) -> list[tuple[dict[str, Any], Difference]]:
    """The row and the difference for each setting of a task; empty if there is only one setting.

    Models of different CPUs compare, others do not: those of the machine with most cells are shown.
    """
    machine = rows["device_name"].where(rows["device"] != "cpu", "any CPU")
    cells = machine[(rows["status"] == "ok") & ~rows["cell_id"].duplicated()]
    rows = rows[machine == cells.mode()[0]] if len(cells) else rows
    flat = pd.DataFrame({row["cell_id"]: _flat(row) for row in rows.drop_duplicates("cell_id").to_dict("records")}).T
    flat = flat.fillna("not recorded")  # by a version that had no such setting
    # A cell's own values: the most frequent ones of each key alone may stand together in no cell.
    by_cell = flat.to_dict("index")
    usual = by_cell[(flat == flat.mode().iloc[0]).sum(axis=1).idxmax()]
    changed = {
        cell: ", ".join(f"{key}={value}" for key, value in own.items() if value != usual[key])
        for cell, own in by_cell.items()
    }
    found = []
    rows = rows.assign(setting=rows["cell_id"].map(changed), series=series(rows))
    for name, own in rows.groupby("setting", sort=False):
        by_series = losses(own)
        means = {label: mean(seeds) for label, seeds in by_series.items()}
        kinds = [set(own["series"][of(own)]) & means.keys() for of in (exact_softmax, controls)]
        if not all(kinds):
            continue
        first, second = (min(kind, key=means.__getitem__) for kind in kinds)
        best = (best_of(kind, name, by_series) for kind, name in zip(kinds, (first, second), strict=True))
        one = compared(*best)
        if one is not None:
            said = {"task": own["inputs"].iloc[0].replace("_", " "), "setting": name or USUAL}
            said |= {"softmax": means[first], "best control": second, "its loss": means[second]}
            said["tested on"] = units_of(own)
            said["disturbed"] = disturbance(own[own["series"].isin([first, second])])
            found.append((said, one))
    return found if len(found) > 1 else []


def _flat(row: dict[str, Any]) -> dict[str, str]:
    """All settings of a cell as text, apart from its mechanism and its seed."""
    own = {key: str(row[key]) for key in ("seq_len", "tokens", "num_heads", "head_dim", "dtype")}
    own["files"] = json.dumps(json.loads(row["settings"]).get("files"))
    for part in ("model", "task", "training"):
        values = json.loads(row["settings"]).get(part)
        # A record from another version may lack it.
        values = values if isinstance(values, dict) else {}
        for key, value in (LATER | values if part == "training" else values).items():
            if key != _NOT_LEARNED:
                own[f"{part}.{key}"] = json.dumps(value)
    return own
