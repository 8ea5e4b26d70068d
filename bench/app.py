"""The Hydra application behind `python -m bench`."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import hydra
import yaml
from hydra import compose
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from bench.api import exit_code, launch
from bench.errors import ConfigError, keyed, one_line
from bench.plan.compose import CONF, grid_choices

MANY = 15


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def app(config: DictConfig) -> int:
    """One job of a launcher from elsewhere (joblib, submitit, ...): a sweep of one cell."""
    overrides = list(HydraConfig.get().overrides.task)
    return exit_code(launch(lambda job: compose("config", job, return_hydra_config=True), [overrides], overrides))


def main() -> None:
    """Run, and turn every mistake in the configuration into one line on stderr and exit code 2."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come here instead of being printed over many lines
    try:
        sys.argv[1:] = arranged(sys.argv[1:])
        app()
    except (ConfigError, HydraException, OmegaConfBaseException, YAMLError) as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        sys.exit(2)
    except (RecursionError, UnicodeDecodeError) as error:
        if not _is_of_yaml(error):
            raise
        what = "nested too deeply" if isinstance(error, RecursionError) else f"not UTF-8: {one_line(error)}"
        print(f"error: a YAML file is {what}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a full disk, say, in the middle of a sweep
        print(f"error: {one_line(error)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on where it stopped", file=sys.stderr)
        sys.exit(130)


def arranged(arguments: Sequence[str]) -> list[str]:
    """The arguments with Hydra's flags before the overrides, in whatever order they were typed.

    Raises:
        ConfigError: a flag that is unknown or lacks its value; something that would not be a sweep.
    """
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        parsed, unknown = parser.parse_known_intermixed_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None
    if unknown:
        raise ConfigError(f"{unknown[0]}: unknown; `python -m bench --help` lists what there is")
    if parsed.run or parsed.experimental_rerun:
        raise ConfigError("--run, --experimental-rerun: every command is a sweep, and the same one goes on")
    grid_choices(parsed.overrides)  # before Hydra does what they say
    flags = list(arguments)
    for override in parsed.overrides:
        flags.remove(override)
    return [*flags, *parsed.overrides]


def _is_of_yaml(error: Exception) -> bool:
    """Whether it was raised while YAML was read: records, too, may be nested or of other bytes."""
    parser = Path(yaml.__file__).parent
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    # Hydra's sources of configurations read a file's head themselves.
    return any(file.parent == parser or file.stem.endswith("config_source") for file in files)


def explain(error: Exception) -> str:
    """One line that names the key, its value and what is allowed."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.partition("/")
        return f"{group}={name}: unknown; {_near(name, error.options)}"
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.parent_node is not None:
        return f"{cause.full_key}: unknown; {_near(str(cause.key), [str(key) for key in cause.parent_node])}"
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}: {error.problem}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {one_line(error)}"
    return keyed(error)


def _near(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {', '.join(near)}?"
    return f"known are {', '.join(known)}" if len(known) <= MANY else "`python -m bench --help` lists what there is"
