"""The numbers of README.md from the records in results/: `python -m tools.pages.readme` writes them between marks."""

from pathlib import Path
from typing import Any

import pandas as pd

from analysis import advice, answer, formats
from analysis.attribution import attributions
from analysis.controls import BLIND, NO_ATTENTION, Diagnosis, comparisons, diagnose
from analysis.equal_quality import lengths
from analysis.frame import load
from analysis.paired import BETTER, EQUIVALENT, UNDECIDED, WORSE
from analysis.selection import controls, exact_softmax, unless_quiet
from analysis.training import BENCHES, panels, trained_cells
from tools.pages import language, small_tasks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "README.md"
COSTS, QUALITY = (ROOT / "results" / name for name in ("laptop", "quality"))
THAN = {
    BETTER: "better than",
    WORSE: "worse than",
    EQUIVALENT: EQUIVALENT,
    UNDECIDED: "not clearly better or worse than",
    BLIND: "not ranked against",
}


def page(text: str) -> str:
    """README's text, with the parts between the marks `<!-- answer -->` and `<!-- quality -->` made anew."""
    trained = load(QUALITY)
    for name, own in (("answer", costs(load(COSTS), trained)), ("quality", quality(trained))):
        before, begins, rest = text.partition(f"<!-- {name} -->\n")
        _, ends, after = rest.partition(f"<!-- /{name} -->")
        assert begins and ends, f"{PAGE}: must have the marks of {name}"
        text = before + begins + own + "\n" + ends + after
    return text


def costs(frame: pd.DataFrame, trained: pd.DataFrame) -> str:
    """When to use which mechanism, and for each mask a table with one row for each mechanism."""
    found = [one for one in answer.answers(frame) if one.dtype == "float32"]
    best = advice.fastest([one for one in found if one.causal])
    first, *others = advice.advice(found)
    # It stands with the speeds, which nobody should take without it.
    of_models = [learned(best[0].attention, trained)] if best else []
    said = "\n".join("- " + "\n  - ".join(each) for each in [first[:1] + of_models + first[1:], *others])
    tables = [costs_table([one for one in found if one.causal == causal]) for causal in (True, False)]
    return "\n\n".join([said, *tables])


def learned(name: str, frame: pd.DataFrame) -> str:
    """What the fastest with a causal mask learned of the text beside softmax and no attention, and who learned more."""
    data, _ = trained_cells(frame)
    key, rows = next((key, rows) for key, rows in panels(data) if key[0].startswith(language.TASK))
    found, table = diagnose(rows), comparisons(rows, key)
    anchors = {found.positive: "softmax", NO_ATTENTION: f"`{NO_ATTENTION}`, no attention at all"}
    own = {one["against"]: one for one in table if one["attention"] == name}
    if not anchors.keys() <= own.keys():
        return f"What a model learns with `{name}` was not measured."
    said = [f"{THAN[own[anchor]['verdict']]} {words} ({_interval(own[anchor])})" for anchor, words in anchors.items()]
    steps = lengths(frame, data)
    own_steps = steps[(steps["kind"] == key[0]) & (steps["series"] == name)]
    speeds = [(row["n"], language.speed(row)) for _, row in own_steps.iterrows()]
    lost = {other[1] for other, of in panels(data) if other[0] == key[0] and other != key and _is_lost(name, of, other)}
    timed = " and ".join(f"{speed} as many at n = {n:,}" for n, speed in speeds if speed)
    where = " or ".join(sorted(set(frame.loc[frame["bench"].isin(BENCHES), "device_name"])))
    took = f" Of training steps a second it made, beside softmax, {timed} (on {where})." if timed else ""
    if at := " and ".join(f"{n:,}" for n, _ in speeds if n in lost):
        took += f" At n = {at} it was worse than `{NO_ATTENTION}`."
    return (
        f"In a small model of {key[0]} (source code), n = {key[1]}, {small_tasks.trained_for(rows)}, `{name}` was "
        f"{' and '.join(said)}.{took} {_as_good(table, rows, found)}; [more below](#what-do-models-learn-with-it)."
    )


def _is_lost(name: str, rows: pd.DataFrame, key: tuple[str, int]) -> bool:
    """Whether it is worse than no attention at all."""
    table = comparisons(rows, key)
    return (WORSE, NO_ATTENTION) in {(one["verdict"], one["against"]) for one in table if one["attention"] == name}


def _interval(one: dict[str, Any]) -> str:
    return f"{one['difference (nats)']:+.3f} nats, {one['low']:+.3f} to {one['high']:+.3f}"


