"""Exact polynomial attention by Triton kernels: the weights are computed one tile at a time."""
