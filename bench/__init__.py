"""The benchmark suite: measures the mechanisms of `attention_zoo`, one child process per cell."""
