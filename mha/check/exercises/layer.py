"""The whole layer: its stages. The inputs on which one is tried depend on its width: `mha.check.layers`."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mha.check.catalogue import Stage
from mha.check.exercises.attention import ATTENTION, attention, give_all
from mha.check.exercises.heads import SPLIT_ALIKE, merge, repeat, split, splitter
from mha.check.weights import Projections

Inputs = tuple[Tensor, Tensor, Tensor]  # Q, K, V, each (B, L, d_model)


def linear(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    """Compute what nn.Linear computes."""
    return torch.nn.functional.linear(x, W, b)


def project_q(inputs: Inputs, w: Projections) -> Tensor:
    """Queries are made from Q with W_q."""
    return linear(inputs[0], w.W_q, w.b_q)


def project_k(inputs: Inputs, w: Projections) -> Tensor:
    """Keys are made from K with W_k."""
    return linear(inputs[1], w.W_k, w.b_k)


def project_v(inputs: Inputs, w: Projections) -> Tensor:
    """Values are made from V with W_v."""
    return linear(inputs[2], w.W_v, w.b_v)


def output(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    """Mix the heads with W_o; a layer without one gives them as they are."""
    return concat if w.W_o is None else linear(concat, w.W_o, w.b_o)


def same_length(x: Tensor, Lq: int) -> Tensor:
    """Keys and values keep a length of their own."""
    return x


def layer(
    s: Mapping[str, Stage], w: Projections, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None
) -> Any:
    """Run the stages of the whole layer with the weights `w`."""
    w, inputs, h, Lq = w.to(Q.dtype), (Q, K, V), w.num_heads, Q.size(1)
    q = splitter(s, "q")(s["project_q"](inputs, w), h)
    k = splitter(s, "k")(s["key_length"](s["project_k"](inputs, w), Lq), h)
    v = splitter(s, "v")(s["key_length"](s["project_v"](inputs, w), Lq), h)
    if w.kv_heads is not None:  # each is there for all heads that share it: cut down to one, and repeated
        copies = h // w.kv_heads
        k, v = (s["repeat"](x[:, ::copies], copies) for x in (k, v))
    heads, weights, scores = attention({**s, "give": give_all}, q, k, v, mask)
    return s["give"](s["output"](s["merge"](heads), inputs, w), weights, scores)


LAYER: dict[str, Stage] = {
    **ATTENTION,
    "project_q": project_q,
    "project_k": project_k,
    "project_v": project_v,
    "key_length": same_length,
    "split": split,
    **SPLIT_ALIKE,
    "merge": merge,
    "output": output,
}
# Where several heads of the queries share one of keys and values.
GROUPED: dict[str, Stage] = {**LAYER, "repeat": repeat}
