"""Figures: each file has one, or several of one kind.

A figure is a function of the frame of `analysis.frame.load`. It raises `MissingRecords` where the frame does not hold
what it shows. Cells that did not measure are marked at their place; captions say the conditions, and what was left out.
"""

import bench.common.moved  # noqa: F401 - finds the modules of version 0.1 by their names
