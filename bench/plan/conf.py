"""Where the configuration files lie, and what each says of itself; nothing of Hydra is needed to know it."""

import re
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
# An installed package has them inside it, everything else beside it: in a checkout, a folder of that name inside may
# hold files that git does not know, from when all of it was there.
CONF = next(folder for folder in (_PACKAGE / "conf", _PACKAGE.parent / "conf") if (folder / "config.yaml").is_file())


def about(group: str) -> dict[str, str]:
    """For each name of a group of files, sorted, the first sentence of the comment that its file begins with."""
    return {path.stem: _sentence(path.read_text(encoding="utf-8")) for path in sorted((CONF / group).glob("*.yaml"))}


def _sentence(text: str) -> str:
    comment = re.match(r"(#.*\n)*", text)[0].splitlines()  # type: ignore[index]
    says = " ".join(line[1:].strip() for line in comment if not line.startswith(("# @package", "# python -m")))
    return re.split(r"(?<=[^l.][.?])\s", says)[0]  # not after `et al.` or `...`
