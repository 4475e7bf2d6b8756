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


def tile_fill(K: Tensor, V: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Keys and values as they come: nothing is added to fill the last tile."""
    return K, V


def tiles(Lk: int, block: int, Q: Tensor) -> list[slice]:
    """`block` keys each, the last with what is left."""
    return [slice(start, start + block) for start in range(0, Lk, block)]


def tile_start(Q: Tensor) -> Tensor:
    """Lower than any score."""
    return Q.new_full((*Q.shape[:-1], 1), -math.inf)


def tile_mix_start(Q: Tensor, V: Tensor) -> Tensor:
    """As many rows as queries, as wide as the values."""
    return Q.new_zeros((*Q.shape[:-1], V.size(-1)))


def tile_keys(K: Tensor, part: slice) -> Tensor:
    """Some of the keys."""
    return K[..., part, :]


def tile_values(V: Tensor, part: slice) -> Tensor:
    """The values of these keys."""
    return V[..., part, :]


def tile_hide(scores: Tensor, part: slice, block: int) -> Tensor:
    """Every query looks at every tile."""
    return scores


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


def tile_part(powers: Tensor, values: Tensor, scores: Tensor) -> Tensor:
    """What this tile adds to the mix."""
    return powers @ values


def tile_mix(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    """The mix of the values so far."""
    return mix * shrink + part


def tile_divide(mix: Tensor, total: Tensor, count: int) -> Tensor:
    """Divide once, at the end."""
    return mix / total


def tile_give(output: Tensor, block: int, Q: Tensor) -> Any:
    """(…, Lq, d_v)."""
    return output


TILES: dict[str, Stage] = {
    "tile_fill": tile_fill,
    "tiles": tiles,
    "tile_keys": tile_keys,
    "tile_values": tile_values,
    "score": score,
    "scale": scale,
    "tile_hide": tile_hide,
    "tile_start": tile_start,
    "tile_mix_start": tile_mix_start,
    "tile_largest": tile_largest,
    "tile_shrink": tile_shrink,
    "tile_powers": tile_powers,
    "tile_total": tile_total,
    "tile_part": tile_part,
    "tile_mix": tile_mix,
    "tile_divide": tile_divide,
    "tile_give": tile_give,
}


def online(s: Mapping[str, Stage], Q: Tensor, K: Tensor, V: Tensor, block: int) -> Any:
    """Run the stages of attention in tiles."""
    K, V = s["tile_fill"](K, V, block)
    largest = s["tile_start"](Q)
    total, mix = torch.zeros_like(largest), s["tile_mix_start"](Q, V)
    parts = s["tiles"](K.size(-2), block, Q)
    for part in parts:
        scores = s["scale"](s["score"](Q, s["tile_keys"](K, part)), Q.size(-1), Q.size(1))
        scores = s["tile_hide"](scores, part, block)
        larger = s["tile_largest"](largest, scores)
        shrink = s["tile_shrink"](largest, larger)
        powers = s["tile_powers"](scores, larger, largest)
        before, total = total, s["tile_total"](total, shrink, powers)
        added = s["tile_part"](powers, s["tile_values"](V, part), scores)
        mix = s["tile_mix"](mix, shrink, added, total, before)
        largest = larger
    return s["tile_give"](s["tile_divide"](mix, total, len(parts)), block, Q)


def _tile_probes() -> list[Probe]:
    Q, K, V = qkv(2, 3, 4, 7, 6, 5).values()
    alike = qkv(3, 3, 3, 6, 3, 3)  # but for the keys: two tiles of 3
    # As many queries as keys in a tile: so much as that is alike, and no more.
    square = tuple(qkv(2, 3, 4, 8, 6, 5).values())
    rows = [
        ("one tile of all keys", "tile_divide", (Q, K, V), 7),
        ("two equal tiles", "tile_mix", (Q, K[:, :, :6], V[:, :, :6]), 3),
        ("a last tile that is shorter", "tiles", (Q, K, V), 3),
        ("a last tile of one key", "tiles", (Q, K, V), 2),
        ("one key at a time", "tiles", (Q, K, V), 1),
        ("a tile larger than all keys", "tiles", (Q, K, V), 10),
        ("two tiles, all sizes alike", "score", tuple(alike.values()), 3),
        ("as many queries as keys in a tile", "score", square, 4),
        ("large scores", "tile_largest", _large(Q, K, V), 2),
        ("large scores, as many queries as keys in a tile", "tile_largest", _large(*square), 4),
        ("scores far below zero", "tile_start", _low(Q, K, V), 3),
        ("scores far below zero, all sizes alike", "tile_start", _low(**alike), 3),
    ]
    return [
        Probe(shows, stage, dict(zip("QKV", qkv)) | {"block": block}) for shows, stage, qkv, block in rows
    ]


def _large(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return Q * 60, K * 60, V


def _low(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return Q.abs() * 200, -K.abs() * 200, V


ONLINE_ATTENTION = Exercise(
    "online_attention",
    "(Q, K, V, block)",
    mha.online_attention,
    TILES,
    online,
    _tile_probes,
)
