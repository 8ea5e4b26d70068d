"""README's links lead somewhere; its Python runs in `test_package.py`."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_what_the_readme_links_to_is_there():
    links = re.findall(r"\]\((?!http)([^)#]+)[^)]*\)", README.read_text())
    assert len(links) > 20
    assert [link for link in links if not (README.parent / link).exists()] == []
