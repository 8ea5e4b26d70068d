"""Settings as fields of dataclasses, and how values from outside are checked against them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from bench.errors import ConfigError, one_line

DTYPES = ("float64", "float32", "bfloat16")
PASSES = ("forward", "backward", "forward_backward")

Settings = TypeVar("Settings")


def setting(
    default: Any, *, minimum: float | None = None, choices: tuple[str, ...] | None = None, condition: bool = True
) -> Any:
    """A field with its bounds.

    `condition` says whether cells that differ in it measure something else, so that no figure mixes them; False for
    what says only how well, how far or which part is measured.
    """
    metadata = {"minimum": minimum, "choices": choices, "condition": condition}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def checked(schema: type[Settings], values: Mapping[str, Any], prefix: str = "") -> Settings:
    """An instance of a dataclass of settings; `prefix` stands before the keys in messages.

    Raises:
        ConfigError: an unknown key, a value of another type or out of bounds.
    """
    # Whoever reads records only needs neither.
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    fields = {field.name: field for field in dataclasses.fields(schema)}  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in fields:
            raise ConfigError(f"{prefix}{key}={value!r}: unknown; known are {', '.join(fields)}")
    try:
        settings: Any = OmegaConf.to_object(OmegaConf.merge(_structured(schema), dict(values)))  # type: ignore[arg-type]
    except OmegaConfBaseException as error:
        key = error.full_key or ""
        raise ConfigError(f"{prefix}{key}={values.get(key)!r}: {one_line(error)}") from None
    for name, field in fields.items():
        _check_bounds(prefix + name, getattr(settings, name), field.metadata)
    return settings


@functools.cache
def _structured(schema: type) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.structured(schema)


def _check_bounds(key: str, value: Any, metadata: Mapping[str, Any]) -> None:
    minimum, choices = metadata.get("minimum"), metadata.get("choices")
    if value is None:
        return
    if isinstance(value, list) and not value:
        raise ConfigError(f"{key}=[]: must name at least one" + (f" of {', '.join(choices)}" if choices else ""))
    for item in value if isinstance(value, list) else [value]:
        if choices and item not in choices:
            raise ConfigError(f"{key}={item!r}: must be one of {', '.join(choices)}")
        if minimum is not None and not (math.isfinite(item) and item >= minimum):
            raise ConfigError(f"{key}={item!r}: must be a number of at least {minimum}")
