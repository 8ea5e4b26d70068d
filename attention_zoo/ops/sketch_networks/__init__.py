"""The small networks of a learned sketch, both networks of a level in one operation."""
