"""Tools for the Triton kernels: compile them without a GPU, read their machine code, tune them on a GPU."""
