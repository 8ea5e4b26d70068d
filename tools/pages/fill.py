"""What the code and the records know, put into pages of the site while it is made.

A line `<!-- made: KIND ARGUMENTS -->` stands for it in the page. It is a comment of Markdown, so that the rest can be
read anywhere; nothing that is made is kept, and so nothing of it can be out of date.
"""

import re
from collections.abc import Callable
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from tools.pages import answers, gallery, mechanism, notebook_page, readings

MARK = re.compile(r"^<!-- made: (\w+)((?: \S+)*) -->$", re.MULTILINE)
# Paths are from the folder of the pages, `docs/`.
MADE: dict[str, Callable[..., str]] = {
    "gallery": gallery.page,
    "mechanisms": mechanism.index,
    "facts": mechanism.facts,
    "measured": readings.section,
    "settings": mechanism.settings,
    "packages": mechanism.packages,
    "classes": mechanism.classes,
    "speeds": answers.speeds,
    "memory": answers.memory,
    "decoding": answers.decoding,
    "sentence": answers.sentence,
    "notebook": notebook_page.page,
}


def filled(text: str, name: str) -> str:
    """A page with every mark replaced; `name` is that of the page, `mechanisms/linear`."""

    def make(mark: re.Match[str]) -> str:
        made = MADE[mark[1]](*mark[2].split())
        return re.sub(r"\]\((?!http|#)", "](" + "../" * name.count("/"), made)

    return MARK.sub(make, text)


def outdated(app: Sphinx, env: BuildEnvironment, *_: set[str]) -> list[str]:
    """The pages with a mark: what they are made of may have changed where they have not."""
    return [name for name in env.found_docs if MARK.search(Path(env.doc2path(name)).read_text())]


def read(app: Sphinx, name: str, source: list[str]) -> None:
    """Fill a page that Sphinx has read."""
    source[0] = filled(source[0], name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Fill every page."""
    app.connect("builder-inited", notebook_page.copy)
    app.connect("source-read", read)
    app.connect("env-get-outdated", outdated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
