"""Where the configuration files are, and the first sentence of each; works without Hydra."""

import re
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
# An installed package contains conf/, a checkout has it beside the package. An old checkout may still have a conf/
# inside with untracked files only, so look for config.yaml.
CONF = next(folder for folder in (_PACKAGE / "conf", _PACKAGE.parent / "conf") if (folder / "config.yaml").is_file())


def about(group: str) -> dict[str, str]:
    """The first sentence of each file's leading comment, by file name (sorted), for a group of configuration files."""
    return {path.stem: _sentence(path.read_text(encoding="utf-8")) for path in sorted((CONF / group).glob("*.yaml"))}


def _sentence(text: str) -> str:
    comment = re.match(r"(#.*\n)*", text)[0].splitlines()  # type: ignore[index]
    says = " ".join(line[1:].strip() for line in comment if not line.startswith(("# @package", "# python -m")))
    return re.split(r"(?<=[^l.][.?])\s", says)[0]  # not after `et al.` or `...`
