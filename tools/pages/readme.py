"""The numbers of README.md from the records in results/: `python -m tools.pages.readme` writes them between marks."""

from pathlib import Path
from typing import Any

import pandas as pd

from analysis import answer, formats
from analysis.attribution import ALONE, BRANCHES, REMOVED, Attribution, Worth, attributions
from analysis.controls import BLIND, NO_ATTENTION, Diagnosis, Losses, compared, comparisons, diagnose, losses, mean
from analysis.equal_quality import INTERLEAVED, lengths
from analysis.frame import load
from analysis.paired import BETTER, EQUIVALENT, UNDECIDED, WORSE, verdict
from analysis.plots import captions
from analysis.plots.by_distance import by_kind
from analysis.selection import controls, exact_softmax, unless_quiet
from analysis.tables import positions
from analysis.training import BENCHES, panels, trained_cells, with_settings
from tools.pages import small_tasks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "README.md"
COSTS, QUALITY = (ROOT / "results" / name for name in ("laptop", "quality"))
TASK = "language modelling"
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
    best = answer.fastest([one for one in found if one.causal])
    of_models = [[learned(best[0].attention, trained)]] if best else []
    said = "\n".join("- " + "\n  - ".join(each) for each in [*answer.advice(found), *of_models])
    tables = [costs_table([one for one in found if one.causal == causal]) for causal in (True, False)]
    return "\n\n".join([said, *tables])


def learned(name: str, frame: pd.DataFrame) -> str:
    """What the fastest with a causal mask learned of the text beside softmax and no attention, and who learned more."""
    data, _ = trained_cells(frame)
    key, rows = next((key, rows) for key, rows in panels(data) if key[0].startswith(TASK))
    found, table = diagnose(rows), comparisons(rows, key)
    anchors = {found.positive: "softmax", NO_ATTENTION: f"`{NO_ATTENTION}`, no attention at all"}
    own = {one["against"]: one for one in table if one["attention"] == name}
    if not anchors.keys() <= own.keys():
        return f"What a model learns with `{name}` was not measured."
    said = [f"{THAN[own[anchor]['verdict']]} {words} ({_interval(own[anchor])})" for anchor, words in anchors.items()]
    steps = lengths(frame, data)
    own_steps = steps[(steps["kind"] == key[0]) & (steps["series"] == name)]
    speeds = [(row["n"], _speed(row)) for _, row in own_steps.iterrows()]
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
    all_worse = set(own.values()) == {WORSE}
    none = f"{'Each' if all_worse else 'None'} of the {len(own)} mechanisms trained there was "
    none += "worse than softmax" if all_worse else "as good as softmax"
    if BETTER not in {one["verdict"] for one in table if one["against"] == found.negative}:
        none += f" and none better than `{found.negative}`, the best control"
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
    """Whether language modelling is diagnostic, losses and differences, branches of hybrids, steps, the other tasks."""
    data, _ = trained_cells(frame)
    found = {key: rows for key, rows in panels(data) if key[0].startswith(TASK)}
    verdicts = {key: one for key, rows in found.items() if (one := diagnose(rows)).negative}
    places = positions.table(frame).set_index(["task", "n", "attention"])
    said = [
        f"- n = {n:,}: **{one.word}** ({one.sentence}{_others(found[task, n])})."
        + (_by_position(places.loc[(task, n, one.positive)]) if one.is_diagnostic else " So nobody is ranked by it.")
        for (task, n), one in verdicts.items()
    ]
    said[-1] += _growth(found, verdicts) + _trained_shorter(found, verdicts)
    # The shortest context, at which most mechanisms were trained.
    key = min(verdicts, key=lambda task_and_n: task_and_n[1])
    by_token, tokens = _by_token(found[key])
    all_steps = lengths(frame, data)
    for i, (other, one) in enumerate(verdicts.items()):
        said[i] += _longer(found[other], one, other, _at(all_steps, other)) if other != key else ""
    steps = _at(all_steps, key)
    table = _table(found[key], verdicts[key], key).join(by_token).join(steps.apply(_speed, axis=1).rename("step"))
    table = table.join(_states(found[key]))
    earned = "\n".join(f"- {_earned(one)}{_at_one_rate(one, frame, found[key])}" for one in attributions(found[key]))
    timed = _equal(steps, found[key], key[1], captions.machine(frame[frame["bench"].isin(BENCHES)]))
    more = "\n".join([tokens, timed, earned, *small_tasks.arena(data), small_tasks.foretold(frame), small_tasks.SAID])
    return "\n\n".join(["\n".join(said), formats.markdown(table.fillna("–")), more, small_tasks.table(data)])


