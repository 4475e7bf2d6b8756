"""What goes wrong when PyTorch's own attention is called, and when weights are taken over from elsewhere."""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mha import scaled_dot_product_attention
from mha.check.catalogue import mistake
from mha.check.exercises.loading import State
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
def _(keep: Tensor) -> Masks:
    return {"key_padding_mask": keep}


@mistake(
    "torch-key-mask-inverted",
    "key_padding_mask gets True for 'may attend'",
    "Attention falls on the padding: there, True means 'ignore'.",
    "key_padding_mask=~keep.",
    stage="torch_keys",
)
def _(keep: Tensor) -> Masks:
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
def _(keep: Tensor) -> Masks:
    return {}


@mistake(
    "torch-key-mask-ignored",
    "A mask over keys, (B, L), is not passed on",
    "Padding gets attention.",
    "key_padding_mask=~keep.",
    stage="torch_keys",
)
def _(keep: Tensor) -> Masks:
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
def _(keep: Tensor) -> Masks:
    return {"attn_mask": ~keep}


@mistake(
    "torch-key-mask-added",
    "key_padding_mask gets 1.0 for 'ignore' and 0.0 for the rest",
    "A mask of floats is added to the scores: padding becomes more likely.",
    "pass bools, or 0.0 and -inf.",
    stage="torch_keys",
)
def _(keep: Tensor) -> Masks:
    return {"key_padding_mask": (~keep).float()}


@mistake(
    "torch-key-mask-added-the-other-way",
    "key_padding_mask gets keep as floats, which is added to the scores",
    "Real tokens get 1 more; padding is not hidden.",
    "pass ~keep as bools, or 0.0 and -inf.",
    stage="torch_keys",
)
def _(keep: Tensor) -> Masks:
    return {"key_padding_mask": keep.float()}


@mistake(
    "torch-key-mask-minus-inf-inverted",
    "key_padding_mask gets -inf where a key may be looked at",
    "Attention falls on the padding.",
    "-inf belongs to what is hidden: masked_fill(~keep, -inf).",
    stage="torch_keys",
)
def _(keep: Tensor) -> Masks:
    return {"key_padding_mask": _float_mask(keep)}


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
    return torch_keys(keep)


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


def _called(id: str, title: str, effect: str, hint: str, call: Callable[..., Any]) -> None:
    mistake(id, title, effect, hint, stage="sdpa_call")(call)


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


# ---------------------------------------------------------------- weights of nn.MultiheadAttention


@mistake(
    "packed-cut-in-columns",
    "in_proj_weight is cut along dim 1",
    "Each piece is (3·d_model, d_model/3), or the cut fails: rows of all three stand in each.",
    "W_q, W_k and W_v are stacked in rows: chunk(3, dim=0).",
    stage="packed_blocks",
)
def _(packed: Tensor) -> tuple[Tensor, ...]:
    return packed.chunk(3, dim=1)


@mistake(
    "packed-interleaved",
    "Every third row of in_proj_weight is taken, as view(d_model, 3, d_model) does",
    "The right shapes, and rows of all three in each.",
    "three blocks, one below the other: chunk(3, dim=0), or view(3, d_model, d_model).",
    stage="packed_blocks",
)
def _(packed: Tensor) -> tuple[Tensor, ...]:
    return packed[0::3], packed[1::3], packed[2::3]


@mistake(
    "packed-first-block-for-all",
    "The first block of in_proj_weight is taken three times",
    "W_q serves for queries, keys and values.",
    "rows 0 to d_model, d_model to 2·d_model, 2·d_model to the end.",
    stage="packed_blocks",
)
def _(packed: Tensor) -> tuple[Tensor, ...]:
    return (packed.chunk(3)[0],) * 3


@mistake(
    "packed-whole-for-all",
    "in_proj_weight is taken whole, three times",
    "Each matrix is (3·d_model, d_model).",
    "it holds three matrices: chunk(3, dim=0).",
    stage="packed_blocks",
)
def _(packed: Tensor) -> tuple[Tensor, ...]:
    return (packed,) * 3


