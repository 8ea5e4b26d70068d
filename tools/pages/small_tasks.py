"""What small models have right in recall, MAD's tasks and Long Range Arena, and what capacity says of recall."""

import json
import math

import pandas as pd

from analysis import formats
from analysis.attribution import ALONE, attributions
from analysis.controls import NO_ATTENTION, as_chosen, compared, comparisons, diagnose, error_rates, losses, mean
from analysis.paired import BETTER, FEWEST_SEEDS, WORSE, verdict
from analysis.plots.capacity import mechanisms
from analysis.tables.capacity import answers, matched, without_controls
from analysis.tables.lra import TASKS
from analysis.training import over_seeds, panels, trained_cells
from tools.pages.language import nats

RECALL = "associative recall"
SOLVED = 0.9  # share of right answers
MAD = ("compression", "memorisation", "noisy recall", "fuzzy recall")


def solved(data: pd.DataFrame) -> str:
    """A table of recall and MAD, where diagnostic: who has 90 % right in every seed, who in some or none.

    Behind a name: in how many seeds, and the median of what is right.
    """
    lines = []
    for key, rows in _panels(data).items():
        if not (found := diagnose(rows)).is_diagnostic:
            continue
        line: dict[str, list[str]] = {"in every seed": [], "in some": [], "in none": [], "best control": []}
        right = rows[rows["metric"] == "token_accuracy"]
        for (name, is_control), of_seeds in right.groupby(["series", "control"])["value"]:
            seeds, median = int((of_seeds >= SOLVED).sum()), f"{100 * of_seeds.median():.0f} %"
            said = f"`{str(name).partition(' ')[0]}`"
            if is_control:
                line["best control"] += [f"`{name}` {median}"] if name == found.negative else []
            elif seeds == len(of_seeds):
                line["in every seed"].append(said)
            elif seeds:
                line["in some"].append(f"{said} ({seeds}/{len(of_seeds)}, median {median})")
            else:
                line["in none"].append(f"{said} {median}")
        cells = {column: ", ".join(names) or "–" for column, names in line.items()}
        lines.append({"90 % right": f"{short(rows, key)}, {trained_for(rows)}", **cells})
    return formats.markdown(pd.DataFrame(lines)) if lines else ""


def _panels(data: pd.DataFrame) -> dict[tuple[str, int], pd.DataFrame]:
    return {key: rows for key, rows in panels(data) if key[0].startswith((RECALL, *MAD))}


def table(frame: pd.DataFrame) -> str:
    """A table of recall and MAD: for each task what each mechanism gets right, and what a hybrid's block adds."""
    data, _ = trained_cells(frame)
    lines = [_task(key, rows) | {"block (nats)": added(rows)} for key, rows in _panels(data).items()]
    return formats.markdown(pd.DataFrame(lines).fillna("–")) if lines else ""


def _task(key: tuple[str, int], rows: pd.DataFrame) -> dict[str, str]:
    """What part of the answers is right, of mechanisms and of the best control.

    Bold if the loss is clearly smaller than that control's, and in recall twice as much is right as by naming any value
    that was shown, or more.
    """
    found, right = diagnose(rows), over_seeds(rows, "token_accuracy").set_index("series").sort_index()
    against = [one for one in comparisons(rows, key) if one["against"] == found.negative]
    ahead = [one["attention"] for one in against if one["verdict"] == BETTER]
    share = (100 * right[["value", "low", "high"]]).map("{:.0f}".format)
    of_seeds = rows[rows["metric"] == "token_accuracy"].groupby("series")["value"]
    solved = of_seeds.agg(lambda each: f"{(each >= SOLVED).sum()}/{len(each)}")
    said = share["value"] + " (" + share["low"] + "–" + share["high"] + ") " + solved
    pairs = json.loads(rows["task"].iloc[0]).get("num_pairs")
    is_ahead = said.index.isin(ahead) & (right["value"] >= (2 / pairs if pairs else 0))
    said = said.where(~is_ahead, "**" + said + "**")
    is_control = right["control"].astype(bool)
    best = f"`{found.negative}` {said[found.negative]}" if found.negative in said else "–"
    alone = share["value"].get(NO_ATTENTION, "–")
    order = [name for name in (found.positive, *said.index[~is_control]) if name in said]
    names = {f"`{right.loc[name, 'attention'].partition(' ')[0]}`": said[name] for name in order}
    cells = {"answers right (%)": f"{short(rows, key)}: {found.word}", **names, "best control": best}
    return cells | {"no attention": alone, "trained for": trained_for(rows), "rates": _rates(rows)}


def _rates(rows: pd.DataFrame) -> str:
    """The learning rates at which every mechanism was trained, and those of some: `0.003; of some: 0.006`.

    `one each: 0.003, 0.006` if there was no choice.
    """
    tried = [{float(rate) for rate in text.split(", ") if rate} for text in rows["rates"].unique()]
    of_all, of_any = set.intersection(*tried), set.union(*tried)
    had_one = len(tried) > 1 and all(len(rates) == 1 for rates in tried)
    words = {"": of_all, "one each: " if had_one else "of some: ": of_any - of_all}
    said = (word + ", ".join(f"{rate:g}" for rate in sorted(rates)) for word, rates in words.items() if rates)
    return "; ".join(said)


