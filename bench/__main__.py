"""`python -m bench`: the Hydra application."""

from __future__ import annotations

import difflib
import os
import sys

import hydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from bench.config import ConfigError, one_line
from bench.sweep import exit_code, plan, require_any_supported, run_sweep
from hydra_plugins.cell_sweeps import labelled, register


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def app(config: DictConfig) -> int:
    """One job of a launcher from elsewhere (joblib, submitit, ...): a sweep of one cell."""
    full = DictConfig({**config, "hydra": hydra.core.hydra_config.HydraConfig.get()})
    records = run_sweep(plan([labelled(full)], list(full.hydra.overrides.task)))
    require_any_supported(records)
    return exit_code(records)


def main() -> None:
    """Run, and turn every mistake in the configuration into one line on stderr and exit code 2."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come here instead of being printed over many lines
    register()
    try:
        app()
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on where it stopped", file=sys.stderr)
        sys.exit(130)


def explain(error: Exception) -> str:
    """One line that names the key, its value and what is allowed."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        near = difflib.get_close_matches(name, error.options, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"must be one of {', '.join(error.options)}"
        return f"{group}={name}: unknown; {hint}"
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.parent_node is not None:
        known = [str(key) for key in cause.parent_node]
        hint = difflib.get_close_matches(str(cause.key), known, n=3, cutoff=0.5)
        return f"{cause.full_key}: unknown; " + (
            f"did you mean {', '.join(hint)}?" if hint else f"known are {', '.join(known)}"
        )
    return one_line(error)


if __name__ == "__main__":
    main()
