"""Figures of PolySketchFormer (Kacham et al. 2024, Fast Transformers via Sketching Polynomial Kernels)."""

from __future__ import annotations

import pandas as pd

from analysis.plots import scaling
from analysis.plots.page import Picture


def figure1(frame: pd.DataFrame) -> Picture:
    """Figure 1: latency per token in µs/token over context length; a line per mechanism, a panel per pass.

    The paper times whole training steps of a model; here it is the attention alone. Bars are those
    of the median; a cell that did not run is marked above the panel at its length.

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: no latency was measured.
    """
    return scaling.figure(
        frame,
        bench="latency",
        metric="latency_per_token",
        label="latency per token (µs/token)",
        explanation="Latency per token of attention alone: medians.",
    )
