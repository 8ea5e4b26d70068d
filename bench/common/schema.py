"""Settings are fields of dataclasses; values from outside are checked against them."""

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from bench.common.errors import ConfigError, is_secret

DTYPES = ("float64", "float32", "bfloat16", "float16")
PASSES = ("forward", "backward", "forward_backward")
# The names of types in messages.
TYPES = {int: "an integer", float: "a number", bool: "true or false", str: "text", dict: "settings by name"}
YES, NO = ("true", "yes", "y", "on", "1"), ("false", "no", "n", "off", "0")

Settings = TypeVar("Settings")


def setting(
    default: Any,
    meaning: str = "",
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] | None = None,
    condition: bool = True,
) -> Any:
    """A dataclass field with a short description for `--help`, and its bounds.

    `condition` is True if cells with different values measure different things, so that no figure mixes them. It is
    False for settings that only change how precisely, how far, or which part is measured.
    """
    bounds = {"minimum": minimum, "maximum": maximum, "above": above, "choices": choices}
    metadata = {"meaning": meaning, "condition": condition, **bounds}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def defaults(schema: type) -> dict[str, Any]:
    """The defaults of all settings that have one."""
    fields = dataclasses.fields(schema)
    plain = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    return plain | {f.name: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING}


def documented(docstring: str) -> dict[str, str]:
    """The first sentence about each argument in a docstring's section `Args:`."""
    section = re.search(r"^Args:\n((?: .*\n?|\n)*)", docstring, re.MULTILINE)
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section[1] if section else "", re.MULTILINE)
    return {
        name: re.split(r"(?<=[\w)][\w)]\.)\s", " ".join(text.split()).replace("None", "null"))[0].rstrip(".")
        for name, text in entries
    }


def checked(schema: type[Settings], values: Mapping[str, Any], prefix: str = "") -> Settings:
    """An instance of a dataclass of settings; `prefix` precedes the keys in messages.

    Raises `ConfigError` for an unknown or missing key, and for a value of the wrong type or out of bounds.
    """
    hints = _hints(schema)  # type: ignore[arg-type]
    made = {}
    for key, value in values.items():
        if key not in hints:
            what = "" if is_secret(str(key)) else f"={value!r}"
            raise ConfigError(f"{prefix}{key}{what}: unknown; known are {', '.join(hints)}")
        try:
            made[key] = _converted(value, hints[key])
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(f"{prefix}{key}={value!r}: must be {_said(hints[key])}") from None
    made = defaults(schema) | made  # type: ignore[arg-type]
    for field in dataclasses.fields(schema):  # type: ignore[arg-type]
        if field.name not in made:
            raise ConfigError(f"{prefix}{field.name}: must be given, {_said(hints[field.name])}")
        _check_bounds(prefix + field.name, made[field.name], field.metadata)
    return schema(**made)


def named(schemas: Mapping[str, type[Settings]], values: Mapping[str, Any], group: str) -> Settings:
    """The `checked` settings of the class that `values["name"]` selects; an unknown name raises `ConfigError`."""
    own = dict(values)
    name = own.pop("name", None)
    if not isinstance(name, str) or name not in schemas:
        raise ConfigError(f"{group}.name={name!r}: must be one of {', '.join(schemas)}")
    return checked(schemas[name], own, f"{group}.")


def described(settings: Any) -> dict[str, Any]:
    """The settings as a dict with their `name` and defaults: the inverse of `named`."""
    return {"name": settings.name, **dataclasses.asdict(settings)}


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of nested mappings by their dotted path: `{"a": {"b": 1}}` -> `{"a.b": 1}`."""
    leaves: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            leaves.update(flatten(value, f"{prefix}{key}."))
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def require_setting(key: str, value: Any, holds: bool, allowed: str) -> None:
    """Raise `ConfigError` naming the `key`, its `value` and what is `allowed` unless `holds`."""
    if not holds:
        raise ConfigError(f"{key}={value!r}: must be {allowed}")


@functools.cache
def _hints(schema: type) -> dict[str, Any]:
    hints = typing.get_type_hints(schema)
    return {field.name: hints[field.name] for field in dataclasses.fields(schema)}


@functools.cache
def _parts(hint: Any) -> tuple[Any, Any, bool]:
    """A hint's type, the type of its list's items, and whether it may be null: for `list[str] | None`, say."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    item, *_ = typing.get_args(options[0]) or (Any,)
    return typing.get_origin(options[0]) or options[0], item, type(None) in options


def _said(hint: Any) -> str:
    kind, item, nullable = _parts(hint)
    return (f"a list, each {TYPES[item]}" if kind is list else TYPES[kind]) + (" or null" if nullable else "")


def _converted(value: Any, hint: Any) -> Any:
    """Convert a value to its field's type if that loses nothing: OmegaConf's rules, 100 times faster."""
    kind, item, nullable = _parts(hint)
    if type(value) is kind is not list or (value is None and nullable):
        return value
    if kind is list:  # `bench.passes=forward` means a list with one item
        return [_converted(each, item) for each in (value if isinstance(value, list) else [value])]
    if kind is bool and str(value).lower() in YES + NO:
        return str(value).lower() in YES
    if (kind in (int, float) and type(value) in (str, int)) or (kind is str and isinstance(value, int | float)):
        return kind(value)
    raise TypeError


def _check_bounds(key: str, value: Any, metadata: Mapping[str, Any]) -> None:
    minimum, maximum, above, choices = (metadata.get(bound) for bound in ("minimum", "maximum", "above", "choices"))
    if isinstance(value, list) and not value:
        raise ConfigError(f"{key}=[]: must name at least one" + (f" of {', '.join(choices)}" if choices else ""))
    for item in value if isinstance(value, list) else [] if value is None else [value]:
        if choices and item not in choices:
            raise ConfigError(f"{key}={item!r}: must be one of {', '.join(choices)}")
        if minimum is not None and not (math.isfinite(item) and item >= minimum):
            raise ConfigError(f"{key}={item!r}: must be a number of at least {minimum}")
        if above is not None and not (math.isfinite(item) and item > above):
            raise ConfigError(f"{key}={item!r}: must be a number above {above}")
        if maximum is not None and item > maximum:
            raise ConfigError(f"{key}={item!r}: must be a number of at most {maximum}")
