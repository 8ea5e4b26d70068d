"""What the commands print and ask."""
