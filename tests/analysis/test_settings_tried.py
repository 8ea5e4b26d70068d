"""The table of settings that were tried: what differs, and whether softmax or a control is better there."""

import dataclasses

import pandas as pd
import pytest
import synthetic_records
from synthetic_quality import runs

from analysis.frame import tidy
from analysis.selection import MissingRecords
from analysis.tables.settings import table

HELPS = {"softmax": 1.9, "local": 2.0, "identity": 2.4}
DOES_NOT = {"softmax": 2.1, "local": 2.0, "identity": 2.4}


def test_a_row_for_each_setting_says_what_differs_and_who_is_better():
    records = [*runs(DOES_NOT), *runs(HELPS, text="pydoc"), *runs({"softmax": 1.9, "performer": 1.8}, seq_len=128)]
    found = table(tidy(records)).set_index("setting")
    assert list(found.index) == ['task.text="pydoc"', "the usual"]  # at 128 tokens there is no control
    assert found["better"].tolist() == ["softmax", "the control"]
    assert set(found["best control"]) == {"local"} and set(found["seeds"]) == {5}
    assert found["difference (nats)"].to_numpy() == pytest.approx([-0.1, 0.1], abs=0.01)
    assert (found["low"] < found["difference (nats)"]).all() and (found["difference (nats)"] < found["high"]).all()


def test_of_two_equally_frequent_settings_the_usual_one_is_one_of_both():
    """As text 512 comes before 64, and 4 pairs before 8: no cell has the first value of each key."""
    older = runs(HELPS, seq_len=64, settings={"num_pairs": 4}, task="associative_recall")
    newer = runs(HELPS, seq_len=512, settings={"num_pairs": 8}, task="associative_recall")
    for record in newer:
        record.config["training"]["optimizer"] = "muon"
    usual, other = sorted(table(tidy([*older, *newer]))["setting"], key=len)
    old = {"seq_len=64", "task.num_pairs=4", 'training.optimizer="adamw"'}  # older records do not name it
    new = {"seq_len=512", "task.num_pairs=8", 'training.optimizer="muon"'}
    assert usual == "the usual" and any(own <= set(other.split(", ")) for own in (old, new))


def test_looks_that_decide_are_settings_of_their_own():
    """With patience, how often one looks says when a training ends."""
    records = []
    for losses, every in ((DOES_NOT, 50), (HELPS, 5)):
        for one in runs(losses):
            training = one.config["training"] | {"patience": 2, "evaluate_every": every}
            records.append(synthetic_records.record(one.config | {"training": training}, one.measurements))
    found = table(tidy(records)).set_index("setting")
    assert found["better"].to_dict() in (
        {"training.evaluate_every=5": "softmax", "the usual": "the control"},
        {"training.evaluate_every=50": "the control", "the usual": "softmax"},
    )


def test_models_of_two_machines_are_not_compared():
    """Later ones of a GPU, of which there are fewer, take nobody's place."""
    records = [*runs(DOES_NOT), *runs(HELPS, text="pydoc")]
    elsewhere = [
        dataclasses.replace(one, config=one.config | {"device": "cuda:0"}, machine=one.machine | {"gpu_name": "GPU"})
        for one in runs({"softmax": 0.5}, text="pydoc")
    ]
    both = [table(tidy(own)).drop(columns="disturbed", errors="ignore") for own in (records, [*records, *elsewhere])]
    pd.testing.assert_frame_equal(*both)


def test_without_a_control_or_with_one_setting_alone_there_is_no_table():
    for losses in ({"softmax": 1.9, "performer": 1.8}, HELPS):
        with pytest.raises(MissingRecords, match=r"a control .*, in several settings of one task"):
            table(tidy(runs(losses)))


def test_models_of_another_content_of_a_file_are_another_setting():
    records = [*runs(HELPS), *runs(HELPS, text="pydoc")]
    edited = [
        synthetic_records.record(one.config | {"files": {"text": "b"}}, one.measurements)
        for one in runs({"local": 1.5})
    ]
    before, after = (
        table(tidy(each)).set_index("setting")["its loss"].to_dict() for each in (records, records + edited)
    )
    assert before == after
