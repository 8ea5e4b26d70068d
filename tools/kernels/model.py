"""Times of the kernels predicted from their work: `python -m tools.kernels.model` writes tables of them.

`results/predictions/kernels.csv` was made before any of these kernels ran on a GPU (`docs/kernel_model.md`).
"""

import csv
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from bench.common import signals
from bench.common.errors import Parser
from tools.kernels.clocks import DEVICES, NEXT_KERNEL_S, Device, Predicted, eager_seconds, seconds
from tools.kernels.product_work import polysketch
from tools.kernels.work import FOLDER, Codes, Work, compile_again, compiled, decoding, networks, polynomial

TABLE = FOLDER / "kernels.csv"
PAGE = FOLDER.parents[1] / "docs" / "kernel_model.md"
# Heads of every line, tokens of those that are shorter (as in `experiment=h100_kernels`).
HEADS, TOKENS = 12, 32768
LENGTHS = (2048, 8192, 32768, 131072)
ALL = "all"


class Line(NamedTuple):
    """A call whose time is predicted, and the seconds that are asked of it on an H100, where they are."""

    name: str
    work: Work
    target: float | None = None


class Row(NamedTuple):
    """A line of the table: a kernel of a call, or `all` of them; times of the device and of an eager caller in ms.

    `bound` is what takes the time (`docs/kernel_model.md`), `tflops` the formula's FLOPs over the time.
    """

    call: str
    device: str
    part: str
    launches: int
    device_ms: str
    eager_ms: str
    bound: str
    tflops: str
    target_ms: str
    predicted: str
    commit: str


def lines(code: Codes) -> Iterator[Line]:
    """What is asked of the kernels on a GPU, in the order of the experiment."""
    targets = {(32, False): 0.45e-3, (32, True): 2.0e-3, (64, False): 1.2e-3, (64, True): 5.6e-3}
    for r in (32, 64):
        for backward in (False, True):
            for n in LENGTHS:
                heads = HEADS * max(1, TOKENS // n)
                target = targets[r, backward] if n == TOKENS else None
                work = polysketch(heads, n, r, code, backward=backward)
                yield Line(f"polysketch r{r} {_passes(backward)} n{n}", work, target)
    n, heads = 16384, HEADS * TOKENS // 16384
    for p in (2, 4, 8):
        for backward, rate in ((False, 390e12), (True, 300e12)):
            work = polynomial(heads, n, p, code, backward=backward)
            yield Line(f"polynomial p{p} {_passes(backward)} n{n}", work, work.flops / rate if p == 4 else None)
    for r, share in ((32, 0.25), (64, 0.35)):
        for backward in (False, True):
            work = networks(HEADS * TOKENS, r, code, backward=backward)
            target = None if backward else work.flops / (share * DEVICES[0].product_flops)
            yield Line(f"networks r{r} {_passes(backward)} n{TOKENS}", work, target)
    for r in (32, 64):
        work = decoding(16 * HEADS, r, code)
        # Twice the time of reading the state, half of what is moved.
        target = work.kernels[0].hbm_bytes / DEVICES[0].copy_bytes if r == 32 else None
        yield Line(f"decoding polysketch r{r} batch16", work, target)


def _passes(backward: bool) -> str:
    return "forward_backward" if backward else "forward"


def predicted(line: Line, device: Device) -> tuple[list[tuple[str, int, Predicted]], float, float]:
    """Of each kernel, and of the operations around them, launches and time; the seconds of all, and of a caller."""
    parts = [(kernel.name, 1, seconds(kernel, device)) for kernel in line.work.kernels]
    count, moved = line.work.operations
    if count:
        around = Predicted(moved / device.copy_bytes + count * NEXT_KERNEL_S, "memory" if moved else "launches")
        parts.append(("operations of PyTorch", count, around))
    total = sum(part.seconds for _, _, part in parts)
    return parts, total, eager_seconds(total, count, line.work.kernels)


def table(code: Codes, date: str, commit: str) -> list[Row]:
    """All rows: of every line and device that of the whole, then those of its parts."""
    rows = []
    for line in lines(code):
        for device in DEVICES:
            parts, total, eager = predicted(line, device)
            slowest = max(parts, key=lambda part: part[2].seconds)
            launches = sum(count for _, count, _ in parts)
            target = "" if line.target is None or device != DEVICES[0] else _ms(line.target)
            speed = f"{line.work.flops / total / 1e12:.0f}"
            bound = f"{slowest[0]}: {slowest[2].bound}"
            whole = (ALL, launches, _ms(total), _ms(eager), bound, speed, target)
            rows.append(Row(line.name, device.name, *whole, date, commit))
            rows += [
                Row(line.name, device.name, name, count, _ms(part.seconds), "", part.bound, "", "", date, commit)
                for name, count, part in parts
            ]
    return rows


def _ms(of_seconds: float) -> str:
    return f"{of_seconds * 1e3:.4g}"


def read(file: Path = TABLE) -> list[Row]:
    """The table as it was written."""
    with file.open(newline="") as lines_of_file:
        return [Row(**row | {"launches": int(row["launches"])}) for row in csv.DictReader(lines_of_file)]  # type: ignore[arg-type]


def page(text: str, rows: Iterable[Row]) -> str:
    """The page with what is asked and predicted of an H100 as its last table."""
    head = (
        "| call | asked (ms) | predicted (ms) | its slowest part, and what takes that one's time |\n|---|---|---|---|\n"
    )
    told = (f"| {row.call} | {row.target_ms} | {row.device_ms} | {row.bound} |\n" for row in rows if row.target_ms)
    return text[: text.index(head)] + head + "".join(told)


def write(rows: Iterable[Row], file: Path = TABLE) -> None:
    """Make these the table."""
    with file.open("w", newline="") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = Parser(prog="python -m tools.kernels.model", description=__doc__)
    parser.add_argument("--compile", action="store_true", help="compile the kernels again first, for sm_90")
    given = parser.parse_args(arguments)
    if given.compile:
        compile_again()
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    rows = table(compiled(), datetime.now(UTC).date().isoformat(), commit)
    write(rows)
    PAGE.write_text(page(PAGE.read_text(), rows))
    for row in rows:
        if row.part == ALL:
            target = f", asked: {row.target_ms}" if row.target_ms else ""
            print(f"{row.call}, {row.device}: {row.device_ms} ms, eager {row.eager_ms} ms{target}; {row.bound}")
    print(f"{TABLE.name}: {len(rows)} rows, predicted and not measured")
    return 0


if __name__ == "__main__":
    sys.exit(signals.run(main))
