"""The script of a fresh machine, up to where it makes one."""

import os
import subprocess
from pathlib import Path

import pytest

FRESH = Path(__file__).parents[2] / "tools" / "fresh.sh"


@pytest.mark.needs("root")
@pytest.mark.parametrize("folder", [FRESH.parent, FRESH.parents[1], FRESH.parents[2]])
def test_it_runs_from_any_folder(folder, tmp_path):
    """It starts itself anew in a namespace."""
    for name, code in (("debootstrap", ""), ("unshare", 'for last; do :; done; exec ls "$last"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    given = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MIRROR": "file:///nowhere"}
    given |= {"LOGS": tmp_path, "TMPDIR": tmp_path}
    command = [os.path.join(".", FRESH.relative_to(folder))]
    ran = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "tools/fresh.sh\n", "")
