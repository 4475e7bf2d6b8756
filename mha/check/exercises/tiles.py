"""Attention in tiles: its stages, and the inputs on which it is tried."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import mha
from mha.check.catalogue import Stage
from mha.check.exercise import Exercise, Probe
from mha.check.exercises.attention import scale, score
from mha.check.exercises.inputs import qkv


def tiles(Lk: int, block: int) -> list[slice]:
    """`block` keys each, the last with what is left."""
    return [slice(start, start + block) for start in range(0, Lk, block)]


def tile_start(Q: Tensor) -> Tensor:
    """Lower than any score."""
    return Q.new_full((*Q.shape[:-1], 1), -math.inf)


def tile_largest(largest: Tensor, scores: Tensor) -> Tensor:
    """The largest score of the row so far."""
    return torch.maximum(largest, scores.amax(dim=-1, keepdim=True))


def tile_shrink(largest: Tensor, larger: Tensor) -> Tensor:
    """What the old sums are worth relative to the new largest score."""
    return (largest - larger).exp()


def tile_powers(scores: Tensor, larger: Tensor, largest: Tensor) -> Tensor:
    """Exponentials relative to the largest score so far."""
    return (scores - larger).exp()


def tile_total(total: Tensor, shrink: Tensor, powers: Tensor) -> Tensor:
    """The sum of the exponentials so far."""
    return total * shrink + powers.sum(dim=-1, keepdim=True)


def tile_mix(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor) -> Tensor:
    """The mix of the values so far."""
    return mix * shrink + part


def tile_divide(mix: Tensor, total: Tensor, count: int) -> Tensor:
    """Divide once, at the end."""
    return mix / total


TILES: dict[str, Stage] = {
    "tiles": tiles,
    "score": score,
    "scale": scale,
    "tile_start": tile_start,
    "tile_largest": tile_largest,
    "tile_shrink": tile_shrink,
    "tile_powers": tile_powers,
    "tile_total": tile_total,
    "tile_mix": tile_mix,
    "tile_divide": tile_divide,
}


def online(s: Mapping[str, Stage], Q: Tensor, K: Tensor, V: Tensor, block: int) -> Any:
    """Run the stages of attention in tiles."""
    largest = s["tile_start"](Q)
    total, mix = torch.zeros_like(largest), Q.new_zeros((*Q.shape[:-1], V.size(-1)))
    parts = s["tiles"](K.size(-2), block)
    for part in parts:
        scores = s["scale"](s["score"](Q, K[..., part, :]), Q.size(-1), Q.size(1))
        larger = s["tile_largest"](largest, scores)
        shrink = s["tile_shrink"](largest, larger)
        powers = s["tile_powers"](scores, larger, largest)
        total = s["tile_total"](total, shrink, powers)
        mix = s["tile_mix"](mix, shrink, powers @ V[..., part, :], total)
        largest = larger
    return s["tile_divide"](mix, total, len(parts))


def _tile_probes() -> list[Probe]:
    Q, K, V = qkv(2, 3, 4, 7, 6, 5).values()
    alike = tuple(qkv(2, 3, 3, 6, 3, 3).values())
    low = Q.abs() * 200, -K.abs() * 200, V
    rows = [
        ("one tile of all keys", "tile_divide", (Q, K, V), 7),
        ("two equal tiles", "tile_mix", (Q, K[:, :, :6], V[:, :, :6]), 3),
        ("a last tile that is shorter", "tiles", (Q, K, V), 3),
        ("a last tile of one key", "tiles", (Q, K, V), 2),
        ("one key at a time", "tiles", (Q, K, V), 1),
        ("a tile larger than all keys", "tiles", (Q, K, V), 10),
        ("as many queries as keys in a tile, and as many heads", "score", alike, 3),
        ("large scores", "tile_largest", (Q * 60, K * 60, V), 2),
        ("scores far below zero", "tile_start", low, 3),
    ]
    return [
        Probe(shows, stage, dict(zip("QKV", qkv)) | {"block": block}) for shows, stage, qkv, block in rows
    ]


ONLINE_ATTENTION = Exercise(
    "online_attention",
    "(Q, K, V, block)",
    mha.online_attention,
    TILES,
    online,
    _tile_probes,
)
