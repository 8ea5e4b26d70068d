"""Whatever a configuration's readers raise, as one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from bench.common.errors import ConfigError, keyed, one_line

MANY = 15


@contextmanager
def explained() -> Iterator[None]:
    """Turn every mistake in a configuration into a `ConfigError`."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(explain(error)) from error


def explain(error: Exception) -> str:
    """One line that names the key, its value and what is allowed."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return f"{group}={name}: unknown; {_near(name, error.options)}"
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.parent_node is not None:
        return f"{cause.full_key}: unknown; {_near(str(cause.key), [str(key) for key in cause.parent_node])}"
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}: {error.problem}"
    if found := re.match(r"In '(.+)/(.+)': \w+ raised while composing config:\n(.+)", str(error)):
        return f"{found[1]}={found[2]}: {found[3]}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {one_line(error)}"
    return keyed(error)


def _near(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {', '.join(near)}?"
    return f"known are {', '.join(known)}" if len(known) <= MANY else "`python -m bench --help` lists what there is"
