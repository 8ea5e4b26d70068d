"""What each branch of a hybrid (window and sketch) is worth: the loss without the branch minus the hybrid's loss.

It is measured in two ways. First, the trained model is tested without a branch's attention weights and not retrained
(`bench.measures.train`): how much this model depends on the branch. Second, the other branch is trained alone, with the
same norms, scale and bias: how much the branch adds that the other could not have learned instead.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.controls import compared, losses, mean, unless_diverged
from analysis.paired import BETTER, EQUIVALENT, UNDECIDED, WORSE, Difference, verdicts
from analysis.selection import MissingRecords, disturbance, unless_quiet
from analysis.training import panels, trained_cells

BRANCHES = {"window": "sketch", "sketch": "window"}
"""The branches of a hybrid, each with the other one."""
REMOVED, NUMERATOR, ALONE = "removed", "removed from the sum over values only", "the other trained alone"
EARNS = {WORSE: "earns", EQUIVALENT: "earns nothing", UNDECIDED: "undecided", BETTER: "costs"}
"""Verdict on the other branch trained alone -> word for the branch."""
USED = {WORSE: "used", EQUIVALENT: "not used", UNDECIDED: "undecided", BETTER: "harms"}
"""Verdict on the trained hybrid without the branch -> word for the branch: what it uses it may not need."""
BLOCK_SIZE = 1024
"""Of a hybrid whose settings leave it out."""
NEEDS = "needs bench=train of a hybrid with losses by unit, without its branches too, and two seeds or more"


@dataclass(frozen=True)
class Worth:
    """What one branch of one hybrid is worth, measured in one way (`how`)."""

    branch: str
    how: str
    against: str
    """The series of the branch that was trained alone; the hybrid's series if the branch was removed."""
    loss: float
    """Loss without the branch in nats, the mean over seeds and units."""
    difference: Difference
    """`loss` minus the whole hybrid's; above 0 the branch earns."""
    word: str
    """One of `EARNS` if the other branch was trained alone, else of `USED`."""


@dataclass(frozen=True)
class Attribution:
    """What the branches of a hybrid are worth, on one task and length."""

    kind: str
    n: int
    hybrid: str
    loss: float
    """The hybrid's loss in nats, the mean over seeds and units."""
    parts: tuple[Worth, ...]

    def of(self, branch: str) -> Worth | None:
        """The comparison that decides: with the other branch trained alone, else with this branch removed."""
        own = {one.how: one for one in self.parts if one.branch == branch}
        return own.get(ALONE) or own.get(REMOVED)

    @property
    def owner(self) -> str:
        """Which branch earns the loss: `window`, `sketch`, `both`, `neither` or `undecided`.

        A branch that could only be removed (`of`) counts if the model uses it.
        """
        words = {branch: one.word for branch in BRANCHES if (one := self.of(branch))}
        if len(words) < len(BRANCHES) or UNDECIDED in words.values():
            return UNDECIDED
        earning = [branch for branch, word in words.items() if word in (EARNS[WORSE], USED[WORSE])]
        return {0: "neither", 1: "".join(earning), 2: "both"}[len(earning)]

    @property
    def sentence(self) -> str:
        """`the window is worth 0.41 [0.40, 0.42], the sketch 0.00 [-0.01, 0.01]`, in nats.

        `by removal` marks a branch for which the other was not trained alone: dependence on a branch is not its gain.
        """
        said: list[str] = []
        for branch in BRANCHES:
            if one := self.of(branch):
                low, high = one.difference.interval()
                verb = "" if said else "is worth "
                by_removal = "" if one.how == ALONE else " by removal"
                said.append(f"the {branch} {verb}{one.difference.value:.2f} [{low:.2f}, {high:.2f}]{by_removal}")
        return ", ".join(said)


