"""Fixtures that the tests of figures and tables share."""

import pytest
from synthetic_everything import of_every_figure

from analysis.frame import tidy


@pytest.fixture(scope="session")
def frame():
    """What the synthetic records say, of which every figure and table can be made; nobody changes it."""
    return tidy(of_every_figure())
