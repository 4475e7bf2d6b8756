"""Random inputs on which several exercises are tried."""

from typing import Any

import torch
from torch import Tensor


def random_tensors(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """Return a float64 tensor of each shape."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def qkv(B: int, h: int, Lq: int, Lk: int, d_k: int, d_v: int) -> dict[str, Any]:
    """Return Q (B, h, Lq, d_k), K (B, h, Lk, d_k) and V (B, h, Lk, d_v)."""
    Q, K, V = random_tensors((B, h, Lq, d_k), (B, h, Lk, d_k), (B, h, Lk, d_v))
    return {"Q": Q, "K": K, "V": V}


def random_mask(B: int, Lq: int, Lk: int, h: int = 1) -> Tensor:
    """A mask that differs for each example, and for each of h heads, and hides no query's last key.

    Each key is seen by one query at least, and no query sees them all, if there are four or more.
    """
    mask = torch.rand(B, h, Lq, Lk, generator=torch.Generator().manual_seed(1)) < 0.5
    queries, keys = torch.arange(Lq)[:, None], torch.arange(Lk)
    mask = mask & ((keys != (queries + 1) % (Lk - 1)) | (Lk < 4))
    return mask | (keys % Lq == queries) | (keys == Lk - 1)
