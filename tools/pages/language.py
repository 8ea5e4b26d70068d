"""What small language models learned, for README and docs/quality.md: losses, branches of a hybrid, lengths."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis import formats
from analysis.attribution import ALONE, REMOVED, Attribution, Worth, attributions
from analysis.controls import BLIND, NO_ATTENTION, Losses, compared, comparisons, diagnose, mean
from analysis.controls import losses as losses_of
from analysis.equal_quality import INTERLEAVED, lengths
from analysis.paired import Difference
from analysis.plots import captions
from analysis.plots.by_distance import by_kind
from analysis.tables import positions
from analysis.training import BENCHES, panels, trained_cells, with_settings

TASK = "language modelling"
BLOCK = "local"
"""The control that attends with softmax to its own block."""
Panels = dict[tuple[str, int], pd.DataFrame]


def of_language(frame: pd.DataFrame) -> Panels:
    """The trained cells of each text and length, the shortest first."""
    data, _ = trained_cells(frame, ["language_modelling"])
    return dict(sorted(panels(data), key=lambda panel: panel[0][1]))


def shortest(found: Panels) -> tuple[str, int]:
    """The shortest context, at which most mechanisms were trained."""
    return min((key for key in found if key[0].startswith(TASK)), key=lambda task_and_n: task_and_n[1])


def verdicts(frame: pd.DataFrame) -> str:
    """A line for each length: whether it is diagnostic, and of how many controls the one named is the best."""
    said = []
    for (_, n), rows in of_language(frame).items():
        found, trained = diagnose(rows), rows.loc[rows["control"].astype(bool), "series"].nunique()
        others = f"the best of {trained} controls" if trained > 1 else "no other control was trained"
        ranked = "" if found.is_diagnostic else " So nobody is ranked by it."
        said.append(f"- n = {n:,}: **{found.word}** ({found.sentence}; {others}).{ranked}")
    return "\n".join(said)


def losses(frame: pd.DataFrame, n: int | None = None) -> pd.DataFrame:
    """A row for each series, the best first: mean loss, differences with verdicts, kinds of token, step, state, rate.

    Without `n` of the shortest context.
    """
    found = of_language(frame)
    key = next(one for one in found if n in (None, one[1]))
    rows, all_steps = found[key], lengths(frame, trained_cells(frame)[0])
    steps = all_steps[(all_steps["kind"] == key[0]) & (all_steps["n"] == key[1])].set_index("series")
    table = _differences(rows, key).join(_by_token(rows)).join(steps.apply(speed, axis=1).rename("step"))
    sizes = rows[rows["metric"] == "state_bytes"].groupby("series")["value"].first()
    states = (sizes / 1024).map("{:,.0f}".format).rename("state (KiB)")
    rates = rows.groupby("series")["rate"].first().dropna().map("{:g}".format).rename("rate")
    return table.join(states).join(rates).dropna(axis=1, how="all").fillna("–")


def _differences(rows: pd.DataFrame, key: tuple[str, int]) -> pd.DataFrame:
    found, means = diagnose(rows), {name: mean(own) for name, own in losses_of(rows).items()}
    anchors = {f"minus `{anchor}`": anchor for anchor in (found.positive, found.negative, NO_ATTENTION) if anchor}
    said = {(one["attention"], one["against"]): difference(one) for one in comparisons(rows, key)}
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


def _by_token(rows: pd.DataFrame) -> pd.DataFrame:
    """For each series its difference to the best control by what a token is; the columns say what share they are."""
    if (kinds := by_kind(rows)).empty:
        return pd.DataFrame()
    place = kinds["token"].map(lambda token: "near" if "below" in token else "far" if "recalled" in token else "others")
    parts = kinds.assign(part=kinds["value"] * kinds["share"]).groupby(["series", place])[["part", "share"]].sum()
    means = (parts["part"] / parts["share"]).unstack()[["far", "near", "others"]].map("{:+.2f}".format)
    share = 100 * parts["share"].groupby(level=1).first()
    return means.rename(columns=lambda name: f"{name} ({share[name]:.1f} %)")


def speed(step: pd.Series) -> str | None:
    """`1.07x (1.03 to 1.10)`: the speed of a step over softmax's; None if it was not measured."""
    if pd.isna(step["speed"]):
        return None
    apart = "" if step["timed"] == INTERLEAVED else ", apart"
    tie = ", tie" if step["speed low"] <= 1 <= step["speed high"] else ""
    return f"{step['speed']:.2f}x ({step['speed low']:.2f} to {step['speed high']:.2f}{tie}){apart}"


