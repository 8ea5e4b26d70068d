"""Features by random matrices, as Triton kernels: positive features for softmax, and sketches for polynomials."""
