"""The metrics that benchmarks compute from raw samples, for tables, figures and MLflow; computed only here."""

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
# The possible range of values, by unit; other units allow any number. No call takes less than a nanosecond, and even
# data in caches gives less than 1000 times the memory's peak.
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
    """One number that a cell measured: a row in the frames of `analysis`, a metric in MLflow, words in tables.

    Raises:
        TypeError, ValueError: the value is not a number, or is impossible for its unit (`ALLOWED`).
    """

    metric: str
    """What was measured: `latency`, `peak_memory`, ..."""
    value: float
    unit: str = "1"
    """The unit of `value`, `low`, `high` and `raw`; see `ALLOWED` for their range."""
    low: float = math.nan
    high: float = math.nan
    interval: str | None = None
    """The kind of `low` and `high`: `95%`, a bootstrap interval; `range`, of too few samples for one; `95% t`,
    Student's, NaN if there are too few."""
    raw: NDArray[np.float64] | None = None
    """The samples; for a ratio, the ratio in each round."""
    measured_pass: str | None = None
    """`forward`, `backward` or `forward_backward`."""
    attention: str | None = None
    """The label of the mechanism, if a cell measures several."""
    baseline: str | None = None
    """For a ratio: the label that it is relative to."""
    verdict: str | None = None
    """For a ratio: `faster`, `slower` or `tie`; for a share of the ceiling: the one that limits, `compute` or `memory`,
    or a key of `bench.records.roofline.BEYOND`."""
    name: str | None = None
    """The name in MLflow; None: the metric and the pass."""
    shown: tuple[str, float] | None = ("", 1.0)
    """The unit for people, and the factor from `unit` to it; None: not in tables."""
    over: str | None = None
    """What the interval is over, such as `sequences`, as the benchmark declares it; `raw` has one sample for each."""

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
        # What a unit of replication contributes to a mean loss may be negative, the mean may not.
        least = -math.inf if self.unit == "nats" else lowest
        for values, low in ((np.array([float(self.value)]), lowest), (self.raw, least)):
            if values is None:
                continue
            # NaN means that there is no value.
            impossible = values[~np.isnan(values) & ~((values >= low) & (values <= highest) & np.isfinite(values))]
            if impossible.size:
                number = f"{self.metric}={impossible[0]:g} {self.unit}"
                raise ValueError(f"{number}: must be finite, from {low:g} to {highest:g}")

    def as_json(self) -> dict[str, Any]:
        """The fields that differ from their defaults; numbers that JSON has not are texts, NaN in `raw` is null."""
        fields = [(each, getattr(self, each.name)) for each in dataclasses.fields(self)]
        return {each.name: _as_json(value) for each, value in fields if value is not each.default}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Metric:
        """The inverse of `as_json`."""
        numbers = {name: float(fields[name]) for name in ("value", "low", "high") if name in fields}
        raw = {"raw": np.array(fields["raw"], dtype=float)} if "raw" in fields else {}
        shown = {"shown": tuple(fields["shown"])} if fields.get("shown") else {}
        return cls(**{**fields, **numbers, **raw, **shown})

    @property
    def samples(self) -> int | None:
        """The number of samples."""
        return None if self.raw is None else len(self.raw)

    @property
    def factor(self) -> float:
        """The factor from `unit` to the shown unit."""
        return self.shown[1] if self.shown else 1.0

    @property
    def text(self) -> str:
        """The value in the shown unit, with four digits."""
        return f"{self.value * self.factor:.4g} {self.shown[0] if self.shown else ''}".strip()

    def tracked(self) -> dict[str, float]:
        """The value by its name in MLflow, with the interval's ends for a mean, a ratio or a share."""
        name = self.name or ".".join(filter(None, (self.metric, self.measured_pass)))
        numbers = {name: self.value}
        if self.interval == STUDENT or self.verdict is not None:
            quantity, _, which = name.partition(".")
            ends = {f"{quantity}_low.{which}": self.low, f"{quantity}_high.{which}": self.high}
            numbers |= {key.removesuffix("."): number for key, number in ends.items()}
        return {key: number * self.factor for key, number in numbers.items() if math.isfinite(number)}


def _as_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):  # as in the measurements, so that the store keeps such a list once
        return [None if np.isnan(sample) else _as_json(sample) for sample in value]
    if isinstance(value, tuple):
        return list(value)
    if not isinstance(value, Real):
        return value
    number = float(value)
    return number if abs(number) <= LARGEST_NUMBER else str(number)


