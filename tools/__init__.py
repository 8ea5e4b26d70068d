"""For developers, not installed: run from the root of the tree, such as `python -m tools.pages.zoo`."""
