"""Peers from the package index: performer-pytorch, linformer, nystrom-attention, reformer-pytorch, local-attention.

All are by Phil Wang (lucidrains). `fused` is the package's own arithmetic on query, key and value: a layer's
projections of the hidden state do no work, and what a package draws is drawn from our seed. Function and work are those
of the zoo's mechanism of the same name; where they are not, the docstring says so. `reference` is the dense matrix of
the package's function.
"""

from attention_zoo.lucidrains import linformer, local, nystromformer, performer, reformer

__all__ = ["linformer", "local", "nystromformer", "performer", "reformer"]
