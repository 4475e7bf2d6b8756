"""Shared keys and values."""

import pytest
import torch
import torch.nn.functional as F

from mha.attention import scaled_dot_product_attention
from mha.grouped import repeat_kv


def test_each_group_of_queries_reads_its_own_head():
    x = torch.arange(2.0).view(1, 2, 1, 1)  # head 0 is 0, head 1 is 1
    assert repeat_kv(x, 3).flatten().tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("h_kv", [1, 2, 6])
def test_attention_over_repeated_heads_is_torchs_grouped_attention(h_kv):
    torch.manual_seed(0)
    Q = torch.randn(2, 6, 4, 8, dtype=torch.float64)
    K, V = torch.randn(2, 2, h_kv, 5, 8, dtype=torch.float64)
    ours, _ = scaled_dot_product_attention(Q, repeat_kv(K, 6 // h_kv), repeat_kv(V, 6 // h_kv))
    theirs = F.scaled_dot_product_attention(Q, K, V, enable_gqa=True)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "x, n_rep, error, message",
    [
        (
            torch.ones(2, 3, 4),
            2,
            ValueError,
            r"x has shape \(2, 3, 4\); it has to be 4-D, \(B, h_kv, L, d_k\)",
        ),
        (torch.ones(1, 2, 3, 4), 0, ValueError, "n_rep=0 has to be at least 1"),
        (torch.ones(1, 2, 3, 4), 1.5, TypeError, "n_rep=1.5 is a float"),
    ],
)
def test_bad_input_is_named(x, n_rep, error, message):
    with pytest.raises(error, match=message):
        repeat_kv(x, n_rep)
