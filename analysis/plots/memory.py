"""Peak memory over context length."""

from __future__ import annotations

import pandas as pd

from analysis.plots import scaling
from analysis.plots.page import Picture


def figure(frame: pd.DataFrame) -> Picture:
    """Peak memory above the baseline (inputs and parameters) in MiB over context length, one panel per pass.

    A cell that ran out of memory or is unsupported is marked above the panel at its length.

    Args:
        frame: from `analysis.frame.load`.

    Raises:
        MissingRecords: no memory was measured.
    """
    return scaling.figure(
        frame,
        bench="memory",
        metric="peak_memory",
        label="peak memory (MiB)",
        explanation="Peak memory above that of inputs and parameters.",
        scale=2**-20,
    )