def short(rows: pd.DataFrame, key: tuple[str, int]) -> str:
    """`recall of 4 pairs, n = 64`."""
    pairs = json.loads(rows["task"].iloc[0]).get("num_pairs")
    return f"{f'recall of {pairs} pairs' if key[0].startswith(RECALL) else key[0]}, n = {key[1]:,}"


def added(rows: pd.DataFrame) -> str:
    """What a hybrid's block adds to its sketch trained alone, of as many seeds as a verdict takes."""
    parts = [part for hybrid in attributions(rows) for part in hybrid.parts if part.how == ALONE]
    own = [nats(part) for part in parts if part.branch == "window" and part.difference.seeds >= FEWEST_SEEDS]
    return own[0] if own and diagnose(rows).is_diagnostic else "–"


def foretold(frame: pd.DataFrame) -> str:
    """A sentence: whether the pairs that a state holds without training predict who recalls more once trained."""
    both = matched(frame)
    # Of fewer than six mechanisms there is no correlation.
    found = {panel: (one, word) for panel, (one, word) in answers(both).items() if not math.isnan(one.value)}
    every = [(n, without_controls(rows)) for (_, n, _), rows in both.groupby(["task", "n", "keys"], sort=False)]
    alone = [(n, one) for n, one in every if not math.isnan(one.value)]
    link = "[predict](../results/quality/figures/capacity_and_recall.png)"
    asked = f"Do the pairs that a state holds *without* training {link} the order in recall?"
    if not found:
        return f"{asked} Too few mechanisms were trained to say."
    whole = [one.value for one, _ in found.values()]
    tried = ", ".join(dict.fromkeys(f"{n:,}" for _, n, _ in found))
    keys = " and ".join(dict.fromkeys(kind for *_, kind in found))
    places = {word: [n for (_, n, _), (_, own) in found.items() if own == word] for _, word in found.values()}
    words = ", ".join(f"{word}: {len(own)} of {len(found)}{_at(own)}" for word, own in places.items())
    how_many = mechanisms(both[both["n"].isin([n for _, n, _ in found])])
    said = f"{asked} Rank correlations over {how_many} mechanisms at n = {tried}, {keys} keys: "
    said += f"{min(whole):.2f} to {max(whole):.2f}; {words}."
    if not alone:
        return said
    least, most = (pick(one.value for _, one in alone) for pick in (min, max))
    clear = [n for n, one in alone if one.low > 0]
    others = mechanisms(both[~both["control"] & both["n"].isin([n for n, _ in alone])])
    return (
        f"{said} Without controls, which are made to recall little ({others} mechanisms): {least:.2f} to {most:.2f}, "
        f"{len(clear)} of {len(alone)} with an interval above 0, each for itself{_at(clear)}."
    )


def _at(lengths: list[int]) -> str:
    """` (n = 64)` if all are of one length."""
    return f" (n = {lengths[0]:,})" if len(set(lengths)) == 1 else ""


def arena(frame: pd.DataFrame) -> str:
    """A row for each task of Long Range Arena: what softmax and the best control have right, and the difference."""
    data, _ = trained_cells(frame)
    tasks = {key: rows for key, rows in panels(data) if key[0].startswith(TASKS)}
    return formats.markdown(pd.DataFrame([_in_arena(key, rows) for key, rows in tasks.items()]))


def is_beaten(rows: pd.DataFrame) -> bool:
    """Whether the best control is clearly better than softmax, by accuracy in classification, else by loss."""
    found = diagnose(rows)
    own = as_chosen(rows, error_rates(rows) or losses(rows), found)
    both = [own[name] for name in (found.positive, found.negative) if name]
    one = compared(*both) if len(both) > 1 else None
    return one is not None and verdict(one) == WORSE


def _in_arena(key: tuple[str, int], rows: pd.DataFrame) -> dict[str, str]:
    found = diagnose(rows)
    wrong = as_chosen(rows, error_rates(rows), found)
    names = {column: name for column, name in (("softmax", found.positive), ("best control", found.negative)) if name}
    right = {column: f"`{name}` {100 * (1 - mean(wrong[name])):.1f} %" for column, name in names.items()}
    cells = {"task": f"{key[0]}, n = {key[1]:,}: {found.word}", **right}
    one = compared(*(wrong[name] for name in names.values())) if len(names) > 1 else None
    if one is None:
        return cells
    low, high = (-100 * end for end in reversed(one.interval()))
    return cells | {"points (95 %)": f"{-100 * one.value:+.1f} ({low:+.1f} to {high:+.1f})"}


def trained_for(rows: pd.DataFrame) -> str:
    """How long the models were trained: a loss says nothing of longer training."""
    trained = {json.loads(text)["training"]["steps"] for text in set(rows["settings"])}
    return " or ".join(f"{steps:,} steps" for steps in sorted(trained))
