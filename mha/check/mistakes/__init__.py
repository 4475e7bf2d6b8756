"""The entries of the catalogue, a file for each group of stages."""

from mha.check.mistakes import (
    attention,
    behaviour,
    cache,
    cross,
    heads,
    layer,
    loading,
    masks,
    parallel,
    positions,
    pruning,
    shapes,
    specialisation,
    tiles,
    torch_api,
)

__all__ = [
    "attention",
    "behaviour",
    "cache",
    "cross",
    "heads",
    "layer",
    "loading",
    "masks",
    "parallel",
    "positions",
    "pruning",
    "shapes",
    "specialisation",
    "tiles",
    "torch_api",
]
