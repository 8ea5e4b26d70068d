"""A record says from which commit it was measured, and whether what measures was changed since."""

import importlib.util
import shutil
import subprocess

import pytest

from bench.plan import code


@pytest.fixture
def checkout(tmp_path):
    files = {"bench/plan/code.py": None, "results/laptop/records/one.json": "{}", "conf/config.yaml": "seed: 0"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text) if text else shutil.copy(code.__file__, tmp_path / name)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *arguments], check=True)
    return tmp_path


def identity(checkout):
    spec = importlib.util.spec_from_file_location("code_of_the_checkout", checkout / "bench" / "plan" / "code.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.code_identity()


def test_records_are_no_change_of_what_measures(checkout):
    assert identity(checkout)["git_dirty"] is False and len(identity(checkout)["git_sha"]) == 40
    (checkout / "results/laptop/records/one.json").unlink()
    assert identity(checkout)["git_dirty"] is False
    (checkout / "conf/config.yaml").write_text("seed: 1")
    assert identity(checkout)["git_dirty"] is True


def test_outside_a_checkout_nothing_is_said(tmp_path, monkeypatch):
    (tmp_path / "bench" / "plan").mkdir(parents=True)
    shutil.copy(code.__file__, tmp_path / "bench" / "plan")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert identity(tmp_path)["git_dirty"] is None


def test_an_archive_says_its_commit(checkout, tmp_path_factory, monkeypatch):
    named = checkout / "bench" / "plan" / "commit.txt"
    named.write_text("$Format:%H$\n")
    of_git = identity(checkout)["git_sha"]
    named.write_text(f"{of_git}\n")
    elsewhere = tmp_path_factory.mktemp("archive")
    shutil.copytree(checkout / "bench", elsewhere / "bench")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(elsewhere.parent))
    assert identity(elsewhere)["git_sha"] == of_git and identity(elsewhere)["git_dirty"] is None
