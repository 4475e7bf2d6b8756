"""Decoding with cached keys and values."""

import pytest
import torch
import torch.nn.functional as F

from mha.cache import KVCache, cached_attention
from mha.positions import apply_rope


def random_heads(L: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(3, 2, 4, L, 8, dtype=torch.float64, generator=generator))  # q, k, v


@pytest.mark.parametrize("steps", [[6], [1] * 6, [3, 1, 2]])
def test_step_by_step_gives_what_one_pass_gives(steps):
    q, k, v = random_heads(6)
    cache, at = KVCache(), torch.arange(6)
    parts = zip(*(x.split(steps, dim=2) for x in (q, k, v)), strict=True)
    output = torch.cat([cached_attention(*part, cache) for part in parts], dim=2)
    expected = F.scaled_dot_product_attention(apply_rope(q, at), apply_rope(k, at), v, is_causal=True)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    assert len(cache) == 6


def test_append_returns_all_so_far_and_reset_forgets():
    cache = KVCache()
    _, k, v = random_heads(3)
    first = cache.append(k[:, :, :2], v[:, :, :2])
    all_k, all_v = cache.append(k[:, :, 2:], v[:, :, 2:])
    assert torch.equal(all_k, k) and torch.equal(all_v, v)
    assert first[0].size(2) == 2  # what was returned before has not grown
    cache.reset()
    assert len(cache) == 0
    assert cache.append(k, v)[0].size(2) == 3


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda k, v: (k[:1], v[:1]),
            r"k has shape \(1, 4, 2, 8\).* the cache holds \(2, 4, 3, 8\).*only L may",
        ),
        (lambda k, v: (k[:, :2], v[:, :2]), r"k has shape \(2, 2, 2, 8\)"),
        (lambda k, v: (k, v[..., :4]), r"v has shape \(2, 4, 2, 4\)"),
        (lambda k, v: (k.float(), v.float()), "torch.float32"),
        (lambda k, v: (k, v[:, :, :1]), r"k has shape \(2, 4, 2, 8\) and v \(2, 4, 1, 8\)"),
        (lambda k, v: (k[0], v[0]), r"k has shape \(4, 2, 8\); it has to be 4-D"),
    ],
)
def test_what_does_not_fit_is_named_and_the_cache_stays_as_it_was(change, message):
    cache = KVCache()
    _, k, v = random_heads(3)
    cache.append(k, v)
    with pytest.raises(ValueError, match=message):
        cache.append(*change(*random_heads(2)[1:]))
    assert len(cache) == 3
    assert torch.equal(cache.append(k[:, :, :0], v[:, :, :0])[1], v)


def test_queries_that_do_not_fit_leave_the_cache_as_it_was():
    cache = KVCache()
    q, k, v = random_heads(2)
    with pytest.raises(ValueError, match="Q has d_k=6 and K has d_k=8"):
        cached_attention(q[..., :6], k, v, cache)
    assert len(cache) == 0
