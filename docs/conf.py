"""Sphinx: the site of `make site`, from the pages in this folder and the docstrings."""

import sys
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ConfigError

import attention_zoo
from bench.common import errors
from bench.records import own

# `tools/` is of the checkout and not installed.
sys.path.insert(0, str(Path(__file__).parents[1]))

project = "Attention zoo"
author = "The attention zoo's authors"
project_copyright = "Apache-2.0"
version = release = attention_zoo.__version__
extensions = [
    *("myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"),
    *("tools.pages.fill", "tools.pages.mathml"),
]
exclude_patterns = ["tracking/*"]
html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
# What a command prints is there to be compared, not copied.
copybutton_selector = "div:not(.output):not(.highlight-text) > div.highlight > pre"
# Docstrings are for terminals first: in them, as in Markdown, single quotation marks of this kind are code.
default_role = "literal"
autodoc_member_order = "bysource"
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "dollarmath"]

PAGES = own.Kind(
    "pages of the attention zoo", ("*.html", "_*", "*.js", "*.inv", "mechanisms", "reference", "tutorials")
)


def setup(app: Sphinx) -> None:
    """Write into no folder with somebody else's pages."""
    try:
        own.claim(Path(app.outdir), PAGES, "site")
    except errors.ConfigError as error:
        raise ConfigError(str(error)) from None
