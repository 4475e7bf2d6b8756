"""Taking heads out of a layer: the stages, and the layers on which it is tried."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import mha
from mha.check.catalogue import Stage
from mha.check.exercise import Exercise, Probe, drawing_nothing, driven
from mha.check.exercises.inputs import random_tensors
from mha.check.outcome import own_code

Weights = dict[
    str, Tensor
]  # W_q, W_k, W_v, W_o as nn.Linear stores them, and b_q, b_k, b_v, b_o if there are any


def prune_kept(keep: list[int], num_heads: int) -> list[int]:
    """The heads that stay, in the order in which they are asked for."""
    return list(keep)


def prune_rows(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    """Head i has the numbers i·d_k to (i + 1)·d_k - 1 of a joined row."""
    return torch.tensor([n for head in heads for n in range(head * d_k, (head + 1) * d_k)], dtype=torch.long)


def prune_q(weights: Weights, rows: Tensor) -> Tensor:
    """(h·d_k, d_model) → (h kept · d_k, d_model)."""
    return weights["W_q"][rows]


def prune_k(weights: Weights, rows: Tensor) -> Tensor:
    """The same rows as of W_q."""
    return weights["W_k"][rows]


def prune_v(weights: Weights, rows: Tensor) -> Tensor:
    """The same rows as of W_q."""
    return weights["W_v"][rows]


def prune_o(weights: Weights, rows: Tensor, num_heads: int) -> Tensor:
    """(d_model, h·d_k) → (d_model, h kept · d_k): what meets a head's numbers are columns."""
    return weights["W_o"][:, rows]


def prune_biases(weights: Weights, rows: Tensor, num_heads: int) -> Weights:
    """Those of W_q, W_k and W_v lose the same rows; that of W_o belongs to no head."""
    cut = {name: weights[name][rows] for name in ("b_q", "b_k", "b_v") if name in weights}
    return {**cut, "b_o": weights["b_o"]} if "b_o" in weights else cut


def prune_give(weights: Weights, layer: mha.MultiHeadAttention) -> Any:
    """By their names, each with memory of its own."""
    return weights


CUT: dict[str, Stage] = {  # the weights of some heads, cut out of a layer
    "prune_rows": prune_rows,
    "prune_q": prune_q,
    "prune_k": prune_k,
    "prune_v": prune_v,
    "prune_o": prune_o,
    "prune_biases": prune_biases,
}
PRUNE: dict[str, Stage] = {"prune_kept": prune_kept, **CUT, "prune_give": prune_give}


def cut(s: Mapping[str, Stage], layer: mha.MultiHeadAttention, heads: list[int]) -> Weights:
    """Run the stages of cutting out the weights of some heads."""
    weights, h = weights_of(layer), layer.num_heads
    rows = s["prune_rows"](heads, layer.d_k, h)
    parts = {f"W_{role}": s[f"prune_{role}"](weights, rows) for role in "qkv"}
    return {**parts, "W_o": s["prune_o"](weights, rows, h), **s["prune_biases"](weights, rows, h)}


def prune(s: Mapping[str, Stage], layer: mha.MultiHeadAttention, keep: list[int]) -> Any:
    """Run the stages of pruning."""
    return s["prune_give"](cut(s, layer, s["prune_kept"](keep, layer.num_heads)), layer)


def weights_of(given: nn.Module | Mapping[str, Any]) -> Weights:
    """Return the weights of a layer, or of a dict of them, by the short names of `Weights`."""
    named = given.named_parameters() if isinstance(given, nn.Module) else _entries(given)
    return {_short(str(name)): _tensor(x) for name, x in named if x is not None}


