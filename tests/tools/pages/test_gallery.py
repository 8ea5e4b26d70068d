"""The gallery shows every committed figure, and has a sentence and a command for each that can be drawn."""

import re

import pandas as pd
import pytest

from analysis.registry import FIGURES
from bench.plan.conf import CONF
from tools.pages import gallery


def test_every_figure_has_a_sentence_and_experiments_that_there_are():
    assert gallery.ENTRIES.keys() == FIGURES.keys()
    for name, entry in gallery.ENTRIES.items():
        assert entry.keys() <= {"answers", "experiments"}, name
        assert re.fullmatch(r"[A-Z].*[.?]", entry["answers"]), name
    for name, path in gallery.pictures():
        files = [CONF / "experiment" / f"{one}.yaml" for one in gallery.experiments(name, path)]
        assert files and all(file.is_file() for file in files), path
        if name in ("controls", "learning", "quality_cost"):  # whose panels are of tasks
            panels = pd.read_csv(path.with_suffix(".csv"))["panel"].unique()
            shown = {panel.split(",")[0].replace(" ", "_") for panel in panels}
            trained = {experiment for experiment, tasks in gallery.OF_TASKS.items() if shown.intersection(tasks)}
            assert {file.stem for file in files} == trained, path


@pytest.mark.parametrize(("experiment", "tasks"), gallery.OF_TASKS.items())
def test_experiments_train_the_tasks_that_the_gallery_says(experiment, tasks):
    assert set(tasks) <= set(re.findall(r"\w+", (CONF / "experiment" / f"{experiment}.yaml").read_text()))


def test_every_committed_picture_is_on_the_page_with_its_numbers():
    text = gallery.page()
    shown = re.findall(r"!\[[^]]*\]\(\.\./(\S+)\)", text)
    committed = [f"results/{path.relative_to(gallery.RESULTS)}" for path in gallery.RESULTS.glob("*/figures/*.png")]
    assert sorted(shown) == sorted(committed) and len(set(shown)) == len(shown)
    assert text.count("[The numbers drawn]") == len([*gallery.RESULTS.glob("*/figures/*.csv")])


def test_a_new_picture_needs_no_hand_work_and_an_unknown_one_is_named(tmp_path, monkeypatch):
    figures = tmp_path / "quality" / "figures"
    figures.mkdir(parents=True)
    (figures / "controls.png").touch()
    monkeypatch.setattr(gallery, "RESULTS", tmp_path)
    assert "## results/quality\n\n### controls\n" in gallery.page() and "The numbers" not in gallery.page()
    (figures / "mine.png").touch()
    with pytest.raises(KeyError, match="mine"):
        gallery.page()


def test_a_part_belongs_to_the_figure_with_the_longest_name():
    """`skeinformer_figure1` and `recall` are figures, too."""
    parts = ("crossover_forward_not_causal", "skeinformer_figure1_relative", "recall_state_mqar")
    assert [gallery.figure_of(part) for part in parts] == ["crossover", "skeinformer_figure1_relative", "recall_state"]
