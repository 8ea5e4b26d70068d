"""Errors that become a status of their own in a record."""


class NonFiniteError(Exception):
    """A result holds NaN or infinity; the message names it, how many values, and the first index."""


class IncorrectError(Exception):
    """The mechanism's output differs from its float64 reference by more than rounding explains."""
