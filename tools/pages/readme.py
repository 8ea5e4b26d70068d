"""The numbers of README.md from the records in results/: `python -m tools.pages.readme` writes them between marks."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import answer, formats
from analysis.attribution import ALONE, REMOVED, Attribution, Worth, attributions
from analysis.controls import BLIND, Diagnosis, compared, comparisons, diagnose, losses
from analysis.equal_quality import lengths
from analysis.frame import load
from analysis.paired import BETTER, EQUIVALENT, LEVEL, UNDECIDED, WORSE, verdict
from analysis.plots.by_distance import by_kind
from analysis.selection import unless_quiet
from analysis.tables.capacity import answers, matched
from analysis.tables.lra import TASKS
from analysis.training import over_seeds, panels, trained_cells

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "README.md"
COSTS, QUALITY = ROOT / "results" / "laptop", ROOT / "results" / "quality"
TASK = "language modelling"
RECALL = "associative recall"
THAN = {
    BETTER: "better than",
    WORSE: "worse than",
    EQUIVALENT: EQUIVALENT,
    UNDECIDED: "not clearly better or worse than",
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
    found = answer.answers(frame)
    best = answer.fastest([one for one in found if one.causal])
    learned = [_learned(best.attention, trained)] if best else []
    said = "\n".join(f"- {each}" for each in [*answer.sentences(found), *learned])
    tables = [costs_table([one for one in found if one.causal == causal]) for causal in (True, False)]
    return "\n\n".join([said, *tables])


def _learned(name: str, frame: pd.DataFrame) -> str:
    """What the fastest with a causal mask learned of the text, beside softmax and no attention at all."""
    (task, n), rows = next((key, rows) for key, rows in panels(trained_cells(frame)[0]) if key[0].startswith(TASK))
    found, own = diagnose(rows), losses(rows)
    others = {"softmax": found.positive, "`identity`, no attention at all": "identity"}
    said = []
    for words, other in others.items():
        one = compared(own.get(name, {}), own.get(other or "", {}))
        if one is None:
            return f"What a model learns with `{name}` was not measured."
        low, high = one.interval(LEVEL)
        said.append(f"{THAN[verdict(one, one.p)]} {words} ({one.value:+.2f} nats, {low:+.2f} to {high:+.2f})")
    more = "[more below](#what-do-models-learn-with-it)"
    return f"Speed says nothing of what a model learns: on {task}, n = {n}, `{name}` was {' and '.join(said)}; {more}."


def costs_table(found: list[answer.Answer]) -> str:
    """The table of `analysis.answer`, made narrower: values that most rows share move into the headers."""
    own = pd.DataFrame([answer.lengths(one) for one in found])
    usual = {str(column): int(n) for column, n in own.mode().iloc[0].items()}
    usual["memory, training"] = usual["memory"]  # one head names the length of both
    table = unless_quiet(answer.lines(found, usual)).drop(columns=["mask", "n"])
    of_averaging = table.pop("of averaging")[list(own["error"] == usual["error"])]
    averaging = of_averaging.iloc[0].partition(" ")[0]
    heads = {
        "attention": "with a causal mask" if found[0].causal else "without a mask",
        "from n": "from n (forward)",
        "forward": f"forward, n = {usual['forward']:,}",
        "training": f"training, n = {usual['training']:,}",
        "memory": f"memory, n = {usual['memory']:,}",
        "error": f"error, n = {usual['error']:,} (averaging: {averaging})",
    }
    shorter = {r" \(the shortest measured\)": " or less", r"\((\S+) to (\S+)\)": r"(\1–\2)"}
    return formats.markdown(table.rename(columns=heads).replace(shorter, regex=True))


def quality(frame: pd.DataFrame) -> str:
    """Whether language modelling is diagnostic, losses and differences, branches of hybrids, steps, recall, LRA."""
    data, _ = trained_cells(frame)
    found = {key: rows for key, rows in panels(data) if key[0].startswith(TASK)}
    verdicts = {key: one for key, rows in found.items() if (one := diagnose(rows)).negative}
    said = [
        f"- n = {n:,}: **{one.word}** ({one.sentence})." + ("" if one.is_diagnostic else " So nobody is ranked by it.")
        for (_, n), one in verdicts.items()
    ]
    # The shortest context, at which most mechanisms were trained.
    key = min(verdicts, key=lambda task_and_n: task_and_n[1])
    table = formats.markdown(_table(found[key], verdicts[key], key))
    earned = "\n".join(f"- {_earned(one)}" for one in attributions(found[key]))
    more = [_by_kind(found[key]), earned, _steps(lengths(frame, data), key), *_recall(data, frame), *_arena(data)]
    return "\n\n".join(["\n".join(said), table, "\n".join(more)])


def _by_kind(data: pd.DataFrame) -> str:
    """A sentence: differences of mechanisms (without controls) to the best control, by kind of token."""
    kinds = by_kind(data)
    kinds = kinds[~kinds["series"].isin(set(data.loc[data["control"].astype(bool), "series"]))]
    place = kinds["token"].map(lambda token: "near" if "below" in token else "far" if "recalled" in token else "other")
    parts = kinds.assign(part=kinds["value"] * kinds["share"]).groupby(["series", place])[["part", "share"]].sum()
    means = (parts["part"] / parts["share"]).unstack().sort_values("far")
    share = 100 * parts["share"].groupby(level=1).first()
    words = {
        "far": "repeat a rare pair from 64 or more tokens back",
        "near": "repeat one from nearer",
        "other": "others",
    }
    said = [
        f"{word} ({share[where]:.1f} %): " + ", ".join(f"`{name}` {one:+.2f}" for name, one in means[where].items())
        for where, word in words.items()
    ]
    return f"- Nats minus `{kinds['against'].iloc[0]}` by what a token is. Tokens that {'; '.join(said)}."


def _steps(found: pd.DataFrame, key: tuple[str, int]) -> str:
    """A sentence: mechanisms whose training step is faster than softmax's, and which of these are as good."""
    own = found[(found["kind"] == key[0]) & (found["n"] == key[1]) & (found["step"] == "faster")]
    named = own.sort_values("speed", ascending=False)
    numbers = named[["series", "speed", "speed low", "speed high"]].itertuples(index=False, name=None)
    speeds = ", ".join(f"`{name}` {speed:.1f}x ({low:.1f} to {high:.1f})" for name, speed, low, high in numbers)
    equal = ", ".join(f"`{name}`" for name in named.loc[named["is equal"].eq(True), "series"])
    at = f"- Whole training steps faster than softmax's at n = {key[1]:,}: {speeds or 'none'}"
    return f"{at}; of these with [a loss as small](results/quality/tables/equal_quality.md): {equal or 'none'}."


