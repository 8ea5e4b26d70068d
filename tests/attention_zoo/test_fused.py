"""Every fast path that runs on a CPU against its reference, in double precision: outputs, gradients, masks, lengths."""

import itertools

import pytest
import torch
from small import assert_close, maker, outcomes, padding_mask, sized

import attention_zoo
from attention_zoo import bigbird, informer
from attention_zoo.ops import chunks, fused_softmax
from attention_zoo.ops.feature_product import blocks, feature_maps
from attention_zoo.ops.feature_product import cpu as block_product

HEADS, H, LONGEST = 2, 8, 75
qkv, create = sized(LONGEST, h=H, batch=3), maker("", head_dim=H, max_seq_len=LONGEST)
PAIRS = itertools.product(("importance", "uniform"), ("adaptive", "simple", "none"))
ABLATIONS = [
    {"num_features": 6, "column_sampling": sampling, "row_normalization": normalization, "pilot_reuse": i % 2 == 0}
    for i, (sampling, normalization) in enumerate(PAIRS)
]
CASES = [
    ("linformer", {"projection_dim": 6}),
    ("linformer", {"projection_dim": 6, "share_key_value": True}),
    ("linformer", {"projection_dim": 6, "unreduced": True}),
    ("nystromformer", {"num_landmarks": 5}),
    ("nystromformer", {"num_landmarks": 5, "conv_kernel_size": 3}),
    ("nystromformer", {"num_landmarks": 25, "iterations": 1}),
    ("informer", {"num_features": 6}),
    ("informer", {"num_features": 6, "num_samples": 1}),
    ("informer", {"num_features": 6, "mask_samples": True, "use_sampling_factor": True}),
    ("bigbird", {"block_size": 5}),
    ("bigbird", {"block_size": 4, "num_random_blocks": 0}),
    ("reformer", {"bucket_size": 8}),
    ("reformer", {"bucket_size": 1, "num_hashes": 3}),
    ("reformer", {"bucket_size": 8, "num_hashes": 1, "causal": True}),
    ("polynomial", {"degree": 4}),
    ("polynomial", {"degree": 6, "causal": True, "bias": 0.0, "qk_layernorm": False}),
    ("polynomial_square", {"degree": 3, "alpha": 0.5, "bias": 0.5}),
    ("polynomial_square", {"degree": 2, "causal": True, "trainable": True, "seed": 2}),
    ("linear", {"block_size": 8}),
    ("linear", {"block_size": 8, "causal": True}),
    ("performer", {"num_features": 7, "block_size": 8}),
    ("performer", {"num_features": 7, "block_size": 8, "causal": True, "scale": 3.0}),
    ("performer", {"num_features": 7, "causal_algorithm": "cumulative_sum", "causal": True}),
    ("polysketch", {"sketch_size": 7, "block_size": 8}),
    ("polysketch", {"sketch_size": 7, "block_size": 8, "causal": True, "per_head": True}),
    ("polysketch", {"sketch_size": 7, "block_size": 8, "causal": True, "bias": 0.0, "local": True, "degree": 8}),
    ("polysketch", {"block_size": 16, "causal": True, "degree": 2}),
    ("polysketch", {"sketch_size": 7, "causal": True}),
    ("polysketch", {"sketch_size": 7, "causal": True, "local": True}),
    ("performer", {"num_features": 7, "causal": True}),
    ("polysketch", {"sketch_size": 7, "block_size": 8, "sketch": "learned", "degree": 8}),
    ("polysketch", {"sketch_size": 7, "block_size": 8, "sketch": "learned", "local": True, "causal": True}),
    ("polysketch", {"sketch_size": 8, "block_size": 8, "sketch": "srht", "causal": True, "qk_layernorm": False}),
    *(("skeinformer", ablation) for ablation in ABLATIONS),
]
# One of each mechanism, with a mask or without, and of each sketch.
FEW = {(name, given.get("causal"), given.get("sketch")): (name, given) for name, given in CASES}.values()
every_case = pytest.mark.parametrize(
    ("name", "given"), CASES, ids=[f"{name}-" + ",".join(map(str, given.values())) for name, given in CASES]
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Several chunks of several rows, and a part of one, at the lengths of these tests."""
    for module, sizes in {
        chunks: {"CPU_ENTRIES": 4000, "LEAST_ROWS": 2},
        fused_softmax: {"ENTRIES": 1000},
        block_product: {"ENTRIES": 1000, "CHUNK": 300},
        blocks: {"SLAB": 10},
        feature_maps: {"GROUP": 3},
        bigbird: {"GATHERED": 4000},
        informer: {"ENTRIES": 4000, "GATHERED_KEYS": 1},
    }.items():
        for name, size in sizes.items():
            monkeypatch.setattr(module, name, size)


@every_case
@pytest.mark.parametrize("n, padded", [(1, False), (3, True), (LONGEST, False), (LONGEST, True)])
def test_output_and_gradients_are_those_of_the_reference(name, given, n, padded):
    tensors, mask = qkv(n), padding_mask(n) if padded else None
    if mask is not None:
        for x in tensors[1:]:
            x[mask[:, None].expand(-1, HEADS, -1)] *= 30  # to be seen if it is
    reference, fused = create(name, impl="reference", **given), create(name, impl="fused", **given)
    expected, actual = (outcomes(attention, tensors, mask) for attention in (reference, fused))
    assert fused.executed.impl == "fused" and reference.executed.impl == "reference"
    assert_close(actual, expected)


def halved_gradients(attention, tensors, call):
    """With inputs that are products themselves, and so computed again where the attention is."""
    out = call(lambda *x: attention(*(0.5 * one for one in x)), *tensors)
    gradients = torch.autograd.grad(out.square().sum(), tensors, allow_unused=True, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize(("name", "given"), FEW)
def test_a_part_of_a_checkpoint_has_the_same_gradients(name, given):
    tensors = [x.float().requires_grad_() for x in qkv(37)]
    attention = create(name, impl="fused", dtype=torch.float32, **given)
    expected = halved_gradients(attention, tensors, lambda function, *x: function(*x))
    again = halved_gradients(
        attention, tensors, lambda function, *x: torch.utils.checkpoint.checkpoint(function, *x, use_reentrant=False)
    )
    torch.testing.assert_close(again, expected)


@pytest.mark.parametrize(
    ("name", "given"),
    [case for case in FEW if not attention_zoo.info(case[0]).data_dependent and "degree" not in case[1]],
)
def test_a_backward_pass_outside_of_autocast_is_that_of_a_forward_pass_inside(name, given):
    tensors = [x.float().requires_grad_() for x in qkv(37)]
    attention = create(name, impl="fused", dtype=torch.float32, **given)

    def inside(function, *x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return function(*(one.bfloat16() for one in x))

    expected = halved_gradients(attention, tensors, lambda function, *x: function(*x))
    found = halved_gradients(attention, tensors, inside)
    assert (found - expected).norm() <= 0.1 * expected.norm()


@pytest.mark.parametrize(("name", "given"), [case for case in CASES if list(create(case[0], **case[1]).parameters())])
def test_gradients_of_parameters_that_stand_in_for_its_own(name, given):
    """What computes features again in the backward pass must do so with the parameters of the forward pass."""
    attention, tensors = create(name, impl="fused", **given), qkv(37)
    others = {key: (1.5 * p).detach().requires_grad_() for key, p in attention.named_parameters()}
    out = torch.func.functional_call(attention, others, tuple(tensors))
    found = torch.autograd.grad(out.square().sum(), others.values())
    attention.load_state_dict(others, strict=False)
    expected = torch.autograd.grad(attention(*tensors).square().sum(), attention.parameters())
    torch.testing.assert_close(found, expected)


@pytest.mark.commands
@pytest.mark.parametrize("name", sorted({name for name, _ in CASES} | {"flash"}))
def test_a_compiler_takes_it_as_one_graph(name):
    torch._dynamo.reset()
    given = next((given for other, given in CASES if other == name), {})
    attention = create(name, dtype=torch.float32, **given)
    tensors = [x.float().requires_grad_() for x in qkv(13)]
    expected, actual = attention(*tensors), torch.compile(attention, fullgraph=True, backend="aot_eager")(*tensors)
    torch.testing.assert_close(actual, expected)
    options = {"allow_unused": True, "materialize_grads": True}  # reformer reads no key
    gradients = [torch.autograd.grad(out.square().sum(), tensors, **options) for out in (actual, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
