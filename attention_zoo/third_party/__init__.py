"""Mechanisms of other people's packages behind the same interface; each needs its package to be installed."""
