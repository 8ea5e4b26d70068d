"""The mechanism that a cell's configuration describes."""

from typing import Any

import attention_zoo


def build_attention(config: dict[str, Any], **changes: Any) -> attention_zoo.Attention:
    """The mechanism of a resolved configuration, on the CPU in float32."""
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
