"""The stages of each exercise as they should be: what the catalogue's wrong stages are put into.

A pipeline is a function of its stages and of the exercise's arguments. With every stage right it computes
what the package computes (a test holds the two together); with one replaced, what that mistake computes.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mha.check.catalogue import Stage
from mha.check.weights import Projections

Pipeline = Callable[..., Any]


# ---------------------------------------------------------------- scaled dot-product attention


def score(Q: Tensor, K: Tensor) -> Tensor:
    """(B, h, Lq, d_k), (B, h, Lk, d_k) → (B, h, Lq, Lk)."""
    return Q @ K.transpose(-2, -1)


def scale(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    """Divide the scores by √d_k."""
    return scores / math.sqrt(d_k)


def mask(scores: Tensor, mask: Tensor) -> Tensor:
    """Fill what is blocked with the lowest number."""
    return scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)


def softmax(scores: Tensor) -> Tensor:
    """Let each query share out one whole over the keys."""
    return torch.softmax(scores, dim=-1)


def guard(weights: Tensor, mask: Tensor) -> Tensor:
    """Leave nothing on what is blocked, also where a whole row is."""
    return weights.masked_fill(mask == 0, 0.0)


def weigh(weights: Tensor, V: Tensor) -> Tensor:
    """(B, h, Lq, Lk), (B, h, Lk, d_k) → (B, h, Lq, d_k)."""
    return weights @ V


def give(output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output first and the weights second."""
    return output, weights


ATTENTION: dict[str, Stage] = {
    "score": score,
    "scale": scale,
    "mask": mask,
    "softmax": softmax,
    "guard": guard,
    "weigh": weigh,
    "give": give,
}


def attention(s: Mapping[str, Stage], Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Any:
    """Run the stages of scaled dot-product attention."""
    scores = s["scale"](s["score"](Q, K), Q.size(-1), Q.size(1))
    if mask is not None:
        scores = s["mask"](scores, mask)
    weights = s["softmax"](scores)
    if mask is not None:
        weights = s["guard"](weights, mask)
    return s["give"](s["weigh"](weights, V), weights)


# ---------------------------------------------------------------- the whole layer

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
    """Mix the heads with W_o."""
    return linear(concat, w.W_o, w.b_o)


def same_length(x: Tensor, Lq: int) -> Tensor:
    """Keys and values keep a length of their own."""
    return x


def layer(
    s: Mapping[str, Stage], w: Projections, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None
) -> Any:
    """Run the stages of the whole layer with the weights `w`."""
    w, inputs, h, Lq = w.to(Q.dtype), (Q, K, V), w.num_heads, Q.size(1)
    q = s["split"](s["project_q"](inputs, w), h)
    k = s["split"](s["key_length"](s["project_k"](inputs, w), Lq), h)
    v = s["split"](s["key_length"](s["project_v"](inputs, w), Lq), h)
    heads, weights = attention({**s, "give": give}, q, k, v, mask)
    return s["give"](s["output"](s["merge"](heads), inputs, w), weights)


# ---------------------------------------------------------------- exercises of a single stage


def split(x: Tensor, num_heads: int) -> Tensor:
    """(B, L, d_model) → (B, h, L, d_k)."""
    B, L, d_model = x.shape
    return x.view(B, L, num_heads, d_model // num_heads).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """(B, h, L, d_k) → (B, L, h·d_k)."""
    B, h, L, d_k = x.shape
    return x.transpose(1, 2).reshape(B, L, h * d_k)


def project(x: Tensor, W: Tensor) -> Tensor:
    """(…, in) → (…, out), with W as nn.Linear stores it."""
    return x @ W.T


def causal(Lq: int, Lk: int | None = None) -> Tensor:
    """(Lq, Lk), bottom-right aligned."""
    Lk = Lq if Lk is None else Lk
    return torch.arange(Lk) <= torch.arange(Lq)[:, None] + Lk - Lq


def padding(lengths: Tensor, max_len: int) -> Tensor:
    """(B,) → (B, 1, 1, Lk)."""
    return (torch.arange(max_len) < lengths[:, None])[:, None, None]


def repeat(x: Tensor, n_rep: int) -> Tensor:
    """(B, h_kv, L, d_k) → (B, h_kv·n_rep, L, d_k)."""
    return x.repeat_interleave(n_rep, dim=1)


def alone(stage: str) -> Pipeline:
    """Return the pipeline of an exercise that has one stage only."""
    return lambda s, *arguments: s[stage](*arguments)


LAYER: dict[str, Stage] = {
    **ATTENTION,
    "project_q": project_q,
    "project_k": project_k,
    "project_v": project_v,
    "key_length": same_length,
    "split": split,
    "merge": merge,
    "output": output,
}