def _as_good(table: list[dict[str, Any]], rows: pd.DataFrame, found: Diagnosis) -> str:
    """Which mechanisms learned as much as softmax: where none did, softmax is what to take."""
    others = set(rows.loc[~(controls(rows) | exact_softmax(rows)), "series"])
    table = [one for one in table if one["attention"] in others]
    own = {one["attention"]: one["verdict"] for one in table if one["against"] == found.positive}
    good = [f"`{name}`" for name, word in own.items() if word in (BETTER, EQUIVALENT)]
    if good:
        return f"As good as softmax or better: {', '.join(good)}"
    beside = {one["verdict"] for one in table if one["against"] == found.negative}
    all_worse, n = set(own.values()) == {WORSE}, f"{rows['seq_len'].iloc[0]:,}"
    none = f"{'Each' if all_worse else 'None'} of the {len(own)} mechanisms trained at n = {n} was "
    none += "worse than softmax" if all_worse else "as good as softmax"
    if beside == {WORSE}:
        none += f", and worse than `{found.negative}`, the best control"
    elif BETTER not in beside:
        none += f", and none better than `{found.negative}`, the best control"
    test = "[your own test](docs/tutorials/own_text.md)"
    return f"{none} (the setting was chosen for softmax): take `{found.positive}` unless {test} says otherwise"


def costs_table(found: list[answer.Answer]) -> str:
    """The table of `analysis.answer`, made narrower: values that most rows share move into the headers."""
    own = pd.DataFrame([answer.lengths(one) for one in found])
    usual = {str(column): int(n) for column, n in own.mode().iloc[0].items()}
    table = unless_quiet(answer.lines(found, usual)).drop(columns=["mask", "n"])
    of_averaging = table.pop("of averaging")[list(own["error"] == usual["error"])]
    averaging = of_averaging.iloc[0].partition(" ")[0]
    heads = {
        "attention": "with a causal mask" if found[0].causal else "without a mask",
        "from n": "from n (forward)",
        "from n, training": "from n (training)",
        "forward": f"forward, n = {usual['forward']:,}",
        "training": f"training, n = {usual['training']:,}",
        "memory": f"memory, n = {usual['memory']:,}",
        "memory, training": f"memory in training, n = {usual['memory, training']:,}",
        "error": f"error, n = {usual['error']:,} (averaging: {averaging})",
    }
    shorter = {r" \(the shortest measured\)": " or less", r"\((\S+) to (\S+)\)": r"(\1–\2)"}
    return formats.markdown(table.rename(columns=heads).replace(shorter, regex=True))


def quality(frame: pd.DataFrame) -> str:
    """Which tasks rank mechanisms, what a hybrid's branches earn, a table of language models, one of recall and MAD."""
    data, _ = trained_cells(frame)
    found = dict(panels(data))
    key = language.shortest(found)
    losses = language.losses(frame)
    wide = [name for name in losses if name.startswith(("near", "others", f"minus `{NO_ATTENTION}`"))]
    losses = losses.drop(columns=wide)
    said = [*_ranked(found), *(language.alone(one, frame, found[key]) for one in attributions(found[key]))]
    return "\n\n".join(["\n".join(said), formats.markdown(losses), small_tasks.solved(data)])


def _ranked(found: language.Panels) -> list[str]:
    """Lines on the tasks that are diagnostic (of language with the difference that shows it) and on the others."""
    diagnostic: list[str] = []
    beaten: list[str] = []
    others: list[str] = []
    of_language = {key: rows for key, rows in found.items() if key[0].startswith(language.TASK)}
    longer = {[*of_language][-1]: language.against_shorter(of_language)} if of_language else {}
    for key, rows in sorted(found.items(), key=lambda panel: panel[0] not in of_language):
        one, name = diagnose(rows), small_tasks.short(rows, key)
        if one.is_diagnostic:
            diagnostic.append(f"{name} ({one.sentence}{longer.get(key, '')})" if key in of_language else name)
        else:
            (beaten if small_tasks.is_beaten(rows) else others).append(name)
    reasons = {"a control is clearly better in": beaten, "softmax is not clearly better in": others}
    blind = "; ".join(f"{why} {', '.join(names)}" for why, names in reasons.items() if names)
    said = [f"- **Diagnostic**: {'; '.join(diagnostic)}."] if diagnostic else []
    return [*said, *([f"- **Not diagnostic here**, so that nothing is ranked: {blind}."] if blind else [])]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    print(PAGE)
