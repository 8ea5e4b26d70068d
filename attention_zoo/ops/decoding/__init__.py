"""Decoding token by token: the `states` for any device, and their steps by Triton kernels (`triton`)."""
