"""Which device a cell runs on, and what its id depends on: with a driver that answers as we like."""

import importlib.metadata

import pytest
import torch

from bench.common.errors import ConfigError
from bench.execution import runner
from bench.plan import code, machine


def test_the_version_of_cuda_is_what_torch_says():
    assert machine.torch_cuda() == torch.version.cuda


@pytest.mark.parametrize(
    ("text", "version"),
    [("cuda: Optional[str] = None\n", None), ("cuda: Optional[str] = '13.0'\n", "13.0"), ("cuda = '12.8'\n", "12.8")],
)
def test_torch_need_not_be_imported_for_it(monkeypatch, tmp_path, text, version):
    (tmp_path / "version.py").write_text(f"__version__ = '2.13.0'\n{text}hip: Optional[str] = None\n")

    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: Spec)
    machine.torch_cuda.cache_clear()
    try:
        assert machine.torch_cuda() == version
    finally:
        machine.torch_cuda.cache_clear()


@pytest.mark.parametrize(
    ("visible", "setting", "chosen", "name"),
    [
        (None, "auto", "cuda:0", "NVIDIA H200"),
        (None, "cpu", "cpu", None),
        (None, "cuda", "cuda:0", "NVIDIA H200"),
        (None, "cuda:2", "cuda:2", "NVIDIA L4"),
        ("2", "auto", "cuda:0", "NVIDIA L4"),
        ("2,0", "cuda:1", "cuda:1", "NVIDIA H200"),
        ("GPU-3333", "auto", "cuda:0", "NVIDIA L4"),
        ("1, GPU-33333333-cccc", "cuda:1", "cuda:1", "NVIDIA L4"),
        ("MIG-5555", "auto", "cuda:0", "NVIDIA H200 MIG 3g.71gb"),
        ("MIG-6666", "auto", "cpu", None),
        ("", "auto", "cpu", None),
        ("-1", "auto", "cpu", None),
        ("-1,0", "auto", "cpu", None),
        ("7", "auto", "cpu", None),
    ],
)
def test_the_device_is_one_that_cuda_would_show(driver, monkeypatch, visible, setting, chosen, name):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.choose_device(setting) == chosen
    assert machine.machine(chosen)["gpu_name"] == name
    assert machine.machine(chosen)["device_name"] == (name or machine.machine()["cpu_model"])
    assert machine.is_gpu(chosen) == (name is not None)


@pytest.mark.parametrize(
    ("visible", "setting", "message"),
    [
        ("0,1", "cuda:2", "device='cuda:2': there is no such GPU; must be auto, cpu, cuda or one of cuda:0, cuda:1"),
        ("", "cuda", "device='cuda': this machine shows no GPU; must be auto or cpu"),
        ("0", "cuda:x", "device='cuda:x': must be one of auto, cpu, cuda, cuda:0"),
        ("0", "cuda:-1", "device='cuda:-1': must be one of"),
        ("0", "tpu", "device='tpu': must be one of"),
    ],
)
def test_a_device_that_is_none_is_refused(driver, monkeypatch, visible, setting, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ConfigError) as error:
        machine.choose_device(setting)
    assert str(error.value).startswith(message)


def test_a_torch_without_cuda_runs_on_the_cpu_whatever_the_driver_shows(driver, monkeypatch):
    monkeypatch.setattr(machine, "torch_cuda", lambda: None)
    assert machine.choose_device("auto") == "cpu"
    with pytest.raises(ConfigError, match="the installed torch has no CUDA"):
        machine.choose_device("cuda")


def test_the_driver_is_asked_once(driver):
    for _ in range(3):
        machine.machine(machine.choose_device("auto"))
    assert driver.read_text().count("\n") == 1


def test_gpus_of_one_model_are_one_machine_and_the_host_counts(driver, monkeypatch):
    identity = machine.measuring_identity("cuda:0")
    assert identity == machine.measuring_identity("cuda:1")
    assert identity != machine.measuring_identity("cuda:2")
    assert identity["gpu_driver"] == "580.65" and identity["cpu_model"]
    assert identity.keys() >= {"torch", "torch_cuda", "cudnn", "triton", "flash-attn"}
    assert not [key for key in machine.measuring_identity("cpu") if key.startswith("gpu")]


def test_the_child_sees_the_gpu_of_its_cell_alone(driver, monkeypatch):
    machine.visible_gpus()
    for visible, device, uuid in [("2,0", "cuda:1", "GPU-11111111-aaaa"), ("2,0", "cpu", "2,0")]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert runner.child_environment(device)["CUDA_VISIBLE_DEVICES"] == uuid


def test_a_checkout_that_is_not_installed_has_no_version(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(code.importlib.metadata, "version", missing)
    assert code.code_identity.__wrapped__()["suite_version"] is None


def test_a_slice_says_which_gpu_it_is_a_part_of(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5555")
    assert machine.gpu("cuda:0").part_of == "GPU-22222222-bbbb"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert machine.gpu("cuda:0").part_of is None


@pytest.mark.parametrize(
    ("version", "known"),
    [
        (None, None),
        ("3.3.1", None),
        ("3.6.0", "transpose of an accumulator"),
        ("3.7.1", "numbers of warps"),
        ("3.8.0", None),
    ],
)
def test_what_a_version_of_triton_is_known_to_compile_wrongly_is_in_the_record(version, known):
    said = machine.miscompiles(version)
    assert (said is None) == (known is None) and (known is None or known in said)


def test_only_a_gpu_has_kernels_that_may_be_wrong(driver, monkeypatch):
    monkeypatch.setattr(machine, "_version", lambda library: "3.6.0")
    assert machine.machine("cpu")["triton_miscompiles"] is None
    assert "sm_90" in machine.machine("cuda:0")["triton_miscompiles"]
