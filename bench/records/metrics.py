"""What a benchmark's raw samples say in numbers: computed here and nowhere else, for tables, figures and MLflow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.common.schema import PASSES
from bench.records.statistics import FEWEST, Interval, mean_interval, median_interval, ratio_interval, root_mean_square
from bench.records.store import LARGEST_NUMBER

BOOTSTRAP, RANGE, STUDENT = "95%", "range", "95% t"
# What can be, by unit, the lowest and the highest; of other units any number. No call ends within a nanosecond, and
# what a cache makes of a share of the ceiling is far from a thousandfold.
NOT_NEGATIVE = 0.0, math.inf
ALLOWED = {
    "ns": (1.0, math.inf),
    "%": (-1e5, 1e5),
    **dict.fromkeys(("µs/token", "J/token", "W", "1/s", "FLOP/s", "TFLOP/s", "bytes/s"), NOT_NEGATIVE),
    **dict.fromkeys(("bytes", "FLOP", "FLOP/byte", "nats"), NOT_NEGATIVE),
}


class Point(NamedTuple):
    """One value of a curve."""

    step: int
    value: float


@dataclass(frozen=True, eq=False)
class Metric:
    """One number that a cell measured: a row of the frame of `analysis`, a metric of MLflow, words in tables.

    Raises:
        TypeError, ValueError: it is no number, or one that cannot be, see `ALLOWED`.
    """

    metric: str
    """What was measured: `latency`, `peak_memory`, ..."""
    value: float
    unit: str = "1"
    """Of `value`, `low`, `high` and `raw`; `ALLOWED` has what those of some units can be."""
    low: float = math.nan
    high: float = math.nan
    interval: str | None = None
    """What `low` and `high` are: `95%`, a bootstrap interval; `range`, of samples too few for one; `95% t`, Student's,
    NaN where there are too few."""
    raw: NDArray[np.float64] | None = None
    """The samples themselves; of a ratio, the ratio of each round."""
    measured_pass: str | None = None
    """`forward`, `backward` or `forward_backward`."""
    attention: str | None = None
    """The label of the mechanism, where a cell measures several."""
    baseline: str | None = None
    """Of a ratio: the label that it is relative to."""
    verdict: str | None = None
    """Of a ratio: `faster`, `slower` or `tie`; of a share of the ceiling: which one binds, `compute` or `memory`, or
    one of `bench.records.roofline.BEYOND`."""
    name: str | None = None
    """In MLflow; None: the metric and the pass."""
    shown: tuple[str, float] | None = ("", 1.0)
    """The unit in which people read it, and how many of it a `unit` is; None: left out of tables."""
    over: str | None = None
    """What the interval is over, `sequences` for one, as the benchmark states it; `raw` has a sample for each."""

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"{name}={value!r:.80}: must be a number")
        if self.unit in ALLOWED:
            self._require(*ALLOWED[self.unit])
        if self.measured_pass not in (None, *PASSES):
            raise ValueError(f"measured_pass={self.measured_pass!r}: must be one of {', '.join(PASSES)}")

    def _require(self, lowest: float, highest: float) -> None:
        values = np.append([] if self.raw is None else self.raw, float(self.value))
        # NaN says that there is none.
        impossible = values[~np.isnan(values) & ~((values >= lowest) & (values <= highest) & np.isfinite(values))]
        if impossible.size:
            number = f"{self.metric}={impossible[0]:g} {self.unit}"
            raise ValueError(f"{number}: must be finite, from {lowest:g} to {highest:g}")

    def as_json(self) -> dict[str, Any]:
        """The fields that are not as by default; a number that JSON has not is a text."""
        fields = [(each, getattr(self, each.name)) for each in dataclasses.fields(self)]
        return {each.name: _as_json(value) for each, value in fields if value is not each.default}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Metric:
        """Undo `as_json`."""
        numbers = {name: float(fields[name]) for name in ("value", "low", "high") if name in fields}
        raw = {"raw": np.array(fields["raw"], dtype=float)} if "raw" in fields else {}
        shown = {"shown": tuple(fields["shown"])} if fields.get("shown") else {}
        return cls(**{**fields, **numbers, **raw, **shown})

    @property
    def samples(self) -> int | None:
        """How many."""
        return None if self.raw is None else len(self.raw)

    @property
    def factor(self) -> float:
        """From `unit` to the unit that is shown."""
        return self.shown[1] if self.shown else 1.0

    @property
    def text(self) -> str:
        """The value in the unit that is shown, with four digits."""
        return f"{self.value * self.factor:.4g} {self.shown[0] if self.shown else ''}".strip()

    def tracked(self) -> dict[str, float]:
        """The number by its name in MLflow, and the interval of a mean, a ratio or a share."""
        name = self.name or ".".join(filter(None, (self.metric, self.measured_pass)))
        numbers = {name: self.value}
        if self.interval == STUDENT or self.verdict is not None:
            quantity, _, which = name.partition(".")
            ends = {f"{quantity}_low.{which}": self.low, f"{quantity}_high.{which}": self.high}
            numbers |= {key.removesuffix("."): number for key, number in ends.items()}
        return {key: number * self.factor for key, number in numbers.items() if math.isfinite(number)}


def _as_json(value: Any) -> Any:
    if isinstance(value, (np.ndarray, tuple)):
        return [_as_json(entry) for entry in value]
    if not isinstance(value, Real):
        return value
    number = float(value)
    return number if abs(number) <= LARGEST_NUMBER else str(number)


Quantity = Metric  # its name in version 0.1


def median(metric: str, samples: ArrayLike, unit: str, **fields: Any) -> Metric:
    """The median of samples with its interval, the range of few; `fields` are further ones of the quantity."""
    raw = _numbers(metric, samples)
    interval = median_interval(raw)
    return Metric(metric, interval.value, unit, interval.low, interval.high, interval_kind(raw), raw, **fields)


def spread(samples: ArrayLike, **fields: Any) -> Metric:
    """The interquartile range of samples over their median, in percent."""
    lower, middle, upper = np.percentile(_numbers("spread", samples), [25, 50, 75])
    return Metric("spread", float(100 * (upper - lower) / middle), "%", shown=None, **fields)


def mean(metric: str, samples: ArrayLike, **fields: Any) -> Metric:
    """The mean of `(units, ...)` with its interval over the independent units; `raw` has the mean of each."""
    raw = _by_unit(_numbers(metric, samples))
    return _estimated(metric, mean_interval(raw), raw, fields)


def fraction(metric: str, value: float, **fields: Any) -> Metric:
    """How much of a whole, between 0 and 1; `fields` as in `median`."""
    if not 0 <= value <= 1:
        raise ValueError(f"{metric}={value!r:.80}: must be between 0 and 1")
    return Metric(metric, value, shown=("%", 100.0), **fields)


def root_of_mean_square(metric: str, samples: ArrayLike, **fields: Any) -> Metric:
    """The root of the mean square of `(units, ...)` with its interval over them; `raw` has that of each."""
    raw = np.sqrt(_by_unit(np.square(_numbers(metric, samples))))
    return _estimated(metric, root_mean_square(raw), raw, fields)


def by_sequence(trials: ArrayLike, sequences: int) -> NDArray[np.float64]:
    """Norms of trials, all draws of a sequence side by side, as `(sequences, draws, heads)`."""
    samples = _numbers("trials", trials)
    if samples.min() < 0:
        raise ValueError(f"trials: must be norms, one is {samples.min():g}")
    return samples.reshape(sequences, -1, samples.shape[-1])


def _by_unit(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    return samples.reshape(len(samples), -1).mean(axis=1)


def _estimated(metric: str, found: Interval, raw: NDArray[np.float64], fields: dict[str, Any]) -> Metric:
    return Metric(metric, found.value, "1", found.low, found.high, STUDENT, raw, **fields)


def speedups(samples: Mapping[str, ArrayLike], labels: Sequence[str], **fields: Any) -> Iterator[Metric]:
    """How many times faster each of `labels` is than the first, from the times of all in the same rounds."""
    baseline, *candidates = labels
    for label in candidates:
        theirs, own = (_numbers(key, samples[key]) for key in (baseline, label))
        ratio = ratio_interval(theirs, own)
        kind, raw = interval_kind(own), theirs / own
        which: dict[str, Any] = {"attention": label, "baseline": baseline, "verdict": ratio.verdict}
        which |= {"name": f"speedup.{label}", "shown": ("x", 1.0)}
        yield Metric("speedup", ratio.median, "1", ratio.low, ratio.high, kind, raw, **which, **fields)


def rate(metric: str, amount: float, time: Metric, **fields: Any) -> Metric:
    """How much of something there is per second, where so much takes a time in ns; `fields` as in `median`."""
    low, middle, high = (amount * 1e9 / value for value in (time.high, time.value, time.low))
    raw = None if time.raw is None else amount * 1e9 / time.raw
    return Metric(metric, middle, "1/s", low, high, time.interval, raw, shown=("/s", 1.0), **fields)


def interval_kind(raw: NDArray[np.float64]) -> str:
    """What a bootstrap gives for so many samples: an interval, or the range of too few."""
    return BOOTSTRAP if len(raw) >= FEWEST else RANGE


def _numbers(name: str, samples: ArrayLike) -> NDArray[np.float64]:
    """Samples as an array; text and truth are none, even where they look like numbers."""
    raw = np.asarray(samples)
    if raw.dtype.kind not in "fiu" or not raw.size:
        raise TypeError(f"{name}: must be numbers, is {samples!r:.80}")
    return raw.astype(float)
