"""Sharing the heads of a layer out to several ranks: the stages, and the layers on which it is tried."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

import mha
from mha.check.catalogue import Stage
from mha.check.exercise import Exercise, Probe, driven
from mha.check.exercises.pruning import CUT, Weights, cut, layer_of, look_at, making, weights_of
from mha.check.outcome import run


def shard_heads(num_heads: int, world_size: int) -> list[list[int]]:
    """A block of neighbouring heads for each rank."""
    h = num_heads // world_size
    return [list(range(rank * h, (rank + 1) * h)) for rank in range(world_size)]


def shard_biases(weights: Weights, rank: int, world_size: int) -> Weights:
    """The bias of W_o has to be in the sum once."""
    return {name: x for name, x in weights.items() if name != "b_o" or rank == 0}


def shard_give(shards: list[Weights], num_heads: int) -> Any:
    """One for each rank."""
    return shards


SHARD: dict[str, Stage] = {
    "shard_heads": shard_heads,
    **CUT,
    "shard_biases": shard_biases,
    "shard_give": shard_give,
}


def shard(s: Mapping[str, Stage], layer: mha.MultiHeadAttention, world_size: int) -> Any:
    """Run the stages of sharing out the heads."""
    shares = s["shard_heads"](layer.num_heads, world_size)
    parts = [s["shard_biases"](cut(s, layer, heads), rank, world_size) for rank, heads in enumerate(shares)]
    return _with_one_bias(s["shard_give"](parts, layer.num_heads))


def _with_one_bias(shards: Any) -> Any:
    """Put the sum of the ranks' b_o on rank 0: which of them adds how much of it makes no difference."""
    if not isinstance(shards, list) or not all(isinstance(one, dict) for one in shards):
        return shards
    biases = [one["b_o"] for one in shards if "b_o" in one]
    if not biases or len({x.shape for x in biases}) > 1:
        return shards
    first, *others = [{name: x for name, x in one.items() if name != "b_o"} for one in shards]
    return [{**first, "b_o": torch.stack(biases).sum(dim=0)}, *others]


def _shard_probes() -> list[Probe]:
    six = layer_of(12, 6)
    rows = [
        ("two heads, one for each of two ranks", "prune_rows", layer_of(6, 2), 2),
        ("one rank", "shard_heads", six, 1),
        ("six heads, two ranks", "shard_heads", six, 2),
        ("six heads, three ranks", "shard_heads", six, 3),
        ("a layer with biases, two ranks", "shard_biases", layer_of(12, 4, bias=True), 2),
        ("a layer with biases, three ranks", "shard_biases", layer_of(12, 6, bias=True), 3),
    ]
    return [Probe(shows, stage, {"layer": layer, "world_size": n}) for shows, stage, layer, n in rows]


def _giving_shards(answer: Any) -> Any:
    """The weights of each rank are given in a dict; a layer that holds them will do as well."""

    def use(answer: Any, layer: mha.MultiHeadAttention, world_size: int) -> Any:
        num_heads = layer.num_heads // world_size  # before the answer can change it
        given = making(answer, layer, world_size)
        if isinstance(given, nn.ModuleList | Iterator):
            given = list(given)
        if not isinstance(given, list | tuple):
            return look_at(given, layer, num_heads)
        return _with_one_bias([look_at(one, layer, num_heads) for one in given])

    return driven(answer, use) if callable(answer) else answer


def _of_an_uneven_share(answer: Any) -> str | None:
    """Say that six heads are given to four ranks without an error, if they are, and not each once."""

    def share() -> list[int]:
        shards = making(answer, layer_of(24, 6), 4)
        return [len(weights_of(one)["W_q"]) for one in shards]

    rows = run(share, {}).value
    if rows is None or (sum(rows) == 24 and all(n % 4 == 0 for n in rows)):
        return None
    return "Six heads are given to four ranks without an error: refuse what does not divide."


HEAD_SHARDS = Exercise(
    "head_shards",
    "(layer, world_size)",
    mha.head_shards,
    SHARD,
    shard,
    _shard_probes,
    _giving_shards,
    _of_an_uneven_share,
    sources=lambda arguments: weights_of(arguments["layer"]),
)
