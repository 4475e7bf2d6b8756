"""What goes wrong in the layer as a whole: which weights meet which input, and what becomes of the heads."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mha.check.catalogue import Stage, behaviour, mistake
from mha.check.exercises.attention import guard, score, take
from mha.check.exercises.attention import mask as fill
from mha.check.exercises.heads import merge, split
from mha.check.exercises.layer import (
    LAYER,
    Inputs,
    linear,
    output,
    project_k,
    project_q,
    project_v,
    same_length,
)
from mha.check.weights import Projections
from mha.positions import alibi_slopes, sinusoidal_encoding

Activation = Callable[[Tensor], Tensor]

# ---------------------------------------------------------------- project


@mistake(
    "layer-not-transposed",
    "X @ W.weight in place of the nn.Linear itself",
    "Right shapes and wrong numbers in queries, keys and values.",
    "nn.Linear stores (out, in) and computes X @ W.T: call it, or transpose.",
    stage="project_q",
    also={
        "project_k": lambda inputs, w: linear(inputs[1], w.W_k.T, w.b_k),
        "project_v": lambda inputs, w: linear(inputs[2], w.W_v.T, w.b_v),
    },
)
def _(inputs: Inputs, w: Projections) -> Tensor:
    return linear(inputs[0], w.W_q.T, w.b_q)


def _other(id: str, title: str, effect: str, hint: str, stage: str, source: int, role: str) -> None:
    """Enter one of the ways to take the wrong input or the wrong matrix."""

    @mistake(id, title, effect, hint, stage=stage)
    def _(inputs: Inputs, w: Projections) -> Tensor:
        return linear(inputs[source], getattr(w, f"W_{role}"), getattr(w, f"b_{role}"))


_STAGES = {"q": ("project_q", 0, "queries"), "k": ("project_k", 1, "keys"), "v": ("project_v", 2, "values")}
for _role, (_stage, _source, _what) in _STAGES.items():
    for _taken in "qkvo".replace(_role, ""):
        _other(
            f"layer-{_what}-by-w_{_taken}",
            f"The {_what} are projected with W_{_taken}",
            f"W_{_role} is never used and gets no gradient.",
            f"project {_what} with W_{_role}.",
            _stage,
            _source,
            _taken,
        )
    for _from, _name in enumerate("QKV"):
        if _from != _source:
            _other(
                f"layer-{_what}-from-{_name}",
                f"The {_what} are made from {_name}",
                "Right for self-attention, where Q, K and V are one tensor; wrong for any other.",
                f"make {_what} from {'QKV'[_source]}.",
                _stage,
                _from,
                _role,
            )


@mistake(
    "layer-self-attention-only",
    "Keys and values are made from Q: the arguments K and V are ignored",
    "Right for self-attention; cross-attention looks at the wrong sequence.",
    "make keys from K and values from V.",
    stage="project_k",
    also={"project_v": lambda inputs, w: linear(inputs[0], w.W_v, w.b_v)},
)
def _(inputs: Inputs, w: Projections) -> Tensor:
    return linear(inputs[0], w.W_k, w.b_k)


@mistake(
    "layer-queries-and-keys-exchanged",
    "W_q projects the keys and W_k the queries",
    "The scores are those of the transposed question.",
    "W_q belongs to the queries, W_k to the keys.",
    stage="project_q",
    also={"project_k": lambda inputs, w: linear(inputs[1], w.W_q, w.b_q)},
)
def _(inputs: Inputs, w: Projections) -> Tensor:
    return linear(inputs[0], w.W_k, w.b_k)


_ORDERS = {  # which matrix projects queries, keys and values
    "qvk": "W_k projects the values and W_v the keys",
    "vkq": "W_q projects the values and W_v the queries",
    "kvq": "Queries, keys and values are projected by W_k, W_v and W_q",
    "vqk": "Queries, keys and values are projected by W_v, W_q and W_k",
}
for _order, _what in _ORDERS.items():

    @mistake(
        f"layer-projections-in-order-{_order}",
        _what,
        "It trains as well as any, but weights made elsewhere do not fit.",
        "queries by W_q, keys by W_k, values by W_v; three in one are cut in that order.",
        stage="project_q",
        also={
            "project_k": lambda i, w, r=_order[1]: linear(i[1], getattr(w, f"W_{r}"), getattr(w, f"b_{r}")),
            "project_v": lambda i, w, r=_order[2]: linear(i[2], getattr(w, f"W_{r}"), getattr(w, f"b_{r}")),
        },
    )
    def _(inputs: Inputs, w: Projections, _taken: str = _order[0]) -> Tensor:
        return linear(inputs[0], getattr(w, f"W_{_taken}"), getattr(w, f"b_{_taken}"))


@mistake(
    "layer-one-projection-for-all",
    "W_q projects queries, keys and values",
    "Scores are symmetric in self-attention; W_k and W_v get no gradient.",
    "three projections: W_q, W_k, W_v.",
    stage="project_k",
    also={"project_v": lambda inputs, w: linear(inputs[2], w.W_q, w.b_q)},
)
def _(inputs: Inputs, w: Projections) -> Tensor:
    return linear(inputs[1], w.W_q, w.b_q)


def _unprojected(id: str, what: str, stage: str, source: int) -> None:
    @mistake(
        id,
        f"The {what} are not projected",
        "A head can only use the numbers in its own columns of the input.",
        f"apply W_{what[0]} first.",
        stage=stage,
    )
    def _(inputs: Inputs, w: Projections) -> Tensor:
        return inputs[source]


for _role, (_stage, _source, _what) in _STAGES.items():
    _unprojected(f"layer-{_what}-not-projected", _what, _stage, _source)


def _chained(id: str, title: str, values_from: str) -> None:
    """Enter keys, and values, that are made from what was projected already."""

    def keys(inputs: Inputs, w: Projections) -> Tensor:
        return linear(project_q(inputs, w), w.W_k, w.b_k)

    @mistake(
        id,
        title,
        "One variable stands for both: x = W_q(x), and W_k is given the x that W_q has made.",
        "each projection takes the input itself: q = W_q(Q), k = W_k(K), v = W_v(V).",
        stage="project_k",
        also={
            "project_v": lambda inputs, w: linear(
                keys(inputs, w) if values_from == "keys" else project_q(inputs, w), w.W_v, w.b_v
            )
        },
    )
    def _(inputs: Inputs, w: Projections) -> Tensor:
        return keys(inputs, w)


_chained(
    "layer-projections-chained",
    "The keys are made from the projected queries, and the values from those keys",
    values_from="keys",
)
_chained(
    "layer-projected-from-queries",
    "Keys and values are made from the projected queries",
    values_from="queries",
)


def _miscut(way: str, title: str, effect: str, hint: str, cut: Callable[[Tensor, int], Tensor]) -> None:
    """Enter one wrong way to cut queries, keys or values, and only them, into heads (B, h, L, d_k)."""
    for role, (stage, _, what) in _STAGES.items():
        project = {"q": project_q, "k": project_k, "v": project_v}[role]

        # Joined again, it is what the right split makes the wrong heads of.
        @mistake(
            f"layer-{what}-{way}", title.format(what), effect.format(what), hint.format(what), stage=stage
        )
        def _(
            inputs: Inputs, w: Projections, project: Callable[[Inputs, Projections], Tensor] = project
        ) -> Tensor:
            return merge(cut(project(inputs, w), w.num_heads))


_miscut(
    "view-only",
    "The {}, and only they, are viewed as (B, h, L, d_k) at once, without a transpose",
    "The right shape; a head holds pieces of some tokens' {} and nothing of others'.",
    "cut the {} as the other two: view as (B, L, h, d_k), then transpose(1, 2).",
    lambda x, h: x.reshape(x.size(0), h, x.size(1), -1),
)
_miscut(
    "interleaved",
    "The {}, and only they, are cut as (d_k, h): each head takes every h-th number",
    "A head's {} are of other columns than the other two that it works on.",
    "cut the {} as the other two: heads first, view(B, L, h, d_k).",
    lambda x, h: x.unflatten(-1, (-1, h)).permute(0, 3, 1, 2),
)
_miscut(
    "of-first-head",
    "Every head is given the {} of the first",
    "The other heads' {} are computed and never used.",
    "in a loop over the heads, index the {} with its number, too.",
    lambda x, h: split(x, h)[:, :1].expand(-1, h, -1, -1),
)
_miscut(
    "of-last-head",
    "Every head is given the {} of the last",
    "A variable of an earlier loop is used, which holds the {} of its last round.",
    "keep the {} of all heads, in a list or a tensor, and index them.",
    lambda x, h: split(x, h)[:, -1:].expand(-1, h, -1, -1),
)


# ---------------------------------------------------------------- heads


@mistake(
    "layer-batch-of-one",
    "The view counts on a batch of one: view(1, -1, h, d_k)",
    "Right for one example; with more, all their tokens stand in one row and attend to one another.",
    "take the size of the batch from the input: x.size(0).",
    stage="split",
    also={"key_length": same_length},  # a stage of layers only
)
def _(x: Tensor, num_heads: int) -> Tensor:
    return split(x.reshape(1, -1, x.size(-1)), num_heads)


@mistake(
    "layer-attends-over-heads",
    "The heads are not moved before the tokens: the heads of one token attend to one another",
    "The weights are (B, L, h, h), and no token hears anything of another.",
    "transpose(1, 2) after the view, so that the last two axes are tokens and numbers: (B, h, L, d_k).",
    stage="split",
    also={"merge": lambda x: x.flatten(2)},
)
def _(x: Tensor, num_heads: int) -> Tensor:
    return x.unflatten(-1, (num_heads, -1))


@mistake(
    "layer-joined-along-tokens",
    "The heads are joined along the tokens, dim=1, in place of the last axis",
    "(B, h·L, d_k): W_o is given d_k numbers of a token, where it wants d_model.",
    "torch.cat(heads, dim=-1) lays the numbers of all heads side by side.",
    stage="merge",
    also={"key_length": same_length},  # a stage of layers only: `merge-along-tokens` is the same without
)
def _(x: Tensor) -> Tensor:
    return x.flatten(1, 2)


@mistake(
    "merge-unfolded-heads-first",
    "Batch and heads in one axis, (B·h), are taken apart as (h, B)",
    "Right for one example; with more, the heads of different examples are joined.",
    "take apart in the order in which they were put together: view(B, h, L, d_k).",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    B, h, L, d_k = x.shape
    return x.reshape(h, B, L, d_k).permute(1, 2, 0, 3).reshape(B, L, h * d_k)


@mistake(
    "merge-unfolded-batch-first",
    "Heads and batch in one axis, (h·B), are taken apart as (B, h)",
    "Right for one example; with more, the heads of different examples are joined.",
    "take apart in the order in which they were put together: view(h, B, L, d_k), or chunk(h) and cat.",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    return merge(_batch_first(x))


def _batch_first(x: Tensor) -> Tensor:
    """Fold (B, h, …) head by head, and take it apart as if it had been folded example by example."""
    return x.transpose(0, 1).reshape(x.shape)


def _weights_batch_first(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return output, _batch_first(weights)


@mistake(
    "merge-and-weights-unfolded-batch-first",
    "Heads and batch in one axis, (h·B), are taken apart as (B, h), in the output and in the weights",
    "Right for one example; with more, the heads of different examples are joined.",
    "take apart in the order in which they were put together: view(h, B, L, d_k), or chunk(h) and cat.",
    stage="merge",
    also={"give": _weights_batch_first},
)
def _(x: Tensor) -> Tensor:
    return merge(_batch_first(x))


def _weights_heads_first(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return output, _heads_first(weights)


def _heads_first(x: Tensor) -> Tensor:
    """Fold (B, h, …) example by example, and take it apart as if it had been folded head by head."""
    return x.reshape(x.size(1), x.size(0), *x.shape[2:]).transpose(0, 1)


@mistake(
    "merge-and-weights-unfolded-heads-first",
    "Batch and heads in one axis, (B·h), are taken apart as (h, B), in the output and in the weights",
    "Right for one example; with more, the heads of different examples are joined.",
    "take apart in the order in which they were put together: view(B, h, L, d_k).",
    stage="merge",
    also={"give": _weights_heads_first},
)
def _(x: Tensor) -> Tensor:
    return merge(_heads_first(x))


@mistake(
    "merge-first-head-for-all",
    "The first head's result stands in the place of every head's",
    "The blocks of the joined heads are all alike; the other heads are lost.",
    "index the heads with the number of the loop, or join them without a loop.",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    return merge(x[:, :1].expand_as(x))


@mistake(
    "merge-averaged-and-repeated",
    "The mean of the heads stands in the place of each of them",
    "The right shape, and h blocks that are all alike.",
    "lay the heads side by side, each as it is.",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    return merge(x.mean(dim=1, keepdim=True).expand_as(x))


@mistake(
    "softmax-over-batch-and-heads",
    "The softmax runs over batch and heads, which share an axis: dim=0 of (B·h, Lq, Lk)",
    "What one example gives a key depends on what the others give theirs.",
    "softmax(dim=-1), over the keys.",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    return scores.flatten(0, 1).softmax(dim=0).view(scores.shape)


@mistake(
    "mask-first-head-only",
    "The mask is applied to the first head only",
    "All other heads look at what is hidden.",
    "let the mask broadcast over the heads: (B, 1, Lq, Lk).",
    stage="mask",
    also={"guard": lambda weights, mask: weights.masked_fill(_in_first_head(weights, mask), 0.0)},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(_in_first_head(scores, mask), torch.finfo(scores.dtype).min)


def _in_first_head(scores: Tensor, mask: Tensor) -> Tensor:
    blocked = (mask == 0).expand(scores.shape).clone()
    blocked[:, 1:] = False
    return blocked


@mistake(
    "merge-last-head-missing",
    "The last head's numbers stay 0",
    "The loop over the heads ends one too soon: range(h - 1).",
    "range(h) counts from 0 to h - 1 and reaches all of them.",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    return merge(torch.cat([x[:, :-1], torch.zeros_like(x[:, -1:])], dim=1))


# ---------------------------------------------------------------- lengths


@mistake(
    "layer-keys-with-lq",
    "Keys and values are viewed with the length of the queries",
    "Right for self-attention; an error, or mixed rows, where Lq ≠ Lk.",
    "take the length from the tensor that is cut: K.size(1).",
    stage="key_length",
)
def _(x: Tensor, Lq: int) -> Tensor:
    return x.view(x.size(0), Lq, x.size(-1))


@mistake(
    "layer-keys-cut-to-lq",
    "Keys and values beyond the length of the queries are dropped",
    "Right for self-attention; keys are lost where Lk is larger than Lq.",
    "use all keys.",
    stage="key_length",
)
def _(x: Tensor, Lq: int) -> Tensor:
    return x[:, :Lq]


# ---------------------------------------------------------------- a mask that nobody asked for


def _always_causal(
    id: str, title: str, effect: str, from_the_end: bool, finite: bool = False, **others: Stage
) -> None:
    # Where something is taken at all: with a cache, attention has to be causal.
    @mistake(
        id, title, effect, "mask only where a mask is given.", stage="score", also={"take": take, **others}
    )
    def _(Q: Tensor, K: Tensor) -> Tensor:
        scores = score(Q, K)
        shift = scores.size(-1) - scores.size(-2) if from_the_end else 0
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1 + shift)
        # Of more queries than keys, the first see nothing: NaN after -inf, all alike after a finite number.
        return scores.masked_fill(future, torch.finfo(scores.dtype).min if finite else float("-inf"))


_always_causal(
    "layer-always-causal",
    "It is causal without being asked: no query sees a later key",
    "PyTorch's layer is causal only with a mask, F.scaled_dot_product_attention with is_causal=True.",
    from_the_end=False,
)
_always_causal(
    "layer-always-causal-from-the-end",
    "It is causal without being asked, and takes the queries for the last positions",
    "Each query sees the keys up to its own place, counted from the end, though no mask was given.",
    from_the_end=True,
)
_always_causal(
    "layer-always-causal-finite",
    "It is causal without being asked, with a finite fill, the queries being the last positions",
    "Each query sees the keys up to its own place; one that is left with none attends to all evenly.",
    from_the_end=True,
    finite=True,
)


_always_causal(
    "layer-always-causal-zero-rows",
    "It is causal without being asked, and gives zeros to queries that stand before all keys",
    "Each query sees the keys up to its own place, counted from the end; one that is left with none gets 0.",
    from_the_end=True,
    softmax=lambda scores, d_k: torch.softmax(scores, dim=-1).nan_to_num(0.0),
)


def _causal_shifted(id: str, title: str, effect: str, shift: int) -> None:
    """Enter a diagonal at the wrong place, in a layer that is causal by itself."""

    def future(scores: Tensor) -> Tensor:
        return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(shift)

    @mistake(
        id,
        title,
        effect,
        "a token sees itself and what stands before: block triu(diagonal=1), or keep tril().",
        stage="mask",
        also={
            "guard": lambda weights, mask: weights.masked_fill(future(weights), 0.0),
            "key_length": same_length,
        },
    )
    def _(scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(future(scores), float("-inf"))


_causal_shifted(
    "layer-causal-sees-next",
    "It is causal by itself, and a token sees the next one, too: one diagonal too generous",
    "The answer leaks: training looks perfect, generation is useless.",
    shift=2,
)


def _causal_once_masked(id: str, title: str, effect: str, from_the_end: bool, besides: bool) -> None:
    """Enter a layer that is causal as soon as a mask is given, whatever the mask says."""

    def blocked(scores: Tensor, mask: Tensor) -> Tensor:
        shift = scores.size(-1) - scores.size(-2) if from_the_end else 0
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1 + shift)
        return future | (mask == 0) if besides else future.expand_as(scores)

    @mistake(
        id,
        title,
        effect,
        "use the mask that is given, and nothing else: it says itself whether it is causal.",
        stage="mask",
        also={"guard": lambda weights, mask: weights.masked_fill(blocked(weights, mask), 0.0)},
    )
    def _(scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(blocked(scores, mask), torch.finfo(scores.dtype).min)


for _id, _where, _from_the_end in (("", "", False), ("-from-the-end", ", counted from the end", True)):
    _causal_once_masked(
        f"mask-any-means-causal{_id}",
        f"Any mask only switches on a causal one{_where}: what it says is not used",
        "As is_causal=mask is not None does: a padding mask hides the future, and no padding.",
        _from_the_end,
        besides=False,
    )
    _causal_once_masked(
        f"mask-causal-besides{_id}",
        f"With a mask, a causal one{_where} is applied besides, unasked",
        "No query sees a later key once a mask is given, though the mask would let it.",
        _from_the_end,
        besides=True,
    )


def _mask_of_the_fold(id: str, title: str, hint: str, heads_first: bool) -> None:
    """Enter masks that meet heads folded into the batch in the other's order."""

    def misplaced(scores: Tensor, mask: Tensor) -> Tensor:
        B, h = scores.shape[:2]
        if mask.ndim < 4 or mask.size(1) > 1:
            return mask
        each = mask.expand(B, -1, -1, -1)
        if heads_first:
            return each.repeat_interleave(h, dim=0).view(h, B, *mask.shape[-2:]).transpose(0, 1)
        return each.repeat(h, 1, 1, 1).view(B, h, *mask.shape[-2:])

    @mistake(
        id,
        title,
        "Right for one example; with more, heads get the masks of other examples.",
        hint,
        stage="mask",
        also={"guard": lambda weights, mask: weights.masked_fill(misplaced(weights, mask) == 0, 0.0)},
    )
    def _(scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(misplaced(scores, mask) == 0, torch.finfo(scores.dtype).min)


_mask_of_the_fold(
    "mask-repeated-in-the-wrong-order",
    "Heads are folded into the batch example by example, (B·h), but the mask is repeated head by head",
    "repeat_interleave(num_heads, dim=0) keeps an example's masks together; repeat lays them out in turn.",
    heads_first=False,
)
_mask_of_the_fold(
    "mask-repeated-example-by-example",
    "Heads are folded into the batch head by head, (h·B), but the mask is repeated example by example",
    "repeat(num_heads, 1, 1) lays the masks out in turn, as the heads are.",
    heads_first=True,
)


@mistake(
    "mask-large-number-added",
    "A large negative number is added to the scores where the mask blocks",
    "Right but for a query with nothing to see, which attends as if there were no mask.",
    "fill with the lowest number in place of adding, and set blocked weights to 0 after the softmax.",
    stage="mask",
    also={"guard": lambda weights, mask: weights},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores + torch.zeros_like(scores).masked_fill(mask == 0, -1e4)


# ---------------------------------------------------------------- output


@mistake(
    "layer-no-output-projection",
    "W_o is not applied",
    "Each output column hears one head only, and W_o gets no gradient.",
    "return W_o(concat).",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return concat


@mistake(
    "layer-output-not-transposed",
    "The output is concat @ W_o.weight",
    "The right shape and wrong numbers.",
    "nn.Linear stores (out, in): call it, or use W_o.weight.T.",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return linear(concat, w.W_o.T, w.b_o)


@mistake(
    "layer-joined-with-lk",
    "The heads are joined with the length of the keys",
    "Right for self-attention; an error where Lq ≠ Lk.",
    "the joined heads have a row for each query: take the length from Q.",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return output(concat.view(concat.size(0), inputs[1].size(1), concat.size(-1)), inputs, w)


@mistake(
    "layer-output-bias-per-head",
    "W_o's bias is added once for each head",
    "Each head goes through its columns of W_o, bias and all, and the h results are added up.",
    "add the bias once, after the sum.",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return linear(concat, w.W_o, None if w.b_o is None else w.b_o * w.num_heads)


@mistake(
    "layer-output-averaged-over-tokens",
    "The output is averaged over the tokens",
    "One row is left of Lq: a sentence has a vector, its tokens have none.",
    "return a row for each query: (B, Lq, d_model).",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return output(concat, inputs, w).mean(dim=1)


for _id, _what, _index in (
    ("last", "the last token's", slice(-1, None)),
    ("first", "the first token's", slice(1)),
):
    for _kept in (True, False):

        @mistake(
            f"layer-output-of-{_id}-token{'' if _kept else '-without-axis'}",
            f"Only {_what} output comes back{', with its axis' if _kept else ''}",
            "One row is left of Lq.",
            "return a row for each query: (B, Lq, d_model).",
            stage="output",
        )
        def _(
            concat: Tensor, inputs: Inputs, w: Projections, index: slice = _index, kept: bool = _kept
        ) -> Tensor:
            rows = output(concat, inputs, w)[:, index]
            return rows if kept else rows.squeeze(1)


@mistake(
    "layer-output-twice",
    "W_o is applied twice",
    "The right shape and wrong numbers.",
    "apply it once.",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return output(output(concat, inputs, w), inputs, w)


for _taken in "qkv":

    @mistake(
        f"layer-output-by-w_{_taken}",
        f"The output is projected with W_{_taken}",
        "W_o is never used and gets no gradient.",
        "the last projection is W_o.",
        stage="output",
    )
    def _(concat: Tensor, inputs: Inputs, w: Projections, _taken: str = _taken) -> Tensor:
        return linear(concat, getattr(w, f"W_{_taken}"), getattr(w, f"b_{_taken}"))


@mistake(
    "layer-residual-added",
    "The input Q is added to the output",
    "The residual connection belongs outside of the layer.",
    "return W_o(concat) alone.",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return output(concat, inputs, w) + inputs[0]


@mistake(
    "layer-output-normalised",
    "A LayerNorm is applied inside of the layer",
    "Every output row has mean 0 and variance 1.",
    "normalisation belongs outside of the layer.",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return torch.nn.functional.layer_norm(output(concat, inputs, w), concat.shape[-1:])


@mistake(
    "layer-add-and-norm",
    "The input is added to the output, and a LayerNorm applied, inside of the layer",
    "Every output row has mean 0 and variance 1: the block around the layer is in the layer.",
    "return W_o(concat) alone; x + attention(x) and its normalisation belong outside.",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return torch.nn.functional.layer_norm(output(concat, inputs, w) + inputs[0], inputs[0].shape[-1:])


@mistake(
    "layer-queries-added",
    "The projected queries are added to the joined heads",
    "As in the blocks of Set Transformers; here a query's own numbers have no part in the values' mean.",
    "W_o takes the joined heads alone.",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return output(concat + project_q(inputs, w), inputs, w)


def _normalised(inputs: Inputs) -> Inputs:
    Q, K, V = (torch.nn.functional.layer_norm(x, x.shape[-1:]) for x in inputs)
    return Q, K, V


@mistake(
    "layer-inputs-normalised",
    "A LayerNorm is applied to the inputs inside of the layer",
    "The size of the input makes no difference to the result.",
    "normalisation belongs outside of the layer.",
    stage="project_q",
    also={
        "project_k": lambda inputs, w: project_k(_normalised(inputs), w),
        "project_v": lambda inputs, w: project_v(_normalised(inputs), w),
    },
)
def _(inputs: Inputs, w: Projections) -> Tensor:
    return project_q(_normalised(inputs), w)


_ACTIVATIONS = {  # by what an id says of them; a ReLU's says nothing
    "": ("A ReLU", torch.relu, "none of its numbers is negative."),
    "-gelu": ("A GELU", torch.nn.functional.gelu, "none of its numbers is less than -0.17."),
    "-tanh": ("tanh", torch.tanh, "all of its numbers lie between -1 and 1."),
}
for _kind, (_name, _function, _effect) in _ACTIVATIONS.items():

    @mistake(
        f"layer-activation-after-output{_kind}",
        f"{_name} is applied to the output",
        f"What comes out shows it: {_effect}",
        "the output is linear: return W_o(concat).",
        stage="output",
    )
    def _(concat: Tensor, inputs: Inputs, w: Projections, f: Activation = _function) -> Tensor:
        return f(output(concat, inputs, w))

    @mistake(
        f"layer-activation-before-output{_kind}",
        f"{_name} is applied to the joined heads, before W_o",
        f"What W_o is given shows it: {_effect}",
        "nothing stands between the joined heads and W_o.",
        stage="output",
    )
    def _(concat: Tensor, inputs: Inputs, w: Projections, f: Activation = _function) -> Tensor:
        return output(f(concat), inputs, w)

    @mistake(
        f"layer-activation-after-projections{_kind}",
        f"{_name} is applied to queries, keys and values",
        f"Each of the three shows it: {_effect}",
        "the projections are linear.",
        stage="project_q",
        also={
            "project_k": lambda inputs, w, f=_function: f(project_k(inputs, w)),
            "project_v": lambda inputs, w, f=_function: f(project_v(inputs, w)),
        },
    )
    def _(inputs: Inputs, w: Projections, f: Activation = _function) -> Tensor:
        return f(project_q(inputs, w))


# ---------------------------------------------------------------- rarer things, looked for by themselves


def _rare(
    id: str,
    title: str,
    effect: str,
    hint: str,
    stage: str,
    wrong: Stage,
    also: dict[str, Stage] | None = None,
) -> None:
    """Enter what only a layer shows, and nobody is expected to do together with something else."""
    replaced = {"output": output, **(also or {}), stage: wrong}  # `output` is a stage of layers only
    mistake(id, title, effect, hint, stage=stage, also=replaced, alone=True)(wrong)


for _kind, _name, _function in (
    ("leaky-relu", "A leaky ReLU", torch.nn.functional.leaky_relu),
    ("sigmoid", "A sigmoid", torch.sigmoid),
    ("silu", "SiLU, a gate made of itself,", torch.nn.functional.silu),
    ("elu", "ELU", torch.nn.functional.elu),
    ("softmax", "A softmax", lambda x: x.softmax(-1)),
):
    for _where, _what, _wrong in (
        ("after", "the output", lambda c, i, w, f: f(output(c, i, w))),
        ("before", "the joined heads, before W_o", lambda c, i, w, f: output(f(c), i, w)),
    ):
        _rare(
            f"layer-activation-{_where}-output-{_kind}",
            f"{_name} is applied to {_what}",
            "What is linear in the paper is bent.",
            "nothing is applied to the joined heads but W_o, and nothing to what comes of it.",
            "output",
            lambda concat, inputs, w, f=_function, wrong=_wrong: wrong(concat, inputs, w, f),
        )
_GATE = "the output is W_o of the joined heads: no gate, which LSTMs and some later models have."
for _id, _title, _wrong in (
    ("input", "the sigmoid of the input Q", lambda c, i, w: output(c, i, w) * i[0].sigmoid()),
    (
        "queries",
        "the sigmoid of the projected queries",
        lambda c, i, w: output(c * project_q(i, w).sigmoid(), i, w),
    ),
    ("input-itself", "the input Q", lambda c, i, w: output(c, i, w) * i[0]),
):
    _rare(
        f"layer-gated-by-{_id}",
        f"The output, or what W_o is given, is multiplied by {_title}",
        "How much a query hears depends on its own numbers besides.",
        _GATE,
        "output",
        _wrong,
    )


def _norm(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


for _id, _title, _wrong in (
    (
        "output-normalised-and-input",
        "The output is normalised (LayerNorm), and the input Q",
        lambda c, i, w: i[0] + _norm(output(c, i, w)),
    ),
    (
        "relu-and-input",
        "A ReLU is applied to the output, and the input Q",
        lambda c, i, w: i[0] + output(c, i, w).relu(),
    ),
    (
        "half-of-input",
        "The output is halved, and half of the input Q",
        lambda c, i, w: (i[0] + output(c, i, w)) / 2,
    ),
):
    _rare(
        f"layer-{_id}-added",
        f"{_title} is added to it",
        "That is what the block around the layer does.",
        "return W_o(concat) alone.",
        "output",
        _wrong,
    )
for _id, _plus, _output in (
    ("", "", output),
    ("-and-input-added", ", and Q is added to the output", lambda c, i, w: output(c, i, w) + i[0]),
):
    _rare(
        f"layer-query-input-normalised{_id}",
        f"A LayerNorm is applied to Q inside of the layer{_plus}",
        "The size of the input makes no difference to its queries.",
        "normalisation belongs outside of the layer.",
        "project_q",
        lambda inputs, w: project_q(_normalised(inputs), w),
        also={"output": _output},
    )
_rare(
    "layer-pre-norm-block",
    "A LayerNorm is applied to the inputs, and Q is added to the output, inside of the layer",
    "That is the block around the layer, as GPT-2 has it.",
    "normalisation and residual connection belong outside of the layer.",
    "project_q",
    lambda inputs, w: project_q(_normalised(inputs), w),
    also={
        "project_k": lambda inputs, w: project_k(_normalised(inputs), w),
        "project_v": lambda inputs, w: project_v(_normalised(inputs), w),
        "output": lambda concat, inputs, w: output(concat, inputs, w) + inputs[0],
    },
)
_rare(
    "layer-output-on-values",
    "W_o is applied to the values, before the heads mix them",
    "Each head mixes numbers that W_o has mixed over all heads already.",
    "join the heads first, then apply W_o.",
    "project_v",
    lambda inputs, w: output(project_v(inputs, w), inputs, w),
    also={"output": lambda concat, inputs, w: concat},
)
for _id, _title, _wrong in (
    ("input-V", "The input V is added to the output", lambda c, i, w: output(c, i, w) + i[2]),
    ("input-K", "The input K is added to the output", lambda c, i, w: output(c, i, w) + i[1]),
    (
        "values",
        "The projected values are added to the joined heads",
        lambda c, i, w: output(c + project_v(i, w), i, w),
    ),
    (
        "values-after",
        "The projected values are added to the output",
        lambda c, i, w: output(c, i, w) + project_v(i, w),
    ),
    (
        "queries-after",
        "The projected queries are added to the output",
        lambda c, i, w: output(c, i, w) + project_q(i, w),
    ),
    ("heads", "The joined heads are added to the output", lambda c, i, w: output(c, i, w) + c),
    ("input-before", "The input Q is added to the joined heads", lambda c, i, w: output(c + i[0], i, w)),
):
    _rare(
        f"layer-{_id}-added",
        _title,
        "A residual connection belongs outside of the layer; of keys or values it fails where Lq ≠ Lk.",
        "return W_o(concat) alone.",
        "output",
        _wrong,
    )
for _id, _title, _wrong in (
    (
        "heads-normalised",
        "A LayerNorm is applied to the joined heads, before W_o",
        lambda c, i, w: output(_norm(c), i, w),
    ),
    (
        "output-of-length-1",
        "Each row of the output is scaled to length 1",
        lambda c, i, w: torch.nn.functional.normalize(output(c, i, w), dim=-1),
    ),
    (
        "output-divided-by-heads",
        "The output is divided by the number of heads",
        lambda c, i, w: output(c, i, w) / w.num_heads,
    ),
    (
        "output-scaled",
        "The output is multiplied by √d_model",
        lambda c, i, w: output(c, i, w) * c.size(-1) ** 0.5,
    ),
    (
        "output-divided-by-root",
        "The output is divided by √d_k",
        lambda c, i, w: output(c, i, w) / (c.size(-1) / w.num_heads) ** 0.5,
    ),
    ("output-doubled", "The output is added to itself", lambda c, i, w: 2 * output(c, i, w)),
    (
        "output-bias-missing",
        "W_o is applied without its bias",
        lambda c, i, w: linear(c, w.W_o, None),
    ),
    (
        "output-turned",
        "The output is (B, d_model, Lq): its last two axes are exchanged",
        lambda c, i, w: output(c, i, w).mT,
    ),
    (
        "output-length-first",
        "The output comes back as (Lq, B, d_model)",
        lambda c, i, w: output(c, i, w).transpose(0, 1),
    ),
    (
        "output-flat",
        "The output comes back as (B·Lq, d_model)",
        lambda c, i, w: output(c, i, w).flatten(0, 1),
    ),
    (
        "output-still-in-heads",
        "The output comes back in heads, (B, h, Lq, d_k)",
        lambda c, i, w: split(output(c, i, w), w.num_heads),
    ),
    (
        "output-of-one-example",
        "Only the first example's output comes back",
        lambda c, i, w: output(c, i, w)[0],
    ),
    (
        "output-squeezed",
        "Axes of size 1 are taken away: output.squeeze()",
        lambda c, i, w: output(c, i, w).squeeze(),
    ),
    (
        "output-batch-squeezed",
        "A batch of one loses its axis: output.squeeze(0)",
        lambda c, i, w: output(c, i, w).squeeze(0),
    ),
):
    _rare(
        f"layer-{_id}",
        _title,
        "What the next layer is given has another size or shape.",
        "return W_o(concat), (B, Lq, d_model), as it is.",
        "output",
        _wrong,
    )
_rare(
    "layer-batch-squeezed",
    "A batch of one loses its axis in output and weights: squeeze(0)",
    "One example comes back without the axis that it came with.",
    "return both with all their axes.",
    "give",
    lambda output, weights, scores: (output.squeeze(0), weights.squeeze(0)),
)
_rare(
    "layer-squeezed",
    "Axes of size 1 are taken away from what the layer returns: squeeze()",
    "One example, or one token, loses its axis.",
    "return both with all their axes.",
    "give",
    lambda output, weights, scores: (output.squeeze(), weights.squeeze()),
)


def _positions(L: int, d_model: int, halves: bool) -> Tensor:
    """Return sines and cosines, by turns or one half each."""
    by_turns = sinusoidal_encoding(L, d_model)
    return torch.cat([by_turns[:, ::2], by_turns[:, 1::2]], dim=1) if halves else by_turns


def _with_positions(inputs: Inputs, halves: bool) -> Inputs:
    Q, K, V = (x + _positions(*x.shape[1:], halves).to(x) for x in inputs)
    return Q, K, V


for _halves, _id, _how in ((False, "", ""), (True, "-in-halves", ", sines first and cosines behind,")):
    for _values in (True, False):
        _rare(
            f"layer-positions-added{_id}{'' if _values else '-but-to-values'}",
            f"Sinusoidal positions{_how} are added to {'Q, K and V' if _values else 'Q and K'} in the layer",
            "The layer knows nothing of the order of its inputs; a model adds positions once, at its start.",
            "project the inputs as they come.",
            "project_q",
            lambda inputs, w, halves=_halves: project_q(_with_positions(inputs, halves), w),
            also={
                "project_k": lambda inputs, w, halves=_halves: project_k(_with_positions(inputs, halves), w),
                "project_v": lambda inputs, w, halves=_halves, values=_values: project_v(
                    _with_positions(inputs, halves) if values else inputs, w
                ),
            },
        )
for _id, _title, _wrong in (
    (
        "first-row-for-all",
        "The first query's mask serves for all queries of the layer",
        lambda mask: mask[..., :1, :],
    ),
    (
        "last-row-for-all",
        "The last query's mask serves for all queries of the layer",
        lambda mask: mask[..., -1:, :],
    ),
    (
        "seen-by-any",
        "A key is seen by all queries if any may see it",
        lambda mask: (mask != 0).any(-2, keepdim=True),
    ),
    (
        "seen-by-all",
        "A key is hidden from all queries of the layer unless all may see it",
        lambda mask: (mask != 0).all(-2, keepdim=True),
    ),
    (
        "of-any-example",
        "A key is seen in all examples if it may be in any",
        lambda mask: (mask != 0).any(0, keepdim=True),
    ),
    (
        "without-heads-axis",
        "The mask's axis for the heads is taken away: mask[:, 0]",
        lambda mask: mask[:, 0],
    ),
    ("of-last-example", "The last example's mask serves for the whole batch", lambda mask: mask[-1:]),
):
    _rare(
        f"layer-mask-{_id}",
        _title,
        "Right for a mask that is the same for all of them.",
        "the mask has a row for each query of each example: use it as it is.",
        "mask",
        lambda scores, mask, f=_wrong: fill(scores, f(mask)),
        also={"guard": lambda weights, mask, f=_wrong: guard(weights, f(mask))},
    )
for _role, (_stage, _, _what) in _STAGES.items():
    _project = {"q": project_q, "k": project_k, "v": project_v}[_role]
    _rare(
        f"layer-{_what}-twice-projected",
        f"W_{_role} is applied twice to the {_what}",
        "x = W(x) stands in two places, or in a loop over heads.",
        f"project the {_what} once, and cut them into heads behind.",
        _stage,
        lambda inputs, w, project=_project, role=_role: linear(
            project(inputs, w), getattr(w, f"W_{role}"), getattr(w, f"b_{role}")
        ),
    )
    _rare(
        f"layer-{_what}-normalised",
        f"The projected {_what}, and only they, are normalised over d_model",
        "That is known as QK-norm where queries and keys are, and no part of the paper's layer.",
        f"use the {_what} as W_{_role} makes them.",
        _stage,
        lambda inputs, w, project=_project: (
            x := project(inputs, w),
            torch.nn.functional.layer_norm(x, x.shape[-1:]),
        )[1],
    )
    _rare(
        f"layer-{_what}-activated",
        f"A ReLU is applied to the {_what}, and only to them",
        "None of their numbers is negative.",
        "the projections are linear.",
        _stage,
        lambda inputs, w, project=_project: project(inputs, w).relu(),
    )
for _role in "qv":  # keys' bias adds the same to all scores of a query, which the softmax takes away again
    _stage, _source, _what = _STAGES[_role]
    _rare(
        f"layer-{_what}-without-bias",
        f"The {_what} are projected without the bias that the layer has for them",
        "F.linear(x, W.weight) leaves it out, and it is never trained.",
        f"call the layer, W_{_role}(x), or hand on its bias.",
        _stage,
        lambda inputs, w, role=_role, source=_source: linear(inputs[source], getattr(w, f"W_{role}"), None),
    )


# ---------------------------------------------------------------- give


@mistake(
    "give-in-a-list",
    "Output and weights come back in a list",
    "Code that tells a pair from a tensor by its type, isinstance(result, tuple), is misled.",
    "return output, weights: a tuple.",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> list[Tensor]:
    return [output, weights]


@mistake(
    "give-nothing",
    "Nothing comes back: the return is missing",
    "The result is None.",
    "return output, weights.",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> None:
    return None


@mistake(
    "give-weights-only",
    "Only the weights come back",
    "The result says where each query looks, not what it found there.",
    "return output, weights.",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> Tensor:
    return weights


@mistake(
    "give-weights-summed",
    "The weights come back summed over the heads",
    "One map is left of h, and its rows sum to h.",
    "return one map per head, (B, h, Lq, Lk).",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return output, weights.sum(dim=1)


@mistake(
    "give-weights-of-one-head",
    "The weights of the first head only come back",
    "One map is left of h.",
    "return one map per head, (B, h, Lq, Lk).",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return output, weights[:, 0]


@mistake(
    "give-weights-of-last-head",
    "The weights of the last head only come back",
    "A variable of the loop over the heads is returned, which holds what the last round left in it.",
    "gather the heads' weights in a list, and stack them: (B, h, Lq, Lk).",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return output, weights[:, -1]


@mistake(
    "give-weights-averaged-over-batch",
    "The weights come back averaged over the examples",
    "(h, Lq, Lk): no example can be told from another.",
    "return those of each example and head, (B, h, Lq, Lk).",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return output, weights.mean(dim=0)


@mistake(
    "give-weights-folded",
    "The weights come back with batch and heads in one axis, (B·h, Lq, Lk)",
    "Nothing tells which of them belong to which example.",
    "take the axis apart: weights.view(B, h, Lq, Lk).",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return output, weights.flatten(0, 1)


# ---------------------------------------------------------------- what numbers of one call do not show


STATE_KEPT = behaviour(
    "layer-keeps-state",
    "state",
    "A call depends on the calls before it",
    "The same input gives another result the second time.",
    "keep nothing of a call in self that the next call reads.",
)
ARGUMENT_ORDER = behaviour(
    "layer-arguments-in-another-order",
    "signature",
    "forward takes its arguments in another order than Q, K, V",
    "Right if they are given by name; given by position, one takes the place of another.",
    "forward(self, Q, K, V, mask=None).",
)
LENGTH_FIRST = behaviour(
    "layer-length-first",
    "signature",
    "It takes the length first, (L, B, d_model), as nn.MultiheadAttention without batch_first does",
    "Given (B, L, d_model), a token attends to the tokens of other examples at its own place.",
    "exchange axes 0 and 1 of inputs and output; to mark it, do so in call=.",
)
MASK_OF_THREE_AXES = behaviour(
    "layer-mask-of-three-axes",
    "mask",
    "It adds an axis to the mask: it wants (B, Lq, Lk), without the axis of the heads",
    "A mask (B, 1, Lq, Lk) gets five axes, and lines the batch up with the heads.",
    "use the mask as it comes, (B, 1, Lq, Lk); to mark it as it is, give mask[:, 0] in call=.",
)
GRADIENT_CUT = behaviour(
    "layer-gradient-cut",
    "gradient",
    "The result is right, but its gradient is not",
    "Nothing before the cut is trained: a detach(), .data, .item(), no_grad() or a new tensor is in the way.",
    "compute with the tensors themselves from the inputs to the output.",
)
WEIGHTS_FROZEN = behaviour(
    "layer-weights-frozen",
    "gradient",
    "Weights are made with requires_grad=False",
    "They stay as they were drawn: no optimiser trains them.",
    "leave requires_grad as it is: nn.Linear and nn.Parameter set it.",
)
DROPOUT_NOT_AS_ASKED = behaviour(
    "layer-dropout-not-as-asked",
    "dropout",
    "Numbers are dropped also where dropout=0.0 was asked for",
    "The argument has no effect.",
    "hand the argument on: nn.Dropout(dropout).",
)
DROPOUT_BEFORE_SOFTMAX = behaviour(
    "layer-dropout-before-softmax",
    "dropout",
    "Dropout acts on the scores, before the softmax",
    "A dropped score is 0, not 'nothing': its key keeps weight, and each row still sums to 1.",
    "drop weights, after the softmax.",
)
DROPOUT_ELSEWHERE = behaviour(
    "layer-dropout-elsewhere",
    "dropout",
    "Dropout acts on other tensors than the weights",
    "Numbers of queries, keys, values or output are dropped; no key is ever left out.",
    "drop weights, after the softmax and before they mix the values: self.dropout(weights) @ V.",
)
DROPOUT_NOT_RESCALED = behaviour(
    "layer-dropout-not-rescaled",
    "dropout",
    "What dropout leaves is not scaled up by 1 / (1 - p)",
    "The layer is weaker in training than in evaluation.",
    "use nn.Dropout, which scales.",
)
RETURNS_MORE = behaviour(
    "layer-returns-more",
    "give",
    "More than output and weights comes back",
    "output, weights = layer(Q, K, V) raises: too many values to unpack.",
    "return output, weights; keep anything else in an attribute of self.",
)
NO_MODULE = behaviour(
    "layer-no-module",
    "init",
    "The class does not inherit from nn.Module",
    "It has no parameters() for an optimiser, and calling a layer does not call its forward.",
    "class MultiHeadAttention(nn.Module), and super().__init__() first in __init__.",
)
OTHER_FORWARD = behaviour(
    "layer-other-forward",
    "signature",
    "forward is missing, or takes other arguments than Q, K, V and mask=None",
    "It cannot be called as layer(Q, K, V) and layer(Q, K, V, mask).",
    "def forward(self, Q, K, V, mask=None).",
)
SEEDED = behaviour(
    "layer-seeded",
    "side effects",
    "Making a layer sets the random state to a fixed seed",
    "All layers start with the same weights, and whatever is drawn after them is the same each time.",
    "set no seed inside of a layer; who wants one sets it before making the layer.",
)
NO_PARAMETERS = behaviour(
    "layer-no-parameters",
    "project",
    "The layer reports no parameters, or too few",
    "Layers in a plain Python list are invisible: an optimiser would not train them.",
    "assign them as attributes, or use nn.ModuleList.",
)
HEADS_SHARE = behaviour(
    "layer-heads-share-projection",
    "project",
    "All heads share one small projection, (d_k, d_k)",
    "Far fewer parameters; every head sees its part through the same matrix.",
    "project with (d_model, d_model) first and split afterwards.",
)
SAME_HEAD = behaviour(
    "layer-same-head-for-all",
    "project",
    "One small layer serves every head: all heads have the same weights and compute the same",
    "[layer] * num_heads is a list of one and the same layer; so is one nn.Linear(d_model, d_k) for all.",
    "make one for each: nn.ModuleList([nn.Linear(d_model, d_k) for _ in range(num_heads)]).",
)
MORE_PARAMETERS = behaviour(
    "layer-more-parameters",
    "project",
    "It computes something else with parameters of its own, besides the four projections",
    "The layer has W_q, W_k, W_v and W_o, and their biases at most; nothing else is learned.",
    "take out what mixes heads, normalises, gates or adds a bias with weights of its own.",
)
KEYS_SHARED = behaviour(
    "layer-heads-share-keys",
    "project",
    "Heads share keys and values: W_k and W_v make fewer heads than W_q",
    "That is grouped-query or multi-query attention, which has less to remember; here each head has its own.",
    "W_k and W_v are nn.Linear(d_model, d_model), as W_q is.",
)
OUTPUT_SHARED = behaviour(
    "layer-output-shared-by-heads",
    "output",
    "W_o takes one head's numbers, (d_k, d_model), and is the same for every head",
    "The heads are added up: which of them a number comes from is lost.",
    "join the heads first, and let W_o be nn.Linear(d_model, d_model): it has columns for each head.",
)
ONE_HEAD = behaviour(
    "layer-projects-to-one-head",
    "project",
    "The projections make the numbers of one head only: (d_model, d_k)",
    "There is nothing left to cut into heads.",
    "nn.Linear(d_model, d_model) makes the queries, keys or values of all heads at once.",
)
ONE_FOR_ALL = behaviour(
    "layer-one-matrix-for-several",
    "project",
    "One nn.Linear stands in several places: queries, keys, values or output share one matrix",
    "[linear] * 4 and [linear for _ in range(4)] hold one and the same layer; so do a = b = nn.Linear(…).",
    "make four: nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)]), or copy.deepcopy.",
)
NOT_PARAMETERS = behaviour(
    "layer-weights-not-parameters",
    "project",
    "The weights are plain tensors, not nn.Parameter",
    "parameters() does not list them: an optimiser would not train them, nor .to(device) move them.",
    "wrap them in nn.Parameter(…), or use nn.Linear.",
)
MADE_IN_FORWARD = behaviour(
    "layer-made-in-forward",
    "project",
    "The projections are made anew in each call of forward",
    "Their weights are drawn by chance each time, and nothing can be learned.",
    "make them once, in __init__, as attributes of self.",
)
OTHER_IN_TRAINING = behaviour(
    "layer-differs-in-training",
    "dropout",
    "In training mode it computes something else, though nothing is dropped",
    "What is learned in training is not what is used in evaluation.",
    "only dropout depends on self.training: compute scores, mask and softmax alike in both modes.",
)
MASK_LOST_IN_TRAINING = behaviour(
    "layer-mask-lost-in-training",
    "dropout",
    "In training mode, with dropout, a masked key is heard all the same, or NaN comes out",
    "The model learns from tokens that it will not see later.",
    "mask the scores before the softmax in both modes; let dropout act on the weights after it.",
)
MASK_OF_TWO_AXES = behaviour(
    "layer-mask-of-two-axes",
    "mask",
    "A mask of two axes is read as padding, (B, Lk), where (Lq, Lk) is meant, as causal_mask gives it",
    "An error, or, where B is L or 1, queries that look at keys that they must not see.",
    "take it as it broadcasts: (Lq, Lk) is alike for all examples and heads; padding is (B, 1, 1, Lk).",
)
MASK_OF_ONE_ROW = behaviour(
    "layer-mask-of-one-row",
    "mask",
    "A mask (B, 1, 1, Lk), such as padding_mask gives, is read as something else",
    "It runs without an error, and padding is looked at.",
    "take it as it broadcasts: its one row holds for every query of the example.",
)
MASK_MADE_IN_FLOAT32 = behaviour(
    "layer-mask-in-float32",
    "mask",
    "What the mask makes of the scores is float32, whatever dtype came in",
    "In half precision the weights do not meet the values: an error, or a result of another dtype.",
    "make it with dtype=scores.dtype, or use scores.masked_fill(mask == 0, lowest).",
)
NOT_DIVISIBLE = behaviour(
    "layer-truncates-d_model",
    "split",
    "A d_model that num_heads does not divide is accepted, and numbers are dropped",
    "The last d_model % num_heads numbers of each token are lost without a word.",
    "raise a ValueError in __init__.",
)
DROPOUT_IN_EVAL = behaviour(
    "layer-dropout-in-eval",
    "dropout",
    "Dropout also acts in evaluation mode",
    "Two calls in eval() disagree.",
    "use nn.Dropout, or pass training=self.training (for F.scaled_dot_product_attention: dropout_p=0.0).",
)
DROPOUT_MISSING = behaviour(
    "layer-dropout-missing",
    "dropout",
    "The dropout that was asked for is never applied",
    "In training mode with dropout > 0 two calls agree.",
    "apply it to the weights: self.dropout(weights).",
)


@mistake(
    "layer-alibi-inside",
    "ALiBi is built in: each head's scores are lowered by the distance between query and key",
    "Keys nearby get more weight, in each head by another slope; the layer by itself knows no positions.",
    "leave positions to the input, or to a layer of that name.",
    stage="scale",
    alone=True,
    also={"project_q": LAYER["project_q"]},
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    Lq, Lk = scores.shape[-2:]
    distance = (torch.arange(Lq)[:, None] - torch.arange(Lk)).abs()
    slopes = alibi_slopes(num_heads).to(scores.dtype)[:, None, None]
    return scores / math.sqrt(d_k) - slopes * distance