def attributions(data: pd.DataFrame) -> list[Attribution]:
    """All hybrids that were tested without a branch; `data` comes from `analysis.training.trained_cells`."""
    return [one for (kind, n), rows in panels(data) for one in _of_panel(rows, kind, n)]


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """What each branch of a hybrid is worth: the loss without it minus the hybrid's, and whose work the loss is.

    Differences are of the seeds that both have. Above 0 nats the loss without the branch is larger; 95 % intervals are
    over seeds and `units`, groups of test examples. `how`: `removed` from numerator and denominator of the trained
    model, which is not retrained; removed from the sum over values only; or the other branch trained alone (`against`).
    The last one decides if it was measured: what is `used`, the model might have learned to do without. Verdicts are
    corrected over the branches of a hybrid (Holm).
    """
    data, _ = trained_cells(frame)
    by_panel = dict(panels(data))
    found = [row for one in attributions(data) for row in _rows(one, by_panel[one.kind, one.n])]
    if not found:
        raise MissingRecords(NEEDS)
    return unless_quiet(pd.DataFrame(found))


def _rows(one: Attribution, rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for part in one.parts:
        low, high = part.difference.interval()
        yield {
            **{"task": one.kind, "n": one.n, "attention": one.hybrid, "loss (nats)": one.loss, "branch": part.branch},
            **{"how": part.how, "against": part.against, "loss without (nats)": part.loss},
            **{"worth (nats)": part.difference.value, "low": low, "high": high, "the branch": part.word},
            **{"seeds": part.difference.seeds, "units": part.difference.units, "work of": one.owner},
            "disturbed": disturbance(rows[rows["series"].isin([one.hybrid, part.against])]),
        }


def _of_panel(rows: pd.DataFrame, kind: str, n: int) -> Iterator[Attribution]:
    whole = losses(rows)
    known = rows.drop_duplicates("series").set_index("series")
    without = [
        (branch, how, losses(rows, f"loss_without_{branch}{suffix}_by_unit"))
        for branch in BRANCHES
        for how, suffix in ((REMOVED, ""), (NUMERATOR, "_numerator"))
    ]
    for name in whole:
        parts = [(branch, how, name, own[name]) for branch, how, own in without if name in own]
        for branch, other in BRANCHES.items() if parts else ():
            alone = (series for series in whole if _is_branch(known, series, name, other))
            parts += [(branch, ALONE, series, whole[series]) for series in itertools.islice(alone, 1)]
        pairs = [(part, compared(part[-1], whole[name])) for part in parts]
        both = [(part, one) for part, one in pairs if one is not None]
        # Every `how` tests the same branches again, so a family of comparisons is the branches of one `how`.
        words = {
            how: iter(verdicts(one for part, one in both if part[1] == how)) for how in (REMOVED, NUMERATOR, ALONE)
        }
        worth = [
            Worth(branch, how, against, mean(own), one, (EARNS if how == ALONE else USED)[word])
            for (branch, how, against, own), one in both
            for word in [unless_diverged(next(words[how])[1], (against, name), rows)]
        ]
        if worth:
            yield Attribution(kind, n, name, mean(whole[name]), tuple(worth))


def _is_branch(known: pd.DataFrame, series: str, hybrid: str, branch: str) -> bool:
    """Whether a series is exactly this branch of the hybrid, in a model with as many layers."""
    own, whole = (json.loads(known["hyperparameters"][name]) for name in (series, hybrid))
    if known["layers"][series] != known["layers"][hybrid]:
        return False
    if branch == "sketch":
        apart = {"local": None, "block_size": None}  # without a window, block_size does not change the output
        is_sketch = known["mechanism"][series] == known["mechanism"][hybrid] == "polysketch" and not own.get("local")
        return is_sketch and own | apart == whole | apart
    if known["mechanism"][series] != "local" or own.get("weights") != "polynomial" or own.get("sliding"):
        return False
    norm = own.get("qk_layernorm") in (None, True)
    scale = 1.0 if own.get("scale") is None else own["scale"]
    separate = bool(own.get("separate_norms")) and norm
    ours = (own.get("block_size"), own.get("degree"), own.get("bias"), scale, norm, separate)
    norms = bool(whole.get("qk_layernorm"))
    block_size = whole.get("block_size") or BLOCK_SIZE
    theirs = (block_size, whole.get("degree"), whole.get("bias"), whole.get("scale"), norms)
    return ours == (*theirs, norms and whole.get("sketch") == "learned" and whole.get("degree") != 2)
