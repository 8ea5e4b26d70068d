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

from bench.tracking.lines import key


class Chart(NamedTuple):
    """What is over what: MLflow takes a title for one metric alone, and names two."""

    title: str
    metrics: tuple[str, ...]
    axis: str = "sequence length"
    """The metric on the horizontal axis; none: bars, of the last value."""
    scale: str = "log"


# What mechanisms are compared by, as far as it was measured; the charts of all else follow below.
CHARTS = (
    Chart("Speed over the best exact softmax, forward", ("speedup.forward",)),
    Chart("", ("speedup_low.forward", "speedup_high.forward")),
    Chart("Speed over the best exact softmax, training pass", ("speedup.forward_backward",)),
    Chart("", ("speedup_low.forward_backward", "speedup_high.forward_backward")),
    Chart("Microseconds a token, forward", ("latency_us_per_token.forward",)),
    Chart("Microseconds a token, training pass", ("latency_us_per_token.forward_backward",)),
    Chart("Microseconds a token, decoding", ("decode_us_per_token",)),
    Chart("Peak memory in MiB, forward", ("peak_mib.forward",)),
    Chart("Peak memory in MiB, training pass", ("peak_mib.forward_backward",)),
    Chart("Relative error over the papers' d", ("spectral_norm.relative",), "features d"),
    Chart("Error of the sketch over the papers' d", ("sketch_error.sketch",), "features d"),
    Chart("Tokens that are right, as a share", ("token_accuracy.test",), "", "linear"),
    Chart("Perplexity", ("perplexity.test",), "", "linear"),
)
COMPARED = [chart.metrics[0] for chart in CHARTS if chart.title]
SECTION = "Speed, memory, error, quality"
MASKS = {"": "Every token attends to all", "causal ": "Causal: every token attends to those before it"}
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
**[Comparison]({comparison})**: a line for each mechanism, over all sweeps. First how many times as fast as the best exact
softmax of the same rounds, then microseconds a token, memory, error, quality. In each chart all are under one condition
(batch, heads, data type, data): the tag `condition` says which. Click the eye to hide a line.

**[Runs]({runs})**: one row for each sweep, the newest first. Its name opens its table, its figures (*Artifacts*), and a link
to its own lines under every condition. The arrow before it opens its cells.

**[Sweeps]({sweeps})**: the sweeps alone, 100 on a page.

A cell that failed says why in the tag `reason`. The records in the results folder are the truth, these pages a copy.
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
        "comparison": _compared(COMPARISON, MASKS),
    }
    places = {name: address(name, experiment_id)[1:] for name in views}
    packed = dict(_packed(name, view) for name, view in views.items())
    return packed | {"mlflow.note.content": DESCRIPTION.format(**places)}


def of(sweep_id: str) -> str:
    """The name of the view of a sweep's lines."""
    return f"sweep-{sweep_id[:12]}"


def of_sweep(sweep_id: str) -> tuple[str, str]:
    """The tag of the experiment that holds the view of a sweep's lines."""
    return _packed(of(sweep_id), _compared(f"tags.kind = 'curve' AND tags.sweep_id = '{sweep_id}'", {"": SECTION}))


def _packed(name: str, view: Mapping[str, Any]) -> tuple[str, str]:
    packed = base64.b64encode(zlib.compress(json.dumps(view).encode())).decode()
    return f"mlflow.sharedViewState.{name}", f"deflate;{packed}"


def _compared(lines: str, sections: Mapping[str, str]) -> dict[str, Any]:
    """The view of some lines, with a section of charts for each prefix of metrics."""
    look = {"display": True, "isReordered": True, "columns": 2, "cardHeight": 380}
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
        "compareRunCharts": [_chart(chart, prefix) for prefix in sections for chart in CHARTS],
        "compareRunSections": [
            {"uuid": prefix or "all", "name": name, **look, **_OWN} for prefix, name in sections.items()
        ],
    }


def _chart(chart: Chart, prefix: str) -> dict[str, Any]:
    metrics = [key(prefix + metric) for metric in chart.metrics]
    shared = {"uuid": metrics[0], "metricSectionId": prefix or "all", "metricKey": metrics[0], **_OWN}
    shared |= {"selectedMetricKeys": metrics, "displayName": chart.title, "runsCountToCompare": 100}
    if not chart.axis:
        return {**shared, "type": "BAR"}
    # The axis "step" would be called that.
    axis = {"xAxisKey": "metric", "selectedXAxisMetricKey": chart.axis, "useGlobalXaxisKey": False}
    return {**shared, **axis, "type": "LINE", "scaleType": chart.scale, "lineSmoothness": 0, "displayPoints": True}
