"""The README's tables are those of the committed tables."""

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


def learned(mechanism):
    """A row of the README: over seeds, the loss of text by length, and what is right of two tasks."""

    def cell(task, length, column, digits):
        (row,) = (
            row
            for row in rows("trained")
            if row["task"].startswith(task) and row["n"] == str(length) and row["attention"].split()[0] == mechanism
        )
        median, low, high = (f"{float(row[word + column]):.{digits}f}" for word in ("", "lowest ", "highest "))
        return median if low == high else f"{median} ({low} to {high})"

    text = (cell("language modelling", length, "loss (nats)", 2) for length in (128, 256, 512))
    tasks = (("induction heads", 15), ("selective copying", 16))
    right = ("–" if "random" in mechanism else f"{cell(*task, 'right (%)', 0)} %" for task in tasks)
    return f"| {' | '.join((mechanism, *text, *right))} |"


def shown(header):
    lines = (ROOT / "README.md").read_text().splitlines()
    start = lines.index(header) + 2
    return lines[start : lines.index("", start)]


def test_the_table_of_what_is_learned_is_that_of_the_records():
    header = "| mechanism | text, n = 128 | n = 256 | n = 512 | induction heads | selective copying |"
    names = ("polysketch_learned_local_r16", "softmax", "polynomial_p4", "polysketch_random_r32", "performer", "linear")
    expected = [learned(name) for name in names]
    assert shown(header) == expected, "\n" + "\n".join(expected)


def test_the_table_of_speeds_is_that_of_the_records():
    header = "| mechanism | mask | from n | at n = | forward | + backward | share | of the reference |"
    not_causal = ("linformer", "skeinformer", "reformer", "bigbird", "performer", "nystromformer", "informer")
    expected = [line(name, False, 4096) for name in not_causal]
    expected += [line(name, True, 8192) for name in ("linear", "polysketch_random_r32", "performer")]
    assert shown(header) == expected, "\n" + "\n".join(expected)
