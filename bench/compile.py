"""Compiles a sweep's kernels in parallel before anything is measured: `python -m bench.compile OVERRIDES`.

Every mechanism of the sweep runs once in each pass that will be measured, on random numbers, at the cells' lengths and
at those of their checks. Triton caches compiled kernels on disk, where the cells find them. A kernel takes about a
second and a comparison's cell needs about a hundred; here several processes compile at the same time.
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from typing import Any

import torch

from bench import api
from bench.common import signals
from bench.common.errors import ConfigError, Parser, one_line
from bench.common.mechanism import build_attention
from bench.measures.decode import LastSteps
from bench.measures.timing import Pass
from bench.plan.cell import Cell
from bench.plan.load import Loader
from bench.plan.machine import is_gpu


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; a mechanism that fails here is printed only: its cells will report it."""
    parser = Parser(prog="python -m bench.compile", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (%(default)s)")
    parser.add_argument("--config-dir", metavar="FOLDER", help="of the sweep, as for python -m bench")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="of the sweep, as for python -m bench")
    given = parser.parse_args(arguments)
    if given.jobs < 1:
        parser.error(f"--jobs={given.jobs}: must be at least 1")
    try:
        wanted = list(jobs(api.planned(Loader(given.config_dir), [*given.overrides, "tracking=none"]).cells))
    except ConfigError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    if not wanted:
        print("nothing of this sweep runs on a GPU")
        return 0
    began = time.monotonic()
    with ThreadPoolExecutor(given.jobs) as threads:
        futures = {threads.submit(_in_a_process, job): f"{job['label']}, {job['seq_len']} tokens" for job in wanted}
        try:
            for future in as_completed(futures):
                failed = future.exception()
                found = f"{future.result():.1f} s" if failed is None else one_line(failed)
                print(f"{futures[future]}: {found}", flush=True)
        except KeyboardInterrupt:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    print(f"{len(wanted)} mechanisms and shapes in {time.monotonic() - began:.0f} s")
    return 0


def _in_a_process(job: dict[str, Any]) -> float:
    """`run_once` in a process of its own: after a CUDA error it compiles nothing more, and one that dies is alone."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(run_once, job).result()


def jobs(cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """The configurations of the mechanisms that run on a GPU, each with the passes of all its cells."""
    found: dict[str, dict[str, Any]] = {}
    keys = ("label", "attention", "dtype", "batch_size", "seq_len", "num_heads", "head_dim", "causal", "impl", "seed")
    for cell in cells:
        if not is_gpu(cell.config["device"]) or "task" in cell.config:
            continue
        bench = cell.config["bench"]
        for config in cell.entries:
            job = {key: config[key] for key in keys} | {"device": config["device"].partition(":")[0]}
            passes = bench.get("passes") or [bench.get("measured_pass", "forward")]
            kept = found.setdefault(json.dumps(job, sort_keys=True), {**job, "passes": [], "steps": 0})
            kept["passes"] += [name for name in passes if name not in kept["passes"]]
            kept["steps"] = max(kept["steps"], bench.get("steps", 0) if bench["name"] == "decode" else 0)
    yield from sorted(found.values(), key=lambda job: job["seq_len"], reverse=True)


def run_once(job: dict[str, Any]) -> float:
    """Run every pass of a mechanism, at its own length and at the check's; returns the seconds that this took."""
    began = time.monotonic()
    device, dtype = torch.device(job["device"]), getattr(torch, job["dtype"])
    attention = build_attention(job).to(device, dtype).eval()
    short = min(job["seq_len"], attention.min_test_length)
    for batch_size, length in ((1, short), (job["batch_size"], job["seq_len"])):
        shape = batch_size, job["num_heads"], length, job["head_dim"]
        query, key, value = (torch.randn(shape, device=device, dtype=dtype) for _ in range(3))
        for name in job["passes"]:
            Pass(name, attention, (query, key, value)).run_unprepared()
    if job["steps"]:
        with torch.no_grad():
            steps = LastSteps(attention, (query, key, value), job["steps"])
            steps.run(steps.prepare())
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(signals.run(main))
