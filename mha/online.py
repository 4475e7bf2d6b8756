"""Attention in tiles, as FlashAttention does it: the (Lq, Lk) weights never exist as a whole.

Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; Dao et al. 2022,
"FlashAttention", algorithm 1.
"""

import math

import torch
from torch import Tensor

from mha._validate import check_heads, check_size


def online_attention(Q: Tensor, K: Tensor, V: Tensor, block: int) -> Tensor:
    """Compute softmax(Q Kᵀ / √d_k) V, looking at `block` keys at a time.

    For each query three things are kept: the largest score so far, the sum of the exponentials relative to
    it, and the mix of the values with these. When a larger score turns up, sum and mix are scaled down to it.

    Args:
        Q: (…, Lq, d_k). K: (…, Lk, d_k). V: (…, Lk, d_v), with Lk at least 1.
        block: how many keys are in a tile; the last one may have fewer.

    Returns:
        output (…, Lq, d_v).

    Raises:
        TypeError, ValueError: if the tensors do not fit together or block is not a positive integer.

    Source: Milakov and Gimelshein 2018, algorithm 3.
    """
    check_heads(Q, K, V)
    check_size("block", block)
    if K.size(-2) == 0:
        raise ValueError(f"K has shape {tuple(K.shape)}; there has to be at least one key")
    Q = Q / math.sqrt(Q.size(-1))
    largest = Q.new_full((*Q.shape[:-1], 1), -math.inf)  # (…, Lq, 1)
    total = torch.zeros_like(largest)  # (…, Lq, 1)
    mix = Q.new_zeros((*Q.shape[:-1], V.size(-1)))  # (…, Lq, d_v)
    for keys, values in zip(K.split(block, dim=-2), V.split(block, dim=-2)):
        scores = Q @ keys.transpose(-2, -1)  # (…, Lq, block)
        larger = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
        shrink = (largest - larger).exp()  # 1 where the largest stays, less where it grows
        powers = (scores - larger).exp()
        total = total * shrink + powers.sum(dim=-1, keepdim=True)
        mix = mix * shrink + powers @ values
        largest = larger
    return mix / total
