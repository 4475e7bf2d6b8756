"""Attention in tiles."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mha.online import online_attention


def random_heads(
    Lq: int, Lk: int, d_v: int = 8, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 3, Lq, 8), (2, 3, Lk, 8), (2, 3, Lk, d_v)]
    return tuple(torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes)


@pytest.mark.parametrize("block", [1, 2, 3, 7, 50])
def test_every_size_of_tile_gives_the_same(block):
    Q, K, V = random_heads(5, 7)
    torch.testing.assert_close(
        online_attention(Q, K, V, block), F.scaled_dot_product_attention(Q, K, V), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("order", [1, -1])
def test_large_scores_rising_or_falling_do_not_overflow(order):
    Q, V = torch.ones(1, 1, 1, 4), torch.eye(4)[None, None]
    K = torch.tensor([-400.0, -100.0, 100.0, 400.0]).view(1, 1, 4, 1).expand(1, 1, 4, 4)
    K = K.flip(2) if order < 0 else K
    weights = online_attention(Q, K, V, 1)[0, 0, 0]
    assert weights.tolist() == ([0, 0, 0, 1] if order > 0 else [1, 0, 0, 0])


def test_values_may_be_of_another_size():
    Q, K, V = random_heads(2, 6, d_v=3)
    assert online_attention(Q, K, V, 4).shape == (2, 3, 2, 3)


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor made under it has."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = [x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.numel = max([self.numel, *made])
        return result


def test_the_weights_never_exist_as_a_whole():
    Q, K, V = random_heads(64, 64)
    with Largest() as largest:
        online_attention(Q, K, V, 4)
    assert 0 < largest.numel <= Q.numel() < 2 * 3 * 64 * 64


def test_gradients_are_those_of_the_whole():
    Q, K, V = (x.requires_grad_() for x in random_heads(3, 5))
    ours = torch.autograd.grad(online_attention(Q, K, V, 2).square().sum(), (Q, K, V))
    theirs = torch.autograd.grad(F.scaled_dot_product_attention(Q, K, V).square().sum(), (Q, K, V))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "block, Lk, error, message",
    [
        (0, 3, ValueError, "block=0 has to be at least 1"),
        (2.0, 3, TypeError, "block=2.0 is a float"),
        (2, 0, ValueError, "there has to be at least one key"),
    ],
)
def test_bad_input_is_named(block, Lk, error, message):
    with pytest.raises(error, match=message):
        online_attention(*random_heads(2, Lk), block)
