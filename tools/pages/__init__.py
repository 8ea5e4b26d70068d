"""Generators of pages of `docs/`."""
