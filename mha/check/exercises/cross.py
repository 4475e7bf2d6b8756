"""Cross-attention from two sequences and four matrices: its stages, and the inputs on which it is tried."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import mha
from mha.check.catalogue import Stage
from mha.check.exercise import Exercise, Probe, drawing_nothing, driven, without_none
from mha.check.exercises.attention import ATTENTION, attention, give_all
from mha.check.exercises.heads import SPLIT_ALIKE, merge, split, splitter
from mha.check.exercises.inputs import random_tensors
from mha.check.exercises.layer import same_length
from mha.check.exercises.masks import padding, padding_axes


class Matrices(NamedTuple):
    """Four projections as nn.Linear stores them, (out, in)."""

    W_q: Tensor  # (d_model, d_model)
    W_k: Tensor  # (d_model, d_memory)
    W_v: Tensor  # (d_model, d_memory)
    W_o: Tensor  # (d_model, d_model)


def cross_memory(memory: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    """The memory is used as it is."""
    return memory


def cross_queries(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    """Queries are made from x."""
    return x @ w.W_q.T


def cross_keys(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    """Keys are made from the memory."""
    return memory @ w.W_k.T


def cross_values(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    """Values are made from the memory."""
    return memory @ w.W_v.T


def cross_lengths(lengths: Tensor, Lk: int) -> Tensor:
    """Each example has its own number of real tokens."""
    return lengths


def cross_mask(keep: Tensor | None, lengths: Tensor | None, Lq: int, Lk: int) -> Tensor | None:
    """Nothing but padding is hidden."""
    return keep


def cross_output(concat: Tensor, x: Tensor, w: Matrices) -> Tensor:
    """Mix the heads with W_o."""
    return concat @ w.W_o.T


CROSS: dict[str, Stage] = {
    **ATTENTION,
    "cross_memory": cross_memory,
    "cross_queries": cross_queries,
    "cross_keys": cross_keys,
    "cross_values": cross_values,
    "key_length": same_length,
    "split": split,
    **SPLIT_ALIKE,
    "cross_lengths": cross_lengths,
    "padding": padding,
    "padding_axes": padding_axes,
    "cross_mask": cross_mask,
    "merge": merge,
    "cross_output": cross_output,
}


def cross(
    s: Mapping[str, Stage],
    x: Tensor,
    memory: Tensor,
    W_q: Tensor,
    W_k: Tensor,
    W_v: Tensor,
    W_o: Tensor,
    num_heads: int,
    lengths: Tensor | None = None,
) -> Any:
    """Run the stages of cross-attention."""
    w, Lq, Lk = Matrices(W_q, W_k, W_v, W_o), x.size(1), memory.size(1)
    memory = s["cross_memory"](memory, x, lengths)
    q = splitter(s, "q")(s["cross_queries"](x, memory, w), num_heads)
    k = splitter(s, "k")(s["key_length"](s["cross_keys"](x, memory, w), Lq), num_heads)
    v = splitter(s, "v")(s["key_length"](s["cross_values"](x, memory, w), Lq), num_heads)
    keep = None
    if lengths is not None:
        keep = s["padding_axes"](s["padding"](s["cross_lengths"](lengths, Lk), Lk))
    keep = s["cross_mask"](keep, lengths, Lq, Lk)
    heads, weights, scores = attention({**s, "give": give_all}, q, k, v, keep)
    return s["give"](s["cross_output"](s["merge"](heads), x, w), weights, scores)


def cross_attention(
    x: Tensor,
    memory: Tensor,
    W_q: Tensor,
    W_k: Tensor,
    W_v: Tensor,
    W_o: Tensor,
    num_heads: int,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Let every token of x look at the memory, at no more than its first `lengths` tokens."""
    Q = mha.split_heads(F.linear(x, W_q), num_heads)  # (B, h, Lq, d_k)
    K = mha.split_heads(F.linear(memory, W_k), num_heads)  # (B, h, Lk, d_k)
    V = mha.split_heads(F.linear(memory, W_v), num_heads)  # (B, h, Lk, d_k)
    mask = None if lengths is None else mha.padding_mask(lengths, memory.size(1))  # (B, 1, 1, Lk)
    heads, weights = mha.scaled_dot_product_attention(Q, K, V, mask)  # (B, h, Lq, d_k), (B, h, Lq, Lk)
    return F.linear(mha.merge_heads(heads), W_o), weights  # (B, Lq, d_model)


