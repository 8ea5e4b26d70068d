"""The benchmark suite: measures the mechanisms of `attention_zoo`, one child process per cell."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from bench.common.moved import OldNames

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    # Reading records must work without importing torch and Hydra.
    if name == "run":
        from bench.api import run

        return run
    raise AttributeError(f"module 'bench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def _require_analysis() -> None:
    """Refuse, in one line, a user's module that `import analysis` would find instead of the suite's package."""
    ours = Path(__file__).resolve().parents[1] / "analysis" / "__init__.py"
    found = importlib.util.find_spec("analysis")
    if found is None or found.origin is None or Path(found.origin).resolve() == ours:
        return
    why = f"{found.origin}: hides the suite's package `analysis`; rename it, or start in another folder"
    if sys.argv[:1] != ["-m"]:
        raise ImportError(why)
    print(f"error: {why}", file=sys.stderr)  # `python -m bench` has no error handler yet
    sys.exit(2)


_require_analysis()
sys.meta_path.append(OldNames())