def _at(steps: pd.DataFrame, key: tuple[str, int]) -> pd.DataFrame:
    return steps[(steps["kind"] == key[0]) & (steps["n"] == key[1])].set_index("series")


def _longer(rows: pd.DataFrame, found: Diagnosis, key: tuple[str, int], steps: pd.DataFrame) -> str:
    """What mechanisms learned at a length that has no table of its own, and how fast their steps are there."""
    differences = {(one["attention"], one["against"]): difference(one) for one in comparisons(rows, key)}
    each = []
    for name in sorted(set(rows.loc[~controls(rows) & ~exact_softmax(rows), "series"])):
        anchors = [anchor for anchor in (found.positive, NO_ATTENTION) if (name, anchor) in differences]
        own = [f"minus `{anchor}` {differences[name, anchor]}" for anchor in anchors]
        own += [f"step {speed}" for speed in steps.loc[steps.index == name].apply(_speed, axis=1) if speed]
        each.append(f"`{name}`: {'; '.join(own)}")
    return f" Other mechanisms there: {'. '.join(each)}." if each else ""


def _others(rows: pd.DataFrame) -> str:
    """How many controls the best one is the best of."""
    trained = rows.loc[rows["control"].astype(bool), "series"].nunique()
    return f"; the best of {trained} controls" if trained > 1 else "; no other control was trained"


def _growth(found: dict[tuple[str, int], pd.DataFrame], verdicts: dict[tuple[str, int], Diagnosis]) -> str:
    """How much larger the lead over the best control is in the longest context than in the shortest."""
    longest, shortest = (pick(verdicts, key=lambda task_and_n: task_and_n[1]) for pick in (max, min))
    last, first = verdicts[longest], verdicts[shortest]
    positive, negative = last.positive or "", last.negative or ""
    are_diagnostic = last.is_diagnostic and first.is_diagnostic
    if longest == shortest or not are_diagnostic or (first.positive, first.negative) != (positive, negative):
        return ""
    leads = []
    for own in (losses(found[longest]), losses(found[shortest])):
        ahead, behind = own[positive], own[negative]
        lead = {seed: ahead[seed] - behind[seed] for seed in ahead.keys() & behind.keys()}
        leads.append(Losses(lead, ahead.chosen_from * behind.chosen_from))
    if (grown := compared(*leads)) is None:
        return ""
    low, high = grown.interval()
    does = {BETTER: "grows", WORSE: "shrinks", EQUIVALENT: "stays the same"}.get(verdict(grown), "may grow or shrink")
    where = f"from n = {shortest[1]:,} to {longest[1]:,}"
    return f" The lead {does} {where}: {grown.value:+.3f} nats, {low:+.3f} to {high:+.3f} ({grown.seeds} seeds)."


