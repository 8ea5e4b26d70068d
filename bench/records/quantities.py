"""The old name of `bench.records.metrics`, and of its `Metric`."""

import warnings

from bench.records.metrics import *  # noqa: F403
from bench.records.metrics import Metric as Quantity  # noqa: F401

warnings.warn("bench.records.quantities is bench.records.metrics now, Quantity is Metric", FutureWarning, stacklevel=2)
