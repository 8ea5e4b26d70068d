"""The lines of the comparison: one for each mechanism under each condition, exact softmax first."""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from statistics import fmean
from typing import Any

from bench.common.errors import bounded
from bench.common.schema import flatten
from bench.records.metrics import Metric
from bench.records.record import Record, RecordError
from bench.records.statistics import ratio_interval
from bench.records.summary import quantities, traits
from bench.tracking.lines import apart, plain, step

# Softmax and its kernels come first for this many conditions; further ones are interleaved with the others.
FIRST = 10
# The metric on the horizontal axis, by the benchmark's axis.
AXES = {"seq_len": "sequence length", "features": "features d"}
ENDS = ("_low", "_high")
CAUSAL = "causal"


@dataclass(frozen=True)
class Entry:
    """The numbers of one mechanism in a record."""

    record: Record
    label: str
    config: dict[str, Any]
    exact: bool
    """Whether it is softmax up to rounding, and so a baseline."""
    numbers: dict[str, float]

    @property
    def bench(self) -> str:
        """The name of the benchmark."""
        return str(self.config["bench"]["name"])

    @cached_property
    def comparable(self) -> dict[str, Any]:
        """The settings that can distinguish its line from others; not a batch size that follows the length."""
        config = flatten(self.config)
        config["tokens"] = config.pop("batch_size") * config["seq_len"]
        of_bench = ("name", "against", *traits(self.record)["not_conditions"])
        ignored = {"seed", "repeats", "label", *(f"bench.{key}" for key in of_bench)}
        return {key: value for key, value in config.items() if key not in ignored}


@dataclass(frozen=True)
class Line:
    """A mechanism under one condition."""

    name: str
    label: str
    words: tuple[str, ...]
    """The condition: the settings that numbers must share to be comparable."""
    entries: Sequence[Entry]
    values: Mapping[tuple[str, int], float]
    """Its numbers, by metric and step."""

    @property
    def condition(self) -> str:
        """The condition as text."""
        return ", ".join(filter(None, self.words))

    @property
    def exact(self) -> bool:
        """Whether it is a baseline."""
        return any(entry.exact for entry in self.entries)


def _values(entries: Iterable[Entry]) -> dict[tuple[str, int], float]:
    """Means over the seeds of the newest sweep, without intervals if there are several seeds."""
    by_sweep: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(dict)
    for entry in entries:
        sweep, at, axis = entry.record.sweep_id, step(entry.record), traits(entry.record)["axis"]
        for name, value in {AXES.get(axis, axis): at, **entry.numbers}.items():
            # The sweep of the last entry comes last, also if two sweeps ended their cells in turn.
            of_sweep = by_sweep[name, at]
            of_sweep[sweep] = [*of_sweep.pop(sweep, ()), value]
    found = {key: [*of_sweep.values()][-1] for key, of_sweep in by_sweep.items()}
    ends = re.compile(rf"[^.]*({'|'.join(ENDS)})(\.|$)")
    kept = {key: values for key, values in found.items() if len(values) == 1 or not ends.match(key[0])}
    return {key: fmean(values) for key, values in kept.items()}


def lines(entries: Sequence[Entry]) -> list[Line]:
    """The lines of entries, which are given oldest first: exact softmax, then one per mechanism, then the rest."""
    batches = _batches(entries)
    conditions = [_condition(entry, batches[entry.record.sweep_id, entry.bench]) for entry in entries]
    varying = [len(set(words)) > 1 for words in zip(*conditions, strict=True)]
    found: dict[tuple[str, str, tuple[str, ...]], list[Entry]] = defaultdict(list)
    together: dict[tuple[str, tuple[str, ...]], list[Entry]] = defaultdict(list)
    for entry, words in zip(entries, conditions, strict=True):
        together[entry.label, words].append(entry)
    for (label, words), own in together.items():
        points: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
        for entry in own:
            points[entry.bench, step(entry.record)].append(entry.comparable)
        points = {point: _with_the_same_settings(cells) for point, cells in points.items()}
        told = [word for word, varies in zip(words, varying, strict=True) if word and varies]
        names = apart(", ".join([label, *told]), [entry.comparable for entry in own], points.values())
        for entry, name in zip(own, names, strict=True):
            found[name, label, words].append(entry)
    return _in_order(Line(*which, own, _values(own)) for which, own in found.items())


