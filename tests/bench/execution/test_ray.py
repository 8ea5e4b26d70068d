"""Cells as tasks of Ray: what it is asked for, what is done about lost tasks, and a cluster on this machine."""

import importlib.util
import signal
import time
from types import SimpleNamespace

import psutil
import pytest
from command import FAKES, family, start, sweep_of, wait_for
from synthetic_everything import everything

from bench.common.errors import ConfigError, UnfinishedError
from bench.execution.executors import ray, remote
from bench.execution.runner import Runner
from bench.plan import executors
from bench.plan.cell import Cell
from bench.plan.executors import Ray
from bench.plan.machine import Resources
from bench.records import plans
from bench.records.store import Store


def test_what_cannot_be_asked_for_is_one_line():
    for address in ("nowhere", "ray://host:1"):
        with pytest.raises(ConfigError, match=f"^hydra.launcher.address='{address}': must be auto, HOST:PORT or null"):
            executors.check({"executor": "ray", "address": address})
    assert executors.check({"executor": "ray", "num_cpus": 2}).resources == Resources("", 2, False)
    assert executors.check({"executor": "ray", "address": "auto", "num_gpus": 1}).resources == Resources("ray", 1, True)


@pytest.mark.parametrize(
    ("device", "num_gpus", "said"), [("cuda:0", 0, "hydra.launcher.num_gpus=0: "), ("cuda:1", 1, "device='cuda:1': ")]
)
def test_gpus_are_asked_for_and_chosen_by_ray(device, num_gpus, said):
    with pytest.raises(ConfigError, match=said):
        ray.require_usable(Ray(num_gpus=num_gpus), [Cell({"device": device}, "0" * 64, 1.0)])


class FakeRay:
    """Runs a task when somebody waits for it: `deeds` says what each one does, in turn."""

    class exceptions:
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            def __init__(self, cause):
                self.cause = cause

    def __init__(self, *deeds):
        self.deeds, self.asked, self.cancelled, self.errors = list(deeds), [], [], {}

    def remote(self, **options):
        def submit(*arguments, **gpus):
            self.asked.append({**options, **gpus, "cell_id": arguments[3]})
            return len(self.asked)

        def with_options(**gpus):
            return SimpleNamespace(remote=lambda *arguments: submit(*arguments, **gpus))

        return lambda task: SimpleNamespace(options=with_options, remote=submit)

    def wait(self, tasks, num_returns, timeout, fetch_local):
        for task in tasks[:1]:
            try:
                self.deeds.pop(0)(self.asked[task - 1]["cell_id"])
            except self.exceptions.RayError as error:
                self.errors[task] = error
        return tasks[:1], tasks[1:]

    def get(self, task):
        if task in self.errors:
            raise self.errors[task]

    def cancel(self, task):
        self.cancelled.append(task)


@pytest.fixture
def sweep(tmp_path):
    """A store, records for its cells, the cells, and what runs tasks of a cluster that does as told."""
    records = {record.cell_id: record for record in everything() if record.status == "ok"}
    store, chosen = Store(tmp_path), list(records.values())[:2]
    on = zip(chosen, ("cpu", "cuda:0"), strict=True)
    todo = [Cell({**record.config, "device": device}, record.cell_id, 1.0) for record, device in on]
    runner = Runner(store, "0" * 16)
    ended = []
    callback = SimpleNamespace(on_cell_end=lambda cell: ended.append(cell.cell_id))

    def run(*deeds):
        fake = FakeRay(*deeds)
        try:
            ray.Tasks(fake, Ray(num_cpus=2, num_gpus=1, max_retries=1), runner, todo, callback).run()
        finally:
            fake.ended = ended
            run.fake = fake
        return fake

    run.measured = lambda cell_id: store.write(records[cell_id])
    return run


def lost(cell_id):
    raise FakeRay.exceptions.RayError("the node is gone\nand more")


