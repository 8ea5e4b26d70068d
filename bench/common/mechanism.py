"""Builds the mechanism of a cell's configuration."""

from typing import Any

import attention_zoo

SEEDS = 2**63
"""How many seeds mechanisms take: what is computed from a cell's seed may be larger."""


def build_attention(config: dict[str, Any], **changes: Any) -> attention_zoo.Attention:
    """Build the mechanism of a resolved configuration, on the CPU in float32; `changes` replace its arguments."""
    given = {**config["attention"]}
    arguments = {key: config[key] for key in ("head_dim", "num_heads", "causal", "seed", "impl")}
    arguments["max_seq_len"] = config["seq_len"]
    return attention_zoo.create(given.pop("name"), **{**arguments, **given, **changes})
