"""One module per figure or paper, and how they all look."""
