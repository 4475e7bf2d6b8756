"""How attention learns about order: sinusoidal encodings, rotary embeddings, ALiBi.

The first are added to the input of the layer; rotary embeddings turn queries and keys, so that their scores
depend on distance; ALiBi lowers the scores of distant keys.

Shapes: B batch, L length (Lq of the queries, Lk of the keys), h heads, d_k numbers per head.
"""

import torch
from torch import Tensor

from mha._validate import check_size, check_tensor

_BASE = 10_000.0


def sinusoidal_encoding(L: int, d_model: int) -> Tensor:
    """Return one row of sines and cosines for each position, to be added to the tokens.

    Number 2i of a row is sin(position · 10000^(-2i / d_model)), number 2i + 1 the cosine of the same angle.

    Returns:
        (L, d_model), float32; the angles are worked out in float64.

    Raises:
        TypeError, ValueError: if L or d_model is not a positive integer, or d_model is odd.

    Source: Vaswani et al. 2017, section 3.5.
    """
    check_size("L", L)
    check_size("d_model", d_model)
    if d_model % 2:
        raise ValueError(f"d_model={d_model} has to be even: each angle gives a sine and a cosine")
    positions = torch.arange(L, dtype=torch.float64)
    pairs = torch.arange(d_model // 2, dtype=torch.float64)
    angles = positions[:, None] * _BASE ** (-2 * pairs / d_model)  # (L, d_model/2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


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


def rope_half_split_to_interleaved(W: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of W_q or W_k from pairs (i, i + d_k/2) to pairs (2i, 2i + 1), in each head.

    With the reordered weights, a rotation of neighbours gives the scores that `apply_rope` gives with W. W_v
    and W_o stay as they are, since values are not rotated.

    Args:
        W: weight (h·d_k, d_model) or bias (h·d_k,) of W_q or W_k, as `nn.Linear` stores it; d_k even.
        num_heads: h of *this* projection; where heads share keys, W_k has fewer than W_q.

    Returns:
        a copy of W with its rows in another order.

    Raises:
        TypeError, ValueError: if W is no weight or bias, or its rows do not make num_heads heads of even d_k.

    Source: Su et al. 2021, "RoFormer", equation 34, pairs neighbours, as Meta's Llama checkpoints do;
        GPT-NeoX, and Llama in `transformers`, pair halves.
    """
    return W[_rows_by_head(W, num_heads).view(num_heads, 2, -1).transpose(1, 2).flatten()]


def rope_interleaved_to_half_split(W: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of W_q or W_k from pairs (2i, 2i + 1) to pairs (i, i + d_k/2), for `apply_rope`.

    Undoes `rope_half_split_to_interleaved`; arguments, result and errors are the same.
    """
    return W[_rows_by_head(W, num_heads).view(num_heads, -1, 2).transpose(1, 2).flatten()]


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


def alibi_bias(num_heads: int, Lq: int, Lk: int | None = None) -> Tensor:
    """Return what ALiBi adds to the scores: minus slope times the distance of query and key.

    It is added after the division by √d_k. Bottom-right aligned like `causal_mask`: the last query stands
    at the last key. A key behind its query is as far as one before it; a causal mask removes it.

    Returns:
        (h, Lq, Lk), float32, 0 where query and key are the same token. Lk is Lq unless given.

    Raises:
        TypeError, ValueError: if a size is not a positive integer.

    Source: Press et al. 2022, "Train Short, Test Long", section 3.
    """
    Lk = Lq if Lk is None else Lk
    check_size("Lq", Lq)
    check_size("Lk", Lk)
    queries, keys = torch.arange(Lk - Lq, Lk), torch.arange(Lk)
    distance = (queries[:, None] - keys).abs()  # (Lq, Lk)
    return alibi_slopes(num_heads)[:, None, None] * -distance


def _rows_by_head(W: Tensor, num_heads: int) -> Tensor:
    """Return the numbers of W's rows, (h, d_k)."""
    if not isinstance(W, Tensor):
        raise TypeError(f"W is a {type(W).__name__}; it has to be a tensor (h·d_k, d_model) or (h·d_k,)")
    if W.ndim not in (1, 2):
        raise ValueError(f"W has shape {tuple(W.shape)}; it has to be (h·d_k, d_model) or (h·d_k,)")
    check_size("num_heads", num_heads)
    rows = W.size(0)
    if rows % (2 * num_heads) or rows == 0:
        raise ValueError(
            f"W has {rows} rows and num_heads={num_heads}; they have to make heads of an even d_k"
        )
    return torch.arange(rows, device=W.device).view(num_heads, -1)


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
