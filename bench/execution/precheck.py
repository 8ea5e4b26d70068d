"""Checks cells before anything is measured: a child process builds their mechanisms and reads their inputs.

What a task needs is looked for here, without asking the network. The user's own text is read, too.

The child answers questions one after the other. If it dies at a question, or takes too long, the question is skipped:
the cell itself will fail in the same way, and only that cell ends.
"""

import contextlib
import dataclasses
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attention_zoo
from bench import inputs, tasks
from bench.common.errors import ConfigError, one_line
from bench.common.mechanism import build_attention
from bench.execution import child, processes
from bench.execution.runner import child_environment
from bench.plan.cell import Cell
from bench.plan.machine import is_gpu

# A text that is too short is short enough for its tokens to be made in that time.
ANSWERS_WITHIN_S = {"attention": 10.0, "inputs": 60.0, "task": 10.0}
# The settings that an answer depends on; no seed decides whether a mechanism can be built or a text is long enough.
KEYS = {
    "attention": ("attention", "head_dim", "num_heads", "causal", "seq_len", "impl"),
    "inputs": ("inputs", "head_dim", "num_heads", "seq_len", "batch_size", "seed"),
    "task": ("task", "seq_len", "causal"),
}
# Benchmarks of decoding steps.
DECODING = ("decode", "capacity")
# An error about a setting begins with its name; other errors are left to the cell.
SETTING = re.compile(r"[\w.]+[=:]")
LONGEST_ANSWER = 1 << 16

Answer = dict[str, str]
"""`{"refused": line}`, `{"unsupported": reason}`, or empty if nothing is wrong or nothing is known."""


def check_cells(cells: Sequence[Cell], cache_dir: Path, *, elsewhere: bool = False) -> list[Cell]:
    """The cells, with a reason for those that a mechanism does not support. Nothing is written to `cache_dir`.

    With `elsewhere` they run on other machines, whose GPUs may support more than this one's.

    Raises:
        ConfigError: a mechanism refuses a hyperparameter, inputs or a task's data cannot be read, or inputs do not fit.
    """
    with contextlib.ExitStack() as stack:
        own = any(_reads_own_text(cell.config) for cell in cells)
        scratch = stack.enter_context(tempfile.TemporaryDirectory()) if own else ""
        checker = stack.enter_context(contextlib.closing(_Checker(cache_dir, scratch, elsewhere)))
        return [checker.check(cell) for cell in cells]


class _Checker:
    def __init__(self, cache_dir: Path, scratch: str, elsewhere: bool) -> None:
        self._cache_dir, self._scratch, self._elsewhere = str(cache_dir.absolute()), scratch, elsewhere
        self._answers: dict[str, Answer] = {}
        self._child: processes.Child | None = None

    def check(self, cell: Cell) -> Cell:
        reasons = []
        for config in cell.entries:
            answer = self._ask("attention", config, cell)
            if "refused" in answer:
                key = answer["refused"].split("=", 1)[0]
                raise ConfigError(f"{'attention.' * (key in config['attention'])}{answer['refused']}")
            reason = None if self._elsewhere and is_gpu(config["device"]) else answer.get("unsupported")
            if reason := reason or _excluded(config):
                label = f"{config['label']}: " if cell.entries[1:] else ""
                reasons.append(label + reason)
        if reasons:
            return dataclasses.replace(cell, unsupported="; ".join(reasons))
        if "task" in cell.config and not self._elsewhere:
            tasks.settings(cell.config["task"]).require_data(cell.config, Path(self._cache_dir))
        reads = "task" not in cell.config and inputs.source(cell.config["inputs"]).is_read
        kind = "inputs" if reads else "task" if _reads_own_text(cell.config) else None
        if kind and "refused" in (answer := self._ask(kind, cell.config, cell)):
            raise ConfigError(answer["refused"])
        return cell

    def _ask(self, kind: str, config: dict[str, Any], cell: Cell) -> Answer:
        settings = {key: config[key] for key in KEYS[kind]}
        folder = self._scratch if kind == "task" else self._cache_dir
        question = json.dumps({"kind": kind, "cache_dir": folder, **settings}, sort_keys=True)
        # Of another text nothing is known.
        name = question if kind == "task" else f"{kind} {config[kind]['name']}"
        for known in (question, name):
            if known in self._answers:
                return self._answers[known]
        answer, answers = {}, name  # wait only once for a constructor that hangs, not at every length
        try:
            if self._child is None:
                environment = child_environment("cpu" if self._elsewhere else cell.config["device"])
                self._child = processes.start(__name__, environment, cell.sources)
            self._child.send_line(question.encode())
            self._child.channel.settimeout(ANSWERS_WITHIN_S[kind])
            answer, answers = json.loads(self._child.channel.recv(LONGEST_ANSWER)), question
        except (processes.LostServer, OSError, ValueError):
            self.close()
        self._answers[answers] = answer
        return answer

    def close(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


def _reads_own_text(config: dict[str, Any]) -> bool:
    """Whether the examples are made of a text of the user's alone, without the network."""
    files = config.get("files", {})
    return "text" in files and ("tokenizer" in files or config["task"]["tokenizer"] in ("bytes", "bpe"))


def _excluded(config: dict[str, Any]) -> str | None:
    """Why a mechanism cannot run in a cell, if its entry in the registry says so."""
    info, bench = attention_zoo.info(config["attention"]["name"]), config["bench"]["name"]
    dtypes = [str(dtype).removeprefix("torch.") for dtype in info.dtypes]
    if config["dtype"] not in dtypes:
        return f"dtype={config['dtype']}: {info.name} takes {', '.join(dtypes)} only"
    return f"bench={bench}: {info.name} cannot decode" if bench in DECODING and not info.decode else None


def main() -> None:
    """The child: answers each question, a line on its standard input, with a line on the same socket."""
    replies = os.fdopen(os.dup(0), "w")
    attention_zoo.import_plugins()
    child.limit_memory({"device": "cpu", "bench": {}})
    for line in sys.stdin:
        print(json.dumps(_try(**json.loads(line))), file=replies, flush=True)


def _try(kind: str, cache_dir: str, **config: Any) -> Answer:
    refusals: tuple[type[Exception], ...] = (ValueError,)
    try:
        if kind == "attention":
            build_attention({**config, "seed": 0})
        elif kind == "task":
            refusals = (ConfigError,)
            tasks.open_task({**config, "seed": 0}, Path(cache_dir))
        else:
            refusals = (ValueError, ConnectionError, ModuleNotFoundError)
            inputs.source(config["inputs"]).check(config, Path(cache_dir))
    except attention_zoo.UnsupportedError as error:
        return {"unsupported": one_line(error)}
    except BaseException as error:  # a constructor may raise anything
        if isinstance(error, refusals) and SETTING.match(one_line(error)):
            return {"refused": one_line(error)}
    return {}
