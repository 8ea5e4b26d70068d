"""The job of a scheduler that this process is part of, for the records."""

from __future__ import annotations

import socket
import sys


def job() -> dict[str, str] | None:
    """Its `scheduler`, the names that it knows it by, and the `host`; None outside of any."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    ids = {"job_id": context.get_job_id(), "node_id": context.get_node_id(), "task_id": context.get_task_id() or ""}
    return {"scheduler": "ray", "host": socket.gethostname(), **ids}
