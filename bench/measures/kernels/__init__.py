"""Triton kernels that measure a device; a separate package, so that the benchmarks can be imported without Triton."""
