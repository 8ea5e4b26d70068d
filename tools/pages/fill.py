"""Put text generated from code and records into pages: `python -m tools.pages.fill` writes it into `docs/`.

It stands between the lines `<!-- made: KIND ARGUMENTS -->` and `<!-- /made -->`, so that pages are complete in a clone;
a test sees that it is current. What only Sphinx can show is put in while the site is built.
"""

import re
from collections.abc import Callable
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from tools.pages import answers, gallery, mechanism, notebook_page, pathfinder, quality, readings, search

DOCS = Path(__file__).parents[2] / "docs"
END = "<!-- /made -->"
MARK = re.compile(rf"^<!-- made: (\w+)((?: \S+)*) -->$(?:\n((?:(?!<!-- made:).)*?)\n{END}$)?", re.MULTILINE | re.DOTALL)
# Kinds that need Sphinx: its pictures, its directives.
OF_THE_SITE = ("notebook", "classes")
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
    "quality": quality.made,
    "pathfinder": pathfinder.learned,
    "searched": search.tried,
    "rates": search.rates,
    "steps": search.steps,
    "notebook": notebook_page.page,
}


def filled(text: str, name: str, of_the_site: bool = True) -> str:
    """A page with all that is made, anew; `name` is the name of the page, such as `mechanisms/linear`.

    What only Sphinx can show is left out unless it is `of_the_site`.
    """

    def make(mark: re.Match[str]) -> str:
        begins = f"<!-- made: {mark[1]}{mark[2]} -->"
        if mark[1] in OF_THE_SITE and not of_the_site:
            return begins
        made = re.sub(r"\]\((?!http|#)", "](" + "../" * name.count("/"), MADE[mark[1]](*mark[2].split()))
        # A comment ends at an empty line.
        return f"{begins}\n\n{made.strip()}\n\n{END}"

    return MARK.sub(make, text)


def outdated(app: Sphinx, env: BuildEnvironment, *_: set[str]) -> list[str]:
    """The pages with a mark, which Sphinx must read again: their code and records may have changed."""
    return [name for name in env.found_docs if MARK.search(Path(env.doc2path(name)).read_text())]


def read(app: Sphinx, name: str, source: list[str]) -> None:
    """Fill a page that Sphinx has read."""
    source[0] = filled(source[0], name)


def main() -> None:
    """Write the pages in `docs/` whose text has changed."""
    for path in sorted(DOCS.rglob("*.md")):
        old = path.read_text()
        new = filled(old, path.relative_to(DOCS).with_suffix("").as_posix(), of_the_site=False)
        if new != old:
            path.write_text(new)
            print(path.relative_to(DOCS.parent))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx, as an extension."""
    app.connect("builder-inited", notebook_page.copy)
    app.connect("source-read", read)
    app.connect("env-get-outdated", outdated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    main()
