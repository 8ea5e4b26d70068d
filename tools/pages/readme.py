"""The numbers of README.md, from the records in results/: `python -m tools.pages.readme` writes them between marks."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import answer, formats
from analysis.attribution import attributions
from analysis.controls import BLIND, Diagnosis, comparisons, diagnose, losses
from analysis.frame import load
from analysis.plots.by_distance import by_kind
from analysis.selection import unless_quiet
from analysis.training import panels, trained_cells

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "README.md"
COSTS, QUALITY = ROOT / "results" / "laptop", ROOT / "results" / "quality"
TASK = "language modelling"


def page(text: str) -> str:
    """README's text with what stands between its marks, `<!-- answer -->` and `<!-- quality -->`, made anew."""
    for name, own in (("answer", costs(load(COSTS))), ("quality", quality(load(QUALITY)))):
        before, begins, rest = text.partition(f"<!-- {name} -->\n")
        _, ends, after = rest.partition(f"<!-- /{name} -->")
        assert begins and ends, f"{PAGE}: must have the marks of {name}"
        text = before + begins + own + "\n" + ends + after
    return text


def costs(frame: pd.DataFrame) -> str:
    """When to use what, and a line for each mechanism that the answer knows."""
    found = answer.answers(frame)
    table = unless_quiet(answer.lines(found)).rename(columns={"n": "at n ="})
    return "\n\n".join(["\n".join(f"- {each}" for each in answer.sentences(found)), formats.markdown(table)])


def quality(frame: pd.DataFrame) -> str:
    """Whether the text tells mechanisms apart, losses and their differences, what each branch of a hybrid earns."""
    data, _ = trained_cells(frame)
    found = {key: rows for key, rows in panels(data) if key[0].startswith(TASK)}
    verdicts = {key: one for key, rows in found.items() if (one := diagnose(rows)).negative}
    said = [
        f"- n = {n:,}: **{one.word}** ({one.sentence})." + ("" if one.is_diagnostic else " So nobody is ranked by it.")
        for (_, n), one in verdicts.items()
    ]
    earned = [
        f"- `{one.hybrid}`, n = {one.n:,}: {one.sentence} nats; the work of: {one.owner}." for one in attributions(data)
    ]
    table = pd.concat([_table(found[key], one, key) for key, one in verdicts.items()])
    return "\n\n".join(["\n".join(said), formats.markdown(table), "\n".join([*_recalled(data), *earned])])


def _recalled(data: pd.DataFrame) -> list[str]:
    """For each length what mechanisms other than controls make of tokens that repeat what no window of 64 reaches."""
    controls = set(data.loc[data["control"].astype(bool), "series"])
    kinds = by_kind(data)
    far = kinds[kinds["token"].str.match(r"recalled_(64|128|256|512)") & ~kinds["series"].isin(controls)]
    said = []
    for (n, against), rows in far.groupby(["seq_len", "against"]):
        losses = (rows["value"] * rows["share"]).groupby(rows["series"]).sum() / rows["share"].groupby(
            rows["series"]
        ).sum()
        share = rows.drop_duplicates("token")["share"].sum()
        each = ", ".join(f"`{name}` {loss:+.2f}" for name, loss in losses.sort_values().items())
        said.append(
            f"- n = {n:,}, tokens that repeat a rare pair from 64 or more tokens back ({100 * share:.1f} % of all): "
            f"loss less that of `{against}`: {each} nats."
        )
    return said


def _table(rows: pd.DataFrame, found: Diagnosis, key: tuple[str, int]) -> pd.DataFrame:
    """A line for each series, the best first: its mean loss, the differences to both controls, the verdict on each."""
    anchors = {"less softmax's": found.positive, "less the best control's": found.negative}
    said = {(one["attention"], one["against"]): difference(one) for one in comparisons(rows, key)}
    means = {name: float(np.mean([each.mean() for each in own.values()])) for name, own in losses(rows).items()}
    is_control = rows.groupby("series")["control"].any()
    return pd.DataFrame(
        {"n": key[1], "mechanism": f"`{name}`" + (" (control)" if is_control[name] else ""), "loss": f"{mean:.3f}"}
        | {column: said.get((name, anchor), "–") for column, anchor in anchors.items()}
        for name, mean in sorted(means.items(), key=lambda one: one[1])
    )


def difference(one: dict[str, Any]) -> str:
    """`-0.151 (-0.206 to -0.097), better`; no verdict where the task ranks nobody."""
    word = "" if one["verdict"] == BLIND else f", {one['verdict']}"
    return f"{one['difference (nats)']:+.3f} ({one['low']:+.3f} to {one['high']:+.3f}){word}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    print(PAGE)
