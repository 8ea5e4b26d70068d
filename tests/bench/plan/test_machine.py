"""Where a record comes from: which device a cell runs on, with a driver that answers as we like, and which code ran."""

import subprocess

import pytest

from bench.common.errors import ConfigError
from bench.execution import runner
from bench.plan import machine


@pytest.mark.parametrize(
    ("visible", "setting", "chosen", "name"),
    [
        (None, "auto", "cuda:0", "NVIDIA H200"),
        (None, "cpu", "cpu", None),
        (None, "cuda:2", "cuda:2", "NVIDIA L4"),
        ("2", "auto", "cuda:0", "NVIDIA L4"),
        ("2,0", "cuda:1", "cuda:1", "NVIDIA H200"),
        ("GPU-3333", "auto", "cuda:0", "NVIDIA L4"),
        ("1, GPU-33333333-cccc", "cuda:1", "cuda:1", "NVIDIA L4"),
        ("MIG-5555", "auto", "cuda:0", "NVIDIA H200 MIG 3g.71gb"),
        ("MIG-6666", "auto", "cpu", None),
        ("", "auto", "cpu", None),
        ("-1,0", "auto", "cpu", None),
    ],
)
def test_the_device_is_one_that_cuda_would_show(driver, monkeypatch, visible, setting, chosen, name):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.choose_device(setting) == chosen
    assert machine.machine(chosen)["gpu_name"] == name
    assert machine.machine(chosen)["device_name"] == (name or machine.machine()["cpu_model"])


@pytest.mark.parametrize(
    ("visible", "setting", "message"),
    [
        ("0,1", "cuda:2", "device='cuda:2': there is no such GPU; must be auto, cpu, cuda or one of cuda:0, cuda:1"),
        ("", "cuda", "device='cuda': this machine shows no GPU; must be auto or cpu"),
        ("0", "cuda:-1", "device='cuda:-1': must be one of auto, cpu, cuda, cuda:0"),
    ],
)
def test_a_device_that_is_none_is_refused(driver, monkeypatch, visible, setting, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ConfigError) as error:
        machine.choose_device(setting)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("scheduler", ["slurm partition=gpu", "ray"])
def test_a_scheduler_chooses_the_gpu(scheduler):
    """A worker sees the one that it was given; any other is a mistake, not the first in its place."""
    one = machine.Resources(scheduler, 1, True)
    assert {machine.choose_device(setting, one) for setting in ("auto", "cuda", "cuda:0")} == {"cuda:0"}
    with pytest.raises(ConfigError, match=r"^device='cuda:1': there is no such GPU; must be .* one of cuda:0$"):
        machine.choose_device("cuda:1", one)


def test_a_torch_without_cuda_runs_on_the_cpu_whatever_the_driver_shows(driver, monkeypatch):
    monkeypatch.setattr(machine, "torch_cuda", lambda: None)
    assert machine.choose_device("auto") == "cpu"
    with pytest.raises(ConfigError, match="the installed torch has no CUDA"):
        machine.choose_device("cuda")


def test_gpus_of_one_model_are_one_machine_and_the_host_counts(driver):
    identity = machine.measuring_identity("cuda:0")
    assert identity == machine.measuring_identity("cuda:1")
    assert identity != machine.measuring_identity("cuda:2")
    assert identity["gpu_driver"] == "580.65" and identity["cpu_model"]
    assert identity.keys() >= {"torch", "torch_cuda", "cudnn", "triton", "flash-attn"}
    assert not [key for key in machine.measuring_identity("cpu") if key.startswith("gpu")]
    assert driver.read_text().count("\n") == 1  # it is asked once


def test_the_child_sees_the_gpu_of_its_cell_alone(driver, monkeypatch):
    machine.visible_gpus()
    for visible, device, uuid in [("2,0", "cuda:1", "GPU-11111111-aaaa"), ("2,0", "cpu", "2,0")]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert runner.child_environment(device)["CUDA_VISIBLE_DEVICES"] == uuid


def test_a_slice_says_which_gpu_it_is_a_part_of(driver, monkeypatch):
    for visible, whole in (("MIG-5555", "GPU-22222222-bbbb"), ("1", None)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert machine.gpu("cuda:0").part_of == whole


@pytest.mark.parametrize(
    ("version", "device", "known"),
    [
        (None, "cuda:0", None),
        ("3.6.0", "cuda:0", "transpose of an accumulator on sm_90"),
        ("3.7.1", "cuda:0", "numbers of warps"),
        ("3.6.0", "cpu", None),
    ],
)
def test_what_a_version_of_triton_is_known_to_compile_wrongly_is_in_the_record(
    driver, monkeypatch, version, device, known
):
    monkeypatch.setattr(machine, "installed", lambda package: version)
    said = machine.machine(device)["triton_miscompiles"]
    assert (said is None) == (known is None) and (known is None or known in said)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    files = {"bench/plan/machine.py": "", "results/laptop/records/one.json": "{}", "conf/config.yaml": "seed: 0"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *arguments], check=True)
    monkeypatch.setattr(machine, "HERE", tmp_path / "bench" / "plan")
    return tmp_path


identity = machine.code_identity.__wrapped__


def test_records_are_no_change_of_what_measures(checkout):
    assert identity()["git_dirty"] is False and len(identity()["git_sha"]) == 40
    (checkout / "results/laptop/records/one.json").unlink()
    assert identity()["git_dirty"] is False
    (checkout / "conf/config.yaml").write_text("seed: 1")
    assert identity()["git_dirty"] is True


def test_an_archive_says_its_commit_and_an_unpacked_folder_nothing(checkout, tmp_path_factory, monkeypatch):
    commit = identity()["git_sha"]
    elsewhere = tmp_path_factory.mktemp("archive")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(elsewhere.parent))
    monkeypatch.setattr(machine, "HERE", elsewhere)
    for text, sha in (("", None), ("$Format:%H$\n", None), (f"{commit}\n", commit)):
        (elsewhere / "commit.txt").write_text(text)
        assert (identity()["git_sha"], identity()["git_dirty"]) == (sha, None)
