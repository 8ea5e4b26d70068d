"""Layer norms of rows that a Triton kernel has in its registers."""
