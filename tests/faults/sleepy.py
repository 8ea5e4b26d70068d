"""A mechanism that takes its time, SLEEPY_S seconds, wherever a job of Slurm builds it.

With the seed SLEEPY_DEADLY it kills the whole job.
"""

import contextlib
import os
import signal
import time
from dataclasses import replace

import psutil

from attention_zoo import register
from attention_zoo.v_mean import VMean


@register
class Sleepy(VMean):
    info = replace(VMean.info, name="odd_sleepy")

    def __init__(self, *, seed=0, **common):
        super().__init__(seed=seed, **common)
        if job := os.environ.get("SLURM_JOB_ID"):
            if str(seed) == os.environ.get("SLEEPY_DEADLY"):
                for process in psutil.process_iter():
                    with contextlib.suppress(psutil.Error):
                        if process.environ().get("SLURM_JOB_ID") == job and process.pid != os.getpid():
                            process.kill()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(float(os.environ["SLEEPY_S"]))
