"""Scans in blocks are scans."""

import pytest
import torch

from attention_zoo.ops.feature_product.chunks import SCAN_BLOCK, running_maximum


@pytest.mark.parametrize("length", [1, SCAN_BLOCK - 1, SCAN_BLOCK, SCAN_BLOCK + 1, 3 * SCAN_BLOCK + 5])
def test_running_maximum(length):
    x = torch.randn(2, 3, length, generator=torch.Generator().manual_seed(1)) - 3
    assert torch.equal(running_maximum(x), x.cummax(-1).values)
