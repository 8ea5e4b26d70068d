"""How many blocks of a kernel fit on a multiprocessor, and what the calls are."""

from pathlib import Path

import pytest

import tools.kernels
from attention_zoo.ops.launching import Configuration
from tools.kernels.call import catalogue
from tools.kernels.compiled import Compiled


def compiled(target=90, warps=4, registers=32, shared=0, columns=0, **other):
    given = {"call": None, "function": "kernel", "version": 1, "configuration": Configuration({}, warps, 1)}
    given |= {"spill_bytes": 0, "warnings": (), "cubin": b""} | other
    return Compiled(target=target, warps=warps, registers=registers, shared_bytes=shared, columns=columns, **given)


# Registers as in kernels whose occupancy is known: 128 of 256 threads fit twice, a register more fits once.
@pytest.mark.parametrize(
    ("given", "blocks"),
    [
        ({"registers": 128, "warps": 8}, 2),
        ({"registers": 129, "warps": 8}, 1),
        ({"registers": 255, "warps": 16}, 0),
        ({"registers": 16, "warps": 1}, 32),
        ({"shared": 227 * 1024}, 1),
        ({"shared": 227 * 1024 + 1}, 0),
        ({"shared": 163 * 1024, "target": 80}, 1),
        ({"shared": 163 * 1024 + 1, "target": 80}, 0),
        ({"columns": 128, "target": 100}, 4),
    ],
)
def test_blocks_are_as_many_as_registers_warps_and_memory_allow(given, blocks):
    assert compiled(**given).blocks == blocks


def test_a_kernel_is_serialised_if_ptxas_says_so():
    warning = "ptxas info : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ..."
    assert compiled(warnings=(warning,)).serialised
    assert not compiled(warnings=("ptxas info : (C7000) something else",)).serialised


def test_the_catalogue_has_the_calls_of_every_module_of_calls(tmp_path, monkeypatch):
    (tmp_path / "toy_calls.py").write_text("def calls():\n    return ['one', 'two']\n")
    (tmp_path / "toy.py").write_text("raise AssertionError\n")
    monkeypatch.setattr(tools.kernels, "__path__", [*tools.kernels.__path__, str(tmp_path)])
    found = catalogue()
    here = Path(tools.kernels.__file__).parent
    assert found["toy"] == ["one", "two"]
    assert found.keys() - {"toy"} == {path.stem.removesuffix("_calls") for path in here.glob("*_calls.py")}
