"""A mechanism that takes its time, SLEEPY_S seconds, wherever a job of Slurm builds it.

With the seed SLEEPY_DEADLY it kills the whole job.
"""

import os
import subprocess
import time
from dataclasses import replace

from attention_zoo import register
from attention_zoo.v_mean import VMean


@register
class Sleepy(VMean):
    info = replace(VMean.info, name="odd_sleepy")

    def __init__(self, *, seed=0, **common):
        super().__init__(seed=seed, **common)
        if job := os.environ.get("SLURM_JOB_ID"):
            if str(seed) == os.environ.get("SLEEPY_DEADLY"):
                subprocess.run(["scancel", "--full", "--signal=KILL", job], check=True)
            time.sleep(float(os.environ["SLEEPY_S"]))
