"""Sentences of captions about the rows of a figure: machine, settings, disturbances, code, functions."""

from collections.abc import Mapping

import pandas as pd

from analysis.plots.layout import shown
from analysis.plots.marks import length_name
from analysis.selection import controls, mask, of_several_codes

MOST_NAMED = 4  # in a sentence


def machine(frame: pd.DataFrame) -> str:
    """Where the rows were measured: device, cores, threads, torch."""
    device = _values(frame, "device_name") or _values(frame, "device")
    cores, threads = _counted(frame, "cpu_count", "core"), _counted(frame, "threads", "thread")
    return f"{device}, {cores}, {threads}, torch {_values(frame, 'torch')}"


def setting(frame: pd.DataFrame) -> str:
    """The settings of the rows in words: dtype, heads, batch, mask, inputs."""
    batch = "batch_size" if frame["batch_size"].nunique() <= frame["tokens"].nunique() else "tokens"
    weights = _values(frame, "weights")
    parts = [
        _values(frame, "dtype"),
        f"{_counted(frame, 'num_heads', 'head')} x {_values(frame, 'head_dim')}",
        f"{'batch size' if batch == 'batch_size' else 'tokens per batch:'} {_values(frame, batch)}",
        " and ".join(map(mask, sorted(set(frame["causal"].dropna())))),
        f"{_values(frame, 'inputs')} inputs" + (f" ({weights} weights)" if weights else ""),
    ]
    return ", ".join(parts)


def conditions(frame: pd.DataFrame) -> str:
    """Sentences on machine and settings, and on points that were measured under disturbance or by different code."""
    return by_panel({"": frame})


def by_panel(panels: Mapping[str, pd.DataFrame]) -> str:
    """As `conditions`; panels with different inputs each have their setting, after their name."""
    frame = pd.concat(panels.values())
    words = setting(frame)
    if len({_values(rows, "inputs") for rows in panels.values() if len(rows)}) > 1:
        words = "; ".join(f"{name}: {setting(rows)}" for name, rows in panels.items() if len(rows))
    return " ".join(filter(None, [f"{machine(frame)}; {words}.", disturbed(frame), code(frame)]))


def disturbed(frame: pd.DataFrame) -> str:
    """A sentence that names what was measured while the machine was not quiet; empty without any."""
    rows = frame[frame["disturbed"]].drop_duplicates("cell_id").sort_values(["attention", "seq_len"])
    if rows.empty:
        return ""
    names = [f"{shown(one.attention)} at n = {length_name(one.seq_len)}" for one in rows.itertuples()]
    why = {reason.partition(":")[0] for text in rows["disturbance"] for reason in text.split("; ")}
    return f"Measured under disturbance ({', '.join(sorted(why))}): {_list(names, MOST_NAMED)}."


def code(frame: pd.DataFrame) -> str:
    """A sentence that names the mechanisms whose points may come from different code; empty without any."""
    names = [shown(label) for label in of_several_codes(frame)]
    return f"Points that different code may have measured: {_list(names, MOST_NAMED)}." if names else ""


def functions(rows: pd.DataFrame) -> str:
    """Sentences on which mechanisms approximate softmax, compute other functions or are controls; may be empty."""
    is_control = controls(rows)
    known, rows = sorted(set(rows.loc[is_control, "mechanism"])), rows[~is_control]
    is_softmax = rows["function"] == "softmax"
    other = sorted(set(rows.loc[~is_softmax, "mechanism"]))
    approximate = sorted(set(rows.loc[is_softmax & ~rows["exact"], "mechanism"]))
    sentences = []
    if other and is_softmax.any():
        verb = "computes another function" if len(other) == 1 else "compute other functions"
        sentences.append(f"{_list(other)} {verb} than softmax: costs compare, errors do not.")
    if approximate:
        verb = "approximates" if len(approximate) == 1 else "approximate"
        sentences.append(f"{_list(approximate)} {verb} softmax attention.")
    if known:
        sentences.append(f"{_list(known)} {'is a control' if len(known) == 1 else 'are controls'}.")
    return " ".join(sentences)


def _values(frame: pd.DataFrame, column: str) -> str:
    return ", ".join(str(value) for value in sorted(set(frame[column].dropna())))


def _counted(frame: pd.DataFrame, column: str, noun: str) -> str:
    """`1 thread`, `2 threads`, or several numbers."""
    count = _values(frame, column)
    return f"{count} {noun}{'' if count == '1' else 's'}"


def _list(names: list[str], most: int | None = None) -> str:
    if most is not None and len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