def settled(ranked: Sequence[Line], metrics: Iterable[str]) -> list[Line]:
    """One line per mechanism; each metric is taken under the condition that has softmax and the most mechanisms.

    Args:
        ranked: the result of `lines`; a mechanism's first line under that condition counts.
        metrics: the metrics to show, with their intervals. With a causal mask, their names get the prefix `causal`.
    """
    values: dict[str, dict[tuple[str, int], float]] = defaultdict(dict)
    sources: dict[str, list[Entry]] = defaultdict(list)
    said: dict[str, list[str]] = defaultdict(list)
    for metric, mask in product(metrics, ("", CAUSAL)):
        under: dict[tuple[str, ...], list[Line]] = defaultdict(list)
        for line in ranked:
            if (line.words[0] == CAUSAL) == bool(mask) and any(name == metric for name, _ in line.values):
                under[line.words].append(line)
        most = max(under.values(), default=[], key=lambda own: (any(x.exact for x in own), len({x.label for x in own})))
        for label, line in {line.label: line for line in reversed(most)}.items():
            steps = {at for name, at in line.values if name == metric}
            shown = {*(with_end(metric, end) for end in ("", *ENDS)), *AXES.values()}
            taken = {key: value for key, value in line.values.items() if key[0] in shown and key[1] in steps}
            for (name, at), value in taken.items():
                prefix = f"{mask} " if mask and name not in AXES.values() else ""
                values[label][prefix + name, at] = value
            sources[label] += line.entries
            said[label].append(f"{metric}: {line.condition}")
    found = [Line(label, label, tuple(said[label]), sources[label], values[label]) for label in values]
    return sorted(found, key=lambda line: (not line.exact, -len(line.values), line.name))


def with_end(metric: str, end: str) -> str:
    """The name of a metric for one end of the interval, from `ENDS`."""
    quantity, dot, which = metric.partition(".")
    return quantity + end + dot + which


