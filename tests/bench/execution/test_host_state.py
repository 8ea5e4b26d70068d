"""The host beside a cell: what it says of itself, what disturbs a time, and that a mute machine breaks nothing."""

import dataclasses
import itertools
import os
import subprocess
import sys
import time

import pytest
from one_cell import one_cell

from bench.execution import host_state
from bench.execution.host_state import between, disturbances
from bench.execution.runner import Runner
from bench.records.store import Store

CPU = "sys/devices/system/cpu"
# Four cores of which the cell may use 0, 1 and 3; ticks of 10 ms.
FILES = {
    "proc/thread-self/status": "Name:\tpython\nCpus_allowed:\tb\nCpus_allowed_list:\t0-1,3\nMems_allowed:\t1\n",
    "proc/loadavg": "0.50 0.25 0.10 1/85 4943\n",
    "proc/stat": "cpu 1 1 1 1 1 1 1 1 0 0\n"
    + "".join(f"cpu{n} 100 10 50 9000 30 4 6 {n} 7 0\n" for n in range(4))
    + "intr 1 2\n",
    "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.09 total=1500000\nfull avg10=0.00 total=9\n",
    "proc/self/cgroup": "0::/user/cell\n",
    "sys/fs/cgroup/cpu.stat": "usage_usec 5\n",
    "sys/fs/cgroup/user/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/user/cpu.stat": "nr_periods 5\nnr_throttled 1\nthrottled_usec 500000\n",
    "sys/fs/cgroup/user/memory.max": "4096\n",
    "sys/fs/cgroup/user/cell/cpu.max": "max 100000\n",
    "sys/fs/cgroup/user/cell/cpu.stat": "nr_throttled 0\nthrottled_usec 250000\n",
    "sys/fs/cgroup/user/cell/memory.max": "8192\n",
    "sys/fs/cgroup/user/cell/cpuset.cpus.effective": "0-1,3\n",
    **{f"{CPU}/cpu{n}/cpufreq/scaling_governor": "powersave\n" for n in (0, 1, 2, 3)},
    **{f"{CPU}/cpu{n}/cpufreq/scaling_cur_freq": f"{(n + 1) * 800000}\n" for n in (0, 1, 2, 3)},
    **{f"{CPU}/cpu{n}/thermal_throttle/core_throttle_count": "2\n" for n in (0, 1, 2, 3)},
    **{f"{CPU}/cpu{n}/thermal_throttle/package_throttle_count": "1\n" for n in (0, 1, 2, 3)},
    "sys/class/powercap/intel-rapl:0/name": "package-0\n",
    "sys/class/powercap/intel-rapl:0/energy_uj": "262143000000\n",
    "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "262143328850\n",
    "sys/class/powercap/intel-rapl:0:0/name": "core\n",
    "sys/class/powercap/intel-rapl:0:0/energy_uj": "17\n",
    "sys/class/powercap/intel-rapl:0:0/max_energy_range_uj": "262143328850\n",
}  # fmt: skip


@pytest.fixture
def host(tmp_path):
    """The root folder of that machine."""
    for name, text in FILES.items():
        write(tmp_path / name, text)
    return tmp_path


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_machine_that_tells_everything(host):
    now = host_state.read(host)
    assert now.state == {"load": [0.5, 0.25, 0.1], "governors": ["powersave"], "mhz": [800.0, 1600.0, 3200.0]}
    assert now.limits == {"cores": "0-1,3", "control_group": {"cpus": 1.5, "memory_bytes": 4096, "cores": "0-1,3"}}
    # Of cores 0, 1 and 3: user, nice, system, irq and softirq; guests are users already, idle and iowait are nobody.
    assert now.counters["busy_s"] == pytest.approx(dict.fromkeys("013", 1.70))
    assert now.counters["stolen_s"] == pytest.approx({"0": 0.0, "1": 0.01, "3": 0.03})
    groups = host / "sys/fs/cgroup/user"
    assert now.counters["held_up_s"] == {str(groups / "cell"): 0.25, str(groups): 0.5}
    assert now.counters["waited_s"] == {"some": 1.5}
    assert sorted(now.counters["slowdowns"].values()) == [1, 1, 1, 2, 2, 2]
    assert now.packages == {"intel-rapl:0": (262143000000, 262143328850)}


