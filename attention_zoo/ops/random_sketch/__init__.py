"""A level of a random sketch, `c (x G1) o (y G2)`, with the layer norm before it, by Triton kernels."""