def test_a_task_asks_for_what_its_cell_needs_and_ray_itself_repeats_nothing(sweep):
    fake = sweep(sweep.measured, sweep.measured)
    asked = [[each.get(key) for key in ("num_cpus", "num_gpus", "max_retries")] for each in fake.asked]
    assert asked == [[2, None, 0], [2, 1, 0]]
    assert sorted(fake.ended) == sorted(each["cell_id"] for each in fake.asked)


def test_a_lost_task_runs_again_unless_its_record_was_saved(sweep):
    def saved_then_lost(cell_id):
        sweep.measured(cell_id)
        lost(cell_id)

    fake = sweep(lost, saved_then_lost, sweep.measured)
    first, second, again = (each["cell_id"] for each in fake.asked)
    assert first == again != second and len(fake.ended) == 2


def test_a_cell_that_is_lost_too_often_is_named_in_one_line(sweep):
    with pytest.raises(UnfinishedError, match=r"^1 of 2 cells have no record: [^,]*: the node is gone; the same "):
        sweep(lost, sweep.measured, lost)
    assert len(sweep.fake.asked) == 3


def test_a_worker_that_cannot_save_ends_the_sweep(sweep):
    def full(cell_id):
        raise FakeRay.exceptions.RayTaskError(OSError(28, "No space left on device"))

    with pytest.raises(OSError, match="No space left"):
        sweep(full, sweep.measured)
    assert sweep.fake.cancelled == [2]


def test_a_node_without_the_results_folder_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"^results_dir='.*': must be a folder that all nodes see: "):
        ray.measure(str(tmp_path), "0" * 16, 1, "0" * 64, True)


LOCAL = ["hydra/launcher=ray", "hydra.launcher.timings_alone=false"]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


def talks(process):
    """The addresses that a process and all below it talk to."""
    found = set()
    for each in [process, *process.children(recursive=True)]:
        try:
            found |= {other.raddr.ip for other in each.net_connections("inet") if other.raddr}
        except psutil.Error:
            continue
    return found


@needs_ray
@pytest.mark.commands
def test_a_cluster_of_its_own_measures_and_ends(tmp_path):
    """It talks to nobody else: without our private `Node.start_api_server`, Ray 2.60 asks 169.254.169.254."""
    process = start(*sweep_of(tmp_path, "v_mean"), "seed=1,2,3", *LOCAL, ATTENTION_ZOO_TEST=str(tmp_path))
    heard = set()
    while process.poll() is None:
        heard |= talks(psutil.Process(process.pid))
        time.sleep(0.05)
    stdout, stderr = process.communicate()
    assert process.returncode == 0 and stdout.count("| ok") == 3, stderr
    assert heard and {address.removeprefix("::ffff:") for address in heard} == {"127.0.0.1"}
    records = Store(tmp_path / "runs").load()
    assert [record.status for record in records] == ["ok"] * 3
    assert {record.machine["job"]["scheduler"] for record in records} == {"ray"}
    assert family(str(tmp_path)) == []
    (sweep,) = plans.saved(tmp_path / "runs")
    assert not remote.round_file(tmp_path / "runs", sweep).exists(), "who waits for it would measure again"


def name_of(process):
    try:
        return process.name()
    except psutil.NoSuchProcess:  # it has ended since it was listed
        return None


@needs_ray
@pytest.mark.commands
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_goes_on_without_the_head(tmp_path, number):
    process = start(*sweep_of(tmp_path, "fake_grandchild"), *LOCAL, ATTENTION_ZOO_TEST=str(tmp_path), **FAKES)
    wait_for(lambda: "sleep" in map(name_of, family(str(tmp_path))))
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert "Traceback" not in stderr
    statuses = [record.status for record in Store(tmp_path / "runs").load()]
    if number == signal.SIGINT:
        assert process.returncode == 130 and stderr.splitlines()[-1].startswith("interrupted: ")
        assert statuses == ["interrupted"]
    else:
        assert statuses == []
    wait_for(lambda: not family(str(tmp_path)))  # agents of Ray look now and then whether their head is there
