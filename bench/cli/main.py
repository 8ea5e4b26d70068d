"""The application behind `python -m bench`: its flags are Hydra's, and every mistake is one line."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig

import attention_zoo
from bench import launchers
from bench.api import exit_code, launch, planned, print_table, say_figures
from bench.common import signals
from bench.common.errors import ConfigError, UnfinishedError, one_line, without_credentials
from bench.execution.ranks import follows
from bench.plan.compose import grid_choices, parsed
from bench.plan.conf import CONF
from bench.plan.explain import explained
from bench.plan.load import NAME, Loader

if sys.version_info >= (3, 14):
    # Python reads the help of every flag there is; Hydra 1.3's of --shell-completion is no text before it is shown.
    argparse.ArgumentParser._check_help = lambda *_: None  # type: ignore[attr-defined]


@hydra.main(version_base="1.3", config_path=str(CONF), config_name=NAME)
def shown(config: DictConfig) -> None:
    """What Hydra says of a configuration: --help, --cfg, --info, completion of the shell. It runs nothing."""


def main() -> None:
    """Run what the command line says."""
    sys.exit(guarded(lambda: run(sys.argv[1:])))


def guarded(act: Callable[[], int]) -> int:
    """Turn every mistake in the configuration into one line on stderr and exit code 2."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come here instead of being printed over many lines
    try:
        with explained():
            return act()
    except ConfigError as error:
        return _say(error, 2)
    except (OSError, UnfinishedError) as error:  # a full disk, say, in the middle of a sweep
        return _say(error, 1)
    except KeyboardInterrupt:
        signals.answer(signal.SIG_IGN)  # another one would only break what ends
        print("interrupted: the same command goes on where it stopped", file=sys.stderr)
        return 130


def run(arguments: Sequence[str]) -> int:
    """Do what a command line says; returns the exit code.

    Raises:
        ConfigError: a configuration that cannot be run, before anything is measured.
    """
    given = flags(arguments)
    if given.shell_completion:
        return _show(arguments)
    parsed(given.overrides)  # what is refused is not shown either
    loader = Loader(given.config_dir)
    config = loader.load(grid_choices(given.overrides))
    if given.help or given.hydra_help or given.cfg or given.info:
        return _show([*(argument for argument in arguments if argument not in given.overrides), *given.overrides])
    if launchers.foreign(config):
        signals.answer(signal.default_int_handler)
        return launchers.run(loader, config, given.overrides)
    sweep = planned(loader, given.overrides)
    records = launch(sweep, print_table)
    if records and not follows():
        say_figures(sweep)
    return exit_code(records)


def flags(arguments: Sequence[str]) -> argparse.Namespace:
    """What was typed: Hydra's flags, in whatever order, and the overrides.

    Raises:
        ConfigError: a flag that is unknown or lacks its value; something that would not be a sweep.
    """
    parser = argparse.ArgumentParser(
        parents=[get_args_parser()], add_help=False, exit_on_error=False, conflict_handler="resolve"
    )
    parser.add_argument("--version", action="version", version=f"attention-zoo {attention_zoo.__version__}")
    try:
        given, unknown = parser.parse_known_intermixed_args(arguments)
    except (argparse.ArgumentError, TypeError) as error:
        raise ConfigError(str(error)) from None
    if unknown:
        raise ConfigError(f"{unknown[0]}: unknown; `python -m bench --help` lists what there is")
    if given.run or given.experimental_rerun:
        raise ConfigError("--run, --experimental-rerun: every command is a sweep, and the same one goes on")
    if sum(map(bool, (given.help, given.hydra_help, given.cfg, given.info, given.multirun))) > 1:
        raise ConfigError("--help, --hydra-help, --cfg, --info, --multirun: must be one of them")
    if (given.resolve or given.package) and not given.cfg:
        raise ConfigError("--resolve, --package: must stand beside --cfg")
    if given.config_name or given.config_path:
        raise ConfigError("--config-name, --config-path: there is one configuration; --config-dir adds a folder to it")
    return given


def _show(arguments: Sequence[str]) -> int:
    sys.argv[1:] = arguments
    shown()
    return 0


def _say(error: BaseException, code: int) -> int:
    print(f"error: {without_credentials(one_line(error))}", file=sys.stderr)
    return code
