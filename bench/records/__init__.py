"""What is known about each cell: one atomic file per record, and what it says in numbers and words."""
