"""The base class of mechanisms with a feature map, as somebody who adds one uses it."""

import pytest
import torch
from torch import nn

from attention_zoo import UnsupportedError
from attention_zoo.feature_map import FeatureMapAttention
from attention_zoo.info import AttentionInfo


class Scaled(FeatureMapAttention):
    """Exponentials of weighted coordinates."""

    info = AttentionInfo("scaled", "", causal=True, implementations=("reference", "fused"))

    def __init__(self, **common):
        super().__init__(**common)
        self.num_features = self.head_dim
        self.weight = nn.Parameter(torch.full((self.head_dim,), 0.3))

    def features(self, x):
        return (x * self.weight).exp()


@pytest.mark.parametrize("causal", [False, True])
def test_features_with_parameters_learn_or_are_refused_by_a_fast_path_that_does_not_know_them(causal):
    given = [torch.randn(1, 2, 9, 4) for _ in range(3)]
    attention = Scaled(head_dim=4, num_heads=2, causal=causal)
    (gradient,) = torch.autograd.grad(attention(*given).square().sum(), attention.parameters())
    assert attention.executed.impl == "reference" and gradient.abs().min() > 0
    with pytest.raises(UnsupportedError, match=r"^impl=fused: scaled has parameters"):
        Scaled(head_dim=4, num_heads=2, causal=causal, impl="fused")(*given)
