"""Where the configuration files lie; nothing of Hydra is needed to know it."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
# An installed package has them inside it, everything else beside it: in a checkout, a folder of that name inside may
# hold files that git does not know, from when all of it was there.
CONF = next(folder for folder in (_PACKAGE / "conf", _PACKAGE.parent / "conf") if (folder / "config.yaml").is_file())
