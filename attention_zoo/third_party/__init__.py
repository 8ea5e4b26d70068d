"""Mechanisms from other packages behind the same interface; each needs its package to be installed."""
