"""Tools for developers, not installed; run them from the root of the repository: `python -m tools.pages.zoo`."""
