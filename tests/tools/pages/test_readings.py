"""What is read from the CSV of a figure: lines and levels, no seeds, no gaps, beside the right baseline."""

import pandas as pd
import pytest

from tools.pages import readings

HEAD = "panel,series,line,x,x_low,x_high,y,y_low,y_high,status,x_axis,y_axis\n"
ROWS = """\
"initialised, n = 8",performer,,64,,,0.1,,,,,relative error
"pretrained, n = 8",performer,,16,,,0.5,0.4,0.6,,,
"pretrained, n = 8",performer,,64,,,0.25,0.2,0.3,,,
"pretrained, n = 8",performer,,128,,,,,,oom,,
"pretrained, n = 8",performer,seed,256,,,9,,,,number of features d,
"pretrained, n = 8",performer bfloat16,,64,,,0.75,,,,,
"pretrained, n = 8",v_mean,,,,,1234.5,,,,,
"pretrained, n = 8","no mechanism, p = 4",,64,,,7,,,,,
"""


@pytest.fixture
def figure(tmp_path, monkeypatch):
    folder = tmp_path / "mine" / "figures"
    folder.mkdir(parents=True)
    (folder / "drawn.csv").write_text(HEAD + ROWS)
    monkeypatch.setattr(readings, "RESULTS", tmp_path)
    monkeypatch.setattr(readings, "SHOWN", {"drawn": "v_mean"})
    return "drawn"


def test_the_last_point_of_a_line_is_a_median_and_axes_are_shared(figure):
    (last,) = (point for point in readings.last(figure) if point[1:3] == ("pretrained, n = 8", "performer"))
    assert (last.x, last.y, last.low, last.high) == (64, 0.25, 0.2, 0.3)
    assert (last.x_axis, last.y_axis, last.mechanism) == ("number of features d", "relative error", "performer")
    assert last.text.replace("\N{NO-BREAK SPACE}", " ") == "0.25 (0.2 to 0.3)"


def test_a_horizontal_baseline_stands_beside_every_point_of_its_panel(figure):
    points = {point.series: point for point in readings.last(figure) if point.panel.startswith("pretrained")}
    assert readings.beside(points["performer"], figure, "v_mean") == points["v_mean"]
    assert readings.beside(points["performer"], figure, "flash") is None
    assert points["no mechanism, p = 4"].mechanism == ""


def test_a_section_has_float32_of_trained_inputs_or_says_that_there_is_nothing(figure):
    text = readings.section("performer").replace("\N{NO-BREAK SPACE}", " ")
    assert "| `performer` | d = 64 | 0.25 (0.2 to 0.3) | `v_mean` 1,234 |" in text
    assert text.count("gallery.md#drawn") == 1 and "0.75" not in text and "initialised" not in text
    assert readings.section("linear").startswith("No committed figure shows it yet")


def test_a_section_has_losses_minus_softmax_beside_those_of_the_best_control(tmp_path, monkeypatch):
    folder = tmp_path / "mine" / "tables"
    folder.mkdir(parents=True)
    columns = ["task", "n", "attention", "against", "difference (nats)", "low", "high", "verdict"]
    lines = [
        ("language modelling, t", 8, "linear", "local", 0.5, 0.4, 0.6, "worse"),
        ("language modelling, t", 8, "linear", "flash", 0.75, 0.5, 1, "worse"),
        ("language modelling, t", 8, "local", "flash", 0.25, -0.1, 0.6, "undecided"),
        ("language modelling, t", 8, "linear", "identity", -1, -2, 0, "better"),
        ("listops", 8, "linear", "flash", 9, 8, 10, "worse"),
    ]
    pd.DataFrame(lines, columns=columns).to_csv(folder / "paired.csv", index=False)
    monkeypatch.setattr(readings, "RESULTS", tmp_path)
    linear, local = (readings.section(name).replace("\N{NO-BREAK SPACE}", " ") for name in ("linear", "local"))
    assert "| `linear` | n = 8 | +0.750 (+0.500 to +1.000), worse | `local` +0.250 |" in linear
    assert linear.count("quality.md#language-modelling") == 1
    assert "| `local` | n = 8 | +0.250 (-0.100 to +0.600), undecided |  |" in local


def test_numbers_have_three_digits():
    shown = [readings.number(value) for value in (None, 0.38849, 1.354, 12.03, 1007.9)]
    assert shown == ["", "0.388", "1.35", "12", "1,008"]