_ORDERS = {"qvk": "queries, values, keys", "kqv": "keys, queries, values", "vkq": "values, keys, queries"}
_ORDERS |= {"kvq": "keys, values, queries", "vqk": "values, queries, keys"}
for _order, _said in _ORDERS.items():

    @mistake(
        f"packed-order-{_order}",
        f"The blocks of in_proj_weight are taken as {_said}",
        "The right shapes under the wrong names.",
        "the order is queries, keys, values.",
        stage="packed_roles",
    )
    def _(q: Tensor, k: Tensor, v: Tensor, _order: str = _order) -> dict[str, Tensor]:
        blocks = dict(zip(_order, (q, k, v)))
        return {f"W_{role}": blocks[role] for role in "qkv"}


@mistake(
    "packed-no-output",
    "out_proj is left out",
    "There is no W_o to join the heads with.",
    "W_o is out_proj.weight.",
    stage="packed_output",
)
def _(mha: nn.MultiheadAttention) -> dict[str, Tensor]:
    return {}


@mistake(
    "packed-output-transposed",
    "W_o is out_proj.weight transposed",
    "The right shape and other numbers.",
    "nn.Linear stores (out, in) in both layers: copy it as it is.",
    stage="packed_output",
)
def _(mha: nn.MultiheadAttention) -> dict[str, Tensor]:
    return {"W_o": mha.out_proj.weight.T}


@mistake(
    "packed-output-from-packed",
    "W_o is taken from in_proj_weight, its last block",
    "That is W_v.",
    "W_o is out_proj.weight.",
    stage="packed_output",
)
def _(mha: nn.MultiheadAttention) -> dict[str, Tensor]:
    return {"W_o": mha.in_proj_weight.chunk(3)[2]}


@mistake(
    "packed-transposed",
    "All matrices are transposed",
    "Right for X @ W; but nn.Linear stores (out, in), as in_proj_weight does.",
    "copy them as they are.",
    stage="packed_give",
)
def _(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: W.T for name, W in weights.items()}


@mistake(
    "packed-blocks-transposed",
    "W_q, W_k and W_v are transposed, W_o is not",
    "Right for X @ W; but nn.Linear stores (out, in), as in_proj_weight does.",
    "copy them as they are.",
    stage="packed_give",
)
def _(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: W if name == "W_o" else W.T for name, W in weights.items()}


@mistake(
    "packed-tuple",
    "The matrices come back as a tuple, without names",
    "Nobody can tell which is which.",
    "return a dict: W_q, W_k, W_v, W_o.",
    stage="packed_give",
)
def _(weights: dict[str, Tensor]) -> Any:
    return tuple(weights.values())


# ---------------------------------------------------------------- weights of BERT


@mistake(
    "bert-always-first-layer",
    "Layer 0 is taken whatever is asked for",
    "All layers of the model look alike.",
    "put the number into the name.",
    stage="bert_part",
)
def _(state: State, layer: int) -> str:
    return _part(state, "encoder.layer.0.attention")


@mistake(
    "bert-layer-after",
    "Layers are counted from 0, but layer + 1 is taken",
    "Each layer is the next one, and the last is not found.",
    "encoder.layer.0 is the first.",
    stage="bert_part",
)
def _(state: State, layer: int) -> str:
    return _part(state, f"encoder.layer.{layer + 1}.attention")


@mistake(
    "bert-layer-before",
    "Layers are counted from 1: layer - 1 is taken",
    "Each layer is the one before it, and layer 0 is not found.",
    "encoder.layer.0 is the first.",
    stage="bert_part",
)
def _(state: State, layer: int) -> str:
    return _part(state, f"encoder.layer.{layer - 1}.attention")


@mistake(
    "bert-prefix-demanded",
    "The names are taken to start with 'bert.' always",
    "A KeyError for models saved without the prefix.",
    "look whether any name starts with 'bert.'.",
    stage="bert_part",
)
def _(state: State, layer: int) -> str:
    return f"bert.encoder.layer.{layer}.attention"


@mistake(
    "bert-prefix-unknown",
    "The names are taken to start with 'encoder.' always",
    "A KeyError for models whose names start with 'bert.'.",
    "look whether any name starts with 'bert.'.",
    stage="bert_part",
)
def _(state: State, layer: int) -> str:
    return f"encoder.layer.{layer}.attention"


@mistake(
    "bert-number-as-text",
    "A name is taken if 'layer.1' occurs in it, so that layer.10 is found for layer 1",
    "Right up to ten layers; after that the last of several hits wins.",
    "compare the whole number: f'layer.{layer}.' with the dot.",
    stage="bert_part",
)
def _(state: State, layer: int) -> str:
    hits = [name for name in state if f"encoder.layer.{layer}" in name and "self.query.weight" in name]
    return hits[-1].removesuffix(".self.query.weight")


