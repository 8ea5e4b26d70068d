"""The Triton kernels by themselves: compiled without a GPU, read, predicted, tuned and measured on one."""
