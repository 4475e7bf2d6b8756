"""Rotary positions and ALiBi's slopes: their stages, and the inputs on which they are tried."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import mha
from mha.check.catalogue import Stage
from mha.check.exercise import Exercise, Probe
from mha.check.exercises.inputs import random_tensors


def rope_frequencies(d_k: int) -> Tensor:
    """d_k → (d_k/2,): how far each pair turns from one position to the next."""
    return 10_000.0 ** (-torch.arange(0, d_k, 2, dtype=torch.float64) / d_k)


def rope_positions(positions: Tensor, x: Tensor) -> Tensor:
    """As they are given."""
    return positions


def rope_angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    """(L,), (d_k/2,) → (L, d_k/2)."""
    return positions.double()[:, None] * frequencies


def rope_layout(angles: Tensor) -> Tensor:
    """(L, d_k/2) → (L, d_k): the angle for each number, both of a pair alike."""
    return torch.cat([angles, angles], dim=-1)


def rope_round(table: Tensor, x: Tensor) -> Tensor:
    """Cos or sin of the angles → the dtype in which x is turned."""
    return table.to(x.dtype)


def rope_pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Number i goes with number i + d_k/2."""
    half = x.size(-1) // 2
    return x[..., :half], x[..., half:]


def rope_turn(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Turn the vectors (a, b); cos and sin are (L, d_k), those for a in front."""
    n = a.size(-1)
    return a * cos[..., :n] - b * sin[..., :n], a * sin[..., n:] + b * cos[..., n:]


def rope_join(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Put the halves back where they came from."""
    return torch.cat([a, b], dim=-1)


ROPE: dict[str, Stage] = {
    "rope_frequencies": rope_frequencies,
    "rope_positions": rope_positions,
    "rope_angles": rope_angles,
    "rope_layout": rope_layout,
    "rope_round": rope_round,
    "rope_pairs": rope_pairs,
    "rope_turn": rope_turn,
    "rope_join": rope_join,
}


def rope(s: Mapping[str, Stage], x: Tensor, positions: Tensor) -> Any:
    """Run the stages of rotary positions."""
    frequencies = s["rope_frequencies"](x.size(-1))
    angles = s["rope_layout"](s["rope_angles"](s["rope_positions"](positions, x), frequencies))
    cos, sin = s["rope_round"](angles.cos(), x), s["rope_round"](angles.sin(), x)
    a, b = s["rope_turn"](*s["rope_pairs"](x), cos, sin)
    return s["rope_join"](a, b, x)


def _rope_probes() -> list[Probe]:
    pair, one, several = (x.float() for x in random_tensors((1, 1, 3, 2), (1, 1, 1, 8), (2, 3, 4, 8)))
    wide = random_tensors((2, 3, 5, 16), seed=1)[0].float()  # where a half and a quarter are several pairs
    strided = several.transpose(1, 2).contiguous().transpose(1, 2)
    # No number near zero, whose digits hang on the precision of the angles, and positions that half holds.
    double = torch.linspace(0.6, 1.7, 12, dtype=torch.float64).view(1, 1, 3, 4)
    probes = [
        ("one pair of numbers, positions 0, 1, 2", "rope_turn", pair, [0, 1, 2]),
        ("a token at position 0", "rope_positions", one, [0]),
        ("a token at position 1", "rope_frequencies", one, [1]),
        ("positions from 0 on", "rope_pairs", several, [0, 1, 2, 3]),
        ("positions that do not start at 0", "rope_positions", several, [5, 6, 7, 8]),
        ("positions far apart and in no order", "rope_positions", several, [7, 2, 30, 11]),
        ("rows of 16 numbers", "rope_frequencies", wide, [3, 1, 9, 4, 12]),
        ("an x in float64", "rope_round", double, [0, 1, 2]),
        ("an x in half precision", "rope_round", double.half(), [0, 1, 2]),
        ("an x that does not lie in memory in order", "rope_pairs", strided, [4, 5, 6, 7]),
    ]
    return [
        Probe(shows, stage, {"x": x, "positions": torch.tensor(positions)})
        for shows, stage, x, positions in probes
    ]


def alibi_power(h: int) -> int:
    """The largest power of two up to h."""
    return 1 << (h.bit_length() - 1)


def alibi_row(n: int) -> list[float]:
    """The slopes of n heads, n a power of two."""
    return [2.0 ** (-8 * i / n) for i in range(1, n + 1)]


def alibi_between(row: list[float]) -> list[float]:
    """From the slopes of twice as many heads, every other one."""
    return row[0::2]


def alibi_order(slopes: list[float], between: list[float], h: int) -> list[float]:
    """The first h of both, one after the other."""
    return (slopes + between)[:h]


def alibi_give(slopes: list[float]) -> Any:
    """(h,), float32."""
    return torch.tensor(slopes, dtype=torch.float32)


ALIBI: dict[str, Stage] = {
    "alibi_power": alibi_power,
    "alibi_row": alibi_row,
    "alibi_between": alibi_between,
    "alibi_order": alibi_order,
    "alibi_give": alibi_give,
}


def alibi(s: Mapping[str, Stage], num_heads: int) -> Any:
    """Run the stages of ALiBi's slopes."""
    power = s["alibi_power"](num_heads)
    between = s["alibi_between"](s["alibi_row"](2 * power))
    return s["alibi_give"](s["alibi_order"](s["alibi_row"](power), between, num_heads))


def _alibi_probes() -> list[Probe]:
    powers, others = (8, 1, 2, 16), (3, 5, 6, 12, 15)
    sizes = [(h, "alibi_row") for h in powers] + [(h, "alibi_between") for h in others]
    return [Probe(f"num_heads={h}", stage, {"num_heads": h}) for h, stage in sizes]


APPLY_ROPE = Exercise("apply_rope", "(x, positions)", mha.apply_rope, ROPE, rope, _rope_probes)

ALIBI_SLOPES = Exercise("alibi_slopes", "(num_heads)", mha.alibi_slopes, ALIBI, alibi, _alibi_probes)
