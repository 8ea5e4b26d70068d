"""The small networks of a learned sketch, all of one level at once."""
