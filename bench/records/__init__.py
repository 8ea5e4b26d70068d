"""The records of cells: one atomically written file each, and their summary in numbers and words."""
