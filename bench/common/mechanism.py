"""Builds the mechanism of a cell's configuration."""

from typing import Any

import attention_zoo


def build_attention(config: dict[str, Any], **changes: Any) -> attention_zoo.Attention:
    """Build the mechanism of a resolved configuration, on the CPU in float32; `changes` replace its arguments."""
    given = {**config["attention"]}
    arguments = {
        "head_dim": config["head_dim"],
        "num_heads": config["num_heads"],
        "causal": config["causal"],
        "max_seq_len": config["seq_len"],
        "seed": config["seed"],
        "impl": config["impl"],
    }
    return attention_zoo.create(given.pop("name"), **{**arguments, **given, **changes})