def _part(state: State, name: str) -> str:
    return ("bert." if any(known.startswith("bert.") for known in state) else "") + name


def _names(id: str, title: str, effect: str, hint: str, roles: str, dense: str = "{}.output.dense") -> None:
    self_names = {"q": "query", "k": "key", "v": "value"}

    @mistake(id, title, effect, hint, stage="bert_names")
    def _(part: str) -> dict[str, str]:
        names = {role: f"{part}.self.{self_names[taken]}" for role, taken in zip("qkv", roles)}
        return {**names, "o": dense.format(part)}


for _taken, _said in (("kqv", "query and key"), ("qvk", "key and value"), ("vkq", "query and value")):
    _names(
        f"bert-{_said.replace(' ', '-')}-exchanged",
        f"BERT's {_said} are exchanged",
        "Everything fits, and the maps are other ones.",
        "query → W_q, key → W_k, value → W_v.",
        _taken,
    )
for _taken, _said in (
    ("qqv", "W_k is made from query"),
    ("qkk", "W_v is made from key"),
    ("qqq", "W_k and W_v are made from query"),
):
    _names(
        f"bert-{_taken}",
        f"{_said}, a copied line left as it was",
        "Everything fits, and the maps or outputs are other ones.",
        "query → W_q, key → W_k, value → W_v.",
        _taken,
    )
_names(
    "bert-output-by-value",
    "W_o is made from the value's weights",
    "The weights of the heads are right, the output is not.",
    "W_o is attention.output.dense.",
    "qkv",
    "{}.self.value",
)


@mistake(
    "bert-output-of-feed-forward",
    "W_o is taken from output.dense of the feed-forward network",
    "It is (d_model, d_ff): an error about shapes.",
    "W_o is *attention*.output.dense.",
    stage="bert_names",
)
def _(part: str) -> dict[str, str]:
    names = {role: f"{part}.self.{name}" for role, name in zip("qkv", ("query", "key", "value"))}
    return {**names, "o": f"{part.removesuffix('.attention')}.output.dense"}


@mistake(
    "bert-transposed",
    "BERT's matrices are transposed",
    "They are square, so nothing complains; the maps are noise.",
    "BERT stores (out, in), as nn.Linear does: copy them as they are.",
    stage="bert_matrix",
)
def _(matrix: Tensor) -> Tensor:
    return matrix.T


def _without(*roles: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda biases: {
        name: torch.zeros_like(x) if name.removeprefix("b_") in roles else x for name, x in biases.items()
    }


def _biases(id: str, title: str, effect: str, roles: str) -> None:
    hint = "BERT has a bias in each projection: MultiHeadAttention(…, bias=True), and copy all four."
    mistake(id, title, effect, hint, stage="bert_biases")(_without(*roles))


_biases(
    "bert-no-biases", "The biases are left out", "Maps are close to the right ones, and not right.", "qkvo"
)
_biases(
    "bert-no-biases-of-heads",
    "The biases of queries, keys and values are left out",
    "Maps are close to the right ones, and not right.",
    "qkv",
)
_biases(
    "bert-no-output-bias",
    "The bias of the output is left out",
    "All outputs are off by the same row.",
    "o",
)
_biases("bert-no-query-bias", "The bias of the queries is left out", "Maps are not right, values are.", "q")
_biases("bert-no-value-bias", "The bias of the values is left out", "Maps are right, outputs are not.", "v")


@mistake(
    "bert-one-bias",
    "The bias of the queries is used for keys and values too",
    "Maps are right, since a key's bias adds the same to each score of a row; outputs are not.",
    "each projection has its own.",
    stage="bert_biases",
)
def _(biases: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**biases, "b_k": biases["b_q"], "b_v": biases["b_q"]}


@mistake(
    "bert-twelve-heads",
    "12 heads, whatever is asked for",
    "Right for BERT-base only; a small model has fewer.",
    "use num_heads.",
    stage="bert_heads",
)
def _(num_heads: int) -> int:
    return 12


@mistake(
    "bert-one-head",
    "One head, whatever is asked for",
    "One map comes back.",
    "use num_heads.",
    stage="bert_heads",
)
def _(num_heads: int) -> int:
    return 1
