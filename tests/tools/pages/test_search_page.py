"""What docs/training.md says of the settings in which context helps is what the committed records say."""

import json
import re
from collections import defaultdict
from statistics import mean

from tools.pages import readings, search


def test_each_row_is_a_whole_setting_and_its_numbers_are_those_of_the_files():
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in search.tried().splitlines()[2:]]
    losses = defaultdict(list)
    for path in (readings.RESULTS / "search" / "records").glob("*.json"):
        record = json.loads(path.read_text())
        config = record["config"]
        changed = (
            config["seq_len"],
            config["num_heads"],
            *(json.dumps(config[part]) for part in ("model", "task", "training")),
        )
        losses[changed, config["label"]].append(record["measurements"]["test"]["loss"])
    assert {len(seeds) for seeds in losses.values()} == {3, 5}
    pairs = {
        (f"{mean(seeds):.3f}", f"{mean(losses[changed, search.WINDOW]):.3f}")
        for (changed, label), seeds in losses.items()
        if label == search.SOFTMAX
    }
    assert pairs == {(row[1], row[2]) for row in rows}
    assert [row[0] for row in rows if row[4] == "5"] == ["`seq_len=1024`", "the usual"]
    for _, softmax, window, difference, _, _ in rows:
        value, low, high = (float(number) for number in re.findall(r"[+-]\d\.\d+", difference))
        assert abs(value - (float(softmax) - float(window))) < 0.0011 and low < value < high
