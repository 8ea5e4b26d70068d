"""Figures: each file has one, or several of one kind.

A figure is a function of the frame that `analysis.frame.load` returns. It raises `MissingRecords` if the frame lacks
records for it. Failed cells are marked at their place; captions say the conditions, and what was left out.
"""

import bench.common.moved  # noqa: F401 - finds the modules of version 0.1 under their old names
