"""README's Python runs as it is copied, and its links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.commands
def test_the_python_of_the_readme_runs_from_top_to_bottom(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 5
    environment = {**os.environ, "PYTHONPATH": str(README.parent)}
    program = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert program.returncode == 0, program.stderr


def test_what_the_readme_links_to_is_there():
    links = re.findall(r"\]\((?!http)([^)#]+)[^)]*\)", README.read_text())
    assert len(links) > 20
    assert [link for link in links if not (README.parent / link).exists()] == []
