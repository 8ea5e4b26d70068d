"""Exact polynomial attention by Triton kernels: its weights are there one tile at a time."""
