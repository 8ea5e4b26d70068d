"""`python -m bench.merge FROM... INTO`: see `bench.cli.merge`."""

import sys

from bench import asked
from bench.cli.merge import main

if __name__ == "__main__":
    sys.exit(asked.run(main))
