"""What goes wrong when one sequence looks at another."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mha.check.catalogue import Stage, mistake
from mha.check.exercises.cross import Matrices, cross_output, no_lengths_given
from mha.check.exercises.masks import causal

# ---------------------------------------------------------------- what the memory becomes


def _memory(id: str, title: str, effect: str, hint: str) -> Callable[[Stage], Stage]:
    return mistake(id, title, effect, hint, stage="cross_memory")


@_memory(
    "cross-memory-of-first-example",
    "Every example looks at the first example's memory",
    "Right for a batch of one; otherwise each answer comes from somebody else's text.",
    "keep the batch axis of memory: (B, Lk, d_memory).",
)
def _(memory: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    return memory[:1].expand_as(memory)


@_memory(
    "cross-memories-joined",
    "The memories of all examples are joined into one",
    "Each example reads what belongs to the others; the weights have B·Lk columns.",
    "keep the batch axis of memory: (B, Lk, d_memory).",
)
def _(memory: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    return memory.reshape(1, -1, memory.size(-1)).expand(memory.size(0), -1, -1)


@_memory(
    "cross-memory-averaged",
    "The memory is reduced to its mean before the queries see it",
    "There is one key, so every weight is 1 and every query gets the same.",
    "give all Lk tokens of memory to W_k and W_v.",
)
def _(memory: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    return memory.mean(dim=1, keepdim=True)


@_memory(
    "cross-memory-last-token",
    "Only the last token of the memory is used",
    "There is one key, so every weight is 1; with padding it is a token that means nothing.",
    "give all Lk tokens of memory to W_k and W_v.",
)
def _(memory: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    return memory[:, -1:]


@_memory(
    "cross-memory-first-token",
    "Only the first token of the memory is used",
    "There is one key, so every weight is 1.",
    "give all Lk tokens of memory to W_k and W_v.",
)
def _(memory: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    return memory[:, :1]


@mistake(
    "cross-memory-cut-to-lq",
    "The memory is cut to the length of x, and its mask too",
    "Right for Lk = Lq; where the memory is longer, its end is never seen.",
    "queries and keys need not be equally many: use all of memory.",
    stage="cross_memory",
    also={"cross_mask": lambda keep, lengths, Lq, Lk: keep if keep is None else keep[..., :Lq]},
)
def _(memory: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    return memory[:, : x.size(1)]


@mistake(
    "cross-memory-made-as-long-as-x",
    "The memory is cut, or filled up with zeros, to the length of x",
    "The end of a longer memory is lost; behind a shorter one, zeros get attention.",
    "queries and keys need not be equally many: use memory as it is.",
    stage="cross_memory",
    also={"cross_mask": lambda keep, lengths, Lq, Lk: keep if keep is None else F.pad(keep, (0, Lq - Lk))},
)
def _(memory: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    return F.pad(memory, (0, 0, 0, x.size(1) - memory.size(1)))


@mistake(
    "cross-memory-cut-to-longest",
    "The memory is cut to the longest real length, and its mask too",
    "The output is right, but the weights are no longer (B, h, Lq, Lk).",
    "keep all Lk columns; the padding among them gets weights of 0.",
    stage="cross_memory",
    also={
        "cross_mask": lambda keep, lengths, Lq, Lk: keep if keep is None else keep[..., : int(lengths.max())]
    },
)
def _(memory: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    return memory if lengths is None else memory[:, : int(lengths.max())]


@mistake(
    "cross-padding-zeroed",
    "The padding of the memory is set to 0 instead of being masked",
    "A key of zeros has the score 0, and exp(0) is 1: padding still gets weight.",
    "mask the scores: padding_mask(lengths, Lk).",
    stage="cross_memory",
    also={"cross_mask": lambda keep, lengths, Lq, Lk: None},
)
def _(memory: Tensor, x: Tensor, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return memory
    real = torch.arange(memory.size(1)) < lengths[:, None]  # (B, Lk)
    return memory.masked_fill(~real[..., None], 0.0)


# ---------------------------------------------------------------- what is made from what


@mistake(
    "cross-self-attention",
    "Keys and values are made from x: the memory is ignored",
    "This is self-attention: no answer can come from the memory.",
    "keys and values come from memory: W_k and W_v meet memory.",
    stage="cross_keys",
    also={"cross_values": lambda x, memory, w: x @ w.W_v.T},
)
def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    return x @ w.W_k.T


@mistake(
    "cross-roles-exchanged",
    "The memory asks and x answers: queries from memory, keys and values from x",
    "There are Lk outputs, one for each token of memory.",
    "who asks gives the queries: W_q meets x, W_k and W_v meet memory.",
    stage="cross_queries",
    also={
        "cross_keys": lambda x, memory, w: x @ w.W_k.T,
        "cross_values": lambda x, memory, w: x @ w.W_v.T,
    },
)
def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    return memory @ w.W_q.T


@mistake(
    "cross-queries-from-memory",
    "The queries are made from memory, as the keys and values are",
    "x is never used, and there are Lk outputs.",
    "W_q meets x.",
    stage="cross_queries",
)
def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    return memory @ w.W_q.T


@mistake(
    "cross-keys-from-x",
    "The keys are made from x, the values from memory",
    "An error where Lq ≠ Lk; else a token is found by one text and read from another.",
    "keys and values describe the same tokens: both come from memory.",
    stage="cross_keys",
)
def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    return x @ w.W_k.T


@mistake(
    "cross-values-from-x",
    "The values are made from x, the keys from memory",
    "An error where Lq ≠ Lk; else memory only says where to look, and nothing is taken from it.",
    "keys and values describe the same tokens: both come from memory.",
    stage="cross_values",
)
def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    return x @ w.W_v.T


def _joined(id: str, order: str, swap: bool) -> None:
    def together(x: Tensor, memory: Tensor) -> Tensor:
        return torch.cat([memory, x] if swap else [x, memory], dim=1)

    def keep_x(keep: Tensor | None, lengths: Tensor | None, Lq: int, Lk: int) -> Tensor | None:
        sides = (0, Lq) if swap else (Lq, 0)
        return keep if keep is None else F.pad(keep, sides, value=True)

    @mistake(
        id,
        f"Keys and values are made from {order}, joined into one sequence",
        "x looks at itself too: the weights have Lq + Lk columns, and memory gets less than all of them.",
        "the keys are the tokens of memory, and no others.",
        stage="cross_keys",
        also={
            "cross_values": lambda x, memory, w: together(x, memory) @ w.W_v.T,
            "cross_mask": keep_x,
        },
    )
    def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
        return together(x, memory) @ w.W_k.T


_joined("cross-x-before-memory", "x and memory", swap=False)
_joined("cross-x-behind-memory", "memory and x", swap=True)


# ---------------------------------------------------------------- which matrix


@mistake(
    "cross-not-transposed",
    "x @ W and memory @ W, with matrices as nn.Linear stores them",
    "Other numbers where a matrix is square, an error where it is not.",
    "nn.Linear stores (out, in): x @ W.T.",
    stage="cross_queries",
    also={
        "cross_keys": lambda x, memory, w: memory @ w.W_k,
        "cross_values": lambda x, memory, w: memory @ w.W_v,
        "cross_output": lambda concat, x, w: concat @ w.W_o,
    },
)
def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    return x @ w.W_q


def _not_transposed(what: str, stage: str, made: Stage) -> None:
    mistake(
        f"cross-{what}-not-transposed",
        f"The {what} are made with W_{what[0]} as nn.Linear stores it, not transposed",
        "Other numbers where the matrix is square, an error where it is not.",
        f"nn.Linear stores (out, in): W_{what[0]}.T.",
        stage=stage,
    )(made)


_not_transposed("queries", "cross_queries", lambda x, memory, w: x @ w.W_q)
_not_transposed("keys", "cross_keys", lambda x, memory, w: memory @ w.W_k)
_not_transposed("values", "cross_values", lambda x, memory, w: memory @ w.W_v)


@mistake(
    "cross-output-not-transposed",
    "concat @ W_o, with W_o as nn.Linear stores it",
    "The weights are right, the output has the right shape and wrong numbers.",
    "nn.Linear stores (out, in): concat @ W_o.T.",
    stage="cross_output",
)
def _(concat: Tensor, x: Tensor, w: Matrices) -> Tensor:
    return concat @ w.W_o


@mistake(
    "cross-keys-by-w_v",
    "The keys are made from memory with W_v",
    "W_k is never used.",
    "W_k for keys, W_v for values.",
    stage="cross_keys",
)
def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    return memory @ w.W_v.T


@mistake(
    "cross-values-by-w_k",
    "The keys serve as values: W_v is never used",
    "The weights are right, what is taken is not.",
    "W_k for keys, W_v for values.",
    stage="cross_values",
)
def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    return memory @ w.W_k.T


@mistake(
    "cross-keys-and-values-exchanged",
    "W_v projects the keys and W_k the values",
    "Right shapes and wrong numbers.",
    "W_k for keys, W_v for values.",
    stage="cross_keys",
    also={"cross_values": lambda x, memory, w: memory @ w.W_k.T},
)
def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    return memory @ w.W_v.T


@mistake(
    "cross-queries-by-w_k",
    "The queries are made from x with W_k",
    "W_q is never used; an error where the memory is wider than x.",
    "W_q meets x.",
    stage="cross_queries",
)
def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    return x @ w.W_k.T


@mistake(
    "cross-keys-by-w_q",
    "The keys are made from memory with W_q",
    "W_k is never used; an error where the memory is wider than x.",
    "W_k meets memory.",
    stage="cross_keys",
)
def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    return memory @ w.W_q.T


@mistake(
    "cross-queries-and-keys-exchanged",
    "W_k projects the queries and W_q the keys",
    "Right shapes and wrong numbers; an error where the memory is wider than x.",
    "W_q meets x, W_k meets memory.",
    stage="cross_queries",
    also={"cross_keys": lambda x, memory, w: memory @ w.W_q.T},
)
def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    return x @ w.W_k.T


def _unprojected(what: str, stage: str, source: str) -> None:
    @mistake(
        f"cross-{what}-not-projected",
        f"The {what} are {source} itself: W_{what[0]} is never used",
        "A head can only use the numbers in its own columns of the input.",
        f"apply W_{what[0]} to {source} first.",
        stage=stage,
    )
    def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
        return {"x": x, "memory": memory}[source]


_unprojected("queries", "cross_queries", "x")
_unprojected("keys", "cross_keys", "memory")
_unprojected("values", "cross_values", "memory")


@mistake(
    "cross-scale-by-memory",
    "The scale is √(d_memory / h), taken from the memory's width",
    "Right where memory is as wide as x; else the weights are too flat or too sharp.",
    "the scale is the square root of what a head compares, Q.size(-1).",
    stage="cross_queries",
)
def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    return x @ w.W_q.T * (x.size(-1) / memory.size(-1)) ** 0.5


@mistake(
    "cross-heads-by-memory-width",
    "Keys and values are cut into heads of d_memory / h numbers",
    "Right where memory is as wide as x; else an error about sizes.",
    "W_k and W_v lead to d_model numbers, whatever the memory's width: d_k = d_model / h.",
    stage="cross_keys",
)
def _(x: Tensor, memory: Tensor, w: Matrices) -> Tensor:
    return (memory @ w.W_k.T).view(memory.shape)


# ---------------------------------------------------------------- lengths and masks


def _counted(id: str, title: str, effect: str, hint: str) -> Callable[[Stage], Stage]:
    return mistake(id, title, effect, hint, stage="cross_lengths")


@_counted(
    "cross-lengths-of-first-example",
    "The first example's length is used for all",
    "Right for a batch of one; the others see padding, or not all of their memory.",
    "compare positions with lengths[:, None], so that each example keeps its own.",
)
def _(lengths: Tensor, Lk: int) -> Tensor:
    return lengths[:1].expand_as(lengths)


@_counted(
    "cross-lengths-longest",
    "The longest length is used for all",
    "Shorter memories show their padding.",
    "compare positions with lengths[:, None], so that each example keeps its own.",
)
def _(lengths: Tensor, Lk: int) -> Tensor:
    return lengths.max().expand_as(lengths)


@_counted(
    "cross-lengths-count-padding",
    "lengths is taken for the number of padding tokens",
    "A long memory is mostly hidden, a short one shows its padding.",
    "lengths counts real tokens: positions < lengths.",
)
def _(lengths: Tensor, Lk: int) -> Tensor:
    return Lk - lengths


@_counted(
    "cross-lengths-at-least-one",
    "A memory of nothing but padding shows its first token",
    "No NaN, but an answer from a token that is not there.",
    "leave lengths as they are; weights of 0 and an output of 0 say that there was nothing to see.",
)
def _(lengths: Tensor, Lk: int) -> Tensor:
    return lengths.clamp(min=1)


def _masked(id: str, title: str, effect: str, hint: str) -> Callable[[Stage], Stage]:
    return mistake(id, title, effect, hint, stage="cross_mask")


@_masked(
    "cross-causal-added",
    "A causal mask is added, as in a decoder's self-attention",
    "A query is denied tokens of memory, although none of them lies in its future.",
    "memory is complete before x begins: mask its padding, and nothing else.",
)
def _(keep: Tensor | None, lengths: Tensor | None, Lq: int, Lk: int) -> Tensor:
    return causal(Lq, Lk) if keep is None else keep & causal(Lq, Lk)


@_masked(
    "cross-causal-added-top-left",
    "A causal mask is added (is_causal=True)",
    "Query i sees the first i + 1 tokens of memory only.",
    "memory is complete before x begins: mask its padding, and nothing else.",
)
def _(keep: Tensor | None, lengths: Tensor | None, Lq: int, Lk: int) -> Tensor:
    past = torch.ones(Lq, Lk, dtype=torch.bool).tril()
    return past if keep is None else keep & past


def _real_queries(lengths: Tensor, Lq: int) -> Tensor:
    return (torch.arange(Lq) < lengths[:, None])[:, None, :, None]  # (B, 1, Lq, 1)


@_masked(
    "cross-lengths-needed",
    "lengths is used although it is None",
    "An error wherever no memory has padding.",
    "mask = None if lengths is None else padding_mask(lengths, memory.size(1)).",
)
def _(keep: Tensor | None, lengths: Tensor | None, Lq: int, Lk: int) -> Tensor | None:
    if lengths is None:
        raise no_lengths_given()
    return keep


@_masked(
    "cross-mask-over-queries",
    "lengths hides queries of x instead of keys of memory",
    "Padding of memory gets attention, and queries from number `length` on get nothing.",
    "lengths belongs to memory: the mask is (B, 1, 1, Lk).",
)
def _(keep: Tensor | None, lengths: Tensor | None, Lq: int, Lk: int) -> Tensor | None:
    return keep if lengths is None else _real_queries(lengths, Lq)


@_masked(
    "cross-mask-over-queries-and-keys",
    "lengths hides queries of x as well as keys of memory",
    "Queries from number `length` on get nothing, although they are real.",
    "lengths belongs to memory alone: the mask is (B, 1, 1, Lk).",
)
def _(keep: Tensor | None, lengths: Tensor | None, Lq: int, Lk: int) -> Tensor | None:
    return keep if keep is None or lengths is None else keep & _real_queries(lengths, Lq)


@_masked(
    "cross-mask-of-length-lq",
    "The mask has one column for each query: it is made with the length of x",
    "An error about shapes where Lq ≠ Lk.",
    "the keys are the tokens of memory: padding_mask(lengths, memory.size(1)).",
)
def _(keep: Tensor | None, lengths: Tensor | None, Lq: int, Lk: int) -> Tensor | None:
    return keep if lengths is None else _real_queries(lengths, Lq).transpose(-2, -1)


@_masked(
    "cross-mask-of-longest-length",
    "The mask has as many columns as the longest memory has real tokens",
    "An error about shapes where every memory ends in padding.",
    "the mask covers all Lk columns: padding_mask(lengths, memory.size(1)).",
)
def _(keep: Tensor | None, lengths: Tensor | None, Lq: int, Lk: int) -> Tensor | None:
    return keep if keep is None or lengths is None else keep[..., : int(lengths.max())]


# ---------------------------------------------------------------- what comes out


@mistake(
    "cross-no-output-projection",
    "W_o is not applied to what the heads found",
    "Each output column hears one head only.",
    "return concat @ W_o.T.",
    stage="cross_output",
)
def _(concat: Tensor, x: Tensor, w: Matrices) -> Tensor:
    return concat


@mistake(
    "cross-residual-added",
    "x is added to the output of cross-attention",
    "The residual connection belongs outside.",
    "return concat @ W_o.T alone.",
    stage="cross_output",
)
def _(concat: Tensor, x: Tensor, w: Matrices) -> Tensor:
    return cross_output(concat, x, w) + x


@mistake(
    "cross-residual-and-norm",
    "x is added to the output of cross-attention, and the sum is normalised",
    "That is what a whole decoder layer does.",
    "return concat @ W_o.T alone.",
    stage="cross_output",
)
def _(concat: Tensor, x: Tensor, w: Matrices) -> Tensor:
    return F.layer_norm(cross_output(concat, x, w) + x, x.shape[-1:])
