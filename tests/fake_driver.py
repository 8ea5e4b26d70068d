"""A driver of NVIDIA that answers as we like, for machines without one."""

import os

import pytest

from bench.plan import machine

ANSWER = """\
0, GPU-11111111-aaaa, NVIDIA H200, 143771 MiB, 580.65
1, GPU-22222222-bbbb, NVIDIA H200, 143771 MiB, 580.65
2, GPU-33333333-cccc, NVIDIA L4, 23034 MiB, 580.65
"""
LISTED = """\
GPU 0: NVIDIA H200 (UUID: GPU-11111111-aaaa)
GPU 1: NVIDIA H200 (UUID: GPU-22222222-bbbb)
  MIG 1g.18gb     Device  0: (UUID: MIG-44444444-dddd)
  MIG 3g.71gb     Device  1: (UUID: MIG-55555555-eeee)
GPU 2: NVIDIA L4 (UUID: GPU-33333333-cccc)
"""


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """A machine with three GPUs, two of them alike, and a torch for CUDA; counts the calls of nvidia-smi."""
    calls = tmp_path / "calls"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        f"#!/bin/sh\necho >> {calls}\n[ $1 = -L ] && cat <<END && exit\n{LISTED}END\ncat <<END\n{ANSWER}END\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "torch_cuda", lambda: "13.0")
    for answer in (machine._all_gpus, machine._slices):
        answer.cache_clear()
    yield calls
    for answer in (machine._all_gpus, machine._slices):
        answer.cache_clear()
