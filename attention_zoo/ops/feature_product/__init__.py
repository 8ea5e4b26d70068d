"""Linear attention over features: the PyTorch `reference`, a `cpu` path that stays in the caches, Triton kernels."""
