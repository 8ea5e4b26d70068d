"""Settings as fields of dataclasses, and how values from outside are checked against them."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from bench.common.errors import ConfigError, is_secret, one_line

DTYPES = ("float64", "float32", "bfloat16", "float16")
PASSES = ("forward", "backward", "forward_backward")

Settings = TypeVar("Settings")


def setting(
    default: Any,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] | None = None,
    condition: bool = True,
) -> Any:
    """A field with its bounds.

    `condition` says whether cells that differ in it measure something else, so that no figure mixes them; False for
    what says only how well, how far or which part is measured.
    """
    metadata = {"minimum": minimum, "maximum": maximum, "above": above, "choices": choices, "condition": condition}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def defaults(schema: type) -> dict[str, Any]:
    """The default of every setting that has one."""
    fields = {field.name: field for field in dataclasses.fields(schema)}
    plain = {name: field.default for name, field in fields.items() if field.default is not dataclasses.MISSING}
    made = {name: field.default_factory for name, field in fields.items()}
    return plain | {name: make() for name, make in made.items() if make is not dataclasses.MISSING}


def checked(schema: type[Settings], values: Mapping[str, Any], prefix: str = "") -> Settings:
    """An instance of a dataclass of settings; `prefix` stands before the keys in messages.

    Raises:
        ConfigError: an unknown key, a value of another type or out of bounds.
    """
    fields = {field.name: field for field in dataclasses.fields(schema)}  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in fields:
            what = "" if is_secret(str(key)) else f"={value!r}"
            raise ConfigError(f"{prefix}{key}{what}: unknown; known are {', '.join(fields)}")
    hints = _hints(schema)  # type: ignore[arg-type]
    values = {
        key: float(value) if type(value) is int and _takes_float(hints[key]) else value for key, value in values.items()
    }
    # `bench.passes=forward` is a list of one.
    values = {
        key: [value] if isinstance(value, str | int | float) and _takes_list(hints[key]) else value
        for key, value in values.items()
    }
    if all(key in values or not _required(field) for key, field in fields.items()) and all(
        _is_exactly(value, hints[key]) for key, value in values.items()
    ):
        settings: Any = schema(**values)
    else:
        settings = _converted(schema, values, prefix)
    for name, field in fields.items():
        _check_bounds(prefix + name, getattr(settings, name), field.metadata)
    return settings


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _takes_float(hint: Any) -> bool:
    return float in (hint, *typing.get_args(hint))


def _is_exactly(value: Any, hint: Any) -> bool:
    """Whether a value is of the declared type already: then OmegaConf, a hundred times slower, would only copy it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (types.UnionType, typing.Union):
        return any(_is_exactly(value, argument) for argument in arguments)
    if origin is list:
        return type(value) is list and all(_is_exactly(item, arguments[0]) for item in value)
    if origin is dict:
        return type(value) is dict and all(type(key) is arguments[0] for key in value)
    return type(value) is hint


def _takes_list(hint: Any) -> bool:
    return any(typing.get_origin(part) is list for part in (hint, *typing.get_args(hint)))


@functools.cache
def _hints(schema: type) -> dict[str, Any]:
    hints = typing.get_type_hints(schema)
    return {field.name: hints[field.name] for field in dataclasses.fields(schema)}


def _converted(schema: type, values: Mapping[str, Any], prefix: str) -> Any:
    """An instance with each value made what its field declares, as far as that loses nothing."""
    # Whoever reads records only needs neither.
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.to_object(OmegaConf.merge(_structured(schema), dict(values)))
    except OmegaConfBaseException as error:
        key = error.full_key or ""
        raise ConfigError(f"{prefix}{key}={values.get(key)!r}: {one_line(error)}") from None


@functools.cache
def _structured(schema: type) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.structured(schema)


def _check_bounds(key: str, value: Any, metadata: Mapping[str, Any]) -> None:
    minimum, maximum, above, choices = (metadata.get(bound) for bound in ("minimum", "maximum", "above", "choices"))
    if value is None:
        return
    if isinstance(value, list) and not value:
        raise ConfigError(f"{key}=[]: must name at least one" + (f" of {', '.join(choices)}" if choices else ""))
    for item in value if isinstance(value, list) else [value]:
        if choices and item not in choices:
            raise ConfigError(f"{key}={item!r}: must be one of {', '.join(choices)}")
        if minimum is not None and not (math.isfinite(item) and item >= minimum):
            raise ConfigError(f"{key}={item!r}: must be a number of at least {minimum}")
        if above is not None and not (math.isfinite(item) and item > above):
            raise ConfigError(f"{key}={item!r}: must be a number above {above}")
        if maximum is not None and item > maximum:
            raise ConfigError(f"{key}={item!r}: must be a number of at most {maximum}")
