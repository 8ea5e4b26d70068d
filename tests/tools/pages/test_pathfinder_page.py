"""What docs/quality.md says of Pathfinder is what the committed records say."""

import re

from tools.pages import pathfinder


def test_labels_of_short_contours_can_be_learned_and_those_of_long_ones_were_not():
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in pathfinder.learned().splitlines()[2:]]
    found = {(row[0], row[2]): [float(number) for number in re.findall(r"\d+\.\d", row[4])] for row in rows}
    assert [row[0] for row in rows] == ["3", "3", "6", "6"] and rows[0][2] == "`convolution`"
    assert found["3", "`convolution`"][1] > 80
    for (contour, _), (_, low, high) in found.items():
        assert low > 50 if contour == "3" else low < 50 < high
