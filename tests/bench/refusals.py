"""How tests say that something is refused."""

from contextlib import contextmanager

import pytest

from bench.common.errors import ConfigError


@contextmanager
def refused(beginning, error=ConfigError):
    """What is done inside is refused in one line, which begins like this."""
    with pytest.raises(error) as raised:
        yield
    assert str(raised.value).startswith(beginning) and "\n" not in str(raised.value)
