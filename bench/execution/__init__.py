"""From cells to records: the sweep, one child process per cell, and how long each may take."""
