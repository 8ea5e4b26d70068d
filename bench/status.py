"""`python -m bench.status [SWEEP]`: see `bench.cli.status`."""

import sys

from bench.cli.status import main
from bench.common import signals

if __name__ == "__main__":
    sys.exit(signals.run(main))
