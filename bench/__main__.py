"""`python -m bench`: reports errors in one line also while the application is being imported."""

from __future__ import annotations

import os
import sys

from bench.cli.examples import EXAMPLES
from bench.common import signals


def main(*, whole_process: bool = False) -> None:
    """Import the application with its plugins, and run it; `whole_process` as in `bench.cli.main.main`."""
    signals.answer(signals.leave)
    if sys.argv[1:] in ([], ["--help"], ["-h"]):
        print(EXAMPLES, flush=True)  # before imports that take seconds
        if not sys.argv[1:]:
            return
        print()
    is_watched = sys.stderr.isatty()
    if is_watched:
        print("loading PyTorch and the mechanisms ...", end="", file=sys.stderr, flush=True)
    try:
        from bench.cli import main as application
    except BaseException as error:  # a plugin may raise anything, even SystemExit
        plugins = os.environ.get("ATTENTION_ZOO_PLUGINS")
        if not plugins:
            raise
        from bench.common.errors import one_line

        what = f"{type(error).__name__}: {one_line(error)}"
        print(f"error: ATTENTION_ZOO_PLUGINS={plugins!r}: {what}; must name modules to import", file=sys.stderr)
        sys.exit(2)
    if is_watched:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    application.main(whole_process=whole_process)


if __name__ == "__main__":
    main(whole_process=True)