def _arguments(
    B: int, Lq: int, Lk: int, d_model: int, d_memory: int, num_heads: int, lengths: list[int] | None = None
) -> dict[str, Any]:
    shapes = [(B, Lq, d_model), (B, Lk, d_memory), (d_model, d_model), (d_model, d_memory)]
    shapes += [(d_model, d_memory), (d_model, d_model)]
    x, memory, *matrices = random_tensors(*shapes, seed=100 * Lq + 10 * Lk + B)
    named = dict(zip(("W_q", "W_k", "W_v", "W_o"), (W / 2 for W in matrices), strict=True))
    arguments = {"x": x, "memory": memory, **named, "num_heads": num_heads}
    return arguments if lengths is None else {**arguments, "lengths": torch.tensor(lengths)}


def _cross_probes() -> list[Probe]:
    several = _arguments(2, 3, 5, 12, 12, 3)
    large = {**several, "x": several["x"] * 900}
    strided = {name: several[name].transpose(0, 1).contiguous().transpose(0, 1) for name in ("x", "memory")}
    padded = _arguments(2, 3, 5, 12, 12, 3, [4, 2])
    # Small numbers: half precision rounds them less than it would change them to mask in the wrong way.
    half = {
        name: x.half() / 2 if torch.is_tensor(x) and x.is_floating_point() else x
        for name, x in padded.items()
    }
    return [
        Probe("one query, one key, one head", "cross_values", _arguments(1, 1, 1, 4, 4, 1)),
        Probe("two queries, three keys, one head", "scale", _arguments(1, 2, 3, 4, 4, 1)),
        Probe("several heads and examples", "split", several),
        Probe("as many queries as keys", "cross_keys", _arguments(2, 4, 4, 12, 12, 2)),
        Probe("more queries than keys", "cross_keys", _arguments(2, 6, 3, 12, 12, 3)),
        Probe("inputs that do not lie in memory in order", "split", {**several, **strided}),
        Probe("large scores", "softmax", large),
        Probe("a memory with wider tokens than x", "cross_keys", _arguments(2, 3, 4, 6, 10, 2)),
        Probe("all sizes alike", "split", _arguments(3, 3, 3, 9, 9, 3)),
        Probe("memories with padding", "padding", padded),
        Probe("padding, all sizes alike", "padding", _arguments(3, 3, 3, 9, 9, 3, [2, 3, 1])),
        Probe("padding, as many queries as keys", "padding", _arguments(3, 4, 4, 12, 12, 2, [1, 3, 2])),
        Probe("padding, as many examples as queries", "padding", _arguments(3, 3, 5, 8, 8, 4, [3, 1, 4])),
        Probe("a memory of nothing but padding", "guard", _arguments(2, 3, 4, 12, 12, 3, [0, 3])),
        Probe("padding and large scores", "mask", {**padded, "x": padded["x"] * 900}),
        Probe("padding in half precision", "mask", half),
        Probe("padding, and a memory of other width", "cross_mask", _arguments(3, 4, 6, 8, 10, 2, [5, 1, 3])),
    ]


BEFORE_LENGTHS = 7  # as many arguments stand before lengths


def no_lengths_given() -> TypeError:
    """Return what is raised where lengths are used although none were given."""
    return TypeError("lengths is None: it was not given, and no memory has padding")


def _without_lengths(answer: Any) -> Any:
    """What an answer raises because lengths is None depends on the line that meets it: it is told as one."""

    def use(answer: Any, *arguments: Any) -> Any:
        try:
            return answer(*arguments)
        except Exception as error:
            given = len(arguments) > BEFORE_LENGTHS
            if given or "None" not in str(error) or not _takes_all(answer, *arguments):
                raise
            raise no_lengths_given().with_traceback(error.__traceback__) from None

    return driven(answer, use) if callable(answer) else answer


def _takes_all(answer: Any, x: Tensor, memory: Tensor, *others: Any) -> bool:
    """Whether an answer runs if it is told that nothing is padding."""
    try:
        answer(x, memory, *others, torch.full((len(x),), memory.size(1)))
    except Exception:
        return False
    return True


CROSS_ATTENTION = Exercise(
    "cross_attention",
    "(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None)",
    cross_attention,
    CROSS,
    cross,
    _cross_probes,
    # An nn.MultiheadAttention that is made in an answer draws its weights, before it is given others.
    lambda answer: driven(without_none(_without_lengths(answer)), drawing_nothing),
)
