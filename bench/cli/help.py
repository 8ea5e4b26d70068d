"""The page of `python -m bench --help`, after the examples: all choices and all settings."""

import inspect
import json
import textwrap
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bench.plan import config as settings
from bench.plan.conf import CONF, about
from bench.plan.executors import EXECUTORS

WIDTH = 118
# All groups of configuration files, with what each one chooses.
GROUPS = {
    "bench": "what is measured",
    "inputs": "query, key and value, where nothing is trained",
    "model": "what is trained",
    "task": "what it learns",
    "experiment": "a whole sweep",
    "tracking": "where runs are mirrored to",
    "hydra/launcher": "who runs the cells",
}


def page(config: DictConfig) -> str:
    """All choices, and the settings of what a composed configuration has chosen."""
    values: Any = OmegaConf.to_container(config, resolve=False)
    values["hydra.launcher"] = values.pop("hydra")["launcher"]
    return "\n".join([*_choices(), "", *_settings(values)])


def _choices() -> Iterator[str]:
    names = ", ".join(sorted(path.stem for path in (CONF / "attention").glob("*.yaml")))
    yield "To choose (attention=NAME, and so on):"
    yield from textwrap.wrap(names, WIDTH, initial_indent="\n  attention  ", subsequent_indent="    ")
    for group, meaning in GROUPS.items():
        yield f"\n  {group}: {meaning}"
        own = about(group) if group != "hydra/launcher" else _launchers()
        for name, says in own.items():
            yield from _line(f"    {name}", says, 29)


def _launchers() -> dict[str, str]:
    return {name: (inspect.getdoc(executor) or "").partition("\n")[0] for name, executor in EXECUTORS.items()}


def _settings(values: dict[str, Any]) -> Iterator[str]:
    yield "Settings, with their values here and what they mean:"
    groups = ("attention", "bench", "inputs", "model", "task", "training", "tracking", "hydra.launcher")
    plain = {key: value for key, value in values.items() if key not in (*groups, "grids", "experiment")}
    yield from _group("config", None, plain, "")
    for group in groups:
        own = dict(values.get(group) or {})
        name = own.pop("executor", own.pop("name", None))
        if own:
            yield f"\n  {group.replace('.', '/')}" + (f"={name}" if name else "")
            yield from _group(group, name, own, f"{group}.")


def _group(group: str, name: Any, values: dict[str, Any], prefix: str) -> Iterator[str]:
    meanings = settings.meanings(group, name)
    for key, value in values.items():
        yield from _line(f"    {prefix}{key}={typed(value)}", meanings.get(key, ""))


def typed(value: Any) -> str:
    """A value in command-line syntax: `true`, `null`, `[forward,backward]`."""
    if isinstance(value, list):
        return f"[{','.join(map(typed, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def _line(name: str, says: str, column: int = 44) -> list[str]:
    start = f"{name:{column}}" if len(name) < column else f"{name}  "
    return textwrap.wrap(start + says, WIDTH, subsequent_indent=" " * column, drop_whitespace=True) or [name]