def _recall(data: pd.DataFrame, frame: pd.DataFrame) -> list[str]:
    """One line for each length: what each mechanism recalls, and whether untrained capacity predicts it."""
    right = over_seeds(data[data["kind"].str.startswith(RECALL)], "token_accuracy")
    foretold = answers(matched(frame))
    said = []
    right = right.assign(printed=right["value"].round(2)).sort_values(["printed", "low"], ascending=False)
    for n, rows in right.groupby("seq_len"):
        percent = rows.assign(**{name: 100 * rows[name] for name in ("value", "low", "high")})
        each = [f"`{row.series}` {row.value:.0f} % ({row.low:.0f} to {row.high:.0f})" for row in percent.itertuples()]
        words = [
            f"{one.value:.2f} ({one.low:.2f} to {one.high:.2f}; {keys} keys): {word}"
            for (_, of_n, keys), (one, word) in foretold.items()
            if of_n == n
        ]
        said.append(
            f"- [Recall](results/quality/figures/recall.png) at n = {n:,}, values right, median (lowest to highest "
            f"seed): {', '.join(each)}. [Rank correlation](results/quality/figures/capacity_and_recall.png) with the "
            f"number of pairs that untrained states hold: {'; '.join(words)}."
        )
    return said


def _arena(data: pd.DataFrame) -> list[str]:
    """A line on the tasks of Long Range Arena: the training data of each, and whether the task is diagnostic."""
    found = {
        f"{task}, n = {n:,}, {rows['source'].dropna().iloc[0]}": diagnose(rows)
        for (task, n), rows in panels(data)
        if task.startswith(TASKS)
    }
    if not found:
        return []
    blind = sum(not one.is_diagnostic for one in found.values())
    said = [f"{task}{', **diagnostic**' if one.is_diagnostic else ''} ({one.sentence})" for task, one in found.items()]
    table = "[Long Range Arena](results/quality/tables/skeinformer_table1.md)"
    return [
        f"- {table}, trained on a laptop, is **not diagnostic** in {blind} of {len(said)} tasks: {'; '.join(said)}."
    ]


def _earned(one: Attribution) -> str:
    """A sentence: what each branch is worth over the other trained alone, and what a model loses without it."""
    ways = {
        ALONE: "Over the other branch trained alone",
        REMOVED: "Cut out of the trained model, which says how much it depends on the branch, not what that is worth",
    }
    parts = {how: [part for part in one.parts if part.how == how] for how in ways}
    said = [f"{ways[how]}: {', '.join(map(_worth, own))} nats." for how, own in parts.items() if own]
    return f"`{one.hybrid}`, n = {one.n:,}, what each branch is worth. {' '.join(said)}"


def _worth(part: Worth) -> str:
    low, high = part.difference.interval(LEVEL)
    word = f", {part.word}" if part.how == ALONE else ""
    return f"the {part.branch} {part.difference.value:+.2f} ({low:+.2f} to {high:+.2f}{word})"


def _table(rows: pd.DataFrame, found: Diagnosis, key: tuple[str, int]) -> pd.DataFrame:
    """One row for each series, the best first: mean loss, and difference to each control with its verdict."""
    anchors = {f"minus `{anchor}`": anchor for anchor in (found.positive, found.negative)}
    said = {(one["attention"], one["against"]): difference(one) for one in comparisons(rows, key)}
    means = {name: float(np.mean([each.mean() for each in own.values()])) for name, own in losses(rows).items()}
    is_control = rows.groupby("series")["control"].any()
    return pd.DataFrame(
        {f"n = {key[1]:,}": f"`{name}`" + (" (control)" if is_control[name] else ""), "mean loss": f"{mean:.3f}"}
        | {column: said.get((name, anchor), "–") for column, anchor in anchors.items()}
        for name, mean in sorted(means.items(), key=lambda one: one[1])
    )


def difference(one: dict[str, Any]) -> str:
    """`-0.151 (-0.206 to -0.097), better`; without a verdict if the task is not diagnostic."""
    word = "" if one["verdict"] == BLIND else f", {one['verdict']}"
    return f"{one['difference (nats)']:+.3f} ({one['low']:+.3f} to {one['high']:+.3f}){word}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    print(PAGE)