def test_what_happened_during_a_cell(host):
    before = host_state.read(host)
    write(host / "proc/stat", "".join(f"cpu{n} 300 10 50 9000 30 4 6 {n + 1} 7 0\n" for n in range(4)))
    write(host / "proc/pressure/cpu", "some avg10=0.00 total=1750000\n")
    write(host / "sys/fs/cgroup/user/cpu.stat", "throttled_usec 600000\n")
    write(host / f"{CPU}/cpu3/thermal_throttle/core_throttle_count", "4\n")
    write(host / "sys/class/powercap/intel-rapl:0/energy_uj", "671150\n")  # it has begun again at zero
    after = dataclasses.replace(host_state.read(host), at=before.at + 10, own_s=before.own_s + 0.5)
    assert between(before, after, 1.25)["during"] == {
        "seconds": 10.0,
        "own_s": 1.25,
        "others_s": 3 * 2 - 1.25 - 0.5,
        "stolen_s": pytest.approx(0.03),
        "held_up_s": pytest.approx(0.1),
        "waited_s": pytest.approx(0.25),
        "slowdowns": 2,
        "packages_j": pytest.approx(1.0),
    }
    assert "others_s" not in between(before, after, None)["during"]
    # So long that the counter may have turned twice.
    late = dataclasses.replace(after, at=before.at + 300)
    assert "packages_j" not in between(before, late, 1.25)["during"]


@pytest.mark.parametrize("garbage", [None, b"", b"\xff\xfe\0", b"max", b"some \ncpu0\ncpu1 x\n0:\n", "folder"])
def test_whatever_is_missing_or_garbled_is_unknown(host, garbage):
    good, mute = host_state.read(host), host_state.read(host / "nothing")
    assert mute.state == {"load": None, "governors": None, "mhz": None}
    assert set(between(mute, mute, 0.5)["during"]) == {"seconds", "own_s"}
    for name, text in FILES.items():
        (host / name).unlink()
        if garbage == "folder":  # as good as a file that may not be read
            (host / name).mkdir()
        elif garbage is not None:
            (host / name).write_bytes(garbage)
        odd = host_state.read(host)
        for before, after in itertools.permutations([good, odd]):
            after = dataclasses.replace(after, at=before.at + 1)
            assert disturbances(between(before, after, 0.0), {}) == [], name
        if garbage == "folder":
            (host / name).rmdir()
        write(host / name, text)


