"""The application behind `python -m bench`: it takes Hydra's flags, and reports every mistake in one line."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence

import hydra
from omegaconf import DictConfig

import attention_zoo
from bench.api import exit_code, launch, planned, print_table, say_figures
from bench.cli.help import page
from bench.common import signals
from bench.common.errors import ConfigError, UnfinishedError, one_line, without_credentials
from bench.execution import processes
from bench.execution.ranks import follows
from bench.execution.sweep import Sweep
from bench.plan.compose import expand, grid_choices
from bench.plan.conf import CONF
from bench.plan.load import NAME, Loader, explained

if sys.version_info >= (3, 14):
    # Python 3.14 checks the help of every flag, and Hydra 1.3's help of --shell-completion is not a string yet.
    argparse.ArgumentParser._check_help = lambda *_: None  # type: ignore[attr-defined]

# Hydra's flags that a sweep accepts: those without a value, and those with one.
SWITCHES = ("--help -h", "--hydra-help", "--resolve", "--multirun -m", "--shell-completion -sc")
VALUES = ("--package -p", "--config-dir -cd")


@hydra.main(version_base="1.3", config_path=str(CONF), config_name=NAME)
def shown(config: DictConfig) -> None:
    """Hydra's own output about a configuration: --hydra-help, --cfg, --info, shell completion. It runs nothing."""


def main(*, whole_process: bool = False) -> None:
    """Run the process's command line; a `whole_process`, which does nothing else, is forked for its first children."""

    def act() -> int:
        if whole_process:
            processes.prepare()
        return run(sys.argv[1:])

    sys.exit(guarded(act))


def guarded(act: Callable[[], int]) -> int:
    """Turn every mistake in the configuration into one line on stderr and exit code 2."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises exceptions instead of printing them over many lines
    try:
        with explained():
            return act()
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ConfigError, OSError, UnfinishedError) as error:  # such as a full disk in the middle of a sweep
        print(f"error: {without_credentials(one_line(error))}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        signals.answer(signal.SIG_IGN)  # a second signal would only disturb the shutdown
        print("interrupted: the same command goes on where it stopped", file=sys.stderr)
        return 130


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code. Raises `ConfigError` before anything is measured."""
    flags = parse_flags(arguments)
    if flags.shell_completion:
        return _show(arguments)
    loader = Loader(flags.config_dir)
    if flags.help or flags.hydra_help or flags.cfg or flags.info:
        composed = loader.load(grid_choices(flags.overrides))  # raises for refused overrides, too
        if flags.help:
            first, *_ = expand(composed, flags.overrides)
            print(page(loader.load(first)))
            return 0
        given = {name: getattr(flags, name) for name in ("hydra_help", "resolve", "cfg", "info", "package")}
        words = {f"--{name.replace('_', '-')}": value for name, value in given.items() if value}
        typed = [name if value is True else f"{name}={value}" for name, value in words.items()]
        return _show([*typed, *loader.own, *flags.overrides])
    return measure(planned(loader, flags.overrides))


def measure(sweep: Sweep) -> int:
    """Run a sweep, print its table and the command that draws its figures; returns the exit code."""
    records = launch(sweep, print_table)
    if records and not follows():
        say_figures(sweep)
    return exit_code(records)


def parse_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse Hydra's flags, in any order, and the overrides; raises `ConfigError` for anything else."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--version", action="version", version=f"attention-zoo {attention_zoo.__version__}")
    for flag in SWITCHES:
        parser.add_argument(*flag.split(), action="store_true")
    for flag in VALUES:
        parser.add_argument(*flag.split())
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    kinds = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
    parser.add_argument("--info", "-i", const="all", nargs="?", choices=kinds)
    try:
        flags, unknown = parser.parse_known_intermixed_args(arguments)
    except (argparse.ArgumentError, TypeError) as error:
        raise ConfigError(str(error)) from None
    if unknown:
        raise ConfigError(f"{unknown[0]}: unknown; `python -m bench --help` lists what there is")
    if sum(map(bool, (flags.help, flags.hydra_help, flags.cfg, flags.info, flags.multirun))) > 1:
        raise ConfigError("--help, --hydra-help, --cfg, --info, --multirun: must be one of them")
    if (flags.resolve or flags.package) and not flags.cfg:
        raise ConfigError("--resolve, --package: must stand beside --cfg")
    return flags


def _show(arguments: Sequence[str]) -> int:
    sys.argv[1:] = arguments
    shown()
    return 0
