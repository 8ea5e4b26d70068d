"""Right answers over the bytes of the decoding state, on synthetic records."""

from itertools import product

import numpy as np
import pytest
from drawn import bars, caption, changed, legend, panels
from synthetic_records import state_bytes, train

from analysis.frame import tidy
from analysis.plots import recall_state
from analysis.selection import MissingRecords

TASK = {"task": "associative_recall"}
LOSSES = {"softmax": 0.01, "performer": 0.4, "local": 1.2, "identity": 2.0}


def runs(rng, **changes):
    """Three seeds of each, whose losses are once, twice and three times the mechanism's."""
    return [
        train(label, n, seed, rng, final=loss * (1 + seed), **TASK | changes)
        for (label, loss), n, seed in product(LOSSES.items(), (64, 128), range(3))
    ]


def test_every_mechanism_is_a_point_of_its_state_and_its_answers(rng):
    figure = recall_state.figure(tidy(runs(rng)))
    assert set(panels(figure)) == {"associative recall, n = 64", "associative recall, n = 128"}
    handles = legend(figure)
    assert list(handles) == ["1 performer", "2 softmax", "3 identity", "4 local"]
    for n in (64, 128):
        found = bars(panels(figure)[f"associative recall, n = {n}"])
        for number, label in enumerate(("performer", "softmax", "identity", "local"), 1):
            expected = [100 * np.exp(-LOSSES[label] * times) for times in (2, 3, 1)]
            (at,) = found[handles[f"{number} {label}"].get_color()]
            np.testing.assert_allclose(at, [state_bytes(label, n) / 1024, *expected])
    text = caption(figure)
    assert "Grey: controls." in text and text.startswith("Not diagnostic here: all that is shown (")


def test_each_number_stands_at_its_point_and_none_on_another(rng):
    """Two points in one place have their numbers at two corners."""
    alike = {"softmax": 0.01, "flash": 0.01, "performer": 0.4}
    records = [train(label, 64, 0, rng, final=loss, **TASK) for label, loss in alike.items()]
    figure = recall_state.figure(tidy(records))
    (panel,) = panels(figure).values()
    numbers = {name.split()[0]: name.split()[1] for name in legend(figure)}
    texts = {numbers[text.get_text()]: text for text in panel.texts}
    for label, loss in alike.items():
        assert texts[label].xy == pytest.approx((state_bytes(label, 64) / 1024, 100 * np.exp(-loss)))
    assert "Grey" not in caption(figure)
    assert texts["softmax"].xyann != texts["flash"].xyann
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in texts.values()]
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_what_does_not_decode_or_failed_is_no_point_and_no_other_task_is_shown(rng):
    records = runs(rng)
    for one in records:
        if one.config["label"] == "performer":
            one.measurements["state_bytes"] = None
    failed = [train("flash", 64, seed, rng, "oom", **TASK) for seed in range(3)]
    figure = recall_state.figure(tidy([*records, *failed, train("softmax", 64, 0, rng)]))
    assert list(legend(figure)) == ["1 softmax", "2 identity", "3 local"] and len(panels(figure)) == 2
    assert "flash, associative recall, n = 64 (3: oom)" in caption(figure)


def test_without_states_it_is_said(rng):
    records = [changed(one, measurements={"state_bytes": None}) for one in runs(rng)]
    with pytest.raises(MissingRecords, match="state_bytes"):
        recall_state.figure(tidy(records))