def faster(frame: pd.DataFrame) -> str:
    """Sentences: where steps were timed, and which of those that are faster than softmax's learn as much."""
    data, _ = trained_cells(frame)
    steps = lengths(frame, data)
    said = [f"Steps were timed on {captions.machine(frame[frame['bench'].isin(BENCHES)])}."]
    for (task, n), rows in of_language(frame).items():
        own = steps[(steps["kind"] == task) & (steps["n"] == n) & (steps["step"] == "faster")].set_index("series")
        # A control may have been trained at another length only.
        are_controls = own.index.isin(set(data.loc[data["control"].astype(bool), "series"]))
        trained = own.index.isin(set(rows["series"]))
        equal, unknown = own["is equal"].eq(True), own["is equal"].isna()
        names = [*(f"`{name}`" for name in own.index[~are_controls]), f"{are_controls.sum()} controls"]
        as_good = [
            *(f"`{name}`" for name in own.index[equal]),
            *(f"`{name}` undecided" for name in own.index[unknown & trained]),
        ]
        as_good += [f"`{name}` not trained there" for name in own.index[~trained]]
        said.append(
            f"Clearly faster than softmax's at n = {n:,}: {', '.join(names)}; of these with [a loss as "
            f"small](../results/quality/tables/equal_quality.csv): {', '.join(as_good) or 'none'}."
        )
    return " ".join(said)


def by_position(frame: pd.DataFrame) -> str:
    """A row for each range of positions: softmax's loss minus the best control's, one column for each length."""
    table = positions.table(frame)
    best = {n: diagnose(rows).positive for (_, n), rows in of_language(frame).items()}
    own = table[table["attention"] == table["n"].map(best)]
    said = own.assign(said=[difference(one) for one in own.to_dict("records")], length=own["n"].map("n = {:,}".format))
    made = said.pivot_table(index="positions", columns="length", values="said", aggfunc="first", sort=False)
    return formats.markdown(made.fillna("–").reset_index())


def by_length(frame: pd.DataFrame, longer: pd.DataFrame | None = None) -> str:
    """Rows on models trained on the shortest and the longest context, all tested on the longest; the leads of both.

    One column for each number of sequences in a step: `longer` has models that were trained on more.
    """
    own = of_language(frame)
    more = {} if longer is None else of_language(longer)
    columns: dict[str, dict[str, str]] = {}
    for found in (own, own | dict([*more.items()][-1:]), more):
        steps = [f"{rows['batch_size'].iloc[0]} x {n:,}" for (_, n), rows in found.items()]
        columns |= {", ".join(steps): {words: interval(one) for words, one in _length_differences(found)}}
    table = pd.DataFrame({name: cells for name, cells in columns.items() if cells}).fillna("–")
    return formats.markdown(table.rename_axis("nats (95 %); sequences x tokens of a step").reset_index())


def _length_differences(found: Panels) -> Iterator[tuple[str, Difference]]:
    """Differences with their words, as far as there are losses of both; none of a single length."""
    if len(found) < 2:
        return
    ((_, first), short), *_, ((_, last), long) = found.items()
    positive, negative = (named := diagnose(long)).positive or "", named.negative or ""
    at_first, at_last, tested = losses_of(short), losses_of(long), losses_of(short, f"loss_at_{last}_by_unit")
    lead = f"`{positive}` minus `{negative}`"
    grows = f"{lead}, each tested at the n of its training: {last:,} minus {first:,}"
    of_all = (positive, negative, NO_ATTENTION)
    pairs: list[tuple[str, Losses | None, Losses | None]] = [
        (grows, _lead(at_last, positive, negative), _lead(at_first, positive, negative)),
        (f"{lead}, both trained at {first:,}", tested.get(positive), tested.get(negative)),
        (_apart(found), at_last.get(positive), tested.get(negative)),
        *((f"`{name}` trained at {last:,} minus at {first:,}", at_last.get(name), tested.get(name)) for name in of_all),
    ]
    for words, one, other in pairs:
        if one and other and (made := compared(one, other)):
            yield words, made


def _apart(found: Panels) -> str:
    (_, first), *_, (_, last) = found
    named = diagnose(found[[*found][-1]])
    return f"`{named.positive}` trained at {last:,} minus `{named.negative}` trained at {first:,}"


def against_shorter(found: Panels) -> str:
    """The lead of the longest context over the best control as trained on the shortest; empty if it was not tested."""
    made = dict(_length_differences(found)).get(_apart(found)) if len(found) > 1 else None
    return f"; {_apart(found)}: {interval(made)}" if made else ""


