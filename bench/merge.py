"""`python -m bench.merge FROM... INTO`: see `bench.cli.merge`."""

import sys

from bench.cli.merge import main
from bench.common import signals

if __name__ == "__main__":
    sys.exit(signals.run(main))
