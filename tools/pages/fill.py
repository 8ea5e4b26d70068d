"""Put text generated from code and records into pages while the site is built.

It replaces lines `<!-- made: KIND ARGUMENTS -->`. These are Markdown comments, so the rest of the page can be read
anywhere. Generated text is not committed, so it cannot be out of date.
"""

import re
from collections.abc import Callable
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from tools.pages import answers, gallery, mechanism, notebook_page, readings

MARK = re.compile(r"^<!-- made: (\w+)((?: \S+)*) -->$", re.MULTILINE)
# KIND -> its function; paths in its links are relative to `docs/`.
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
    """A page with every mark replaced; `name` is the name of the page, such as `mechanisms/linear`."""

    def make(mark: re.Match[str]) -> str:
        made = MADE[mark[1]](*mark[2].split())
        return re.sub(r"\]\((?!http|#)", "](" + "../" * name.count("/"), made)

    return MARK.sub(make, text)


def outdated(app: Sphinx, env: BuildEnvironment, *_: set[str]) -> list[str]:
    """The pages with a mark, which Sphinx must read again: their code and records may have changed."""
    return [name for name in env.found_docs if MARK.search(Path(env.doc2path(name)).read_text())]


def read(app: Sphinx, name: str, source: list[str]) -> None:
    """Fill a page that Sphinx has read."""
    source[0] = filled(source[0], name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx, as an extension."""
    app.connect("builder-inited", notebook_page.copy)
    app.connect("source-read", read)
    app.connect("env-get-outdated", outdated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
