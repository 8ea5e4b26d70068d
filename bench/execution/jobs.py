"""The job of a scheduler that this process is part of, for the records."""

from __future__ import annotations

import os
import socket
import sys

OF_SLURM = {
    "id": "SLURM_JOB_ID",
    "array": "SLURM_ARRAY_JOB_ID",
    "task": "SLURM_ARRAY_TASK_ID",
    "node": "SLURMD_NODENAME",
    "partition": "SLURM_JOB_PARTITION",
    "restarts": "SLURM_RESTART_COUNT",
}


def job() -> dict[str, str] | None:
    """Its `scheduler`, the names that it knows it by, and the `host`; None outside of any."""
    known = {name: os.environ[variable] for name, variable in OF_SLURM.items() if variable in os.environ}
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return {"scheduler": "slurm", "host": socket.gethostname(), **known} if "id" in known else None
    context = ray.get_runtime_context()
    ids = {"job_id": context.get_job_id(), "node_id": context.get_node_id(), "task_id": context.get_task_id() or ""}
    return {"scheduler": "ray", "host": socket.gethostname(), **ids}
