"""What the command says: a mistake in one line with its key and exit code 2, and its help."""

import pytest
from command import TINY, bench


@pytest.mark.commands
def test_the_real_command_says_the_same(tmp_path):
    result = bench("attention=polynomial", "attention.degree=3", f"results_dir={tmp_path}", *TINY)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: attention.degree=3: must be even, so that weights are not negative\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.commands
def test_help_lists_the_mechanisms():
    result = bench("--help")
    assert result.returncode == 0
    assert "polysketch_learned_local_r32" in result.stdout and "spectral_norm" in result.stdout