def _trained_shorter(found: dict[tuple[str, int], pd.DataFrame], verdicts: dict[tuple[str, int], Diagnosis]) -> str:
    """The longest test of models that were trained on the shortest context, beside those trained on the longest."""
    longest, shortest = (pick(verdicts, key=lambda task_and_n: task_and_n[1]) for pick in (max, min))
    before, trained = losses(found[shortest], f"loss_at_{longest[1]}_by_unit"), losses(found[longest])
    positive, negative = verdicts[longest].positive or "", verdicts[longest].negative or ""
    apart = f"`{positive}` trained at {longest[1]:,} and `{negative}` at {shortest[1]:,}"
    pairs = [
        (f"both trained at n = {shortest[1]:,}", before, positive, before, negative),
        (apart, trained, positive, before, negative),
        *((f"`{name}`", trained, name, before, name) for name in (positive, negative, NO_ATTENTION)),
    ]
    said = []
    for words, first, name, second, other in pairs:
        one = compared(first.get(name, Losses()), second.get(other, Losses()))
        if one is None:
            return ""
        low, high = one.interval()
        said.append(f"{words} {one.value:+.3f} ({low:+.3f} to {high:+.3f})")
    lead, over_better, *gains = said
    return (
        f" All tested at {longest[1]:,} tokens, `{positive}` minus `{negative}`: {lead}, {over_better}. Trained at "
        f"n = {longest[1]:,} (fewer sequences a step) minus trained at {shortest[1]:,}: {', '.join(gains)}."
    )


def _by_position(places: pd.DataFrame) -> str:
    """At which positions softmax is ahead of the best control; `places` are its rows of `paired_by_position`."""
    rows = places[["positions", "difference (nats)", "low", "high"]].to_numpy()
    each = ", ".join(f"{of} {value:+.2f} ({low:+.2f} to {high:+.2f})" for of, value, low, high in rows)
    return f" By a token's position ([over seeds](results/quality/tables/paired_by_position.md)): {each}."


