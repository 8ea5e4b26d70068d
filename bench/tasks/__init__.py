"""The tasks that models are trained on. A closed registry: a config can name a task, never import one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.common.errors import ConfigError, one_line
from bench.common.schema import named, require_setting
from bench.tasks import leaks, progress
from bench.tasks.base import IGNORED, SPLITS, Batch, Settings, Task
from bench.tasks.documents import Retrieval, Text
from bench.tasks.generated import AssociativeRecall, InductionHeads, Reversal, SelectiveCopying
from bench.tasks.images import Image
from bench.tasks.language_modelling import LanguageModelling
from bench.tasks.listops import ListOps
from bench.tasks.mad import Compression, FuzzyRecall, Memorisation, NoisyRecall
from bench.tasks.pathfinder import Pathfinder

__all__ = ["IGNORED", "SPLITS", "TASKS", "Batch", "Settings", "Task", "open_task", "require_unchanged", "settings"]

TASKS: dict[str, type[Settings]] = {
    task.name: task
    for task in (
        *(AssociativeRecall, InductionHeads, Reversal, SelectiveCopying),
        *(Compression, FuzzyRecall, Memorisation, NoisyRecall),
        LanguageModelling,
        *(ListOps, Text, Retrieval, Image, Pathfinder),
    )
}


def settings(values: Mapping[str, Any]) -> Settings:
    """The settings that a configuration's `task` describes: its `name` and the settings of that task.

    Raises:
        ConfigError: names the key, its value and what is allowed.
    """
    return named(TASKS, values, "task")


def open_task(config: Mapping[str, Any], cache_dir: Path, report: progress.Report = progress.no_report) -> Task:
    """The task of a cell, with the same examples for every mechanism in a comparison.

    Args:
        config: a cell's resolved config; uses `task`, `seq_len`, `causal` and `seed`.
        cache_dir: a cache for data that was read or drawn; its parent folder exists.
        report: called with the progress of reading and drawing what is kept.

    Raises:
        ConfigError: the task does not fit, its data or tokenizer cannot be read or have changed since the cell was
            planned, or its examples have a leak.
        ModuleNotFoundError: a package is missing; the message gives the pip command.
        ConnectionError: a name on the Hugging Face hub cannot be read, and no other text is allowed instead.
    """
    chosen = settings(config["task"])
    chosen.require_fits(config)
    with progress.reporting(report):
        try:
            task = chosen.open(config, cache_dir)
        except ValueError as error:
            raise ConfigError(one_line(error)) from error
    require_unchanged(config)  # afterwards, so that what was read is what was planned
    if task.classes is not None:
        leaks.require_none(task, chosen.name)
    return task


def require_unchanged(config: Mapping[str, Any]) -> None:
    """Refuse the user's own files with a `ConfigError` if they are not those that a cell was planned with."""
    now, planned = settings(config["task"]).own_files(), config.get("files", {})
    for name, identity in planned.items():
        key, allowed = {"files": "data"}.get(name, name), "what it was when the cell was planned, it has changed"
        require_setting(f"task.{key}", config["task"][key], now.get(name) == identity, allowed)