def _lead(own: dict[str, Losses], positive: str, negative: str) -> Losses:
    ahead, behind = own.get(positive, Losses()), own.get(negative, Losses())
    lead = {seed: ahead[seed] - behind[seed] for seed in ahead.keys() & behind.keys()}
    return Losses(lead, ahead.chosen_from * behind.chosen_from)


def interval(one: Difference) -> str:
    """`-0.151 (-0.206 to -0.097)`."""
    low, high = one.interval()
    return f"{one.value:+.3f} ({low:+.3f} to {high:+.3f})"


def alone(one: Attribution, frame: pd.DataFrame, rows: pd.DataFrame) -> str:
    """A line: what each branch of a hybrid adds, at its best rate and at one, and the hybrid beside a softmax block."""
    said = f"- **Hybrid**, n = {one.n:,}: so much larger is the loss of a model trained without one branch, in nats: "
    said += ", ".join(map(worth, _alone(one)))
    if (rate := common_rate(one, rows)) is not None:
        said += f"; all at a rate of {rate:g}: {', '.join(map(worth, at_rate(rate, one, frame, rows)))}"
    blocks = [f"n = {n:,} {words}" for (_, n), own in of_language(frame).items() if (words := _minus_block(one, own))]
    if rate is not None and (words := _minus_block(one, _panel_at(rate, one, frame, rows))):
        blocks.append(f"n = {one.n:,} at {rate:g} {words}")
    said += f". Its loss minus that of a block of softmax (`{BLOCK}`): {', '.join(blocks)}" if blocks else ""
    return f"{said}."


def _minus_block(one: Attribution, rows: pd.DataFrame) -> str:
    """The hybrid's loss minus that of the block of softmax, with its interval; empty if either is missing."""
    own = losses_of(rows)
    made = compared(own.get(one.hybrid, Losses()), own.get(BLOCK, Losses()))
    return interval(made) if made else ""


def _alone(one: Attribution) -> list[Worth]:
    return [part for part in one.parts if part.how == ALONE]


def branches(frame: pd.DataFrame) -> str:
    """A row for each branch of each hybrid and way to measure what it is worth, at its own rates and at one."""
    rows = []
    for panel in of_language(frame).values():
        for one in attributions(panel):
            ways = {REMOVED: [part for part in one.parts if part.how == REMOVED], ALONE: _alone(one)}
            if (rate := common_rate(one, panel)) is not None:
                ways |= {f"{ALONE}, all at a rate of {rate:g}": at_rate(rate, one, frame, panel)}
            rows += [
                {"hybrid": f"`{one.hybrid}`", "n": f"{one.n:,}", "branch": branch(part), "without it": how}
                | {"loss is larger by (nats)": nats(part)}
                for how, parts in ways.items()
                for part in parts
            ]
    return formats.markdown(pd.DataFrame(rows))


def common_rate(one: Attribution, rows: pd.DataFrame) -> float | None:
    """The lowest learning rate at which the hybrid and its branches were all trained; None if it is the best of all."""
    own = rows.drop_duplicates("series").set_index("series").loc[[one.hybrid, *(part.against for part in _alone(one))]]
    common = set.intersection(*({float(rate) for rate in rates.split(", ") if rate} for rates in own["rates"]))
    return None if not common or set(own["rate"]) == {min(common)} else min(common)


def at_rate(rate: float, one: Attribution, frame: pd.DataFrame, rows: pd.DataFrame) -> list[Worth]:
    """What the branches are worth if all were trained at this learning rate."""
    same = [each for each in attributions(_panel_at(rate, one, frame, rows)) if each.hybrid == one.hybrid]
    return [part for each in same for part in _alone(each)]


def _panel_at(rate: float, one: Attribution, frame: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The panel of the hybrid, as if this learning rate had been the only one."""
    cells = with_settings(frame[frame["bench"] == "train"], {"rate": ("training", "learning_rate")})
    frame = frame[frame["cell_id"].isin(cells.loc[cells["rate"] == rate, "cell_id"])]
    data, _ = trained_cells(frame, [rows["inputs"].iloc[0]])
    return data[data["seq_len"] == one.n]


def branch(part: Worth) -> str:
    """`block` or `sketch`."""
    return "block" if part.branch == "window" else part.branch


def worth(part: Worth) -> str:
    """`the block +0.23 (+0.10 to +0.36, earns)`."""
    return f"the {branch(part)} {nats(part)}"


def nats(part: Worth) -> str:
    """`+0.23 (+0.10 to +0.36, earns)`; without the word if the branch was only removed."""
    low, high = part.difference.interval()
    word = f", {part.word}" if part.how == ALONE else ""
    return f"{part.difference.value:+.2f} ({low:+.2f} to {high:+.2f}{word})"
