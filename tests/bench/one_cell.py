"""A cell as a sweep plans it, without one."""

from bench.plan.cell import Variant, make_cell
from bench.plan.config import check

SMALL = {"seq_len": 64, "batch_size": 1, "num_heads": 1, "repeats": 10, "device": "cpu", "tracking": {}}


def one_cell(attention, bench="latency", inputs=None, **changes):
    """The cell of a mechanism, named or with its settings, in a benchmark, named or with its settings."""
    of = {"attention": attention, "bench": bench, "inputs": {"name": "gaussian", **(inputs or {})}}
    of = {group: {"name": named} if isinstance(named, str) else named for group, named in of.items()}
    return make_cell(check({**SMALL, **of, **changes}), Variant(of["attention"]["name"], of["attention"]))
