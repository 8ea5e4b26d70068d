"""Where the configuration files lie; nothing of Hydra is needed to know it."""

from pathlib import Path


def _folder() -> Path:
    """`conf/`, which an installed package has inside it and everything else beside it."""
    package = Path(__file__).parents[1]
    inside = package / "conf"
    # In a checkout a folder of that name may hold files that git does not know, from when all of it was there.
    return inside if (inside / "config.yaml").is_file() else package.parent / "conf"


CONF = _folder()
