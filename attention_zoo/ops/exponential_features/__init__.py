"""Positive random features of a softmax, relative to the largest of each row, by Triton kernels."""
