"""A launcher as those of clusters are: each job is pickled, and runs in a process of its own."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus, run_job
from hydra.plugins.launcher import Launcher
from omegaconf import open_dict

from bench.plan import machine


class ElsewhereLauncher(Launcher):
    def setup(self, *, hydra_context, task_function, config):
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides, initial_job_idx):
        folder = Path(self.config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        results = []
        for index, overrides in enumerate(job_overrides):
            job = folder / f"{index}.pickle"
            job.write_bytes(pickle.dumps((self, list(overrides), index)))
            command = [sys.executable, "-c", f"from {__name__} import work; work({str(job)!r})"]
            # As joblib does, whose workers share the processors.
            ended = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "7"})
            done = pickle.loads(job.read_bytes()) if ended.returncode == 0 else RuntimeError("the job died")
            status = JobStatus.FAILED if isinstance(done, Exception) else JobStatus.COMPLETED
            results.append(JobReturn(list(overrides), status=status, _return_value=done))
        return results


def work(file):
    launcher, overrides, index = pickle.loads(Path(file).read_bytes())
    if str(index) == os.environ.get("DEADLY_JOB"):
        os._exit(9)
    if str(index) == os.environ.get("JOB_ON_ANOTHER_KIND_OF_NODE"):
        machine._cpu_model = lambda: "a processor of another kind"
    config = launcher.hydra_context.config_loader.load_sweep_config(launcher.config, overrides)
    with open_dict(config):
        config.hydra.job.id = config.hydra.job.num = index
    ret = run_job(
        hydra_context=launcher.hydra_context,
        task_function=launcher.task_function,
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
    Path(file).write_bytes(pickle.dumps(ret.return_value))


ConfigStore.instance().store(
    group="hydra/launcher", name="elsewhere", node={"_target_": f"{__name__}.ElsewhereLauncher"}, provider="tests"
)
