"""docs/reliability.md names the tests that there are, and they are run by one target only."""

import re

import pytest
from promises import COLLECTED, PAGE, ROOT, _added


def test_the_page_names_every_test_that_breaks_things(request):
    rows = re.findall(r"`(tests/.+::\w+)` \|$", PAGE.read_text(), re.MULTILINE)
    collected = request.config.stash[COLLECTED]
    assert collected <= set(rows), "run `make test-faults`"
    if request.config.args_source == pytest.Config.ArgsSource.TESTPATHS:  # all were collected
        assert collected == set(rows) and len(rows) == len(collected)


def test_other_targets_leave_these_tests_out():
    text = (ROOT / "Makefile").read_text()
    for name in ("TESTS", "QUICK"):
        text = text.replace(f"$({name})", re.search(rf"^{name} [:?]= (.*)$", text, re.MULTILINE)[1])
    commands = re.findall("-m pytest.* -m .*", text)
    assert [re.findall(r"(?:not )?faults", line) for line in commands] == [["not faults"]] * 5 + [["faults"]]


def test_figures_of_a_parametrized_test_are_added_and_the_longest_time_counts():
    said = [{"kills": 3, "lost": 0, "ended_within": 1.25}, {"kills": 4, "lost": 1, "ended_within": 0.5}]
    assert list(_added(said)) == ["7 kills", "1 lost", "ended within 1.2 s"]
