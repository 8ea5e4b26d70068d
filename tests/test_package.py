"""The wheel works in an environment of its own, in a folder that has nothing of the checkout."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
import yaml
from command import TINY

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
SHIPPED = ("attention_zoo", "bench", "analysis", "hydra_plugins", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture
def elsewhere(tmp_path):
    """An empty folder, and what runs there a program of an environment that has the wheel.

    Other packages are those of this environment, found through a `.pth` file. That leaves out the installation of the
    checkout: only `.pth` files in an environment's own folder count.
    """
    source, environment, folder = tmp_path / "source", tmp_path / "environment", tmp_path / "elsewhere"
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for each in (source, folder):
        each.mkdir()
    for name in SHIPPED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    shutil.rmtree(source)
    python = environment / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "--no-deps", "--no-index", wheel], check=True, env=clean)
    (packages,) = environment.glob("lib/*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))

    def run(program, *arguments, **variables):
        command = [environment / "bin" / program, *arguments]
        return subprocess.run(command, cwd=folder, env=clean | variables, capture_output=True, text=True, timeout=300)

    return folder, run


@pytest.mark.commands
def test_the_wheel_measures_and_draws_in_another_folder(elsewhere):
    folder, run = elsewhere
    where = run("python", "-c", "import attention_zoo, bench, analysis; print(attention_zoo, bench, analysis)")
    assert where.stdout.count("/environment/") == 3, where.stderr
    copied = "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE))
    ran = run("python", "-c", copied)
    assert copied.count("import") >= 3 and ran.returncode == 0, ran.stderr
    told = run("attention-zoo", "--version")
    assert told.stdout.split() == ["attention-zoo", VERSION]
    assert "polysketch_learned_local_r32" in run("attention-zoo", "list").stdout.split()
    assert "skeinformer_figure1" in run("attention-zoo", "bench", "--help").stdout
    asked = run("attention-zoo", "-sc", "query=bash", COMP_LINE="attention-zoo bench seq_len=64 attention=perf")
    assert "attention=performer_2048" in asked.stdout.split(), asked.stderr
    (folder / "bench.py").write_text("raise SystemExit('not the suite')")
    swept = run("attention-zoo", "bench", "attention=flash,v_mean", *TINY)
    assert swept.returncode == 0 and swept.stdout.count("| ok") == 2, swept.stderr
    records = [json.loads(path.read_text()) for path in (folder / "runs" / "records").iterdir()]
    assert {record["code"]["suite_version"] for record in records} == {VERSION}
    said = shlex.split(swept.stdout.splitlines()[-1])  # python -m, which the file of that name would break
    drawn = run("attention-zoo", *said[said.index("figures") :])
    assert drawn.returncode == 0 and list((folder / "runs" / "figures").glob("*.png")), drawn.stderr


def test_the_citation_and_the_changelog_name_the_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["cff-version"], cited["version"], cited["type"]) == ("1.2.0", VERSION, "software")
    assert cited["title"] and cited["authors"] and cited["message"]
    assert f"\n## {VERSION}" in (ROOT / "CHANGELOG.md").read_text()
