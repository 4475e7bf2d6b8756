"""The shape after each step of the layer."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

import mha
from mha.check.catalogue import Stage
from mha.check.exercise import Exercise, Probe, drawing_nothing, driven


def shape_x(B: int, L: int, d_model: int, h: int) -> tuple[int, ...]:
    """The input: a row of d_model numbers for each token."""
    return B, L, d_model


def shape_projected(B: int, L: int, d_model: int, h: int) -> tuple[int, ...]:
    """Q, K and V are of the shape of the input."""
    return B, L, d_model


def shape_split(B: int, L: int, d_model: int, h: int) -> tuple[int, ...]:
    """Heads stand before tokens, each with its share of the numbers."""
    return B, h, L, d_model // h


def shape_weights(B: int, L: int, d_model: int, h: int) -> tuple[int, ...]:
    """One map for each head, queries by keys."""
    return B, h, L, L


def shape_heads(B: int, L: int, d_model: int, h: int) -> tuple[int, ...]:
    """What the heads come to is of the shape of V split."""
    return B, h, L, d_model // h


def shape_joined(B: int, L: int, d_model: int, h: int) -> tuple[int, ...]:
    """The heads side by side."""
    return B, L, d_model


def shape_output(B: int, L: int, d_model: int, h: int) -> tuple[int, ...]:
    """The shape of the input."""
    return B, L, d_model


def shape_give(shapes: tuple[tuple[int, ...], ...]) -> Any:
    """All seven, in the order in which they come up."""
    return shapes


SHAPES: dict[str, Stage] = {
    "shape_x": shape_x,
    "shape_projected": shape_projected,
    "shape_split": shape_split,
    "shape_weights": shape_weights,
    "shape_heads": shape_heads,
    "shape_joined": shape_joined,
    "shape_output": shape_output,
    "shape_give": shape_give,
}


def shapes(s: Mapping[str, Stage], B: int, L: int, d_model: int, h: int) -> Any:
    """Return the shape after each step of the layer."""
    *steps, give = SHAPES
    return s[give](tuple(s[stage](B, L, d_model, h) for stage in steps))


def _shapes(B: int, L: int, d_model: int, h: int) -> tuple[tuple[int, ...], ...]:
    """Read the shapes off the layer itself."""
    layer, X = drawing_nothing(mha.MultiHeadAttention, d_model, h), torch.zeros(B, L, d_model)
    q, k, v = layer.W_q(X), layer.W_k(X), layer.W_v(X)
    split = [mha.split_heads(x, h) for x in (q, k, v)]
    heads, weights = mha.scaled_dot_product_attention(*split)
    joined = mha.merge_heads(heads)
    return tuple(tuple(x.shape) for x in (X, q, split[0], weights, heads, joined, layer.W_o(joined)))


def _giving_shapes(answer: Any) -> Any:
    """A shape may be a tuple, a list or a torch.Size; all of them may be yielded, or named in a dict."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            value = tuple(value.values())
        return tuple(map(plain, value)) if isinstance(value, tuple | list | Iterator) else value

    def use(answer: Any, B: int, L: int, d_model: int, h: int) -> Any:
        return plain(answer(B, L, d_model, h))

    return driven(answer, use) if callable(answer) else answer


def _shapes_probes() -> list[Probe]:
    sizes = [(1, 3, 8, 2), (2, 5, 12, 3), (4, 3, 12, 6), (3, 1, 10, 1)]
    names = ("B", "L", "d_model", "h")
    return [Probe(f"(B, L, d_model, h) = {row}", "shape_split", dict(zip(names, row))) for row in sizes]


SHAPES_OF_THE_LAYER = Exercise(
    "shapes",
    "(B, L, d_model, h)",
    _shapes,
    SHAPES,
    shapes,
    _shapes_probes,
    _giving_shapes,
)
