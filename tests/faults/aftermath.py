"""What is left when something broke: records, leftovers, processes; and a sweep to break."""

import contextlib
import json
import os
import subprocess
import time
from collections import Counter
from pathlib import Path

import psutil
from command import HERE as BENCH_TESTS
from command import ROOT, TINY, family, start, sweep_of
from tracking_server import told

from bench.records.store import Store

HERE = Path(__file__).parent
# The cheapest cell whose samples are a file of their own.
CHEAP = [*(word for word in TINY if not word.startswith("repeats=")), "repeats=70"]
ORPHANS_END_WITHIN_S = 5.0
# A worker for each core, which measures whatever the others do.
A_WORKER_PER_CORE = [
    "hydra/launcher=devices",
    "hydra.launcher.cores_per_worker=1",
    "hydra.launcher.timings_alone=false",
]


class Sweep:
    """One command in folders of its own, to be run, broken and run again."""

    def __init__(self, folder, *overrides, cells, attention="v_mean", tracking="none", cheap=CHEAP):
        self.folder, self.cells = folder, cells
        self.results, self.tmp, self.cwd = folder / "runs", folder / "tmp", folder / "cwd"
        for path in (self.tmp, self.cwd):
            path.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join(map(str, (ROOT, BENCH_TESTS, HERE)))
        self.environment = {"ATTENTION_ZOO_PLUGINS": "misbehaving", "ATTENTION_ZOO_TEST": str(folder)}
        self.environment |= {"PYTHONPATH": path, "TMPDIR": str(self.tmp)}
        names = attention.split(",")
        seeds = ",".join(map(str, range(cells // len(names))))
        self.arguments = [*sweep_of(folder, *names, tracking=tracking, of=cheap), f"seed={seeds}", *overrides]

    def start(self, *more, before=(), **env):
        """The command as a process, behind the words `before`."""
        return start(*self.arguments, *more, before=before, cwd=self.cwd, **{**self.environment, **env})

    def run(self, *more, timeout=500, **options):
        """Run the command to its end."""
        process = self.start(*more, **options)
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def records(self):
        """Every file in `records/`, each of which must be a whole record with its samples."""
        store = Store(self.results)
        return [store.decode(name) for name in store.names()]

    def ok(self):
        """How many `ok` records each cell has."""
        return Counter(record.cell_id for record in self.records() if record.status == "ok")

    def wait_for_records(self, count, process):
        """Wait until there are so many, or the process has ended."""
        while len(list((self.results / "records").glob("*.json"))) < count and process.poll() is None:
            time.sleep(0.05)

    def leftovers(self):
        """Files that no record needs."""
        unfinished = [path for path in self.results.rglob("*") if path.name.endswith((".tmp", "-journal"))]
        records, samples = (self.results / name for name in ("records", "samples"))
        names = {path: path.name.partition(".json")[0] for path in samples.glob("*")}
        unread = [path for path, name in names.items() if not (records / f"{name}.json").exists()]
        return [*unfinished, *unread, *(self.results / "scratch").glob("*"), *self.tmp.iterdir()]

    def wait_for_orphans(self):
        """Seconds until no process of the sweep is alive; fails when that takes too long."""
        began = time.monotonic()
        while alive := family(str(self.folder)):
            took = time.monotonic() - began
            assert took < ORPHANS_END_WITHIN_S, [process.cmdline() for process in alive]
            time.sleep(0.05)
        return time.monotonic() - began

    def assert_goes_on(self, context=""):
        """The same command, undisturbed: every cell `ok` exactly once, and nothing left over."""
        result = self.run()
        assert result.returncode == 0, (context, result.stderr)
        assert len(self.ok()) == self.cells and set(self.ok().values()) == {1}, context
        assert self.leftovers() == [], context
        assert family(str(self.folder)) == [], context

    def mirrored(self):
        """The status of each record's run, as MLflow has it."""
        code = "print(json.dumps([[run.data.tags['record_id'], run.info.status] for run in runs]))"
        runs = "runs = client.search_runs(ids, \"tags.kind = 'cell'\")"
        answer = told(f"sqlite:///{self.results}/mlflow.db", f"import json; {runs}; {code}")
        found = json.loads(answer.splitlines()[-1])
        assert len(dict(found)) == len(found)
        return dict(found)


def rows(stdout):
    """How many rows of a table say `ok`."""
    return len([line for line in stdout.splitlines() if line.startswith("| ok")])


def kill_one(rng, process, victims):
    """Kill one of the victims that `victims(process)` finds, unless the process ends before; returns how many."""
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            if found := victims(psutil.Process(process.pid)):
                rng.choice(sorted(found, key=lambda each: each.pid)).kill()
                return 1
    return 0


def lines(stderr):
    """What a terminal shows: a bar that was drawn over is gone."""
    shown = [line.rpartition("\r")[2].strip() for line in stderr.splitlines()]
    return [line for line in shown if line]
