"""Formulas become MathML, and a command that docutils does not know is a warning, not a hole."""

from types import SimpleNamespace

import pytest
from docutils import nodes

from tools.pages import mathml


def written(way, node):
    writer = SimpleNamespace(body=[])
    with pytest.raises(nodes.SkipNode):
        way(writer, node)
    return "".join(writer.body)


def test_a_fraction_is_a_fraction_and_a_block_scrolls():
    text = r"\frac{1}{\sqrt{m}}"
    line = written(mathml.inline, nodes.math(text, text))
    block = written(mathml.block, nodes.math_block(text, text))
    assert "<mfrac>" in line and "<msqrt>" in line and "math-wrapper" not in line
    assert block.startswith('<div class="math-wrapper">') and 'display="block"' in block


def test_an_unknown_command_is_named(caplog):
    text = r"\nosuchcommand < 1"
    line = written(mathml.inline, nodes.math(text, text))
    assert "nosuchcommand" in caplog.text and "&lt;" in line
