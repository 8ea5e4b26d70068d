"""What the pages of MLflow show first: saved views of the experiment, with their addresses, and its description.

MLflow's pages read a view from the tag `mlflow.sharedViewState.NAME` of an experiment when the address says
`viewStateShareKey=NAME` and nothing else that a view holds. Its fields are those of the page's own state
(`ExperimentPageUIState`, and `RunsChartsLineCardConfig` for a chart).
"""

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode


class Chart(NamedTuple):
    """A chart and the metrics on it; the first has a solid line, the others dashes."""

    title: str
    metrics: tuple[str, ...]
    axis: str = "sequence length"
    """The metric on the horizontal axis; none: bars, of the last value."""
    scale: str = "log"


def _with_ends(name: str) -> tuple[str, ...]:
    quantity, _, which = name.partition("/")
    return name, f"{quantity}_low/{which}", f"{quantity}_high/{which}"


# What mechanisms are compared by, as far as it was measured; the charts of all else follow below.
CHARTS = (
    Chart("Speed over the best exact softmax, forward (dashes: 95 % interval)", _with_ends("speedup/forward")),
    Chart("Speed over the best exact softmax, training pass", _with_ends("speedup/forward_backward")),
    Chart("Microseconds a token, forward", ("latency_us_per_token/forward",)),
    Chart("Microseconds a token, training pass", ("latency_us_per_token/forward_backward",)),
    Chart("Microseconds a token, decoding", ("decode_us_per_token",)),
    Chart("Peak memory in MiB, forward", ("peak_mib/forward",)),
    Chart("Peak memory in MiB, training pass", ("peak_mib/forward_backward",)),
    Chart("Relative error over the papers' d", ("spectral_norm/relative",), "features d"),
    Chart("Error of the sketch over the papers' d", ("sketch_error/sketch",), "features d"),
    Chart("Tokens that are right, in %", ("token_accuracy/test",), "", "linear"),
    Chart("Perplexity", ("perplexity/test",), "", "linear"),
)
SECTION = "Speed, memory, error, quality"
_OWN = {"deleted": False, "isGenerated": False}
COLUMNS = ("tags.`attention`", "params.`seq_len`", "tags.`bench`", "tags.`status`", "tags.`result`")
_COLUMNS = {
    "selectedColumns": COLUMNS,
    "columnOrder": ["attributes.`Run Name`", *COLUMNS],
    "columnWidths": {
        **{"attributes.`Run Name`": 320, "attributes.`Created`": 130, "params.`seq_len`": 80},
        **{"tags.`bench`": 120, "tags.`status`": 80, "tags.`result`": 300},
    },
}
DESCRIPTION = """\
**[Mechanisms compared]({comparison})**: speed, memory, error and quality, a line for each mechanism and condition. To see some
of them only, click the eye before those that are not wanted, or add `AND tags.attention != 'performer'` to the filter.

**[Runs]({runs})**: one row per sweep, newest first. Its name opens its table, its figures (*Artifacts*) and the way to its own
lines; the arrow before it opens its cells, with mechanism, length, status and result.

**[Many sweeps]({sweeps})**: the sweeps alone, 100 on a page.

A failed cell keeps its reason in the tag `reason`. The records in the results folder are the truth, these pages a copy.
"""
LINK = "[Compare the mechanisms of {name}]({address})\n\n"
COMPARISON = "tags.kind = 'comparison'"


def address(name: str, experiment_id: str) -> str:
    """Of a saved view, after the server's own; `workflowType` chooses the pages for training, not those for chats."""
    mode = "TABLE" if name in ("runs", "sweeps") else "CHART"
    state = urlencode({"viewStateShareKey": name, "workflowType": "machine_learning", "compareRunsMode": mode})
    return f"/#/experiments/{experiment_id}/runs?{state}"


def tags(experiment_id: str) -> dict[str, str]:
    """The tags of the experiment that hold its views and its description."""
    # Only in the order of their times are runs shown below their parents.
    runs = {"orderByKey": "attributes.start_time", "orderByAsc": False, **_COLUMNS}
    views = {
        "runs": {**runs, "searchFilter": "tags.kind != 'curve' AND tags.kind != 'comparison'"},
        # A page lists 100 runs, cells among them: of many sweeps few would be seen.
        "sweeps": {**runs, "searchFilter": "tags.kind = 'summary'"},
        "comparison": _compared(COMPARISON),
    }
    places = {name: address(name, experiment_id)[1:] for name in views}
    packed = dict(_packed(name, view) for name, view in views.items())
    return packed | {"mlflow.note.content": DESCRIPTION.format(**places)}


def of(sweep_id: str) -> str:
    """The name of the view of a sweep's lines."""
    return f"sweep-{sweep_id[:12]}"


def of_sweep(sweep_id: str) -> tuple[str, str]:
    """The tag of the experiment that holds the view of a sweep's lines."""
    return _packed(of(sweep_id), _compared(f"tags.kind = 'curve' AND tags.sweep_id = '{sweep_id}'"))


def _packed(name: str, view: Mapping[str, Any]) -> tuple[str, str]:
    packed = base64.b64encode(zlib.compress(json.dumps(view).encode())).decode()
    return f"mlflow.sharedViewState.{name}", f"deflate;{packed}"


def _compared(lines: str) -> dict[str, Any]:
    section = {"uuid": SECTION, "name": SECTION, "display": True, "isReordered": True} | _OWN
    return {
        "searchFilter": lines,
        # The page loads 100 runs in this order: the baselines are the first. By anything but their times runs are
        # shown without the sweeps above them.
        "orderByKey": "tags.`rank`",
        "orderByAsc": True,
        **_COLUMNS,
        "isAccordionReordered": True,  # else in alphabetical order
        "runsHiddenMode": "SHOW_ALL",
        "hideEmptyCharts": True,
        "compareRunCharts": [_chart(chart) for chart in CHARTS],
        "compareRunSections": [section],
    }


def _chart(chart: Chart) -> dict[str, Any]:
    first = chart.metrics[0]
    shared = {"uuid": first, "metricSectionId": SECTION, "displayName": chart.title, "metricKey": first, **_OWN}
    shared |= {"selectedMetricKeys": chart.metrics, "runsCountToCompare": 100}
    if not chart.axis:
        return {**shared, "type": "BAR"}
    # The axis "step" would be called that.
    axis = {"xAxisKey": "metric", "selectedXAxisMetricKey": chart.axis, "useGlobalXaxisKey": False}
    return {**shared, **axis, "type": "LINE", "scaleType": chart.scale, "lineSmoothness": 0, "displayPoints": True}
