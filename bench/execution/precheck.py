"""Cells are checked before anything is measured: a child builds their mechanisms and reads their inputs.

The child answers one question after the other. If it does not survive one, or takes too long, the question is passed
over: the cell itself will meet the same, and it ends that cell only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attention_zoo
from bench import inputs
from bench.common.errors import ConfigError, one_line
from bench.common.mechanism import build_attention
from bench.execution import child, process_group, processes
from bench.execution.cell_process import child_environment
from bench.plan.cell import Cell
from bench.plan.machine import is_gpu
from bench.plan.sources import Source

ANSWERS_WITHIN_S = {"attention": 10.0, "inputs": 60.0}
# What an answer depends on; a seed does not decide whether a mechanism can be built.
KEYS = {
    "attention": ("attention", "head_dim", "num_heads", "causal", "seq_len", "impl"),
    "inputs": ("inputs", "head_dim", "num_heads", "seq_len", "batch_size", "seed"),
}
# An error that refuses a setting names it first; other errors are the cell's own.
SETTING = re.compile(r"[\w.]+[=:]")

Answer = dict[str, str]
"""`{"refused": line}`, `{"unsupported": reason}`, or empty where nothing is wrong or nothing is known."""


def check_cells(cells: Sequence[Cell], cache_dir: Path, *, elsewhere: bool = False) -> list[Cell]:
    """The cells; those that a mechanism does not support have the reason why.

    Args:
        cells: of a plan.
        cache_dir: where inputs are kept; nothing is written there.
        elsewhere: whether they run on other machines, whose GPUs support what this one may not.

    Raises:
        ConfigError: a hyperparameter that a mechanism refuses, inputs that cannot be read or do not fit.
    """
    with contextlib.closing(_Checker(cache_dir, elsewhere)) as checker:
        return [checker.check(cell) for cell in cells]


class _Checker:
    def __init__(self, cache_dir: Path, elsewhere: bool) -> None:
        self._cache_dir, self._elsewhere = str(cache_dir.absolute()), elsewhere
        self._answers: dict[str, Answer] = {}
        self._unanswered: set[str] = set()
        self._child: processes.Child | None = None

    def check(self, cell: Cell) -> Cell:
        against = cell.config["bench"].get("against", ())
        reasons = []
        for config in (cell.config, *({**cell.config, **other} for other in against)):
            answer = self._ask("attention", config, cell.sources)
            if "refused" in answer:
                key = answer["refused"].split("=", 1)[0]
                raise ConfigError(f"{'attention.' * (key in config['attention'])}{answer['refused']}")
            if "unsupported" in answer and not (self._elsewhere and is_gpu(config["device"])):
                reasons.append(f"{config['label']}: {answer['unsupported']}" if against else answer["unsupported"])
        if reasons:
            return dataclasses.replace(cell, unsupported="; ".join(reasons))
        if "task" not in cell.config and inputs.source(cell.config["inputs"]).is_read:
            answer = self._ask("inputs", cell.config, cell.sources)
            if "refused" in answer:
                raise ConfigError(answer["refused"])
        return cell

    def _ask(self, kind: str, config: dict[str, Any], sources: Sequence[Source]) -> Answer:
        settings = {key: config[key] for key in KEYS[kind]}
        question = json.dumps({"kind": kind, "cache_dir": self._cache_dir, **settings}, sort_keys=True)
        name = f"{kind} {config[kind]['name']}"
        if question not in self._answers:
            answer = None if name in self._unanswered else self._answer(question, kind, config["device"], sources)
            if answer is None:  # the same hanging constructor is not waited for at every length
                self._unanswered.add(name)
            self._answers[question] = answer or {}
        return self._answers[question]

    def _answer(self, question: str, kind: str, device: str, sources: Sequence[Source]) -> Answer | None:
        try:
            if self._child is None:
                self._start(device, sources)
            assert self._child is not None
            self._child.send_line(question.encode())
            if select.select([self._replies], [], [], ANSWERS_WITHIN_S[kind])[0] and (line := self._replies.readline()):
                answer: Answer = json.loads(line)
                return answer
        except (processes.LostServer, ValueError):  # a mechanism may even have written there
            pass
        self.close()
        return None

    def _start(self, device: str, sources: Sequence[Source]) -> None:
        replies, stdout = os.pipe()
        self._replies = os.fdopen(replies, "rb")
        try:
            environment = child_environment("cpu" if self._elsewhere else device)
            self._child = processes.start(__name__, environment, sources, outputs=[stdout])
        finally:
            os.close(stdout)

    def close(self) -> None:
        if self._child is not None:
            self._child.end()
            self._replies.close()
            self._child = None


def main() -> None:
    """The child: answers the questions on its standard input, each with a line."""
    # Mechanisms may print.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    process_group.become_subreaper()
    process_group.limit_threads()
    attention_zoo.import_plugins()
    child.limit_memory({"device": "cpu", "bench": {}})
    for line in sys.stdin:
        print(json.dumps(_try(json.loads(line))), file=replies, flush=True)


def _try(question: dict[str, Any]) -> Answer:
    builds = question["kind"] == "attention"
    try:
        if builds:
            build_attention({**question, "seed": 0})
        else:
            inputs.source(question["inputs"]).check(question, Path(question["cache_dir"]))
    except attention_zoo.UnsupportedError as error:
        return {"unsupported": one_line(error)}
    except BaseException as error:  # a constructor may raise what it likes
        refusals = ValueError if builds else (ValueError, ConnectionError, ModuleNotFoundError)
        line = one_line(error)
        if isinstance(error, refusals) and SETTING.match(line):
            return {"refused": line}
    return {}