def _entries(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a dict; a projection in it stands for its weight and its bias."""
    for name, x in given.items():
        if isinstance(x, nn.Linear):
            yield from ((f"{name}.{kind}", parameter) for kind, parameter in x.named_parameters())
        else:
            yield name, x


def _tensor(x: Any) -> Any:
    return torch.from_numpy(x) if isinstance(x, np.ndarray) else x


def _short(name: str) -> str:
    matrix, dot, kind = name.rpartition(".")  # "W_q.weight", "W_q.bias"; "W_q" and "b_q" are short already
    if not dot:
        return name
    return matrix.replace("W_", "b_") if kind == "bias" else matrix


def _renamed(seen: dict[str, Any]) -> dict[str, Any]:
    """Return the weights by their short names, and that some of them had others, such as Wq or q_proj."""
    found = {name: re.fullmatch(r"(w|b|bias)?_?([qkvo])(_proj)?", name.lower()) for name in seen}
    names = {name: f"{'b' if m[1] in ('b', 'bias') else 'W'}_{m[2]}" for name, m in found.items() if m}
    if all(name == short for name, short in names.items()):
        return seen
    return {**{names.get(name, name): x for name, x in seen.items()}, "other names": True}


def look_at(given: Any, layer: mha.MultiHeadAttention, num_heads: int) -> Any:
    """Return the weights that an answer gave, in a dict or in a layer, and what a layer has wrong besides.

    Args:
        layer: that they were cut out of.
        num_heads: how many heads there are to be.
    """
    if not isinstance(given, nn.Module | Mapping):
        return tuple(given) if isinstance(given, list) else given
    seen: dict[str, Any] = weights_of(given)
    # A layer tells it by an attribute; a dict may.
    said = getattr(given, "num_heads", seen.pop("num_heads", num_heads))
    matrices = [seen.get(name) for name in ("W_q", "W_k", "W_v")]
    widths = [min(W.shape) for W in matrices if isinstance(W, Tensor) and W.ndim]
    if said != num_heads and said * layer.d_k not in widths:  # nor as many as it has
        seen["num_heads"] = said
    if isinstance(given, Mapping):
        return _renamed(seen)
    shared = None if given is layer else _shared(given, layer)
    return seen if shared is None else {**seen, shared: True}


def _shared(given: nn.Module, layer: nn.Module) -> str | None:
    projections = list(layer.children())
    if any(mine is one for mine in given.children() for one in projections):
        return "shares projections"
    old = {x.untyped_storage().data_ptr() for x in layer.parameters()}
    views = any(x.untyped_storage().data_ptr() in old for x in given.parameters())
    return "shares memory" if views else None


def making(answer: Any, *arguments: Any) -> Any:
    """Call an answer that may fill a new layer.

    Raises:
        Exception: what the answer raises; of a layer that does not fit, the same however it is filled.
    """
    try:
        return drawing_nothing(answer, *arguments)
    except RuntimeError as error:
        code = own_code(error)
        filled = code is not None and re.search(r"copy_|load_state_dict|\]\s*=[^=]", code.text)
        restated = does_not_fit(error) if filled else None
        raise (error if restated is None else restated).with_traceback(error.__traceback__) from None


def does_not_fit(error: RuntimeError) -> RuntimeError | None:
    """Return what is raised where matrices do not fit into a new layer, if that is what an error says."""
    loaded = r"with shape torch.Size\(\[(\d+), (\d+)\]\).*?model is torch.Size\(\[(\d+), (\d+)\]\)"
    if found := re.search(loaded, str(error)):
        given, there = map(int, found.group(1, 2)), map(int, found.group(3, 4))
        sizes = next(((a, b) for a, b in zip(there, given, strict=True) if a != b), None)
    elif found := re.search(r"\((\d+)\) must match .*?\((\d+)\) at non-singleton", str(error)):
        sizes = int(found[1]), int(found[2])
    else:
        return None
    if sizes is None:
        return None
    return RuntimeError(
        f"the new layer is too {'wide' if sizes[0] > sizes[1] else 'narrow'} for the matrices"
    )


class _Layer(mha.MultiHeadAttention):
    """A layer that can be compared with a copy of itself."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Layer) or self.num_heads != other.num_heads:
            return False
        mine, others = self.state_dict(), other.state_dict()
        return mine.keys() == others.keys() and all(torch.equal(x, others[name]) for name, x in mine.items())

    __hash__ = mha.MultiHeadAttention.__hash__

    def __repr__(self) -> str:
        bias = ", bias=True" if self.W_o.bias is not None else ""
        return f"MultiHeadAttention({self.d_model}, {self.num_heads}{bias})"


def layer_of(d_model: int, num_heads: int, *, bias: bool = False) -> mha.MultiHeadAttention:
    """Return a layer whose weights, and biases if it has any, are those of a seed."""
    layer = drawing_nothing(lambda: _Layer(d_model, num_heads, bias=bias)).requires_grad_(False).eval()
    shapes = [tuple(x.shape) for x in layer.parameters()]
    for x, drawn in zip(layer.parameters(), random_tensors(*shapes, seed=num_heads), strict=True):
        x.copy_(drawn)
    return layer


def _prune_probes() -> list[Probe]:
    pair, four = layer_of(4, 2), layer_of(12, 4)
    rows = [
        ("two heads, the first kept", "prune_rows", pair, [0]),
        ("two heads, the second kept", "prune_rows", pair, [1]),
        ("four heads, two in the middle kept", "prune_rows", four, [1, 2]),
        ("four heads, two apart kept", "prune_rows", four, [0, 3]),
        ("the heads in another order", "prune_kept", four, [2, 0, 3]),
        ("all heads kept", "prune_kept", four, [0, 1, 2, 3]),
        ("a layer with biases", "prune_biases", layer_of(15, 3, bias=True), [0, 2]),
    ]
    return [Probe(shows, stage, {"layer": layer, "keep": keep}) for shows, stage, layer, keep in rows]


def _giving_weights(answer: Any) -> Any:
    """The weights are given in a dict; a layer that holds them will do as well."""

    def use(answer: Any, layer: mha.MultiHeadAttention, keep: list[int]) -> Any:
        return look_at(making(answer, layer, keep), layer, len(keep))

    return driven(answer, use) if callable(answer) else answer


PRUNE_HEADS = Exercise(
    "prune_heads",
    "(layer, keep)",
    mha.prune_heads,
    PRUNE,
    prune,
    _prune_probes,
    _giving_weights,
    sources=lambda arguments: weights_of(arguments["layer"]),
)