Quantity = Metric  # its name in version 0.1


def median(metric: str, samples: ArrayLike, unit: str, **fields: Any) -> Metric:
    """The median of samples with its interval (the range if they are few); `fields` are more fields of the metric."""
    raw = _numbers(metric, samples)
    interval = median_interval(raw)
    return Metric(metric, interval.value, unit, interval.low, interval.high, interval_kind(raw), raw, **fields)


def spread(samples: ArrayLike, **fields: Any) -> Metric:
    """The interquartile range of samples over their median, in percent."""
    lower, middle, upper = np.percentile(_numbers("spread", samples), [25, 50, 75])
    return Metric("spread", float(100 * (upper - lower) / middle), "%", shown=None, **fields)


def mean(metric: str, samples: ArrayLike, **fields: Any) -> Metric:
    """The mean of `(units, ...)` with its interval over the independent units; `raw` has the mean of each unit."""
    raw = _by_unit(_numbers(metric, samples))
    return _estimated(metric, mean_interval(raw), raw, fields)


def fraction(metric: str, value: float, **fields: Any) -> Metric:
    """A fraction between 0 and 1; `fields` as in `median`."""
    if not 0 <= value <= 1:
        raise ValueError(f"{metric}={value!r:.80}: must be between 0 and 1")
    return Metric(metric, value, shown=("%", 100.0), **fields)


def root_of_mean_square(metric: str, samples: ArrayLike, **fields: Any) -> Metric:
    """The root mean square of `(units, ...)` with its interval over units; `raw` has that of each unit."""
    raw = np.sqrt(_by_unit(np.square(_numbers(metric, samples))))
    return _estimated(metric, root_mean_square(raw), raw, fields)


def by_sequence(trials: ArrayLike, sequences: int) -> NDArray[np.float64]:
    """Norms of trials, in which the draws of a sequence follow each other, as `(sequences, draws, heads)`."""
    samples = _numbers("trials", trials)
    if samples.min() < 0:
        raise ValueError(f"trials: must be norms, one is {samples.min():g}")
    return samples.reshape(sequences, -1, samples.shape[-1])


def _by_unit(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    return samples.reshape(len(samples), -1).mean(axis=1)


def _estimated(metric: str, found: Interval, raw: NDArray[np.float64], fields: dict[str, Any]) -> Metric:
    return Metric(metric, found.value, "1", found.low, found.high, STUDENT, raw, **fields)


def speedups(samples: Mapping[str, ArrayLike], labels: Sequence[str], **fields: Any) -> Iterator[Metric]:
    """How many times faster each of `labels` is than the first one, from times in the same rounds."""
    baseline, *candidates = labels
    for label in candidates:
        theirs, own = (_numbers(key, samples[key]) for key in (baseline, label))
        ratio = ratio_interval(theirs, own)
        kind, raw = interval_kind(own), theirs / own
        which: dict[str, Any] = {"attention": label, "baseline": baseline, "verdict": ratio.verdict}
        which |= {"name": f"speedup.{label}", "shown": ("x", 1.0)}
        yield Metric("speedup", ratio.median, "1", ratio.low, ratio.high, kind, raw, **which, **fields)


def rate(metric: str, amount: float, time: Metric, **fields: Any) -> Metric:
    """The rate per second of an `amount` that takes `time` in ns; `fields` as in `median`."""
    low, middle, high = (amount * 1e9 / value for value in (time.high, time.value, time.low))
    raw = None if time.raw is None else amount * 1e9 / time.raw
    return Metric(metric, middle, "1/s", low, high, time.interval, raw, shown=("/s", 1.0), **fields)


def interval_kind(raw: NDArray[np.float64]) -> str:
    """The kind of interval that a bootstrap gives for this many samples: an interval, or the range if too few."""
    return BOOTSTRAP if len(raw) >= FEWEST else RANGE


def _numbers(name: str, samples: ArrayLike) -> NDArray[np.float64]:
    """Samples as a float array; raises TypeError for texts and booleans, even if they look like numbers."""
    raw = np.asarray(samples)
    if raw.dtype.kind not in "fiu" or not raw.size:
        raise TypeError(f"{name}: must be numbers, is {samples!r:.80}")
    return raw.astype(float)
