"""`python -m bench.merge FROM... INTO`: add the records of other results folders, say from other machines, to one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench.common import signals
from bench.common.errors import ConfigError, Parser, named_path, one_line, say
from bench.records.archive import merge, report

DETAILS = """
A FROM is a results folder or an archive that `make pack` wrote; INTO may be new. What INTO has stays as it is: a
record of the same name with other contents is a conflict, which is named, as is what is no record; the exit code is 1
then. Several records of a cell are attempts: figures and sweeps take the newest that measured. A merge that was
interrupted goes on with the same command.

Records, their samples and the plans of sweeps are copied. Left behind: caches (inputs/), checkpoints and trained
weights (training/), and what is made from records again (MLflow's store, figures).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m bench.merge", description=__doc__, epilog=DETAILS, formatter_class=form)
    parser.add_argument("sources", type=named_path, nargs="+", metavar="FROM")
    parser.add_argument("into", type=named_path, metavar="INTO")
    options = parser.parse_args(arguments)
    try:
        return report(merge(options.sources, options.into), options.into)
    except (ConfigError, OSError) as error:
        say(f"error: {one_line(error)}")
        return 2 if isinstance(error, ConfigError) else 1


if __name__ == "__main__":
    sys.exit(signals.run(main))
