"""Numbers as people read them in tables."""


def number(value: object) -> str:
    """A float with four significant digits and all digits before its point; other values as they are."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
