"""`make gpu-pack`: one folder with all that a GPU machine without a network needs to run the suite (docs/gpu.md).

It has the project at HEAD, wheels of missing packages, cached queries, keys and values, and the script `run`.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.common import signals
from bench.common.errors import ConfigError, Parser, named_path, one_line
from bench.records import own
from bench.records.disk import is_file

ROOT = Path(__file__).parents[1]
LARGEST_BYTES = 64 * 2**20
PROJECT = ("analysis", "attention_zoo", "bench", "conf", "docs", "tests", "tools")
RESULTS = "results/predictions"
FILES = ("pyproject.toml", "README.md", "Makefile")
# Python and platforms of the GPU machine, for which the wheels are downloaded.
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
PACK = own.Kind("pack for a GPU machine, of the attention zoo", ("project", "wheels", "site", "run", "runs", "out"))
MADE_ANEW = ("project", "wheels", "site")
COMMIT = "bench/plan/commit.txt"
# The same settings as in `run`: the name of the cached file depends on them.
INPUTS = (
    "bench=spectral_norm inputs=pretrained inputs.weights=initialised,pretrained seq_len=1024 batch_size=2 repeats=1"
)


def add_project(folder: Path) -> None:
    """Extract the files of the last commit; `bench/plan/commit.txt` in them names it."""
    command = ["git", "-C", str(ROOT), "archive", "HEAD", *PROJECT, RESULTS, *FILES]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    folder.mkdir()
    subprocess.run(["tar", "--extract", "--directory", str(folder)], input=archive, check=True)


def changed(project: Path) -> list[str]:
    """Files of an earlier pack's project that differ from its commit or are new: a new pack would lose them."""
    if not os.path.lexists(project):
        return []
    if not is_file(project / COMMIT):
        return [COMMIT]
    git = ["git", "-C", str(ROOT)]
    listed = [*git, "ls-tree", "-r", "-z", "--format=%(path)%x09%(objectname)", (project / COMMIT).read_text().strip()]
    tree = subprocess.run(listed, capture_output=True, text=True).stdout
    known = dict(line.split("\t") for line in tree.split("\0") if line)
    paths = [path for path in sorted(project.rglob("*")) if not path.is_dir() and not _is_cache(path)]
    if irregular := [str(path.relative_to(project)) for path in paths if not is_file(path)]:
        return irregular
    hashed = [*git, "hash-object", "--no-filters", *(str(path) for path in paths)]
    hashes = subprocess.run(hashed, check=True, capture_output=True, text=True).stdout.split()
    names = [str(path.relative_to(project)) for path in paths]
    return [name for name, sha in zip(names, hashes, strict=True) if known.get(name) != sha and name != COMMIT]


def _is_cache(path: Path) -> bool:
    return any(part in ("__pycache__", ".pytest_cache") for part in path.parts)


def add_wheels(folder: Path) -> None:
    """Download the wheels of `wheels.txt` for `PYTHON`; if there is no wheel, build one (pure Python only)."""
    folder.mkdir()
    pip = [sys.executable, "-m", "pip"]
    here = [f"--platform={platform}" for platform in PLATFORMS]
    there = ["--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp", *here]
    for requirement in requirements():
        download = [*pip, "download", "--quiet", "--no-deps", *there, "--dest", str(folder), requirement]
        if subprocess.run(download, capture_output=True).returncode:
            subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), requirement], check=True)


def requirements() -> list[str]:
    """The packages of `wheels.txt`, each with its version from `constraints.txt`."""
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    names = re.findall(r"^\w\S*", (ROOT / "gpu" / "wheels.txt").read_text(), re.MULTILINE)
    return [name if "==" in name else f"{name}=={pinned[name]}" for name in names]


def add_inputs(folder: Path) -> None:
    """Cache queries, keys and values of a trained model, so that `run` needs no model and text; skip if unavailable."""
    with tempfile.TemporaryDirectory() as scratch:
        where = ["attention=v_mean", "device=cpu", "tracking=none", f"results_dir={scratch}"]
        made = subprocess.run([sys.executable, "-m", "bench", *INPUTS.split(), *where], cwd=ROOT, capture_output=True)
        if made.returncode:
            print(f"left out: inputs=pretrained, {made.stderr.decode().strip().splitlines()[-1]}", file=sys.stderr)
            return
        folder.mkdir(exist_ok=True)
        for file in (Path(scratch) / "inputs").glob("*.safetensors"):
            shutil.copy(file, folder)


def main() -> int:
    """Make the folder, or renew the project and the wheels in it; results of earlier runs in `out` and `runs` stay."""
    parser = Parser(description=__doc__)
    parser.add_argument("--to", type=named_path, default=ROOT / "gpu-pack", help="the folder (%(default)s)")
    parser.add_argument("--without", nargs="*", choices=("wheels", "inputs"), default=(), help="parts to leave out")
    given = parser.parse_args()
    try:
        own.claim(given.to, PACK, "--to")
        if "inputs" not in given.without:
            own.claim(given.to / "runs", own.RESULTS, "--to")
        if kept := changed(given.to / "project"):
            raise ConfigError(
                f"--to={str(given.to)!r}: project/{kept[0]} is not as it was packed; must be a new folder"
            )
    except (ConfigError, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    for name in MADE_ANEW:
        shutil.rmtree(given.to / name, ignore_errors=True)
    add_project(given.to / "project")
    shutil.copy(ROOT / "gpu" / "run", given.to)
    if "wheels" not in given.without:
        add_wheels(given.to / "wheels")
    if "inputs" not in given.without:
        add_inputs(given.to / "runs" / "inputs")
    size = sum(file.stat().st_size for file in given.to.rglob("*") if file.is_file())
    print(f"{given.to}: {size / 2**20:.1f} MiB; there: bash {given.to.name}/run 0")
    if size > LARGEST_BYTES:
        print(f"error: more than {LARGEST_BYTES / 2**20:.0f} MiB", file=sys.stderr)
    return int(size > LARGEST_BYTES)


if __name__ == "__main__":
    sys.exit(signals.run(main))
