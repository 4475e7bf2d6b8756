"""Scaled dot-product attention: its stages, and the inputs on which it is tried."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import mha
from mha.check.catalogue import Stage
from mha.check.exercise import Exercise, Probe, driven, without_none
from mha.check.exercises.inputs import qkv, random_mask
from mha.check.outcome import run


def cast(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In the dtype in which they come."""
    return Q, K, V


def take(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as they come."""
    return Q, K, V


def score(Q: Tensor, K: Tensor) -> Tensor:
    """(B, h, Lq, d_k), (B, h, Lk, d_k) → (B, h, Lq, Lk)."""
    return Q @ K.transpose(-2, -1)


def scale(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    """Divide the scores by √d_k."""
    return scores / math.sqrt(d_k)


def mask(scores: Tensor, mask: Tensor) -> Tensor:
    """Fill what is blocked with the lowest number."""
    return scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)


def softmax(scores: Tensor, d_k: int) -> Tensor:
    """Let each query share out one whole over the keys."""
    return torch.softmax(scores, dim=-1)


def guard(weights: Tensor, mask: Tensor) -> Tensor:
    """Leave nothing on what is blocked, also where a whole row is."""
    return weights.masked_fill(mask == 0, 0.0)


def weigh(weights: Tensor, V: Tensor) -> Tensor:
    """(B, h, Lq, Lk), (B, h, Lk, d_k) → (B, h, Lq, d_k)."""
    return weights @ V


def give(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output first and the weights second."""
    return output, weights


ATTENTION: dict[str, Stage] = {
    "cast": cast,
    "take": take,
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
    Q, K, V = s["take"](*s["cast"](Q, K, V))
    scores = scaled = s["scale"](s["score"](Q, K), Q.size(-1), Q.size(1))
    if mask is not None:
        scores = s["mask"](scaled, mask)
    weights = s["softmax"](scores, Q.size(-1))
    if mask is not None:
        weights = s["guard"](weights, mask)
    return s["give"](s["weigh"](weights, V), weights, scaled)


def give_all(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keep the scores too, where the last word is with another pipeline's `give`."""
    return output, weights, scores


def attention_mask(mask: Tensor | None, Q: Tensor, K: Tensor) -> Tensor | None:
    """The mask is used as it comes, and none is made."""
    return mask


def attention_give(result: Any, mask: Tensor | None) -> Any:
    """As it is: this stage is there for the mistakes that no layer shows, where an error hides them."""
    return result


ALONE: dict[str, Stage] = {**ATTENTION, "attention_mask": attention_mask, "attention_give": attention_give}


def attention_alone(
    s: Mapping[str, Stage], Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None
) -> Any:
    """Run the stages of the function that is asked for by itself."""
    return s["attention_give"](attention(s, Q, K, V, s["attention_mask"](mask, Q, K)), mask)


def _best_hidden(mask: Tensor, cross: dict[str, Any]) -> dict[str, Any]:
    """Return queries, keys and values of which each query likes best what the mask hides from it.

    So much better that exp of the difference is 0, but for one query; exp of no score is 0 or inf.
    """
    Q, Lk, d_k = cross["Q"], mask.size(-1), cross["Q"].size(-1)
    hidden = torch.tensor([[697.0], [-8.0], [697.0], [697.0]])
    scores = Q[..., :Lk] + torch.where(mask, -58.0, hidden)
    K = torch.eye(Lk, d_k, dtype=Q.dtype)
    return {**cross, "Q": math.sqrt(d_k) * scores @ K, "K": K.expand_as(cross["K"])}


def _attention_probes() -> list[Probe]:
    cross, square = qkv(2, 3, 4, 5, 6, 6), qkv(2, 3, 4, 4, 6, 6)
    mask = random_mask(2, 4, 5)
    empty = mask.clone()
    empty[1, 0, 2] = False
    half = {name: x.half() for name, x in cross.items()}
    large = {"Q": cross["Q"] * 300, "K": cross["K"] * 300, "V": cross["V"]}
    alike = qkv(3, 3, 3, 3, 3, 3)
    empty_alike = random_mask(3, 3, 3)
    empty_alike[1, 0, 2] = False
    strided = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in cross.items()}
    return [
        Probe("one token, one head", "weigh", qkv(1, 1, 1, 1, 4, 4)),
        Probe("three tokens, one head", "scale", qkv(1, 1, 3, 3, 4, 4)),
        Probe("several heads and examples", "softmax", square),
        Probe("more keys than queries", "score", cross),
        Probe("all sizes alike", "score", alike),
        Probe("inputs that do not lie in memory in order", "score", strided),
        Probe("values that are wider than the keys", "scale", qkv(2, 3, 4, 5, 6, 7)),
        Probe("large scores", "softmax", large),
        Probe("a mask", "mask", {**cross, "mask": mask}),
        Probe("a mask that hides by far the best keys", "mask", {**_best_hidden(mask, cross), "mask": mask}),
        Probe("a square mask", "mask", {**square, "mask": random_mask(2, 4, 4)}),
        Probe("a mask of 0 and 1", "mask", {**cross, "mask": mask.long()}),
        Probe("a mask for each head", "mask", {**cross, "mask": random_mask(2, 4, 5, h=3)}),
        Probe("a mask of 0 and 2", "mask", {**cross, "mask": 2 * mask.long()}),
        Probe("a query with nothing to see", "guard", {**cross, "mask": empty}),
        Probe("all sizes alike, and a query with nothing to see", "guard", {**alike, "mask": empty_alike}),
        Probe("a mask in half precision", "mask", {**half, "mask": mask}),
    ]


def _of_either_mask(answer: Any) -> Any:
    """An answer that refuses a mask of 0 and 1, as torch's own functions do, is given one of bools.

    So what is wrong with it is told, not only that masked_fill(~mask, …) takes nothing but bools.
    """

    def use(answer: Any, *arguments: Any) -> Any:
        try:
            return answer(*arguments)
        except RuntimeError:
            *others, mask = arguments
            if len(others) < 3 or mask.dtype != torch.long:
                raise
            return answer(*others, mask.bool())

    return without_none(driven(answer, use) if callable(answer) else answer)


def _of_bools_only(answer: Any) -> str | None:
    """Say that an answer refuses a mask of 0 and 1, which `_of_either_mask` keeps from it."""
    square = qkv(1, 1, 2, 2, 2, 2)
    refused = run(answer, {**square, "mask": torch.ones(1, 1, 2, 2, dtype=torch.long)}).error is not None
    return "It wants a mask of bool: one of 0 and 1 is refused." if refused else None


SCALED_DOT_PRODUCT_ATTENTION = Exercise(
    "scaled_dot_product_attention",
    "(Q, K, V, mask=None)",
    mha.scaled_dot_product_attention,
    ALONE,
    attention_alone,
    _attention_probes,
    _of_either_mask,
    _of_bools_only,
)
