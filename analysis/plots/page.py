"""The old name of `analysis.plots.layout`."""

import warnings

from analysis.plots.layout import WIDTHS, page

__all__ = ["WIDTHS", "page"]

warnings.warn("analysis.plots.page is analysis.plots.layout", DeprecationWarning, stacklevel=2)