def _by_token(data: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """For each series its difference to the best control by what a token is, and a sentence on these columns."""
    kinds = by_kind(data)
    place = kinds["token"].map(lambda token: "near" if "below" in token else "far" if "recalled" in token else "others")
    parts = kinds.assign(part=kinds["value"] * kinds["share"]).groupby(["series", place])[["part", "share"]].sum()
    means = (parts["part"] / parts["share"]).unstack()[["far", "near", "others"]]
    share = 100 * parts["share"].groupby(level=1).first()
    against = f"loss minus that of `{kinds['against'].iloc[0]}`, by what a token is"
    return means.map("{:+.2f}".format), (
        f"- *Far*, *near*, *others*: {against}. Far ({share['far']:.1f} %): the token and the one before it last "
        f"stood together 64 or more tokens earlier. Near ({share['near']:.1f} %): fewer than 64. "
        f"Others ({share['others']:.1f} %): all else, and pairs that stand over 1,250 times in the training text. "
        "[By distance](results/quality/figures/loss_by_distance.png), with intervals over seeds."
    )


def _states(rows: pd.DataFrame) -> pd.Series:
    """What decoding keeps of a sequence, for each series; a mechanism that does not decode has none."""
    sizes = rows[rows["metric"] == "state_bytes"].groupby("series")["value"].first()
    return (sizes / 1024).map("{:,.0f}".format).rename("state (KiB)")


def _speed(step: pd.Series) -> str | None:
    if pd.isna(step["speed"]):
        return None
    apart = "" if step["timed"] == INTERLEAVED else ", apart"
    tie = ", tie" if step["speed low"] <= 1 <= step["speed high"] else ""
    return f"{step['speed']:.2f}x ({step['speed low']:.2f} to {step['speed high']:.2f}{tie}){apart}"


def _equal(steps: pd.DataFrame, rows: pd.DataFrame, n: int, machine: str) -> str:
    """A sentence: which of the mechanisms whose training step is faster than softmax's learn as much."""
    faster = steps[steps["step"] == "faster"]
    are_controls = faster.index.isin(set(rows.loc[rows["control"].astype(bool), "series"]))
    own = ", ".join(f"`{name}`" for name in faster.index[~are_controls])
    equal = ", ".join(f"`{name}`" for name in faster.index[faster["is equal"].eq(True)])
    link = "[a loss as small](results/quality/tables/equal_quality.md)"
    said = f"how many times as fast as softmax's a whole training step is at n = {n:,}, in interleaved rounds"
    faster_ones = f"{own} and" if own else "only"
    unknown = ", ".join(f"`{name}`" for name in faster.index[faster["is equal"].isna()])
    equal = (equal or "none") + (f" ({unknown} undecided)" if unknown else "")
    clearly = f"Of those that were trained, clearly faster there: {faster_ones} {are_controls.sum()} controls"
    ones = f"{clearly}; of these with {link}: {equal}."
    state = f"*State*: what decoding keeps of {n:,} tokens (`identity`: its last)."
    return f"- *Step*: {said} (*apart*: minutes apart, where small differences mean nothing; {machine}). {ones} {state}"


def _earned(one: Attribution) -> str:
    """A sentence: what each branch is worth over the other trained alone, and what a model loses without it."""
    ways = {
        ALONE: "Over the other branch trained alone",
        REMOVED: "Removed from the trained model, which says how much the model uses a branch, not that it needs it",
    }
    parts = {how: [part for part in one.parts if part.how == how] for how in ways}
    said = [f"{ways[how]}: {', '.join(map(_worth, own))} nats." for how, own in parts.items() if own]
    where = f"`{one.hybrid}`, n = {one.n:,}"
    return f"{where}, what each branch is worth (+: the loss without it is larger). {' '.join(said)}"


def _at_one_rate(one: Attribution, frame: pd.DataFrame, rows: pd.DataFrame) -> str:
    """If the hybrid and a branch alone have different learning rates: these, and what branches are worth at one."""
    alone = {part.against: BRANCHES[part.branch] for part in one.parts if part.how == ALONE}
    own = rows.drop_duplicates("series").set_index("series").loc[[one.hybrid, *alone]]
    common = set.intersection(*({float(rate) for rate in rates.split(", ") if rate} for rates in own["rates"]))
    if own["rate"].nunique() == 1 or not common:
        return ""
    rate = min(common)
    cells = with_settings(frame[frame["bench"] == "train"], {"rate": ("training", "learning_rate")})
    frame = frame[frame["cell_id"].isin(cells.loc[cells["rate"] == rate, "cell_id"])]
    data, _ = trained_cells(frame, [rows["inputs"].iloc[0]])
    same = [each for each in attributions(data) if (each.n, each.hybrid) == (one.n, one.hybrid)]
    parts = ", ".join(_worth(part) for each in same for part in each.parts if part.how == ALONE)
    had = [f"the {_branch(branch)} alone at {own['rate'][name]:g}" for name, branch in alone.items()]
    hybrid = f"The hybrid was trained at a rate of {own['rate'][one.hybrid]:g}"
    return f" {hybrid}, {', '.join(had)}; with all at {rate:g}: {parts} nats."


def _branch(name: str) -> str:
    return "block" if name == "window" else name


def _worth(part: Worth) -> str:
    return f"the {_branch(part.branch)} {small_tasks.nats(part)}"


def _table(rows: pd.DataFrame, found: Diagnosis, key: tuple[str, int]) -> pd.DataFrame:
    """One row for each series (the index), the best first: name, mean loss, differences to controls with verdicts."""
    anchors = {f"minus `{anchor}`": anchor for anchor in (found.positive, found.negative, NO_ATTENTION)}
    said = {(one["attention"], one["against"]): difference(one) for one in comparisons(rows, key)}
    means = {name: mean(own) for name, own in losses(rows).items()}
    is_control = rows.groupby("series")["control"].any()
    return pd.DataFrame.from_dict(
        {
            name: {f"n = {key[1]:,}": f"`{name}`{' (control)' if is_control[name] else ''}", "mean loss": f"{mean:.3f}"}
            | {column: said.get((name, anchor), "–") for column, anchor in anchors.items()}
            for name, mean in sorted(means.items(), key=lambda one: one[1])
        },
        orient="index",
    )


def difference(one: dict[str, Any]) -> str:
    """`-0.151 (-0.206 to -0.097), better`; without a verdict if the task is not diagnostic, or if there is none."""
    word = "" if one.get("verdict", BLIND) == BLIND else f", {one['verdict']}"
    return f"{one['difference (nats)']:+.3f} ({one['low']:+.3f} to {one['high']:+.3f}){word}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    print(PAGE)
