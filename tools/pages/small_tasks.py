"""README's part on recall, MAD's tasks and Long Range Arena: what is right, and what capacity says of recall."""

import json
import math

import pandas as pd

from analysis import formats
from analysis.attribution import ALONE, Worth, attributions
from analysis.controls import NO_ATTENTION, as_chosen, compared, comparisons, diagnose, error_rates, mean
from analysis.paired import BETTER, FEWEST_SEEDS
from analysis.plots.capacity import mechanisms
from analysis.tables.capacity import answers, matched, without_controls
from analysis.tables.lra import TASKS
from analysis.training import over_seeds, panels

RECALL = "associative recall"
SOLVED = 0.9  # share of right answers
MAD = ("compression", "memorisation", "noisy recall", "fuzzy recall")
SAID = (
    "- Which answers are right, %, in [recall](results/quality/figures/recall.png) and "
    "[MAD](results/quality/figures/recall_state.png) in miniature: median (lowest–highest seed), seeds with 90 % or "
    "more. **Bold**: a loss clearly smaller than the best control's, and in recall at least twice as many right as by"
    " naming any value that was shown. *Block*: what the hybrid's block ([`window` in "
    "figures](results/quality/figures/attribution.png)) adds to its sketch alone, in nats (+: the loss without it is "
    "larger), each at its best rate. Both are corrected within the task (Holm). *Of some*: not every mechanism was "
    "trained at these rates; *one each*: none had a choice. Models are 64 wide, with one head; those of compression "
    "and memorisation have positions in place of the convolution. The random sketch is larger (32) than the learned "
    "one (16), with four times its state, so the table does not compare random with learned:"
)


def table(data: pd.DataFrame) -> str:
    """A table of recall and MAD: for each task what each mechanism gets right, and what a hybrid's block adds."""
    found = {key: rows for key, rows in panels(data) if key[0].startswith((RECALL, *MAD))}
    lines = [_task(key, rows) | {"block (nats)": added(rows)} for key, rows in found.items()]
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
    cells = {"answers right (%)": f"{_short(rows, key)}: {found.word}", **names, "best control": best}
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


def _short(rows: pd.DataFrame, key: tuple[str, int]) -> str:
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
    link = "[predict](results/quality/figures/capacity_and_recall.png)"
    asked = f"Do the pairs that a state holds *without* training {link} the order in recall?"
    if not found:
        return f"- {asked} Too few mechanisms were trained to say."
    whole = [one.value for one, _ in found.values()]
    tried = ", ".join(dict.fromkeys(f"{n:,}" for _, n, _ in found))
    keys = " and ".join(dict.fromkeys(kind for *_, kind in found))
    places = {word: [n for (_, n, _), (_, own) in found.items() if own == word] for _, word in found.values()}
    words = ", ".join(f"{word}: {len(own)} of {len(found)}{_at(own)}" for word, own in places.items())
    how_many = mechanisms(both[both["n"].isin([n for _, n, _ in found])])
    said = f"- {asked} Rank correlations over {how_many} mechanisms at n = {tried}, {keys} keys: "
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


def arena(data: pd.DataFrame) -> list[str]:
    """A line on Long Range Arena: how many tasks are diagnostic, what softmax and the best control reach in each."""
    tasks = {key: rows for key, rows in panels(data) if key[0].startswith(TASKS)}
    if not tasks:
        return []
    blind = sum(not diagnose(rows).is_diagnostic for rows in tasks.values())
    link = "[Long Range Arena](results/quality/tables/skeinformer_table1.md)"
    said = "; ".join(f"{task}, n = {n:,}: {_in_arena(rows)}" for (task, n), rows in tasks.items())
    blindness = f"{link} in miniature is **not diagnostic** in {blind} of {len(tasks)} tasks"
    return [f"- {blindness}. Right with softmax and with the best control (softmax minus it in points, 95 %): {said}."]


def _in_arena(rows: pd.DataFrame) -> str:
    found = diagnose(rows)
    wrong = as_chosen(rows, error_rates(rows), found)
    names = [name for name in (found.positive, found.negative) if name]
    right = [100 * (1 - mean(wrong[name])) for name in names]
    one = compared(*(wrong[name] for name in names)) if len(names) > 1 else None
    if one is None:
        return found.sentence
    low, high = (-100 * end for end in reversed(one.interval()))
    word = "**diagnostic**, " if found.is_diagnostic else ""
    gain = f"{word}{-100 * one.value:+.1f}, {low:+.1f} to {high:+.1f}"
    return f"{right[0]:.1f} % and {right[1]:.1f} % with `{names[1]}` ({gain})"


def trained_for(rows: pd.DataFrame) -> str:
    """How long the models were trained: a loss says nothing of longer training."""
    trained = {json.loads(text)["training"]["steps"] for text in set(rows["settings"])}
    return " or ".join(f"{steps:,} steps" for steps in sorted(trained))


def nats(part: Worth) -> str:
    """`+0.23 (+0.10 to +0.36, earns)`; without the word if the branch was only removed."""
    low, high = part.difference.interval()
    word = f", {part.word}" if part.how == ALONE else ""
    return f"{part.difference.value:+.2f} ({low:+.2f} to {high:+.2f}{word})"
