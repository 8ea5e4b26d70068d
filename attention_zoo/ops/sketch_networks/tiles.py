"""The configurations of the networks' kernels."""

from attention_zoo.ops.launching import Configuration, Row


def _tiles(block_m: int, block_hidden: int, num_warps: int, num_stages: int) -> Configuration:
    return Configuration({"BLOCK_M": block_m, "BLOCK_HIDDEN": block_hidden}, num_warps, num_stages)


ROWS = (
    Row("networks", _tiles(64, 128, 4, 2), bits=16, at_most={"r": 32}),
    Row("networks", _tiles(128, 128, 8, 2), bits=16),
    Row("networks", _tiles(32, 32, 4, 2), bits=32),
    Row("input_gradient", _tiles(64, 64, 4, 2), bits=16),
    Row("input_gradient", _tiles(32, 32, 4, 2), bits=32),
    Row("weight_gradients", _tiles(64, 64, 4, 2), bits=16),
    Row("weight_gradients", _tiles(32, 32, 4, 2), bits=32),
)
