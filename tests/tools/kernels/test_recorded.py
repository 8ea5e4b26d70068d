"""The table of what kernels compile to, and what is worse than it."""

import pytest

from tools.kernels import recorded
from tools.kernels.recorded import Row

ROW = Row("op forward h64", "forward", 90, "3.7.1", "bfloat16", "m64_w4_s3", 120, 0, 65536, 3, "", "10 instructions")
SPILLING = ROW._replace(kernel="backward", spill_bytes=8, problems="spills registers")


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    """Where the table is."""
    monkeypatch.setattr(recorded, "TABLE", tmp_path / "machine_code.csv")
    return recorded.TABLE


def test_rows_are_read_as_they_were_written_a_line_each_in_one_order(table):
    recorded.write([SPILLING, ROW])
    text = table.read_text()
    assert recorded.read() == sorted([ROW, SPILLING]) and len(text.splitlines()) == 3
    recorded.write([ROW, SPILLING])
    assert table.read_text() == text


def test_renewing_replaces_what_was_compiled_and_forgets_calls_that_are_no_more():
    others = [ROW._replace(target=80), ROW._replace(triton="3.6.0"), ROW._replace(call="op backward h64")]
    gone = ROW._replace(call="old forward h64")
    now = ROW._replace(registers=100, kernel="renamed")
    renewed = recorded.renewed([ROW, SPILLING, gone, *others], [now], {ROW.call, "op backward h64"})
    assert sorted(renewed) == sorted([*others, now])


@pytest.mark.parametrize(
    ("changes", "worse"),
    [
        ({"blocks": 2, "registers": 170}, "2 blocks fit on a multiprocessor, 3 did (170 registers)"),
        ({"spill_bytes": 4, "problems": "spills registers"}, "spills registers"),
        ({"problems": "is serialised"}, "is serialised"),
        ({"shared_bytes": 65537}, "takes 65537 bytes of shared memory, it was 65536"),
        ({"kernel": "another"}, "is not in machine_code.csv"),
    ],
)
def test_what_is_worse_is_one_line_that_says_what_to_do(changes, worse):
    found = recorded.regressions([ROW], [ROW._replace(**changes)])[0]
    kernel = changes.get("kernel", "forward")
    assert found == (
        f"op forward h64, {kernel}, sm_90: {worse}; mend it, or accept it by "
        "`python -m tools.kernels.ahead_of_time --match 'op forward h64' --write`"
    )


@pytest.mark.parametrize(
    "changes", [{"registers": 90, "blocks": 5}, {"shared_bytes": 1}, {"loops": "", "dtype": "x"}, {"triton": "3.6.0"}]
)
def test_what_is_not_worse_or_of_another_triton_is_no_regression(changes):
    changed = [row._replace(**changes) for row in (ROW, SPILLING)]
    assert recorded.regressions([ROW, SPILLING], changed) == recorded.regressions([], changed) == []


def test_known_problems_are_accepted_as_far_as_they_go():
    assert recorded.regressions([SPILLING], [SPILLING]) == []
    (found,) = recorded.regressions([SPILLING], [SPILLING._replace(spill_bytes=16)])
    assert "spills 16 bytes, it was 8" in found
    (found,) = recorded.regressions([SPILLING], [SPILLING._replace(problems="spills registers; is serialised")])
    assert ": is serialised;" in found


def test_a_kernel_that_is_no_longer_launched_is_said():
    (found,) = recorded.regressions([ROW, SPILLING], [ROW])
    assert found.startswith("op forward h64, backward, sm_90: is no longer launched, but in machine_code.csv;")
    assert recorded.regressions([ROW, SPILLING._replace(target=80)], [ROW]) == []


def test_a_row_says_problems_and_loops_on_lines_of_their_own():
    loops = ["10 instructions: 1 HMMA", "20 instructions: 2 HMMA"]
    head, *said = map(str.strip, str(SPILLING._replace(loops=" / ".join(loops))).splitlines())
    assert head == "sm_90 op forward h64, backward m64_w4_s3: 120 registers, 8 B spilled, 64.0 KB shared, 3 blocks"
    assert said == [*(f"loop of {loop}" for loop in loops), "PROBLEM: spills registers"]
