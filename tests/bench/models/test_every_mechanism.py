"""What a model promises whatever its mechanism is."""

import pytest
import torch
import torch.nn.functional as F
from model_cases import (
    DECODERS,
    MODELS,
    SEQ_LEN,
    VOCABULARY,
    attentions,
    config,
    every_decoder,
    made,
    tokens,
    tolerance,
)
from zoo_cases import NAMES

from attention_zoo import UnsupportedError, hyperparameters, info
from bench.common.mechanism import build_attention
from bench.models import build


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(DECODERS)))
def test_what_knows_the_future_is_no_decoder(name):
    with pytest.raises(UnsupportedError, match=rf"causal=true: {name} cannot|attention={name}: which keys"):
        build(config(name=name), VOCABULARY)


@every_decoder
def test_a_shorter_sequence_has_the_logits_of_its_prefix_so_that_none_knows_a_later_token(name):
    model, read = made(name=name), tokens()
    with torch.no_grad():
        whole = model(read)
        for length in (1, 4, SEQ_LEN - 1):
            part = model(read[:, :length])
            torch.testing.assert_close(part, whole[:, :length], rtol=0, atol=tolerance(name))


# That each mechanism's weights are of its seed and have gradients: `test_contract.py`. Here the model is what learns.
both_models = pytest.mark.parametrize("model, name", [("transformer", "softmax"), ("encoder", "softmax")])


@both_models
def test_it_learns_a_batch_by_heart(model, name):
    """Of sequences that differ from the first token on; that is never the same twice, so that nothing is ambiguous."""
    learner = build(config(model, name), VOCABULARY).train()
    read = tokens(4)
    read[:, 0] = torch.arange(4)
    read, targets = (read[:, :-1], read[:, 1:]) if model == "transformer" else (read, read.flip(1))
    optimiser = torch.optim.AdamW(learner.parameters(), lr=1e-2, weight_decay=0)
    for _step in range(200):
        loss = F.cross_entropy(learner(read).flatten(0, 1), targets.flatten())
        if loss < 0.1:
            return
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    pytest.fail(f"still {loss.item():.3f}")


@both_models
def test_every_weight_is_of_use(model, name):
    learner = made(model, name)
    learner(tokens()).square().sum().backward()
    assert [key for key, p in learner.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@pytest.mark.parametrize(
    "model, name", [("transformer", "performer"), ("transformer", "polysketch"), ("encoder", "linformer")]
)
def test_weights_are_of_the_seed_alone(model, name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(config(model, name, seed=7), VOCABULARY).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = build(config(model, name, seed=7), VOCABULARY)
    other = build(config(model, name, seed=8), VOCABULARY).state_dict()
    assert all(torch.equal(tensor, first[key]) for key, tensor in again.state_dict().items())
    assert [key for key in first if key.endswith("embedding.weight") and torch.equal(first[key], other[key])] == []
    for seed, attention in zip((7, 8), attentions(again), strict=True):
        alone = build_attention(config(model, name), seed=seed)
        assert attention.seed == seed
        ours, theirs = ((*each.buffers(), *each.parameters()) for each in (attention, alone))
        assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


@every_decoder
def test_activations_that_are_computed_again_have_the_same_gradients(name):
    gradients, calls = {}, []
    weights = {"dropout": 0.3} if "dropout" in hyperparameters(name) else {}
    for again in (False, True):
        settings = {"dropout": 0.2, "activation_checkpointing": again}
        model = made(name=name, settings=settings, attention=weights).train()
        for attention in attentions(model):
            attention.register_forward_hook(lambda *_, again=again: calls.append(again))
        torch.manual_seed(0)
        model(tokens()).square().sum().backward()
        gradients[again] = {key: p.grad for key, p in model.named_parameters()}
    assert calls == [False] * 2 + [True] * 4
    for key, gradient in gradients[False].items():
        torch.testing.assert_close(gradients[True][key], gradient, rtol=1e-6, atol=tolerance(name))


# Of what is somebody else's the contract does not ask it.
@pytest.mark.parametrize("model, name", [case for case in MODELS if "softmax" in case or info(case[1]).package])
def test_autocast_to_bfloat16_costs_its_rounding(model, name):
    if torch.bfloat16 not in info(name).dtypes:
        pytest.skip("takes no bfloat16")
    learner, read = build(config(model, name), VOCABULARY), tokens()
    seen = set()
    for attention in attentions(learner):
        attention.register_forward_pre_hook(lambda _, given: seen.update(x.dtype for x in given))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = learner(read)
        loss = F.cross_entropy(logits.float().flatten(0, 1), read.flatten())
    assert seen == {torch.bfloat16} and learner(read).dtype == torch.float32
    torch.testing.assert_close(logits.float(), learner(read), rtol=0, atol=0.1)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in learner.parameters())