def _with_the_same_settings(cells: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Drop the settings that some cells lack, because they did not exist at the time: those have the default."""
    common = set(cells[0]).intersection(*cells)
    return [{key: cell[key] for key in common} for cell in cells]


def _in_order(found: Iterable[Line]) -> list[Line]:
    by_label: dict[str, list[Line]] = defaultdict(list)
    for line in found:
        by_label[line.label].append(line)
    keyed = []
    for own in by_label.values():
        own.sort(key=lambda line: (not any("speedup" in name for name, _ in line.values), -len(line.values), line.name))
        for number, line in enumerate(own):
            first = number < FIRST and line.exact
            keyed.append(((not first, number, -len(line.values), line.name), line))
    return [line for _, line in sorted(keyed, key=lambda one: one[0])]


def entries(records: Iterable[Record]) -> list[Entry]:
    """The entries of all ok records; records that cannot be read are left out."""
    return [entry for record in records if record.status == "ok" for entry in _entries(record)]


def _entries(record: Record) -> Iterator[Entry]:
    try:
        metrics = quantities(record)
    except RecordError:
        return
    cells = [record.config, *record.config["bench"].get("against", ())]
    exact = {cell["label"]: _is_exact(record, cell) for cell in cells}
    numbers = _numbers(record, metrics, [label for label in exact if exact[label]])
    for cell in cells:
        config = {**record.config, **cell, "bench": record.config["bench"]}
        yield Entry(record, plain(cell["label"]), config, exact[cell["label"]], numbers.get(cell["label"], {}))


def _is_exact(record: Record, cell: Mapping[str, Any]) -> bool:
    facts = record.mechanisms.get(cell["label"])
    if facts is None:
        return cell["attention"]["name"] in ("softmax", "flash")
    return bool(facts.get("exact")) and facts.get("approximates") == "softmax"


def _numbers(record: Record, metrics: Sequence[Metric], exact: Sequence[str]) -> dict[str, dict[str, float]]:
    """Numbers by label, under names without it; speedups are over the fastest exact softmax in the same rounds."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    times: dict[str, dict[str, Metric]] = defaultdict(dict)
    for metric in metrics:
        label = metric.attention or record.config["label"]
        name = metric.name or metric.metric
        of = metric.measured_pass or (_whole(record) if metric.attention else None)
        if metric.attention or not metric.name:
            name = ".".join(filter(None, (name.removesuffix(f".{label}"), of)))
        if metric.metric == "speedup":
            name = f"speedup over {plain(metric.baseline or '')}.{of}"
        if metric.metric != "speedup" or not exact:
            found[label] |= dataclasses.replace(metric, name=name).tracked()
        if metric.attention and metric.unit == "ns" and metric.raw is not None:
            times[metric.measured_pass or _whole(record)][label] = metric
    tokens = record.config["seq_len"] * record.config["batch_size"]
    for name, by_label in times.items():
        best = min((label for label in exact if label in by_label), key=lambda one: by_label[one].value, default=None)
        for label, metric in by_label.items():
            found[label][f"latency_us_per_token.{name}"] = metric.value / 1e3 / tokens
            if best is not None:
                ratio = ratio_interval(by_label[best].raw, metric.raw)  # type: ignore[arg-type]
                for end, value in zip(("", *ENDS), (ratio.median, ratio.low, ratio.high), strict=True):
                    found[label][f"speedup{end}.{name}"] = value
    return found


def _whole(record: Record) -> str:
    """What a comparison times if it is no pass of attention: `train_step`."""
    return str(record.config["bench"]["name"]).removeprefix("compare_")


def _batches(entries: Iterable[Entry]) -> dict[tuple[str, str], int | None]:
    """For each benchmark of each sweep, the tokens per batch if the batch size follows the length; else None."""
    sizes: dict[tuple[str, str], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for entry in entries:
        sizes[entry.record.sweep_id, entry.bench][entry.config["seq_len"]].add(entry.config["batch_size"])
    tokens = {}
    for key, by_length in sizes.items():
        one_each = all(len(batches) == 1 for batches in by_length.values())
        follows = one_each and len(set().union(*by_length.values())) > 1
        tokens[key] = min(n * min(batches) for n, batches in by_length.items()) if follows else None
    return tokens


def _condition(entry: Entry, tokens: int | None) -> tuple[str, ...]:
    """The settings that numbers must share to be comparable, as words; empty words where there is nothing to say."""
    config = entry.config
    batch, n, heads = config["batch_size"], config["seq_len"], config.get("num_heads")
    causal, impl, inputs = config.get("causal"), config.get("impl"), config.get("inputs") or {}
    task = config.get("task") or {}
    source = f"{inputs['weights']} inputs" if inputs.get("weights") else inputs.get("name")
    words = (
        "" if causal is None else CAUSAL if causal else f"not {CAUSAL}",
        f"{tokens:,} tokens" if tokens else f"batch {batch}",
        f"{heads} head{'s' if heads > 1 else ''} of {config.get('head_dim')}" if heads else "",
        config.get("dtype") or "",
        "" if impl in (None, "auto") else impl,
        "" if source == "gaussian" else source,
        " ".join(f"{key}={value}" for key, value in task.items() if key != "name" and value is not None),
        f"n={n:,}" if traits(entry.record)["axis"] != "seq_len" else "",
        entry.record.device_name,
    )
    return tuple(bounded(str(word or ""), 40) for word in words)
