"""What the pages of MLflow show first: saved views of the experiment, with their addresses, and its description.

MLflow's pages read a view from the tag `mlflow.sharedViewState.NAME` of an experiment when the address says
`viewStateShareKey=NAME` and nothing else that a view holds. Its fields are those of the page's own state
(`ExperimentPageUIState`, and `RunsChartsLineCardConfig` for a chart).
"""

import base64
import json
import zlib
from colorsys import hls_to_rgb
from typing import Any
from urllib.parse import urlencode

# What mechanisms are compared by, as far as a sweep has measured it; the charts of all else follow below.
FIGURES = (
    "latency_ms/forward",
    "peak_mib/forward",
    "spectral_norm/relative",
    "latency_ms/forward_backward",
    "peak_mib/forward_backward",
    "sketch_error/sketch",
    "latency_ms/backward",
    "peak_mib/backward",
    "decode_us_per_token",
    "loss/test",
)
SECTION = "Latency, memory, error"
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
CURVES = "tags.kind = 'curve'"
DESCRIPTION = """\
**Runs**: one row per sweep, newest first. Its name opens the sweep's table and figures (*Artifacts*); the arrow before
it opens its cells, with mechanism, length, status and result.

**Many sweeps**: [the sweeps alone]({sweeps}), 100 on a page.

**Mechanisms compared**: [latency, memory and error over length]({curves}), one line each. For some of them only, click
the eye before those that are not wanted, or add `AND tags.attention != 'performer'` to the filter.

A failed cell keeps its reason in the tag `reason`. The records in the results folder are the truth, these pages a copy.
"""


def colour(number: int) -> str:
    """Of a line: hues far apart from one number to the next; MLflow's own are drawn by lot, and some twice."""
    parts = hls_to_rgb(number * 0.618 % 1, (0.35, 0.55)[number % 2], 0.8)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def address(name: str, experiment_id: str) -> str:
    """Of a saved view, after the server's own; `workflowType` chooses the pages for training, not those for chats."""
    mode = "CHART" if name == "curves" else "TABLE"
    state = urlencode({"viewStateShareKey": name, "workflowType": "machine_learning", "compareRunsMode": mode})
    return f"/#/experiments/{experiment_id}/runs?{state}"


def tags(experiment_id: str) -> dict[str, str]:
    """The tags of the experiment that hold its views and its description."""
    # Only in the order of their times are runs shown below their parents.
    runs = {"orderByKey": "attributes.start_time", "orderByAsc": False, **_COLUMNS}
    views = {
        "runs": {**runs, "searchFilter": "tags.kind != 'curve'"},
        # A page lists 100 runs, cells among them: of many sweeps few would be seen.
        "sweeps": {**runs, "searchFilter": "tags.kind = 'summary'"},
        "curves": _curves(),
    }
    packed = {name: base64.b64encode(zlib.compress(json.dumps(view).encode())) for name, view in views.items()}
    places = {name: address(name, experiment_id)[1:] for name in views}
    return {
        **{f"mlflow.sharedViewState.{name}": f"deflate;{view.decode()}" for name, view in packed.items()},
        "mlflow.note.content": DESCRIPTION.format(**places),
    }


def _curves() -> dict[str, Any]:
    section = {"uuid": SECTION, "name": SECTION, "display": True, "isReordered": True} | _OWN
    return {
        "searchFilter": CURVES,
        "orderByKey": "tags.`attention`",  # by anything but their times, that is without the sweeps above them
        "orderByAsc": True,
        **_COLUMNS,
        "isAccordionReordered": True,  # else in alphabetical order
        "runsHiddenMode": "SHOW_ALL",
        "hideEmptyCharts": True,
        "compareRunCharts": [_chart(metric) for metric in FIGURES],
        "compareRunSections": [section],
    }


def _chart(metric: str) -> dict[str, Any]:
    return {
        **{"uuid": metric, "type": "LINE", "metricSectionId": SECTION, "runsCountToCompare": 100},
        **{"metricKey": metric, "selectedMetricKeys": [metric]},
        **{"xAxisKey": "step", "selectedXAxisMetricKey": "", "useGlobalXaxisKey": False, "xAxisScaleType": "log"},
        **{"scaleType": "log", "lineSmoothness": 0, "displayPoints": True},
        **_OWN,
    }
