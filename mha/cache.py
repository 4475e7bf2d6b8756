"""Decoding without computing twice: the keys and values of earlier tokens are kept.

Differs from the plain layer in that queries come for the new tokens only.
"""

import torch
from torch import Tensor

from mha._validate import check_heads, check_tensor
from mha.attention import scaled_dot_product_attention
from mha.masks import causal_mask
from mha.positions import apply_rope


class KVCache:
    """The keys and values of all tokens so far; `len()` says how many tokens that is."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, for a new sequence."""
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    def __len__(self) -> int:
        return 0 if self._k is None else self._k.size(2)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new tokens behind the old ones.

        Args:
            k, v: those of the new tokens, (B, h, L new, d_k).

        Returns:
            all keys and all values, each (B, h, L so far, d_k). The tensors given are not changed, nor are
            those returned before.

        Raises:
            TypeError, ValueError: if k and v do not fit together or with what is kept, which then stays.
        """
        for name, x in (("k", k), ("v", v)):
            check_tensor(name, x, axes=("B", "h", "L", "d_k"))
        if k.shape[:3] != v.shape[:3]:
            raise ValueError(f"k has shape {tuple(k.shape)} and v {tuple(v.shape)}; B, h and L have to agree")
        if self._k is None or self._v is None:
            self._k, self._v = k, v
        else:
            both = self._joined("k", self._k, k), self._joined("v", self._v, v)
            self._k, self._v = both
        return self._k, self._v

    @staticmethod
    def _joined(name: str, kept: Tensor, new: Tensor) -> Tensor:
        sizes = [(x.size(0), x.size(1), x.size(3), x.dtype, x.device) for x in (kept, new)]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"{name} has shape {tuple(new.shape)}, {new.dtype}, on {new.device}; the cache holds "
                f"{tuple(kept.shape)}, {kept.dtype}, on {kept.device}, and only L may differ"
            )
        return torch.cat([kept, new], dim=2)


def cached_attention(q: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> Tensor:
    """Let new tokens attend to all tokens so far and to themselves, with rotary positions.

    Args:
        q, k, v: those of the new tokens, (B, h, L new, d_k), not rotated yet. They stand behind the tokens
            in the cache.
        cache: takes up the rotated keys, and the values.

    Returns:
        output (B, h, L new, d_k): the last rows of what one pass over the whole sequence would give.

    Raises:
        TypeError, ValueError: if the tensors do not fit together or with the cache, which then stays
            as it was.
    """
    check_heads(q, k, v)
    start = len(cache)
    positions = torch.arange(start, start + q.size(-2), device=q.device)
    k_all, v_all = cache.append(apply_rope(k, positions), v)
    mask = causal_mask(q.size(-2), k_all.size(-2)).to(q.device)
    output, _ = scaled_dot_product_attention(apply_rope(q, positions), k_all, v_all, mask[None, None])
    return output
