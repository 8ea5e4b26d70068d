"""Triton kernels that measure a device, in a folder of their own: importing the benchmarks needs no Triton."""
