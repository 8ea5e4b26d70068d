"""Every installation works in an environment of its own, in a folder that has nothing of the checkout."""

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
CODE = ("attention_zoo", "bench", "conf", "analysis")
SHIPPED = (*CODE, "setup.py", "pyproject.toml", "README.md", "LICENSE")
CLEAN = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
BUILD = ("--no-deps", "--no-build-isolation")
# What setuptools makes of them, which changes with its versions only.
RARE = ("sdist", "editable_mode=compat", "editable_mode=strict")
INSTALLS = ["editable", *(pytest.param(how, marks=pytest.mark.slow) for how in RARE)]


@pytest.fixture
def source(tmp_path):
    """What is needed of the checkout, and nothing that was built there."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name in SHIPPED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def elsewhere(tmp_path, source):
    """An empty folder, what installs the suite in an environment in one of the ways, what runs a program of it there.

    Other packages are those of this environment, found through a `.pth` file. That leaves out the installation of the
    checkout: only `.pth` files in an environment's own folder count.
    """
    environment, folder = tmp_path / "environment", tmp_path / "elsewhere"
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))

    def install(how):
        installing = [*PIP, "--python", environment / "bin" / "python", "install", "--ignore-installed"]
        if how.startswith("editable"):
            settings = ["--config-settings", how] if "=" in how else []
            subprocess.run([*installing, *BUILD, *settings, "--editable", source], check=True, env=CLEAN)
        else:
            wheel = built(how, source, tmp_path)
            shutil.rmtree(source)
            subprocess.run([*installing, "--no-deps", "--no-index", wheel], check=True, env=CLEAN)

    def run(program, *arguments, **variables):
        command = [environment / "bin" / program, *arguments]
        return subprocess.run(command, cwd=folder, env=CLEAN | variables, capture_output=True, text=True, timeout=300)

    return folder, install, run


def built(how, source, into):
    """The wheel of the source, or that of its distribution."""
    if how == "sdist":
        program = f"from setuptools import build_meta; build_meta.build_sdist({str(into)!r})"
        subprocess.run([sys.executable, "-c", program], cwd=source, check=True, capture_output=True)
        (source,) = into.glob("*.tar.gz")
    subprocess.run([*PIP, "wheel", *BUILD, "--wheel-dir", into, source], check=True)
    (wheel,) = into.glob("*.whl")
    return wheel


FINDS = """
import bench
from bench.plan.load import CONF, Loader
print(CONF, bench.__file__, *sorted(path.relative_to(CONF).as_posix() for path in CONF.rglob("*.yaml")))
Loader().load(["experiment=demo", "task=selective_copying"])
"""


def require_configuration(run, source, how):
    """An installation finds all of it where it is to be."""
    ran = run("python", "-c", FINDS)
    assert ran.returncode == 0, ran.stderr
    conf, module, *files = ran.stdout.split()
    assert files == sorted(path.relative_to(ROOT / "conf").as_posix() for path in (ROOT / "conf").rglob("*.yaml"))
    beside = how in ("editable", "editable_mode=compat")
    assert Path(conf) == (source / "conf" if beside else Path(module).parent / "conf")
    assert beside or how == "editable_mode=strict" or "/environment/" in conf


@pytest.mark.commands
@pytest.mark.parametrize("how", INSTALLS)
def test_every_installation_finds_all_of_the_configuration(elsewhere, source, how):
    _, install, run = elsewhere
    install(how)
    require_configuration(run, source, how)


@pytest.mark.commands
def test_the_wheel_finds_its_configuration_measures_and_draws_in_another_folder(elsewhere, source):
    folder, install, run = elsewhere
    install("wheel")
    require_configuration(run, source, "wheel")
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


def test_what_the_readme_links_to_is_there():
    links = re.findall(r"\]\((?!http)([^)#]+)[^)]*\)", (ROOT / "README.md").read_text())
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []
