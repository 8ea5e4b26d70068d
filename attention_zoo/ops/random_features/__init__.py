"""Features by matrices that are drawn: positive ones of a softmax, and sketches of powers, by Triton kernels."""
