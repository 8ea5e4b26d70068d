"""`python -m bench.status [SWEEP]`: see `bench.cli.status`."""

import sys

from bench import asked
from bench.cli.status import main

if __name__ == "__main__":
    sys.exit(asked.run(main))
