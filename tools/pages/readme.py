"""The numbers of README.md, from the records in results/: `python -m tools.pages.readme` writes them between marks."""

from pathlib import Path

import numpy as np
import pandas as pd

from analysis import answer, formats
from analysis.attribution import attributions
from analysis.controls import Diagnosis, compared, diagnose, losses
from analysis.frame import load
from analysis.paired import LEVEL, Difference, corrected, verdict
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
    found = answer.table(frame).rename(columns={"n": "at n ="})
    return "\n\n".join(["\n".join(f"- {each}" for each in answer.sentences(frame)), formats.markdown(found)])


def quality(frame: pd.DataFrame) -> str:
    """Whether the text tells mechanisms apart, losses and their differences, what each branch of a hybrid earns."""
    data, _ = trained_cells(frame)
    found = {n: rows for (kind, n), rows in panels(data) if kind.startswith(TASK)}
    verdicts = {n: one for n, rows in found.items() if (one := diagnose(rows)).negative}
    said = [
        f"- n = {n:,}: **{one.word}** ({one.sentence})." + ("" if one.is_diagnostic else " So nobody is ranked by it.")
        for n, one in verdicts.items()
    ]
    earned = [
        f"- `{one.hybrid}`, n = {one.n:,}: {one.sentence} nats; the work of: {one.owner}." for one in attributions(data)
    ]
    table = pd.concat([_table(found[n], one, n) for n, one in verdicts.items()])
    return "\n\n".join(["\n".join(said), formats.markdown(table), "\n".join(earned)])


def _table(rows: pd.DataFrame, found: Diagnosis, n: int) -> pd.DataFrame:
    """A line for each series, the best first: its mean loss, the differences to both controls, the verdict on each."""
    by_series = losses(rows)
    anchors = {"less softmax's": found.positive, "less the best control's": found.negative}
    pairs = {
        (name, column): one
        for column, anchor in anchors.items()
        for name in by_series
        if anchor not in (None, name) and (one := compared(by_series[name], by_series[str(anchor)]))
    }
    ps = dict(zip(pairs, corrected([one.p for one in pairs.values()]), strict=True))
    said = {
        pair: difference(one) + (f", {verdict(one, ps[pair])}" if found.is_diagnostic else "")
        for pair, one in pairs.items()
    }
    means = {name: float(np.mean([each.mean() for each in own.values()])) for name, own in by_series.items()}
    is_control = rows.groupby("series")["control"].any()
    return pd.DataFrame(
        {"n": n, "mechanism": f"`{name}`" + (" (control)" if is_control[name] else ""), "loss": f"{means[name]:.3f}"}
        | {column: said.get((name, column), "–") for column in anchors}
        for name in sorted(means, key=lambda name: means[name])
    )


def difference(one: Difference) -> str:
    """`-0.151 (-0.206 to -0.097)`."""
    low, high = one.interval(LEVEL)
    return f"{one.value:+.3f} ({low:+.3f} to {high:+.3f})"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    print(PAGE)
