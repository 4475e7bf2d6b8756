"""How attention learns about order: rotary embeddings turn queries and keys, ALiBi lowers distant scores.

Shapes: B batch, L length, h heads, d_k numbers per head.
"""

import torch
from torch import Tensor

from mha._validate import check_size, check_tensor

_BASE = 10_000.0


def apply_rope(x: Tensor, positions: Tensor) -> Tensor:
    """Turn each pair of numbers (i, i + d_k/2) of a query or key by an angle that grows with its position.

    The dot product of two rotated vectors then depends on their contents and on the *distance* of their
    positions, not on the positions themselves. Pair i turns by position · 10000^(-2i / d_k).

    Args:
        x: queries or keys, (…, L, d_k), d_k even. Values are not rotated.
        positions: of the L tokens, (L,), integers or floats.

    Returns:
        the rotated x, of its shape and dtype. Angles are worked out in at least float32.

    Raises:
        TypeError, ValueError: if d_k is odd, or positions is not one number for each of the L tokens.

    Source: Su et al. 2021, "RoFormer", equations 14 and 34; the halves are paired as in GPT-NeoX.
    """
    _check_rotation(x, positions)
    half = x.size(-1) // 2
    dtype = torch.promote_types(x.dtype, torch.float32)
    pairs = torch.arange(half, device=x.device, dtype=dtype)
    angles = positions.to(dtype)[:, None] * _BASE ** (-pairs / half)  # (L, d_k/2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]  # (…, L, d_k/2) each
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def alibi_slopes(num_heads: int) -> Tensor:
    """Return how fast the scores of each head fall with distance.

    2^(-8/h), 2^(-16/h), … 2^-8 for a power of two. For another h: those of the largest power of two below
    it, then every other one of twice as many.

    Returns:
        (h,), float32.

    Raises:
        TypeError, ValueError: if num_heads is not a positive integer.

    Source: Press et al. 2022, "Train Short, Test Long", section 3, and the authors' code for other h.
    """
    check_size("num_heads", num_heads)
    power = 1 << (int(num_heads).bit_length() - 1)  # the largest power of two up to num_heads
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2.0 ** (-4 * i / power) for i in range(1, 2 * power, 2)]
    return torch.tensor((slopes + between)[:num_heads])


def _check_rotation(x: Tensor, positions: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}; it has to be a tensor (…, L, d_k)")
    if not x.is_floating_point():
        raise TypeError(f"x has dtype {x.dtype}; it has to be a floating-point tensor")
    if x.ndim < 2 or x.size(-1) % 2:
        raise ValueError(f"x has shape {tuple(x.shape)}; it has to be (…, L, d_k) with an even d_k")
    check_tensor("positions", positions, axes=("L",))
    if positions.size(0) != x.size(-2):
        raise ValueError(
            f"positions has {positions.size(0)} entries and x has L={x.size(-2)}; they have to agree"
        )
    if positions.device != x.device:
        raise ValueError(f"positions is on {positions.device} and x on {x.device}; move them to one device")
