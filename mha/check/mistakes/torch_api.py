"""What goes wrong when PyTorch's own attention is called."""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mha import scaled_dot_product_attention
from mha.check.catalogue import Stage, mistake
from mha.check.exercises.masks import causal
from mha.check.exercises.torch_api import sdpa_join, torch_call, torch_keys, torch_pairs

Masks = dict[str, Tensor]

# ---------------------------------------------------------------- nn.MultiheadAttention: the layer


@mistake(
    "torch-batch-first-missing",
    "The layer is made without batch_first=True and gets (B, L, d_model)",
    "No error without a mask: tokens attend across the examples of the batch, so that one changes another.",
    "nn.MultiheadAttention(d_model, num_heads, batch_first=True); by default it takes (L, B, d_model).",
    stage="torch_layer",
)
def _(layer: nn.MultiheadAttention) -> nn.MultiheadAttention:
    layer = copy.copy(layer)
    layer.batch_first = False
    return layer


# ---------------------------------------------------------------- nn.MultiheadAttention: masks


def _float_mask(keep: Tensor) -> Tensor:
    return torch.zeros(keep.shape).masked_fill(keep, -math.inf)


@mistake(
    "torch-mask-inverted",
    "The masks go to nn.MultiheadAttention with True for 'may attend'",
    "Attention falls on what should be hidden: there, True means 'ignore'.",
    "pass ~keep.",
    stage="torch_keys",
    also={"torch_pairs": lambda keep, h: {"attn_mask": keep.repeat_interleave(h, dim=0)}},
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return {"key_padding_mask": keep}


@mistake(
    "torch-key-mask-inverted",
    "key_padding_mask gets True for 'may attend'",
    "Attention falls on the padding: there, True means 'ignore'.",
    "key_padding_mask=~keep.",
    stage="torch_keys",
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return {"key_padding_mask": keep}


@mistake(
    "torch-pair-mask-inverted",
    "attn_mask gets True for 'may attend'",
    "Attention falls on what should be hidden: in nn.MultiheadAttention True means 'ignore'.",
    "attn_mask=~keep.",
    stage="torch_pairs",
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return {"attn_mask": keep.repeat_interleave(num_heads, dim=0)}


@mistake(
    "torch-masks-ignored",
    "No mask is passed on",
    "The result is the same with and without a mask.",
    "key_padding_mask=~keep for (B, L), attn_mask for (B, L, L).",
    stage="torch_keys",
    also={"torch_pairs": lambda keep, h: {}},
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return {}


@mistake(
    "torch-key-mask-ignored",
    "A mask over keys, (B, L), is not passed on",
    "Padding gets attention.",
    "key_padding_mask=~keep.",
    stage="torch_keys",
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return {}


@mistake(
    "torch-pair-mask-ignored",
    "A mask over pairs, (B, L, L), is not passed on",
    "Every query sees every key.",
    "attn_mask=(~keep).repeat_interleave(num_heads, dim=0).",
    stage="torch_pairs",
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return {}


@mistake(
    "torch-key-mask-as-pairs",
    "A mask over keys, (B, L), is passed as attn_mask",
    "An error about shapes; attn_mask is (L, L) or (B·h, L, L).",
    "(B, L) belongs into key_padding_mask.",
    stage="torch_keys",
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return {"attn_mask": ~keep}


@mistake(
    "torch-key-mask-added",
    "key_padding_mask gets 1.0 for 'ignore' and 0.0 for the rest",
    "A mask of floats is added to the scores: padding becomes more likely.",
    "pass bools, or 0.0 and -inf.",
    stage="torch_keys",
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return {"key_padding_mask": (~keep).float()}


@mistake(
    "torch-key-mask-added-the-other-way",
    "key_padding_mask gets keep as floats, which is added to the scores",
    "Real tokens get 1 more; padding is not hidden.",
    "pass ~keep as bools, or 0.0 and -inf.",
    stage="torch_keys",
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return {"key_padding_mask": keep.float()}


@mistake(
    "torch-key-mask-minus-inf-inverted",
    "key_padding_mask gets -inf where a key may be looked at",
    "Attention falls on the padding.",
    "-inf belongs to what is hidden: masked_fill(~keep, -inf).",
    stage="torch_keys",
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return {"key_padding_mask": _float_mask(keep)}


def _over_keys(
    id: str, title: str, effect: str, hint: str, made: Callable[[Tensor, int], Masks], **also: Stage
) -> None:
    mistake(id, title, effect, hint, stage="torch_keys", also=also)(made)


def _in_pairs(keep: Tensor, num_heads: int) -> Masks:
    return torch_pairs(keep.expand(-1, keep.size(-1), keep.size(-1)), num_heads)


def _zeroed(x: Tensor, keep: Tensor | None) -> Tensor:
    return x if keep is None or keep.ndim != 2 else x * keep[..., None]


_over_keys(
    "torch-padded-queries-hidden",
    "A mask over keys, (B, L), hides queries as well as keys",
    "The rows of padded queries have nothing left to see and become NaN.",
    "hide keys only: key_padding_mask=~keep.",
    lambda keep, h: torch_pairs(keep[:, :, None] & keep[:, None, :], h),
)
_over_keys(
    "torch-key-mask-over-queries",
    "A mask over keys, (B, L), is laid along the queries",
    "The rows of padded queries become NaN, and padding gets attention.",
    "the keys are the last axis: key_padding_mask=~keep.",
    lambda keep, h: _in_pairs(keep[:, :, None], h),
)
_over_keys(
    "torch-padding-zeroed",
    "The hidden tokens of x are set to 0, and no mask over keys is passed on",
    "A key of zeros has the score 0, and exp(0) is 1: padding still gets weight.",
    "leave x as it is: key_padding_mask=~keep.",
    lambda keep, h: {},
    torch_input=_zeroed,
)


def _output_zeroed(output: Tensor, weights: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    return _zeroed(output, keep), weights


def _rows_zeroed(output: Tensor, weights: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    if keep is None or keep.ndim != 2:
        return output, weights
    return _zeroed(output, keep), weights * keep[:, None, :, None]


for _id, _title, _after in (
    ("output", "The output of padded tokens is set to 0", _output_zeroed),
    ("output-and-weights", "The output and the weights of padded tokens are set to 0", _rows_zeroed),
):
    _over_keys(
        f"torch-padding-zeroed-in-{_id}",
        f"{_title}, and no mask over keys is passed on",
        "What a padded token asks is hidden; all others still look at it.",
        "hide keys, before the softmax: key_padding_mask=~keep.",
        lambda keep, h: {},
        torch_after=_after,
    )
_over_keys(
    "torch-square-mask-as-pairs",
    "A mask of (B, L) with B = L is taken for one over pairs: its sizes are asked, not its axes",
    "Right unless a batch has as many examples as tokens.",
    "ask keep.dim(): 2 axes are (B, L), 3 are (B, L, L).",
    lambda keep, h: {"attn_mask": ~keep} if keep.size(0) == keep.size(1) else torch_keys(keep, h),
)
_over_keys(
    "torch-key-mask-transposed",
    "The mask over keys is turned to (L, B)",
    "An error about shapes: key_padding_mask is (B, L), whether or not the layer takes the batch first.",
    "key_padding_mask=~keep.",
    lambda keep, h: {"key_padding_mask": ~keep.T},
)
_over_keys(
    "torch-key-mask-of-first-example",
    "The first example's mask over keys is used for all",
    "Right for a batch of one.",
    "key_padding_mask=~keep holds a row for each example.",
    lambda keep, h: {"key_padding_mask": ~keep[:1].expand_as(keep)},
)
_over_keys(
    "torch-key-mask-tiled",
    "The mask over keys is made one over pairs, repeated as 0, 1, 0, 1 over examples and heads",
    "Examples get one another's masks, from the second head on.",
    "key_padding_mask=~keep; in attn_mask the heads of one example stand together: repeat_interleave.",
    lambda keep, h: {"attn_mask": ~keep[:, None].expand(-1, keep.size(1), -1).repeat(h, 1, 1)},
)
_over_keys(
    "torch-key-mask-with-axes",
    "The mask over keys is passed as (B, 1, 1, L)",
    "An error about shapes: key_padding_mask is (B, L).",
    "key_padding_mask=~keep: the layer adds the axes itself.",
    lambda keep, h: {"key_padding_mask": ~keep[:, None, None]},
)


@mistake(
    "torch-padding-zeroed-too",
    "The hidden tokens of x are set to 0, besides being masked",
    "Nobody looks at them, but they are queries too: their own rows come out other than they should.",
    "leave x as it is: key_padding_mask=~keep is enough.",
    stage="torch_input",
)
def _(x: Tensor, keep: Tensor | None) -> Tensor:
    return _zeroed(x, keep)


def _over_pairs(id: str, title: str, effect: str, hint: str, made: Callable[[Tensor, int], Masks]) -> None:
    mistake(id, title, effect, hint, stage="torch_pairs")(made)


_EVERY_PAIR = "a mask over pairs is attn_mask=(~keep).repeat_interleave(num_heads, dim=0)."
_over_pairs(
    "torch-pair-mask-any",
    "A mask over pairs becomes one over keys: what any query may see, all may see",
    "Only what nobody may see is hidden.",
    _EVERY_PAIR,
    lambda keep, h: {"key_padding_mask": ~keep.any(dim=1)},
)
_over_pairs(
    "torch-pair-mask-all",
    "A mask over pairs becomes one over keys: what one query may not see, nobody may see",
    "Too much is hidden; with nothing left to see a row is NaN.",
    _EVERY_PAIR,
    lambda keep, h: {"key_padding_mask": ~keep.all(dim=1)},
)
_over_pairs(
    "torch-pair-mask-first-query",
    "A mask over pairs becomes one over keys: what the first query may see",
    "All queries see what the first may see.",
    _EVERY_PAIR,
    lambda keep, h: {"key_padding_mask": ~keep[:, 0]},
)
_over_pairs(
    "torch-pair-mask-last-query",
    "A mask over pairs becomes one over keys: what the last query may see",
    "All queries see what the last may see.",
    _EVERY_PAIR,
    lambda keep, h: {"key_padding_mask": ~keep[:, -1]},
)
_over_pairs(
    "torch-pair-mask-added-the-other-way",
    "attn_mask gets keep as floats, which is added to the scores",
    "What may be seen gets 1 more; nothing is hidden.",
    "pass ~keep as bools, or 0.0 and -inf.",
    lambda keep, h: {"attn_mask": keep.float().repeat_interleave(h, dim=0)},
)
_over_pairs(
    "torch-pair-masks-joined-by-or",
    "The masks of all examples are joined into one (L, L): seen in one, seen in all",
    "Right for a batch of one.",
    _EVERY_PAIR,
    lambda keep, h: {"attn_mask": ~keep.any(dim=0)},
)
_over_pairs(
    "torch-pair-masks-joined",
    "The masks of all examples are joined into one (L, L): hidden for one, hidden for all",
    "Right for a batch of one.",
    _EVERY_PAIR,
    lambda keep, h: {"attn_mask": ~keep.all(dim=0)},
)


@mistake(
    "torch-pair-mask-tiled",
    "The mask over pairs is repeated as 0, 1, 0, 1 over examples and heads",
    "Examples get one another's masks, from the second head on.",
    "the heads of one example stand together: repeat_interleave(num_heads, dim=0), not repeat.",
    stage="torch_pairs",
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return {"attn_mask": (~keep).repeat(num_heads, 1, 1)}


@mistake(
    "torch-pair-mask-not-repeated",
    "The mask over pairs is passed as (B, L, L)",
    "An error about shapes with more than one head.",
    "one mask for each head of each example: repeat_interleave(num_heads, dim=0).",
    stage="torch_pairs",
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return {"attn_mask": ~keep}


@mistake(
    "torch-pair-mask-with-heads",
    "The mask over pairs is passed as (B, h, L, L)",
    "An error: nn.MultiheadAttention wants three axes, (B·h, L, L).",
    "repeat_interleave(num_heads, dim=0).",
    stage="torch_pairs",
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return {"attn_mask": (~keep)[:, None].repeat(1, num_heads, 1, 1)}


@mistake(
    "torch-pair-mask-of-first-example",
    "The first example's mask is used for all",
    "Right for a batch of one.",
    "one mask for each head of each example: repeat_interleave(num_heads, dim=0).",
    stage="torch_pairs",
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return {"attn_mask": ~keep[0]}


@mistake(
    "torch-pair-mask-transposed",
    "Queries and keys of the mask over pairs are exchanged",
    "A causal mask would hide the past.",
    "rows are queries: use it as it is.",
    stage="torch_pairs",
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return torch_pairs(keep.transpose(1, 2), num_heads)


@mistake(
    "torch-pair-mask-added",
    "attn_mask gets 1.0 for 'ignore' and 0.0 for the rest",
    "A mask of floats is added to the scores: what should be hidden becomes more likely.",
    "pass bools, or 0.0 and -inf.",
    stage="torch_pairs",
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return {"attn_mask": torch_pairs(keep, num_heads)["attn_mask"].float()}


@mistake(
    "torch-pair-mask-as-keys",
    "A mask over pairs, (B, L, L), is passed as key_padding_mask",
    "An error about shapes; key_padding_mask is (B, L).",
    "(B, L, L) belongs into attn_mask, repeated for each head.",
    stage="torch_pairs",
)
def _(keep: Tensor, num_heads: int) -> Masks:
    return torch_keys(keep, num_heads)


# ---------------------------------------------------------------- nn.MultiheadAttention: the call


@mistake(
    "torch-weights-averaged",
    "average_attn_weights is left at its default",
    "One map, averaged over the heads, comes back: (B, L, L).",
    "average_attn_weights=False.",
    stage="torch_call",
)
def _(layer: nn.MultiheadAttention, x: Tensor, masks: Mapping[str, Any]) -> Any:
    return layer(x, x, x, **masks)


@mistake(
    "torch-no-weights",
    "need_weights=False: None comes back in place of the weights",
    "The fast way, but there is nothing to look at.",
    "need_weights=True, average_attn_weights=False.",
    stage="torch_call",
)
def _(layer: nn.MultiheadAttention, x: Tensor, masks: Mapping[str, Any]) -> Any:
    return layer(x, x, x, need_weights=False, **masks)


@mistake(
    "torch-projected-before",
    "x is projected before it is passed to the layer, which projects it again",
    "The shapes are right, the numbers are not.",
    "pass x itself three times: the projections are in the layer.",
    stage="torch_call",
)
def _(layer: nn.MultiheadAttention, x: Tensor, masks: Mapping[str, Any]) -> Any:
    q, k, v = (x @ W.T for W in layer.in_proj_weight.chunk(3))
    return layer(q, k, v, need_weights=True, average_attn_weights=False, **masks)


@mistake(
    "torch-out-proj-twice",
    "out_proj is applied to the output once more",
    "The shapes are right, the numbers are not.",
    "the layer has applied it: return its output as it is.",
    stage="torch_call",
)
def _(layer: nn.MultiheadAttention, x: Tensor, masks: Mapping[str, Any]) -> Any:
    output, weights = torch_call(layer, x, masks)
    return layer.out_proj(output), weights


@mistake(
    "torch-input-transposed",
    "x is transposed to (L, B, d_model) though the layer takes the batch first",
    "Tokens attend across the examples of the batch.",
    "with batch_first=True, pass x as it is.",
    stage="torch_call",
)
def _(layer: nn.MultiheadAttention, x: Tensor, masks: Mapping[str, Any]) -> Any:
    output, weights = torch_call(layer, x.transpose(0, 1), masks)
    return output.transpose(0, 1), weights


@mistake(
    "torch-output-not-turned-back",
    "x is transposed to (L, B, d_model), and so comes the output back",
    "Tokens attend across the examples of the batch, and the axes are exchanged.",
    "with batch_first=True, pass x as it is.",
    stage="torch_call",
)
def _(layer: nn.MultiheadAttention, x: Tensor, masks: Mapping[str, Any]) -> Any:
    return torch_call(layer, x.transpose(0, 1), masks)


@mistake(
    "torch-causal-added",
    "A causal mask is passed where keep holds none over pairs",
    "Each query is denied what comes after it, though nobody asked for that.",
    "pass what keep says, and nothing else.",
    stage="torch_call",
)
def _(layer: nn.MultiheadAttention, x: Tensor, masks: Mapping[str, Any]) -> Any:
    return torch_call(layer, x, {"attn_mask": ~causal(x.size(1)), **masks})


def _axes_for_heads(keep: Tensor) -> Tensor:
    return keep[:, None, None] if keep.ndim == 2 else keep[:, None]


def _after(
    id: str, title: str, effect: str, hint: str, change: Callable[..., tuple[Tensor, Tensor]], **also: Stage
) -> None:
    mistake(id, title, effect, hint, stage="torch_after", also=also)(change)


_after(
    "torch-output-masked",
    "The output is set to 0 where keep hides a token",
    "keep hides keys; the token's own query has a result like any other.",
    "return the layer's output as it is.",
    lambda output, weights, keep: (
        output if keep is None or keep.ndim != 2 else output * keep[..., None],
        weights,
    ),
)
_after(
    "torch-weights-masked-afterwards",
    "The weights that come back are masked, those in the layer are not",
    "The output is mixed from hidden tokens too, and the rows no longer sum to 1.",
    "pass the mask to the layer: key_padding_mask=~keep, or attn_mask for pairs.",
    lambda output, weights, keep: (output, weights if keep is None else weights * _axes_for_heads(keep)),
    torch_keys=lambda keep, h: {},
    torch_pairs=lambda keep, h: {},
)
_after(
    "torch-last-example-only",
    "Only the last example's result comes back",
    "A loop over the examples keeps one result.",
    "pass the whole batch at once; or collect the results in a list, and torch.cat them.",
    lambda output, weights, keep: (output[-1:], weights[-1:]),
)
_after(
    "torch-first-example-only",
    "Only the first example's result comes back",
    "The others are lost.",
    "pass the whole batch at once, and return all that comes back.",
    lambda output, weights, keep: (output[:1], weights[:1]),
)


@mistake(
    "torch-give-exchanged",
    "Weights first, output second",
    "Whoever unpacks them takes one for the other.",
    "return output, weights: as the layer does.",
    stage="torch_give",
)
def _(output: Tensor, weights: Tensor) -> Any:
    return weights, output


@mistake(
    "torch-give-averaged",
    "The maps are averaged over the heads after the call",
    "One map is left of h.",
    "return one map per head, (B, h, L, L).",
    stage="torch_give",
)
def _(output: Tensor, weights: Tensor) -> Any:
    return output, weights.mean(dim=1)


def _summed_up(id: str, title: str, how: Callable[[Tensor], Tensor]) -> None:
    hint = "return one map per head, (B, h, L, L)."

    @mistake(id, title, "The heads cannot be told apart.", hint, stage="torch_give")
    def _(output: Tensor, weights: Tensor) -> Any:
        return output, how(weights)


_summed_up(
    "torch-give-averaged-with-an-axis",
    "The maps are averaged over the heads, and an axis is put in their place: (B, 1, L, L)",
    lambda weights: weights.mean(dim=1, keepdim=True),
)
_summed_up(
    "torch-give-averaged-repeated",
    "The maps are averaged over the heads, and the average is repeated for each head",
    lambda weights: weights.mean(dim=1, keepdim=True).expand_as(weights),
)
_summed_up("torch-give-summed", "The maps are summed over the heads", lambda weights: weights.sum(dim=1))
_summed_up(
    "torch-give-first-head", "The map of the first head comes back alone", lambda weights: weights[:, 0]
)
_summed_up(
    "torch-give-heads-joined",
    "Examples and heads of the maps are joined: (B·h, L, L)",
    lambda weights: weights.flatten(0, 1),
)


@mistake(
    "torch-give-transposed",
    "The maps come back as (key, query)",
    "Heatmaps have their axes exchanged.",
    "return the weights as they are.",
    stage="torch_give",
)
def _(output: Tensor, weights: Tensor) -> Any:
    return output, weights.transpose(-2, -1)


@mistake(
    "torch-residual-added",
    "x is added to the output",
    "The residual connection belongs outside.",
    "return the layer's output alone.",
    stage="torch_call",
)
def _(layer: nn.MultiheadAttention, x: Tensor, masks: Mapping[str, Any]) -> Any:
    output, weights = torch_call(layer, x, masks)
    return output + x, weights


@mistake(
    "torch-give-in-a-list",
    "Output and weights come back in a list, from nn.MultiheadAttention",
    "Code that tells a pair from a tensor by its type, isinstance(result, tuple), is misled.",
    "return output, weights: a tuple.",
    stage="torch_give",
)
def _(output: Tensor, weights: Tensor) -> Any:
    return [output, weights]


# ---------------------------------------------------------------- F.scaled_dot_product_attention


def _sdpa(Q: Tensor, K: Tensor, V: Tensor, keep: Tensor | None, **options: Any) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=keep, **options)


@mistake(
    "sdpa-mask-inverted",
    "The mask is inverted, as nn.MultiheadAttention would want it",
    "Attention falls on what should be hidden: in F.scaled_dot_product_attention True means 'may attend'.",
    "pass keep as it is.",
    stage="sdpa_mask",
)
def _(keep: Tensor) -> Tensor:
    return ~keep


@mistake(
    "sdpa-keep-inverted",
    "keep is inverted, as nn.MultiheadAttention would want it, the causal mask is not",
    "Attention falls on what should be hidden: in F.scaled_dot_product_attention True means 'may attend'.",
    "pass keep as it is.",
    stage="sdpa_keep",
)
def _(keep: Tensor | None) -> Tensor | None:
    return None if keep is None else ~keep


@mistake(
    "sdpa-mask-as-floats",
    "The mask is passed as floats, 1.0 and 0.0",
    "It is added to the scores: nothing is hidden.",
    "pass bools.",
    stage="sdpa_mask",
)
def _(keep: Tensor) -> Tensor:
    return keep.float()


@mistake(
    "sdpa-mask-minus-inf-inverted",
    "-inf is added where a query may attend",
    "Attention falls on what should be hidden.",
    "pass the bools as they are, or -inf where keep is False.",
    stage="sdpa_mask",
)
def _(keep: Tensor) -> Tensor:
    return _float_mask(keep)


@mistake(
    "sdpa-mask-transposed",
    "Queries and keys of the mask are exchanged, in F.scaled_dot_product_attention",
    "An error, or a causal mask that hides the past.",
    "rows are queries: use it as it is.",
    stage="sdpa_mask",
)
def _(keep: Tensor) -> Tensor:
    return keep.transpose(-2, -1)


@mistake(
    "sdpa-is-causal",
    "is_causal=True, or its mask, where there are more keys than queries",
    "PyTorch aligns it top-left: behind a cache a new query sees the oldest keys only.",
    "build the mask bottom-right: causal_mask(Lq, Lk).",
    stage="causal",
    also={"sdpa_join": lambda keep, causal: causal if keep is None else keep & causal},
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    return torch.ones(Lq, Lq if Lk is None else Lk, dtype=torch.bool).tril()


@mistake(
    "sdpa-causal-ignored",
    "causal=True changes nothing",
    "Each token sees the future.",
    "combine keep with causal_mask(Lq, Lk).",
    stage="sdpa_join",
)
def _(keep: Tensor | None, causal: Tensor) -> Tensor | None:
    return keep


@mistake(
    "sdpa-mask-dropped-if-causal",
    "With causal=True the other mask is dropped",
    "Padding gets attention.",
    "both have to allow it: keep & causal.",
    stage="sdpa_join",
)
def _(keep: Tensor | None, causal: Tensor) -> Tensor:
    return causal


@mistake(
    "sdpa-causal-dropped-if-masked",
    "With another mask, causal=True is dropped",
    "Each token sees the future as soon as there is padding.",
    "both have to allow it: keep & causal.",
    stage="sdpa_join",
)
def _(keep: Tensor | None, causal: Tensor) -> Tensor:
    return causal if keep is None else keep


@mistake(
    "sdpa-masks-by-or",
    "The masks are joined by 'or'",
    "A key is seen if one of the two allows it.",
    "both have to allow it: keep & causal.",
    stage="sdpa_join",
)
def _(keep: Tensor | None, causal: Tensor) -> Tensor:
    return causal if keep is None else keep | causal


@mistake(
    "sdpa-masks-added",
    "The masks are added as numbers",
    "Bools add up to 'or': a key is seen if one of the two allows it.",
    "both have to allow it: keep & causal.",
    stage="sdpa_join",
)
def _(keep: Tensor | None, causal: Tensor) -> Tensor:
    return causal if keep is None else keep + causal


def _masked(id: str, title: str, effect: str, hint: str, made: Callable[[Tensor], Tensor]) -> None:
    mistake(id, title, effect, hint, stage="sdpa_mask")(made)


_masked(
    "sdpa-mask-lowest",
    "A large finite number is added where a query may not attend, -1e9 or the lowest there is",
    "A query with nothing to see attends evenly to what it must not see.",
    "pass the bools as they are, or -inf where keep is False: then its output is 0.",
    lambda keep: torch.zeros(keep.shape).masked_fill(~keep, torch.finfo(torch.float32).min),
)
_masked(
    "sdpa-mask-lowest-inverted",
    "A large finite number is taken away where a query may attend",
    "Attention falls on what should be hidden.",
    "pass the bools as they are, or -inf where keep is False.",
    lambda keep: keep * -1e9,
)
_masked(
    "sdpa-empty-row-opened",
    "A query with nothing to see may see everything",
    "It attends to what it must not see, where its output is to be 0.",
    "pass keep as it is: F.scaled_dot_product_attention gives 0 there.",
    lambda keep: keep | ~keep.any(dim=-1, keepdim=True),
)
_masked(
    "sdpa-mask-with-an-axis",
    "keep gets one more axis for the heads, which it has already",
    "The output has five axes: examples stand twice in it, or shapes do not fit.",
    "keep broadcasts to (B, h, Lq, Lk) as it is.",
    lambda keep: keep[:, None],
)
_masked(
    "sdpa-mask-of-first-example",
    "The first example's mask is passed to F.scaled_dot_product_attention for all",
    "Right for a batch of one.",
    "pass keep as it is: its first axis is the batch.",
    lambda keep: keep[:1],
)
_masked(
    "sdpa-mask-without-heads",
    "The axis of the heads is taken out of keep: (B, Lq, Lk)",
    "An error, or the examples' masks go to the heads.",
    "pass keep as it is: an axis of 1 stands for all heads.",
    lambda keep: keep[:, 0],
)
_masked(
    "sdpa-mask-of-last-query",
    "What the last query may see, all may see",
    "The mask loses its axis of queries.",
    "pass keep as it is.",
    lambda keep: keep[..., -1:, :],
)


def _joined(
    id: str, title: str, effect: str, hint: str, made: Callable[[Tensor | None, Tensor], Tensor]
) -> None:
    mistake(id, title, effect, hint, stage="sdpa_join")(made)


_joined(
    "sdpa-is-causal-without-a-mask",
    "is_causal=True where there is no other mask, and there are more keys than queries",
    "PyTorch aligns it top-left: behind a cache a new query sees the oldest keys only.",
    "build the mask bottom-right in both cases: causal_mask(Lq, Lk).",
    lambda keep, causal: torch.ones_like(causal).tril() if keep is None else keep & causal,
)
_joined(
    "sdpa-is-causal-with-a-mask",
    "The causal mask is aligned top-left where there is another mask",
    "Right without one; with it, a new query behind a cache sees the oldest keys only.",
    "build the mask bottom-right in both cases: causal_mask(Lq, Lk).",
    lambda keep, causal: causal if keep is None else keep & torch.ones_like(causal).tril(),
)
_joined(
    "sdpa-causal-only-with-a-mask",
    "Without another mask, causal=True is dropped",
    "Each token sees the future as soon as there is no padding.",
    "causal_mask(Lq, Lk) where keep is None, keep & causal_mask(Lq, Lk) else.",
    lambda keep, causal: keep if keep is None else keep & causal,
)
_joined(
    "sdpa-causal-only-if-square",
    "causal=True is dropped where there are more keys than queries",
    "New queries behind a cache see one another's future.",
    "causal_mask(Lq, Lk) serves for all sizes.",
    lambda keep, causal: (
        keep if causal.size(0) != causal.size(1) else causal if keep is None else keep & causal
    ),
)
_joined(
    "sdpa-causal-as-dropout",
    "causal is passed as dropout_p, the argument behind attn_mask",
    "True counts as 1.0: everything is dropped, and the output is 0.",
    "name the arguments: attn_mask=…; and make the causal mask yourself.",
    lambda keep, causal: torch.zeros_like(causal),
)
_joined(
    "sdpa-mask-inverted-if-causal",
    "Before it is joined with the causal mask, keep is inverted",
    "Attention falls on what should be hidden.",
    "both have to allow it: keep & causal.",
    lambda keep, causal: causal if keep is None else ~keep & causal,
)
_joined(
    "sdpa-masks-differ",
    "The masks are joined by 'either … or' (^)",
    "A key is seen if just one of the two allows it.",
    "both have to allow it: keep & causal.",
    lambda keep, causal: causal if keep is None else keep ^ causal,
)
_joined(
    "sdpa-masks-as-floats",
    "With causal=True the masks are joined as floats, 1.0 and 0.0",
    "They are added to the scores: nothing is hidden.",
    "join bools: keep & causal.",
    lambda keep, causal: (causal if keep is None else keep & causal).float(),
)


def _called(id: str, title: str, effect: str, hint: str, call: Callable[..., Any]) -> None:
    mistake(id, title, effect, hint, stage="sdpa_call")(call)


def _by_hand(Q: Tensor, K: Tensor, keep: Tensor | None) -> Tensor:
    scores = Q @ K.mT / math.sqrt(Q.size(-1))
    return torch.softmax(scores if keep is None else scores.masked_fill(~keep, -math.inf), dim=-1)


_called(
    "sdpa-mask-ignored",
    "No mask is passed to F.scaled_dot_product_attention",
    "The result is the same with and without a mask.",
    "attn_mask=keep.",
    lambda Q, K, V, keep: _sdpa(Q, K, V, None),
)
_called(
    "sdpa-always-causal",
    "is_causal=True wherever there is no mask",
    "Without a mask each query sees the first keys only, though nobody asked for that.",
    "pass the mask, and is_causal never.",
    lambda Q, K, V, keep: _sdpa(Q, K, V, keep, is_causal=keep is None),
)
_called(
    "sdpa-scale-1",
    "scale=1.0: the scores are not divided by √d_k",
    "The weights are too peaked.",
    "leave scale away: 1/√d_k is the default.",
    lambda Q, K, V, keep: _sdpa(Q, K, V, keep, scale=1.0),
)
_called(
    "sdpa-scaled-before",
    "Q is divided by √d_k before F.scaled_dot_product_attention divides again",
    "The weights are almost uniform.",
    "pass Q as it is: the function scales.",
    lambda Q, K, V, keep: _sdpa(Q / math.sqrt(Q.size(-1)), K, V, keep),
)
_called(
    "sdpa-scale-multiplied",
    "scale=√d_k, as if it were a divisor",
    "The weights are nearly one-hot.",
    "scale is a factor: 1/√d_k, which is the default.",
    lambda Q, K, V, keep: _sdpa(Q, K, V, keep, scale=math.sqrt(Q.size(-1))),
)
_called(
    "sdpa-scale-by-d_k",
    "scale=1/d_k, without the root",
    "The weights are too flat.",
    "leave scale away: 1/√d_k is the default.",
    lambda Q, K, V, keep: _sdpa(Q, K, V, keep, scale=1 / Q.size(-1)),
)
_called(
    "sdpa-scale-by-d_model",
    "scale=1/√d_model, of all heads together",
    "The weights are too flat; right only with one head.",
    "leave scale away: 1/√d_k is the default.",
    lambda Q, K, V, keep: _sdpa(Q, K, V, keep, scale=(Q.size(1) * Q.size(-1)) ** -0.5),
)
_called(
    "sdpa-scale-by-heads",
    "scale=1/√h, of the number of heads",
    "The weights are too flat or too peaked.",
    "leave scale away: 1/√d_k is the default; d_k is Q.size(-1).",
    lambda Q, K, V, keep: _sdpa(Q, K, V, keep, scale=Q.size(1) ** -0.5),
)
_called(
    "sdpa-scale-by-length",
    "scale=1/√Lk, of the number of keys",
    "The weights are flatter the more keys there are.",
    "leave scale away: 1/√d_k is the default; d_k is Q.size(-1).",
    lambda Q, K, V, keep: _sdpa(Q, K, V, keep, scale=K.size(-2) ** -0.5),
)
_called(
    "sdpa-scale-of-d_k",
    "scale=d_k",
    "The weights are one-hot, nearly.",
    "leave scale away: 1/√d_k is the default.",
    lambda Q, K, V, keep: _sdpa(Q, K, V, keep, scale=float(Q.size(-1))),
)
_called(
    "sdpa-unpacked",
    "The result is taken for a pair of output and weights, and its first part returned",
    "That is the first example, since F.scaled_dot_product_attention gives the output alone.",
    "return the result as it is.",
    lambda Q, K, V, keep: _sdpa(Q, K, V, keep)[0],
)
_called(
    "sdpa-causal-flag-alone",
    "is_causal=True where there is no mask, none at all where there is one",
    "A mask is never used.",
    "attn_mask=keep.",
    lambda Q, K, V, keep: _sdpa(Q, K, V, None, is_causal=keep is None),
)
_called(
    "sdpa-empty-row-nan",
    "It is computed by hand, and a query with nothing to see becomes NaN",
    "-inf alone leaves a row of nothing but -inf, and its softmax is 0 / 0.",
    "call F.scaled_dot_product_attention, which gives 0 there.",
    lambda Q, K, V, keep: _by_hand(Q, K, keep) @ V,
)
_called(
    "sdpa-turned",
    "The output comes back as (B, Lq, h, d_k)",
    "Heads and tokens are exchanged.",
    "return the output as it is: (B, h, Lq, d_k).",
    lambda Q, K, V, keep: _sdpa(Q, K, V, keep).transpose(1, 2),
)
_called(
    "sdpa-keys-and-values-exchanged",
    "V and K are passed in the wrong order",
    "Queries are compared with values, and keys are mixed.",
    "query, key, value.",
    lambda Q, K, V, keep: _sdpa(Q, V, K, keep),
)
_called(
    "sdpa-keys-as-values",
    "K is passed as the values too",
    "The output is a mix of keys.",
    "query, key, value.",
    lambda Q, K, V, keep: _sdpa(Q, K, K, keep),
)
_called(
    "sdpa-values-as-keys",
    "V is passed as the keys too",
    "Queries are compared with values.",
    "query, key, value.",
    lambda Q, K, V, keep: _sdpa(Q, V, V, keep),
)
_called(
    "sdpa-heads-and-tokens-exchanged",
    "Q, K and V are passed as (B, L, h, d_k)",
    "The heads of one token attend to one another; an error where Lq ≠ Lk.",
    "F.scaled_dot_product_attention wants (…, L, d_k): heads before tokens.",
    lambda Q, K, V, keep: _sdpa(*(x.transpose(1, 2) for x in (Q, K, V)), keep).transpose(1, 2),
)
_called(
    "sdpa-weights-too",
    "Weights come back beside the output of F.scaled_dot_product_attention",
    "F.scaled_dot_product_attention gives the output alone, and so does this function.",
    "return the output: of a pair, its first part.",
    lambda Q, K, V, keep: scaled_dot_product_attention(Q, K, V, keep),
)
_called(
    "sdpa-always-causal-from-the-end",
    "A causal mask is used in every call, also with causal=False",
    "A query sees no later key, though nobody asked for that.",
    "make the causal mask if causal is True only.",
    lambda Q, K, V, keep: _sdpa(Q, K, V, sdpa_join(keep, causal(Q.size(-2), K.size(-2)))),
)
_called(
    "sdpa-merged",
    "The heads are joined after F.scaled_dot_product_attention",
    "(B, L, h·d_k) comes back where (B, h, L, d_k) is wanted.",
    "return the output as it is.",
    lambda Q, K, V, keep: _sdpa(Q, K, V, keep).transpose(1, 2).flatten(2),
)