GROUPS = {
    "version 1, of a container whose path is the host's": (
        "4:memory:/box\n2:cpu,cpuacct:/box\n1:cpuset:/\n0::/\n",
        {
            "cpu/cpu.cfs_quota_us": "400000",
            "cpu/cpu.cfs_period_us": "100000",
            "cpu/cpu.stat": "nr_periods 1\nnr_throttled 1\nthrottled_time 2000000000\n",
            "memory/memory.limit_in_bytes": "1073741824",
            "cpuset/cpuset.effective_cpus": "0-7",
            "unified/cpu.max": "1 1",
        },
        {"cpus": 4.0, "memory_bytes": 2**30, "cores": "0-7"},
        {"cpu": 2.0},
    ),
    "version 1 without limits": (
        "1:memory,cpu:/\n",
        {"memory/memory.limit_in_bytes": "9223372036854771712", "cpu/cpu.cfs_quota_us": "-1"},
        {"cpus": None, "memory_bytes": None, "cores": None},
        {},
    ),
    "version 2, of a container whose own group is all that it sees": (
        "0::/\n",
        {"cpu.max": "50000 100000", "memory.max": "max"},
        {"cpus": 0.5, "memory_bytes": None, "cores": None},
        {},
    ),
    "a group outside of what is mounted": (
        "0::/../../other\n",
        {"cpu.max": "50000 100000", "../../../other/cpu.max": "1 1"},
        {"cpus": 0.5, "memory_bytes": None, "cores": None},
        {},
    ),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_limits_of_a_control_group_are_the_tightest_on_the_way_up(kind, tmp_path):
    cgroup, files, limits, held_up_s = GROUPS[kind]
    groups = tmp_path / "sys/fs/cgroup"
    write(tmp_path / "proc/self/cgroup", cgroup)
    for name, text in files.items():
        write(groups / name, text)
    now = host_state.read(tmp_path)
    assert now.limits["control_group"] == limits
    assert now.counters["held_up_s"] == {str(groups / name): value for name, value in held_up_s.items()}


def told(cores="0-1", **during):
    return {"limits": {"cores": cores}, "during": {"seconds": 10.0, "own_s": 10.0, **during}}


DISTURBED = [
    (told(others_s=2.4), []),
    (told(others_s=2.6), ["other processes: 0.26 cores"]),
    # Of so short a cell ticks do not tell.
    (told(seconds=0.1, others_s=0.09), []),
    (told(seconds=0.1, others_s=0.16), ["other processes: 1.6 cores"]),
    (told(stolen_s=0.29, held_up_s=0.09, slowdowns=0), []),
    (told(stolen_s=0.31), ["the hypervisor: 0.31 s"]),
    (told(seconds=1.0, own_s=1.0, stolen_s=0.04), []),
    (told(held_up_s=0.2), ["held up by its control group: 0.2 s"]),
    (told(others_s=20.0, slowdowns=3), ["other processes: 2 cores", "a hot processor: 3 slowdowns"]),
    (told(cores=None, others_s=1.0), []),
]


def test_what_disturbs_a_cell_on_a_cpu():
    for host, reasons in DISTURBED:
        assert disturbances(host, {}) == reasons, host


def on_gpu(throttled=((), ()), others=(0, 0), hot=(None, None)):
    moments = zip(("before", "after"), throttled, others, hot, strict=True)
    return {name: {"throttled": list(why), "others": n, "hot_s": s} for name, why, n, s in moments}


GPUS = [
    (on_gpu(), []),
    ({"missing": "no pynvml"}, []),
    ({"before": {"throttled": None, "others": None, "hot_s": None}}, []),
    (on_gpu(throttled=(["idle", "power cap", "clocks set"], ["sync boost", "display clocks"])), []),
    (on_gpu(throttled=([], ["power brake", "power cap"])), ["a slow GPU: power brake"]),
    (on_gpu(hot=(5.0, 5.05)), []),
    (on_gpu(hot=(5.0, 5.2)), ["a slow GPU: hot for 0.2 s"]),
    (on_gpu(others=(0, 2)), ["other processes on the GPU: 2"]),
]


def test_what_disturbs_a_cell_on_a_gpu():
    for state, reasons in GPUS:
        assert disturbances(told(cores="0-15", others_s=130.0), state) == reasons, state
        # Its host's threads had to wait.
        assert disturbances(told(cores="0-15", others_s=150.0), state) == ["other processes: 15 cores", *reasons], state


@pytest.fixture
def busy():
    """A busy loop on each core that a cell may use."""
    loops = [
        subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"])
        for core in sorted(os.sched_getaffinity(0))
    ]
    time.sleep(0.2)
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.commands
@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="needs /proc/stat")
def test_a_busy_neighbour_is_found_beside_what_takes_times_and_recorded_beside_all(busy, tmp_path):
    cells = (one_cell("flash", {"name": name, "passes": ["forward"]}) for name in ("latency", "memory"))
    latency, memory = map(Runner(Store(tmp_path)).run_cell, cells)
    assert latency.status == "ok" and latency.disturbed and latency.disturbed[0].startswith("other processes: ")
    during = latency.host_state["during"]
    assert during["others_s"] > 0.25 * during["seconds"] and during["own_s"] > 0.1
    assert during["seconds"] <= latency.duration_s
    assert memory.status == "ok" and memory.disturbed == []
    assert memory.host_state["during"]["others_s"] > 0
