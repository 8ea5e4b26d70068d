"""Saved views of the MLflow experiment, with their addresses, and the experiment's description.

MLflow's pages read a view from an experiment's tag `mlflow.sharedViewState.NAME` if the address has
`viewStateShareKey=NAME` and nothing else that a view contains. Its fields are those of the page's own state
(`ExperimentPageUIState`, and `RunsChartsLineCardConfig` for a chart).
"""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from bench.tracking.comparison import CAUSAL, ENDS, with_end
from bench.tracking.lines import key


class Chart(NamedTuple):
    """A chart of a quantity over an axis. MLflow uses the metric's name as the chart's title."""

    metric: str
    quantity: str
    which: str
    """The pass, or what else distinguishes several charts of the quantity."""
    axis: str = "sequence length"
    """The metric on the horizontal axis; empty: a bar chart of the last value."""
    beside: str = ""
    """A second chart: the `ends` of the interval, or `bars` of the last value."""

    def name(self, mask: str = "", end: str = "") -> str:
        """The name of the chart's metric in MLflow."""
        return f"{self.quantity}{end}/{mask}{self.which}"


# The main charts, as far as the metrics were measured; charts of all other metrics follow below them.
CHARTS = (
    Chart("speedup.forward", "times as fast as softmax", "forward pass", beside="ends"),
    Chart("speedup.forward_backward", "times as fast as softmax", "training pass", beside="ends"),
    Chart("latency_us_per_token.forward", "microseconds per token", "forward pass"),
    Chart("latency_us_per_token.forward_backward", "microseconds per token", "training pass"),
    Chart("decode_us_per_token", "microseconds per token", "decoding"),
    Chart("peak_mib.forward", "peak memory in MiB", "forward pass"),
    Chart("peak_mib.forward_backward", "peak memory in MiB", "training pass"),
    Chart("spectral_norm.relative", "relative error", "whole output", "features d", "bars"),
    Chart("sketch_error.sketch", "relative error", "sketch", "features d"),
    Chart("token_accuracy.test", "quality", "share of right tokens", ""),
    Chart("perplexity.test", "quality", "perplexity", ""),
)
METRICS = [chart.metric for chart in CHARTS]
_NAMES = {
    mask + with_end(chart.metric, end): chart.name(mask, end.replace("_", " "))
    for chart in CHARTS
    for mask in ("", f"{CAUSAL} ")
    for end in ("", *ENDS)
}
SECTION = "Speed, memory, error, quality"
MASKS = {"": "Every token attends to all", f"{CAUSAL} ": "Causal: every token attends to those before it"}
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
**[Comparison]({comparison})**: a line for each mechanism, over all sweeps. First how many times as fast as the best
exact softmax of the same rounds, then microseconds a token, memory, error, quality. In each chart all are under one
condition (batch, heads, data type, data): the tag `condition` says which. Click the eye to hide a line.

**[Runs]({runs})**: one row for each sweep, the newest first. Its name opens its table, its figures (*Artifacts*), and a
link to its own lines under every condition. The arrow before it opens its cells.

**[Sweeps]({sweeps})**: the sweeps alone, 100 on a page.

A cell that failed says why in the tag `reason`. The records in the results folder are the truth, these pages a copy.
"""
LINK = "[Compare the mechanisms of {name}]({address})\n\n"
COMPARISON = "tags.kind = 'comparison'"


def address(name: str, experiment_id: str) -> str:
    """The address of a saved view, after the server's; `workflowType` selects the pages for training, not for chats."""
    mode = "TABLE" if name in ("runs", "sweeps") else "CHART"
    state = urlencode({"viewStateShareKey": name, "workflowType": "machine_learning", "compareRunsMode": mode})
    return f"/#/experiments/{experiment_id}/runs?{state}"


def tags(experiment_id: str) -> dict[str, str]:
    """The experiment's tags that contain its views and its description."""
    # Runs are shown below their parents only if they are ordered by time.
    runs = {"orderByKey": "attributes.start_time", "orderByAsc": False, **_COLUMNS}
    views = {
        "runs": {**runs, "searchFilter": "tags.kind != 'curve' AND tags.kind != 'comparison'"},
        # A page lists 100 runs including cells, so it would show few of many sweeps.
        "sweeps": {**runs, "searchFilter": "tags.kind = 'summary'"},
        "comparison": _compared(COMPARISON, MASKS),
    }
    places = {name: address(name, experiment_id)[1:] for name in views}
    packed = dict(_packed(name, view) for name, view in views.items())
    return packed | {"mlflow.note.content": DESCRIPTION.format(**places)}


def of(sweep_id: str, folder: str) -> str:
    """The name of the view of a sweep in a results folder."""
    return f"sweep-{sweep_id[:12]}-{folder}"


def of_sweep(sweep_id: str, folder: str) -> tuple[str, str]:
    """The experiment's tag that contains a sweep's view."""
    lines = f"tags.kind = 'curve' AND tags.sweep_id = '{sweep_id}' AND tags.folder = '{folder}'"
    return _packed(of(sweep_id, folder), _compared(lines, {"": SECTION}))


def _packed(name: str, view: Mapping[str, Any]) -> tuple[str, str]:
    packed = base64.b64encode(zlib.compress(json.dumps(view).encode())).decode()
    return f"mlflow.sharedViewState.{name}", f"deflate;{packed}"


def _compared(lines: str, sections: Mapping[str, str]) -> dict[str, Any]:
    """A view of these lines, with a section of charts for each mask."""
    look = {"display": True, "isReordered": True, "columns": 2, "cardHeight": 380}
    return {
        "searchFilter": lines,
        # The page loads 100 runs in this order, baselines first. In any order other than by time, runs are shown
        # without their parents.
        "orderByKey": "tags.`rank`",
        "orderByAsc": True,
        **_COLUMNS,
        "isAccordionReordered": True,  # otherwise sections are sorted by name
        "runsHiddenMode": "SHOW_ALL",
        "hideEmptyCharts": True,
        "compareRunCharts": [one for mask in sections for chart in CHARTS for one in _charts(chart, mask)],
        "compareRunSections": [
            {"uuid": mask or "all", "name": name, **look, **_OWN} for mask, name in sections.items()
        ],
    }


def shown(metric: str) -> str:
    """The name of a line's metric in MLflow."""
    return _NAMES.get(metric, key(metric))


def _charts(chart: Chart, mask: str) -> Iterator[dict[str, Any]]:
    for look in filter(None, ("line" if chart.axis else "bars", chart.beside)):
        metrics = [chart.name(mask, end) for end in ((" low", " high") if look == "ends" else ("",))]
        shared = {"uuid": f"{metrics[0]} {look}", "metricSectionId": mask or "all", "metricKey": metrics[0], **_OWN}
        shared |= {"selectedMetricKeys": metrics, "runsCountToCompare": 100}
        # The axis "step" would be labelled "step".
        axis = {"xAxisKey": "metric", "selectedXAxisMetricKey": chart.axis, "useGlobalXaxisKey": False}
        drawn = {"type": "LINE", "scaleType": "log", "lineSmoothness": 0, "displayPoints": True}
        yield shared | ({"type": "BAR"} if look == "bars" else axis | drawn)
