"""How many blocks of a kernel fit on a multiprocessor, and what the calls are."""

from pathlib import Path
from unittest import mock

import pytest

import tools.kernels
from tools.kernels.call import catalogue
from tools.kernels.compiled import Compiled


# Registers as in kernels whose occupancy is known: 128 of 256 threads fit twice, a register more fits once.
@pytest.mark.parametrize(
    ("given", "blocks"),
    [
        ({"registers": 128, "warps": 8}, 2),
        ({"registers": 129, "warps": 8}, 1),
        ({"registers": 255, "warps": 16}, 0),
        ({"registers": 16, "warps": 1}, 32),
        ({"shared_bytes": 227 * 1024}, 1),
        ({"shared_bytes": 227 * 1024 + 1}, 0),
        ({"shared_bytes": 163 * 1024, "target": 80}, 1),
        ({"shared_bytes": 163 * 1024 + 1, "target": 80}, 0),
        ({"columns": 128, "target": 100}, 4),
    ],
)
def test_blocks_are_as_many_as_registers_warps_and_memory_allow(given, blocks):
    compiled = mock.Mock(**{"target": 90, "warps": 4, "registers": 32, "shared_bytes": 0, "columns": 0} | given)
    assert Compiled.blocks.fget(compiled) == blocks


def test_the_catalogue_has_the_calls_of_every_module_of_calls(tmp_path, monkeypatch):
    (tmp_path / "toy_calls.py").write_text("def calls():\n    return ['one', 'two']\n")
    (tmp_path / "toy.py").write_text("raise AssertionError\n")
    monkeypatch.setattr(tools.kernels, "__path__", [*tools.kernels.__path__, str(tmp_path)])
    found = catalogue()
    here = Path(tools.kernels.__file__).parent
    assert found["toy"] == ["one", "two"]
    assert found.keys() - {"toy"} == {path.stem.removesuffix("_calls") for path in here.glob("*_calls.py")}
