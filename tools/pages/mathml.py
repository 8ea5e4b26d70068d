"""Formulas of the site as MathML, which browsers render without network, LaTeX or JavaScript.

Chromium (from version 109), Firefox and Safari support MathML Core. docutils translates the formulas; an unknown
command gives a warning with its name.
"""

import html

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

NAME = "mathml"


def inline(writer: HTML5Translator, node: nodes.math) -> None:
    """Write an inline formula; raises `SkipNode`, which tells Sphinx that the node is done."""
    writer.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def block(writer: HTML5Translator, node: nodes.math_block) -> None:
    """Write a displayed formula in a box that scrolls on a narrow page; raises `SkipNode`."""
    writer.body.append(f'<div class="math-wrapper">{_mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def _mathml(node: nodes.math | nodes.math_block, as_block: bool) -> str:
    try:
        return latex2mathml.tex2mathml(node.astext(), as_block=as_block)
    except MathError as error:
        logging.getLogger(__name__).warning("%s: %s", node.astext(), error, location=node)
        return html.escape(node.astext())


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer for the option `html_math_renderer`."""
    app.add_html_math_renderer(NAME, inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
