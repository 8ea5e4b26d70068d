"""Which rows of a batch each of several processes learns from."""

from itertools import chain
from types import SimpleNamespace

import pytest

from bench.training.world import World


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 6, 7, 42])
def test_every_row_is_one_processs(size, count):
    worlds = [World(SimpleNamespace(process_index=rank, num_processes=size)) for rank in range(size)]
    rows = [list(range(count))[world.rows(count)] for world in worlds]
    assert list(chain(*rows)) == list(range(count))
    assert max(map(len, rows)) - min(map(len, rows)) <= 1


def test_alone_everything_is_ones_own():
    assert World().rows(5) == slice(0, 5) and (World().rank, World().size) == (0, 1)
