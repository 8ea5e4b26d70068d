"""Fixtures that the tests of figures and tables share."""

import pytest
from synthetic_arena import arena
from synthetic_everything import everything
from synthetic_quality import quality

from analysis.frame import tidy


@pytest.fixture(scope="session")
def frame():
    """What the synthetic records say, of which every figure and table can be made; nobody changes it."""
    return tidy([*everything(), *quality(), *arena()])
