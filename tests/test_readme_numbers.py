"""The README's table of speeds is that of the committed tables."""

import csv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "results" / "laptop" / "tables"


def rows(name):
    with (TABLES / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def line(mechanism, causal, length):
    """A row of the README: from which n on, the speeds over flash, the shares of both implementations."""

    def speed(measured_pass, name):
        (row,) = (
            row
            for row in rows("crossover_speeds")
            if (row["attention"], row["causal"], row["pass"]) == (mechanism, str(causal), measured_pass)
            and (row["dtype"], row["seq_len"]) == ("float32", str(length))
        )
        return row[name]

    (share,) = (
        row
        for row in rows("roofline_shares")
        if (row["attention"], row["causal"], row["n"]) == (mechanism, str(causal), str(length))
    )
    ahead = speed("forward", "from_seq_len")
    ahead = f"{float(ahead):.0f}" if ahead else "all measured"
    forward, both = (f"{float(speed(name, 'over_flash')):.1f}x" for name in ("forward", "forward_backward"))
    shares = (f"{float(share[name]):.0f} %" for name in ("share of the ceiling (%)", "of the reference (%)"))
    cells = (mechanism, "causal" if causal else "not causal", ahead, f"{length:,}", forward, both, *shares)
    return f"| {' | '.join(cells)} |"


def test_the_table_of_speeds_is_that_of_the_records():
    lines = (ROOT / "README.md").read_text().splitlines()
    header = "| mechanism | mask | from n | at n = | forward | + backward | share | of the reference |"
    start = lines.index(header) + 2
    shown = lines[start : lines.index("", start)]
    not_causal = ("linformer", "skeinformer", "reformer", "bigbird", "performer", "nystromformer", "informer")
    expected = [line(name, False, 4096) for name in not_causal]
    expected += [line(name, True, 8192) for name in ("linear", "polysketch_random_r32", "performer")]
    assert shown == expected, "\n" + "\n".join(expected)
