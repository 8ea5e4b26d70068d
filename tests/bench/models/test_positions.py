"""Positions: what is turned, by how much, and how exactly."""

import math

import torch
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding, apply_rotary_pos_emb

from bench.models.layers import Rotary, sinusoidal


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_scores_depend_on_differences_only():
    """The same query and key everywhere: a score is a function of how far they are apart, and not of less."""
    rotary, n = Rotary(40, 16), 40
    query, key = (x[None, None].expand(1, 1, n, 16) for x in drawn(2, 1, 16))
    scores = (rotary(query) @ rotary(key).mT)[0, 0]
    for offset in range(1 - n, n):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    assert len(scores[0].mul(1e3).round().unique()) > n // 2
    torch.testing.assert_close(rotary(query).norm(dim=-1), query.norm(dim=-1), rtol=0, atol=1e-6)
    torch.testing.assert_close(rotary(query)[:, :, 0], query[:, :, 0])


def test_rotary_is_llamas():
    query, key = drawn(2, 2, 3, 50, 16).float()
    given = LlamaConfig(hidden_size=48, num_attention_heads=3, head_dim=16, max_position_embeddings=50)
    cos, sin = LlamaRotaryEmbedding(given)(query, torch.arange(50)[None])
    expected = apply_rotary_pos_emb(query, key, cos, sin)
    rotary = Rotary(64, 16)
    torch.testing.assert_close((rotary(query), rotary(key)), expected, rtol=0, atol=1e-5)


def test_far_positions_are_as_exact_as_near_ones():
    """The fastest coordinate at position 32,767, against Python's own sine; in float32 the slower ones would be off."""
    far = 2**15 - 1
    added, rotary = sinusoidal(far + 1, 8), Rotary(far + 1, 8)
    for pair in range(4):
        angle = far / 10000 ** (2 * pair / 8)
        expected = torch.tensor([math.sin(angle), math.cos(angle)])
        for found in (added[far, 2 * pair : 2 * pair + 2], torch.stack([rotary.sin[far, pair], rotary.cos[far, pair]])):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_a_turned_tensor_keeps_its_dtype():
    assert Rotary(4, 8)(drawn(1, 1, 4, 8).bfloat16()).dtype == torch.bfloat16
