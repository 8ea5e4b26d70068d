"""The benchmarks: each module's `measure(workbench)` returns the measurements of one cell."""
