"""A cell's id follows the code that it runs, and no other."""

import hashlib
import os
import shutil
import sys

import pytest
from command import HERE, ROOT, TINY, bench, sweep_of

from bench import api
from bench.measures.context import CellContext
from bench.plan import cell, sources
from bench.plan.load import Loader
from bench.records.store import Store

LOADER = Loader()
CELLS = {
    "latency of flash": ["attention=flash"],
    "latency of v_mean": ["attention=v_mean"],
    "latency of informer": ["attention=informer"],
    "latency of polysketch": ["attention=polysketch"],
    "error of informer": ["bench=spectral_norm", "attention=informer"],
    "error of polysketch": ["bench=spectral_norm", "attention=polysketch"],
    "comparison": ["bench=compare", "attention=flash,polysketch"],
}
# Files, and the cells that run them.
RUN_BY = {
    "ops/deep/kernel.py v_mean.py": "latency of v_mean, latency of informer, error of informer",
    "softmax.py flash.py": "latency of flash, error of informer, comparison",
    "polysketch.py": "latency of polysketch, error of polysketch, comparison",
    "informer.py": "latency of informer, error of informer",
    "polynomial.py": "error of polysketch",
    "linformer.py hf/masks.py": "",
    "measures/spectral_norm.py": "error of informer, error of polysketch",
    "measures/compare.py": "comparison",
    "base.py measures/correctness.py measures/context.py execution/child.py inputs/__init__.py inputs/base.py"
    " inputs/gaussian.py training/saved.py": ", ".join(CELLS),
    "inputs/pretrained.py training/inputs.py models/__init__.py tasks/__init__.py measures/memory.py records/table.py"
    " records/store.py execution/sweep.py execution/runner.py tracking/mirror.py plan/config.py common/errors.py": "",
}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of the packages, in which v_mean imports an operation in a folder of its own."""
    for package in sources.PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    deep = tmp_path / "attention_zoo" / "ops" / "deep"
    deep.mkdir()
    (deep / "__init__.py").touch()
    (deep / "kernel.py").touch()
    append(tmp_path / "attention_zoo" / "v_mean.py", "def later():\n    from .ops.deep import kernel\n")
    append(tmp_path / "bench/measures/correctness.py", "if TYPE_CHECKING:\n    from attention_zoo.hf import masks\n")
    monkeypatch.setattr(sources, "_folder", lambda top: tmp_path if top in sources.PACKAGES else None)
    sources.clear_caches()
    yield tmp_path
    sources.clear_caches()


def append(file, text):
    file.write_text(file.read_text() + "\n" + text)


@pytest.fixture(scope="module")
def configs(same_code):
    return {name: api.planned(LOADER, [*overrides, *TINY[:4]]).cells[0].config for name, overrides in CELLS.items()}


def ids(configs):
    sources.clear_caches()
    return {name: cell.content_id(config, cell._sources(config)) for name, config in configs.items()}


def test_an_edit_changes_the_ids_of_the_cells_that_run_the_file(checkout, configs):
    run = {name: {source.name for source in cell._sources(config)} for name, config in configs.items()}
    for files, cells in RUN_BY.items():
        for file in files.split():
            (name,) = (f"{top}/{file}" for top in sources.PACKAGES if (checkout / top / file).is_file())
            assert ", ".join(cell for cell in CELLS if name in run[cell]) == cells, name
    before = ids(configs)
    append(checkout / "attention_zoo/informer.py", "# edited\n")
    append(checkout / "bench/plan/config.py", "# edited\n")
    after = ids(configs)
    assert {name for name in CELLS if before[name] != after[name]} == {"latency of informer", "error of informer"}


@pytest.mark.parametrize("name", ["error of informer", "error of polysketch"])
def test_the_exact_function_of_a_cell_is_among_the_code_that_is_hashed(name, configs, tmp_path):
    exact = CellContext(configs[name], tmp_path).exact()
    hashed = {source.name for source in cell._sources(configs[name])}
    modules = {cls.__module__ for cls in type(exact).__mro__ if cls.__module__.startswith("attention_zoo")}
    assert {module.replace(".", "/") + ".py" for module in modules} <= hashed


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


OUTSIDE = {
    "a_plugin.py": "import torch\nimport a_helper\ntry:\n    import not_there\nexcept ImportError: pass\n",
    "a_helper.py": "from a_package import tools as t",
    "a_package/__init__.py": "",
    "a_package/tools.py": "from . import deeper\nfrom .. import too_far",
    "a_package/deeper.py": "import attention_zoo.checks",
    "a_package/unused.py": "",
    "another.py": "",
}


@pytest.mark.parametrize(
    ("folder", "root", "brought"),
    [
        (".", "a_plugin", "a_helper.py a_package/__init__.py a_package/deeper.py a_package/tools.py a_plugin.py"),
        ("site-packages", "a_package.tools", "a_package/__init__.py a_package/deeper.py a_package/tools.py"),
        ("site-packages", "a_plugin", "a_plugin.py"),  # its neighbours are packages of their own
    ],
)
def test_a_plugin_brings_what_it_imports_of_its_own(folder, root, brought, tmp_path, monkeypatch):
    write(tmp_path / folder, OUTSIDE)
    monkeypatch.setattr(sys, "path", [str(tmp_path / folder), *sys.path])
    sources.clear_caches()
    sources._folder.cache_clear()
    names = [source.name for source in sources.closure((root,))]
    assert [name for name in names if not name.startswith("attention_zoo")] == brought.split()
    assert ("attention_zoo/checks.py" in names) == ("deeper" in brought)


def test_a_file_that_is_changed_or_gone_is_named(tmp_path):
    write(tmp_path, {"first.py": "", "second.py": ""})
    files = [(name, str(tmp_path / name), hashlib.sha256(b"").hexdigest()) for name in ("first.py", "second.py")]
    assert sources.changed(files) is None
    (tmp_path / "second.py").write_text("# edited")
    assert sources.changed(files) == "second.py"
    (tmp_path / "first.py").unlink()
    assert sources.changed(files) == "first.py"


REWRITING = """
from pathlib import Path

from attention_zoo import AttentionInfo, register
from attention_zoo.v_mean import VMean


@register
class Rewriting(VMean):
    info = AttentionInfo(
        name="rewriting", paper="none", approximates="softmax", causal=True, padding=True, cross=True, random=False,
        complexity="O(n h)", package="psutil",
    )

    def _attend(self, query, key, value, padding):
        if not Path(__file__).read_text().endswith("# rewritten"):
            Path(__file__).write_text(Path(__file__).read_text() + "# rewritten")
        return super()._attend(query, key, value, padding)
"""


@pytest.mark.commands
def test_code_that_changes_while_it_is_measured_is_an_error_and_then_another_cell(tmp_path):
    write(tmp_path, {"plugins/rewriting.py": REWRITING})
    path = os.pathsep.join(map(str, (tmp_path / "plugins", ROOT, HERE)))
    env = {"PYTHONPATH": path, "ATTENTION_ZOO_PLUGINS": "rewriting"}
    first, second = (bench(*sweep_of(tmp_path, "rewriting"), **env) for _ in range(2))
    assert (first.returncode, second.returncode) == (1, 0), first.stderr + second.stderr
    changed, measured = Store(tmp_path / "runs").load()
    assert (changed.status, changed.measurements) == ("error", {})
    assert changed.reason == "code changed during the sweep: rewriting.py; run the sweep again"
    assert measured.status == "ok" and measured.cell_id != changed.cell_id
