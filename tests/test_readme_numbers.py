"""The README's tables are those of the committed tables, and what it says of controls is what they learned."""

import csv
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTROLS = ("local_softmax", "local_polynomial", "no_other_token")
NO_OTHER_TOKEN = ("performer", "polysketch_random_r32", "linear")


def rows(name, results="laptop"):
    with (ROOT / "results" / results / "tables" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def only(name, **conditions):
    """The row of a table for which these columns have these values."""
    (row,) = (row for row in rows(name) if conditions.items() <= row.items())
    return row


def line(mechanism, causal, length):
    """A row of the README: from which n on, the speeds over flash, the shares of both implementations."""

    own = {"attention": mechanism, "causal": str(causal)}
    forward, both = (
        only("crossover_speeds", **own, **{"pass": name, "dtype": "float32", "seq_len": str(length)})
        for name in ("forward", "forward_backward")
    )
    share = only("roofline_shares", **own, n=str(length))
    ahead = f"{float(forward['from_seq_len']):.0f}" if forward["from_seq_len"] else "all measured"
    forward, both = (f"{float(row['over_flash']):.1f}x" for row in (forward, both))
    shares = (f"{float(share[name]):.0f} %" for name in ("share of the ceiling (%)", "of the reference (%)"))
    cells = (mechanism, "causal" if causal else "not causal", ahead, f"{length:,}", forward, both, *shares)
    return f"| {' | '.join(cells)} |"


def spread(mechanism, task, length, column):
    """Over seeds of a mechanism, or of a control: median, lowest and highest."""
    (row,) = (
        row
        for row in rows("trained", "controls" if mechanism in CONTROLS else "laptop")
        if row["task"].startswith(task) and row["n"] == str(length) and row["attention"].split()[0] == mechanism
    )
    return [float(row[word + column]) for word in ("", "lowest ", "highest ")]


def text_loss(mechanism, length=512):
    return spread(mechanism, "language modelling", length, "loss (nats)")


def cell(values, digits=2):
    median, low, high = (f"{value:.{digits}f}" for value in values)
    return median if low == high else f"{median} ({low} to {high})"


def learned(mechanism):
    """A row of the README: over seeds, the loss of text by length, and what is right of two tasks."""
    text = (cell(text_loss(mechanism, length)) for length in (128, 256, 512))
    tasks = (("induction heads", 15), ("selective copying", 16))
    right = ("–" if "random" in mechanism else f"{cell(spread(mechanism, *task, 'right (%)'), 0)} %" for task in tasks)
    return f"| {' | '.join((mechanism, *text, *right))} |"


def shown(header):
    lines = (ROOT / "README.md").read_text().splitlines()
    start = lines.index(header) + 2
    return lines[start : lines.index("", start)]


def test_the_table_of_what_is_learned_is_that_of_the_records():
    header = "| mechanism | text, n = 128 | n = 256 | n = 512 | induction heads | selective copying |"
    names = ("softmax", "polynomial_p4", "polysketch_learned_local_r16", *NO_OTHER_TOKEN)
    expected = [learned(name) for name in sorted(names)]
    assert shown(header) == expected, "\n" + "\n".join(expected)


@pytest.mark.parametrize("page", ["README.md", "docs/training.md"])
def test_what_is_said_of_the_controls_is_what_they_learned(page):
    softmax, polynomial, none = (cell(text_loss(name)) for name in CONTROLS)
    hybrid = text_loss("polysketch_learned_local_r16")[0]
    others = [text_loss(name)[0] for name in NO_OTHER_TOKEN]
    sentences = (
        "Attention inside a token's own block of 64 tokens and nothing else has "
        f"{softmax} at n = 512 with softmax weights and {polynomial} with polynomial ones, "
        f"so the {hybrid:.2f} of `polysketch_learned_local_r16` is its window, as far as three seeds tell. "
        f"No other token at all has {none}, so the {min(others):.2f} to {max(others):.2f} "
        "of performer, the random sketch and linear is next to nothing from other tokens"
    )
    assert sentences in " ".join((ROOT / page).read_text().split()), sentences


def test_what_is_concluded_from_the_controls_follows():
    softmax, polynomial, none = (text_loss(name) for name in CONTROLS)
    hybrid = text_loss("polysketch_learned_local_r16")
    assert softmax[0] < hybrid[0]
    for _, low, high in (softmax, polynomial):
        assert max(low, hybrid[1]) < min(high, hybrid[2])
    assert all(none[0] - text_loss(name)[0] < 0.1 * (none[0] - softmax[0]) for name in NO_OTHER_TOKEN)


def test_controls_were_trained_as_what_they_are_beside():
    def settings(results, mechanism):
        """Of each seed, all but the mechanism."""
        for file in (ROOT / "results" / results / "records").glob("*.json"):
            config = json.loads(file.read_text())["config"]
            if config["bench"]["name"] == "train" and config["label"].split()[0] == mechanism:
                yield json.dumps({key: config[key] for key in config.keys() - {"label", "attention"}}, sort_keys=True)

    expected = {each for each in settings("laptop", "softmax") if '"seq_len": 512' in each}
    assert len(expected) == 3
    assert all(sorted(settings("controls", name)) == sorted(expected) for name in CONTROLS)


def test_the_table_of_speeds_is_that_of_the_records():
    header = "| mechanism | mask | from n | at n = | forward | + backward | share | of the reference |"
    not_causal = ("linformer", "skeinformer", "reformer", "bigbird", "performer", "nystromformer", "informer")
    expected = [line(name, False, 4096) for name in not_causal]
    expected += [line(name, True, 8192) for name in ("linear", "polysketch_random_r32", "performer")]
    assert shown(header) == expected, "\n" + "\n".join(expected)
