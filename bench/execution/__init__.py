"""From cells to records: runs a sweep with one child process per cell, locks and time limits."""
