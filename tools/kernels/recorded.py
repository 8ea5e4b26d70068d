"""The table of compiled kernels, `machine_code.csv`, and regressions against it."""

import csv
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from tools.kernels import machine_code
from tools.kernels.compiled import Compiled

TABLE = Path(__file__).parent / "machine_code.csv"


class Row(NamedTuple):
    """One kernel of a call for one target and version of Triton; `docs/kernels.md` explains the columns."""

    call: str
    kernel: str
    target: int
    triton: str
    dtype: str
    configuration: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    blocks: int
    problems: str
    loops: str

    @property
    def key(self) -> tuple[str, str, int, str]:
        """The columns that identify a row."""
        return self[:4]

    def __str__(self) -> str:
        sizes = f"{self.registers} registers, {self.spill_bytes} B spilled, {self.shared_bytes / 1024:.1f} KB shared"
        lines = [f"sm_{self.target} {self.call}, {self.kernel} {self.configuration}: {sizes}, {self.blocks} blocks"]
        lines += [f"    loop of {loop}" for loop in self.loops.split(" / ") if loop]
        lines += [f"    PROBLEM: {problem}" for problem in self.problems.split("; ") if problem]
        return "\n".join(lines)


def row(compiled: Compiled) -> Row:
    """The row of a compiled kernel."""
    import triton

    loops = machine_code.hot_loops(machine_code.instructions(compiled.cubin))
    return Row(
        call=compiled.call.name,
        kernel=compiled.kernel,
        target=compiled.target,
        triton=triton.__version__,
        dtype=str(compiled.call.dtype).removeprefix("torch."),
        configuration=compiled.configuration.name,
        registers=compiled.registers,
        spill_bytes=compiled.spill_bytes,
        shared_bytes=compiled.shared_bytes,
        blocks=compiled.blocks,
        problems="; ".join(machine_code.problems(compiled)),
        loops=" / ".join(map(str, loops)),
    )


def read() -> list[Row]:
    """The rows of the table; empty if there is no file."""
    if not TABLE.exists():
        return []
    numbers = [name for name, kind in get_type_hints(Row).items() if kind is int]
    with TABLE.open(newline="") as file:
        lines: list[dict[str, Any]] = list(csv.DictReader(file))
    return [Row(**line | {name: int(line[name]) for name in numbers}) for line in lines]


def write(rows: Iterable[Row]) -> None:
    """Write the rows to the table, sorted."""
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(sorted(rows))


def renewed(table: Iterable[Row], rows: Collection[Row], calls: Collection[str]) -> list[Row]:
    """The table with the new rows, without the rows that they replace and rows of calls that no longer exist."""
    compiled = {_compiled(row) for row in rows}
    kept = [row for row in table if row.call in calls and _compiled(row) not in compiled]
    return [*kept, *rows]


def regressions(table: Iterable[Row], rows: Collection[Row]) -> list[str]:
    """One line for each regression, which says what to do; only rows of the same version of Triton are compared."""
    before = {row.key: row for row in table if row.triton in {row.triton for row in rows}}
    if not before:
        return []
    found = [(row, worse) for row in rows for worse in _worse(row, before.get(row.key))]
    compiled, launched = {_compiled(row) for row in rows}, {row.key for row in rows}
    gone = [row for row in before.values() if _compiled(row) in compiled and row.key not in launched]
    found += [(row, f"is no longer launched, but in {TABLE.name}") for row in gone]
    return [
        f"{row.call}, {row.kernel}, sm_{row.target}: {worse}; mend it, or accept it by "
        f"`python -m tools.kernels.ahead_of_time --match '{row.call}' --write`"
        for row, worse in found
    ]


def _compiled(row: Row) -> tuple[str, int, str]:
    """The columns that identify rows that are compiled together."""
    return row.call, row.target, row.triton


def _worse(now: Row, before: Row | None) -> list[str]:
    if before is None:
        return [f"is not in {TABLE.name}"]
    known = before.problems.split("; ")
    worse = [problem for problem in now.problems.split("; ") if problem not in ("", *known)]
    if now.blocks < before.blocks:
        worse.append(f"{now.blocks} blocks fit on a multiprocessor, {before.blocks} did ({now.registers} registers)")
    if now.spill_bytes > before.spill_bytes > 0:
        worse.append(f"spills {now.spill_bytes} bytes, it was {before.spill_bytes}")
    if now.shared_bytes > before.shared_bytes:
        worse.append(f"takes {now.shared_bytes} bytes of shared memory, it was {before.shared_bytes}")
    return worse
