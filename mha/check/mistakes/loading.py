"""What goes wrong when weights are taken over from elsewhere."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import mha
from mha.check.catalogue import Stage, mistake
from mha.check.exercises.loading import (
    Loaded,
    State,
    bert_has_no_biases,
    bert_is_of_another_kind,
    bert_is_of_another_size,
    bert_names,
    separate_weights_are_none,
)

# ---------------------------------------------------------------- weights of nn.MultiheadAttention


@mistake(
    "packed-cut-in-columns",
    "in_proj_weight is cut along dim 1",
    "Each piece is (3·d_model, d_model/3), or the cut fails: rows of all three stand in each.",
    "W_q, W_k and W_v are stacked in rows: chunk(3, dim=0).",
    stage="packed_blocks",
)
def _(packed: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    return packed.chunk(3, dim=1)


@mistake(
    "packed-interleaved",
    "Every third row of in_proj_weight is taken, as view(d_model, 3, d_model) does",
    "The right shapes, and rows of all three in each.",
    "three blocks, one below the other: chunk(3, dim=0), or view(3, d_model, d_model).",
    stage="packed_blocks",
)
def _(packed: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    return packed[0::3], packed[1::3], packed[2::3]


@mistake(
    "packed-first-block-for-all",
    "The first block of in_proj_weight is taken three times",
    "W_q serves for queries, keys and values.",
    "rows 0 to d_model, d_model to 2·d_model, 2·d_model to the end.",
    stage="packed_blocks",
)
def _(packed: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    return (packed.chunk(3)[0],) * 3


@mistake(
    "packed-whole-for-all",
    "in_proj_weight is taken whole, three times",
    "Each matrix is (3·d_model, d_model).",
    "it holds three matrices: chunk(3, dim=0).",
    stage="packed_blocks",
)
def _(packed: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    return (packed,) * 3


_IN_ROWS = "rows 0 to d_model, d_model to 2·d_model, 2·d_model to the end."


def _cut(id: str, title: str, effect: str, hint: str, cut: Stage) -> None:
    mistake(id, title, effect, hint, stage="packed_blocks")(cut)


def _in_shape(packed: Tensor, *shape: int, axis: int) -> tuple[Tensor, ...]:
    d_model = packed.size(1)
    return tuple(x.reshape(d_model, d_model) for x in packed.view(*shape, d_model).unbind(axis))


_cut(
    "packed-interleaved-by-head",
    "in_proj_weight is read head by head: queries, keys and values of head 0, then those of head 1 …",
    "Right for one head; GPT-NeoX stores it so. With more, rows of all three stand in each matrix.",
    "nn.MultiheadAttention holds all of W_q, then all of W_k, then all of W_v: chunk(3, dim=0).",
    lambda packed, h: _in_shape(packed, h, 3, packed.size(1) // h, axis=1),
)
_cut(
    "packed-split-in-threes",
    "split(3) cuts in_proj_weight into pieces of three rows",
    "There are d_model pieces, and an error where three names are to take them.",
    "split wants the size of a piece, split(d_model); the number of pieces is what chunk(3) wants.",
    lambda packed, h: packed.split(3),
)
_cut(
    "packed-split-by-heads",
    "in_proj_weight is cut into pieces of d_k rows",
    "There are three pieces for each head, and an error where three names are to take them.",
    "the pieces are whole matrices, d_model rows each: chunk(3, dim=0).",
    lambda packed, h: packed.split(packed.size(1) // h),
)
_cut(
    "packed-sliced-in-columns",
    "The columns of in_proj_weight are sliced: [:, :d], [:, d:2d], [:, 2d:]",
    "The first piece is everything, the others are empty.",
    "W_q, W_k and W_v are stacked in rows: [:d], [d:2d], [2d:].",
    lambda packed, h: tuple(packed[:, i * packed.size(1) : (i + 1) * packed.size(1)] for i in range(3)),
)
_cut(
    "packed-transposed-then-cut",
    "in_proj_weight is transposed first, and the rows of that are cut",
    "The cut goes through all three matrices.",
    "cut it as it is: chunk(3, dim=0).",
    lambda packed, h: packed.T.chunk(3),
)
_cut(
    "packed-transposed-and-filled-anew",
    "in_proj_weight is transposed and then filled into (3, d_model, d_model)",
    "reshape goes through the numbers row by row: rows of the transpose hold all three matrices.",
    "no transpose: in_proj_weight.view(3, d_model, d_model), or chunk(3, dim=0).",
    lambda packed, h: packed.T.reshape(3, packed.size(1), packed.size(1)).unbind(),
)
_cut(
    "packed-split-in-columns",
    "split(d_model, dim=1) cuts the columns, of which there are d_model",
    "There is one piece, and an error where three names are to take it.",
    "W_q, W_k and W_v are stacked in rows: split(d_model, dim=0).",
    lambda packed, h: packed.split(packed.size(1), dim=1),
)
_cut(
    "packed-cut-by-heads",
    "in_proj_weight is cut into as many blocks as there are heads: chunk(num_heads)",
    "Right for three heads; else too many or too few blocks.",
    "the blocks are queries, keys and values: chunk(3, dim=0), whatever num_heads is.",
    lambda packed, h: packed.chunk(h),
)
_cut(
    "packed-slices-of-a-head",
    "The slices are d_k rows long, not d_model",
    "Each matrix holds one head of the queries.",
    _IN_ROWS,
    lambda packed, h: packed.split(packed.size(1) // h)[:3] if h > 1 else packed.chunk(3),
)
_cut(
    "packed-slices-from-the-start",
    "All slices begin at 0: [:d], [:2d], [:3d]",
    "The keys' matrix holds the queries' too, the values' all three.",
    _IN_ROWS,
    lambda packed, h: tuple(packed[: i * packed.size(1)] for i in (1, 2, 3)),
)
_cut(
    "packed-keys-to-the-end",
    "The keys' slice has no end: [d:] in place of [d:2d]",
    "W_k is (2·d_model, d_model): the values are in it, too.",
    _IN_ROWS,
    lambda packed, h: (packed.chunk(3)[0], packed[packed.size(1) :], packed.chunk(3)[2]),
)
_cut(
    "packed-keys-from-the-start",
    "The keys' slice has no start: [:2d] in place of [d:2d]",
    "W_k is (2·d_model, d_model): the queries are in it, too.",
    _IN_ROWS,
    lambda packed, h: (packed.chunk(3)[0], packed[: 2 * packed.size(1)], packed.chunk(3)[2]),
)


def _scaled(id: str, title: str, factor: Callable[[int, float], float], keys_too: bool = False) -> None:
    def cut(packed: Tensor, num_heads: int) -> tuple[Tensor, ...]:
        q, k, v = packed.chunk(3)
        by = factor(packed.size(1), packed.size(1) / num_heads)
        return q * by, k * by if keys_too else k, v

    effect = "The layer divides the scores by √d_k itself: they would be scaled twice."
    _cut(id, title, effect, "copy the weights as they are.", cut)


_scaled("packed-scaled", "1/√d_k is multiplied into W_q", lambda d_model, d_k: d_k**-0.5)
_scaled("packed-scaled-up", "√d_k is multiplied into W_q", lambda d_model, d_k: d_k**0.5)
_scaled("packed-scaled-by-d_model", "1/√d_model is multiplied into W_q", lambda d_model, d_k: d_model**-0.5)
_scaled(
    "packed-scaled-both",
    "The fourth root of 1/d_k is multiplied into W_q and W_k",
    lambda d_model, d_k: d_k**-0.25,
    keys_too=True,
)
_cut(
    "packed-in-heads",
    "The matrices come back cut into heads, (h, d_k, d_model)",
    "The numbers are right, but a layer wants (d_model, d_model).",
    "leave them whole: a layer cuts what they make, not the matrices.",
    lambda packed, h: tuple(x.unflatten(0, (h, -1)) for x in packed.chunk(3)),
)

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


for _taken, _said in (
    ("qqv", "W_k is the block of the queries"),
    ("qkk", "W_v is the block of the keys"),
    ("qqk", "W_k is the block of the queries and W_v that of the keys"),
    ("qvv", "W_k is the block of the values"),
):

    @mistake(
        f"packed-blocks-{_taken}",
        f"{_said}: one is taken twice",
        "The right shapes, and one matrix is never used.",
        _IN_ROWS,
        stage="packed_roles",
    )
    def _(q: Tensor, k: Tensor, v: Tensor, _taken: str = _taken) -> dict[str, Tensor]:
        blocks = {"q": q, "k": k, "v": v}
        return {f"W_{role}": blocks[taken] for role, taken in zip("qkv", _taken)}


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
    return {name: W.mT for name, W in weights.items()}


@mistake(
    "packed-blocks-transposed",
    "W_q, W_k and W_v are transposed, W_o is not",
    "Right for X @ W; but nn.Linear stores (out, in), as in_proj_weight does.",
    "copy them as they are.",
    stage="packed_give",
)
def _(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: W if name == "W_o" else W.mT for name, W in weights.items()}


@mistake(
    "packed-tuple",
    "The matrices come back as a tuple, without names",
    "Nobody can tell which is which.",
    "return a dict: W_q, W_k, W_v, W_o.",
    stage="packed_give",
)
def _(weights: dict[str, Tensor]) -> Any:
    return tuple(weights.values())


@mistake(
    "packed-output-layer",
    "W_o is the layer out_proj itself, not its matrix",
    "A layer cannot be copied into a weight.",
    "W_o is out_proj.weight.",
    stage="packed_output",
)
def _(mha: nn.MultiheadAttention) -> dict[str, Any]:
    return {"W_o": type(mha.out_proj).__name__}


@mistake(
    "packed-separate-weights",
    "q_proj_weight, k_proj_weight and v_proj_weight are taken, which are None",
    "They are there only where keys or values have another width (kdim, vdim).",
    "the usual layer holds all three in in_proj_weight: chunk(3, dim=0).",
    stage="packed_give",
)
def _(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"W_o": weights["W_o"]} if "W_o" in weights else {}


@mistake(
    "packed-separate-weights-used",
    "q_proj_weight, k_proj_weight and v_proj_weight are used, which are None: an error",
    "They are there only where keys or values have another width (kdim, vdim).",
    "the usual layer holds all three in in_proj_weight: chunk(3, dim=0).",
    stage="packed_blocks",
)
def _(packed: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    raise separate_weights_are_none()


@mistake(
    "packed-left-packed",
    "The state dict comes back as it is: in_proj_weight and out_proj.weight",
    "W_q, W_k and W_v are still in one.",
    "take in_proj_weight apart, chunk(3, dim=0), and give each its name.",
    stage="packed_give",
)
def _(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    packed = torch.cat([weights[f"W_{role}"] for role in "qkv"])
    return {"in_proj_weight": packed, "out_proj.weight": weights["W_o"]}


@mistake(
    "packed-other-names",
    "The matrices come back under other names than W_q, W_k, W_v and W_o",
    "The numbers are right, but whoever looks up 'W_q' finds nothing.",
    "the names that are asked for are W_q, W_k, W_v and W_o: no '.weight' behind them, no 'q_proj'.",
    stage="packed_give",
)
def _(weights: dict[str, Tensor]) -> dict[int, Tensor]:
    return dict(enumerate(weights.values()))


@mistake(
    "packed-nothing-copied",
    "The matrices are new ones, as they were drawn: nothing is copied into them",
    "They are others each time.",
    "take the weights of the layer that is given: in_proj_weight and out_proj.weight.",
    stage="packed_give",
)
def _(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(W) for name, W in weights.items()}


@mistake(
    "packed-output-not-copied",
    "W_o is a new matrix, as it was drawn",
    "The output is noise.",
    "W_o is out_proj.weight.",
    stage="packed_output",
)
def _(mha: nn.MultiheadAttention) -> dict[str, Tensor]:
    return {"W_o": torch.zeros_like(mha.out_proj.weight)}


@mistake(
    "packed-arrays",
    "The matrices come back as numpy arrays",
    "A layer of torch cannot be filled with them.",
    "stay in torch: no .numpy().",
    stage="packed_give",
)
def _(weights: dict[str, Tensor]) -> dict[str, Any]:
    return {name: W.numpy() for name, W in weights.items()}


# ---------------------------------------------------------------- weights of BERT


@mistake(
    "bert-always-first-layer",
    "Layer 0 is taken whatever is asked for",
    "All layers of the model look alike.",
    "put the number into the name.",
    stage="bert_part",
)
def _(state: State, layer: int) -> str:
    return "encoder.layer.0.attention"


@mistake(
    "bert-layer-after",
    "Layers are counted from 0, but layer + 1 is taken",
    "Each layer is the next one, and the last is not found.",
    "encoder.layer.0 is the first.",
    stage="bert_part",
)
def _(state: State, layer: int) -> str:
    return f"encoder.layer.{layer + 1}.attention"


@mistake(
    "bert-layer-before",
    "Layers are counted from 1: layer - 1 is taken",
    "Each layer is the one before it, and layer 0 is not found.",
    "encoder.layer.0 is the first.",
    stage="bert_part",
)
def _(state: State, layer: int) -> str:
    return f"encoder.layer.{layer - 1}.attention"


@mistake(
    "bert-prefix-demanded",
    "The names are taken to start with 'bert.' always",
    "A KeyError for models saved without the prefix, as the one in this notebook is.",
    "print the names: they start with 'encoder.layer.'; or look whether any of them starts with 'bert.'.",
    stage="bert_part",
)
def _(state: State, layer: int) -> str:
    return f"bert.encoder.layer.{layer}.attention"


def _last_layer(state: State) -> int:
    return max(int(name.split(".")[2]) for name in state if name.startswith("encoder.layer."))


@mistake(
    "bert-always-last-layer",
    "The last layer is taken whatever is asked for",
    "A name is known by its end only, and in a loop each layer overwrites the one before.",
    "put the number into the name: f'encoder.layer.{layer}.attention'.",
    stage="bert_part",
)
def _(state: State, layer: int) -> str:
    return f"encoder.layer.{_last_layer(state)}.attention"


@mistake(
    "bert-layers-from-the-end",
    "The layers are counted from the last to the first",
    "Right for the middle one only.",
    "encoder.layer.0 is the first.",
    stage="bert_part",
)
def _(state: State, layer: int) -> str:
    return f"encoder.layer.{_last_layer(state) - layer}.attention"


def _other_part(id: str, written: str, part: Callable[[int], str]) -> None:
    @mistake(
        id,
        f"The names begin with {written}",
        "There are no such names: a KeyError.",
        "print the names: they begin with 'encoder.layer.{layer}.attention.'.",
        stage="bert_part",
    )
    def _(state: State, layer: int) -> str:
        return part(layer)


_other_part("bert-layers-in-plural", "encoder.layers", lambda layer: f"encoder.layers.{layer}.attention")
_other_part("bert-encoder-left-out", "layer, without encoder", lambda layer: f"layer.{layer}.attention")
_other_part("bert-layer-left-out", "encoder.0, without layer", lambda layer: f"encoder.{layer}.attention")
_other_part("bert-attention-left-out", "self, without attention", lambda layer: f"encoder.layer.{layer}")


def _other_names(id: str, written: str, named: str, change: Callable[[str], str]) -> None:
    @mistake(
        id,
        f"The names hold {written}",
        "There are no such names: a KeyError.",
        f"print the names: it is {named}.",
        stage="bert_names",
    )
    def _(part: str) -> dict[str, str]:
        return {role: change(name) for role, name in bert_names(part).items()}


_other_names(
    "bert-self-left-out",
    "attention.query, without self",
    "attention.self.query",
    lambda name: name.replace("self.", ""),
)
_other_names(
    "bert-self-before-output",
    "attention.self.output.dense",
    "attention.output.dense",
    lambda name: name.replace("output", "self.output"),
)
_other_names(
    "bert-dense-left-out",
    "attention.output.weight, without dense",
    "attention.output.dense.weight",
    lambda name: name.replace("output.dense", "output"),
)


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


def _names(id: str, title: str, effect: str, hint: str, roles: str, dense: str = "{}.output.dense") -> None:
    self_names = {"q": "query", "k": "key", "v": "value"}

    @mistake(id, title, effect, hint, stage="bert_names")
    def _(part: str) -> dict[str, str]:
        names = {role: f"{part}.self.{self_names[taken]}" for role, taken in zip("qkv", roles)}
        return {**names, "o": dense.format(part)}


# The names in the order of the alphabet are key, query, value.
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
for _taken, _said in (
    ("kvq", "W_q gets key, W_k value, W_v query"),
    ("vqk", "W_q gets value, W_k query, W_v key"),
):
    _names(
        f"bert-turned-{_taken}",
        f"{_said}: the three are out of order",
        "Everything fits, and the maps are other ones.",
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
    "bert-output-of-intermediate",
    "W_o is taken from intermediate.dense, the first half of the feed-forward network",
    "In BERT it is (4·d_model, d_model): an error about shapes.",
    "W_o is *attention*.output.dense.",
    stage="bert_names",
)
def _(part: str) -> dict[str, str]:
    return {**bert_names(part), "o": f"{part.removesuffix('.attention')}.intermediate.dense"}


@mistake(
    "bert-output-of-feed-forward",
    "W_o is taken from output.dense of the feed-forward network",
    "In BERT it is (d_model, 4·d_model): an error about shapes.",
    "W_o is *attention*.output.dense.",
    stage="bert_names",
)
def _(part: str) -> dict[str, str]:
    return {**bert_names(part), "o": f"{part.removesuffix('.attention')}.output.dense"}


def _matrices(id: str, title: str, effect: str, hint: str, change: Callable[[Tensor], Tensor], roles: str):
    @mistake(id, title, effect, hint, stage="bert_matrices")
    def _(matrices: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: change(W) if name[-1] in roles else W for name, W in matrices.items()}


_SQUARE = "They are square, so nothing complains; the maps or outputs are noise."
_AS_STORED = "BERT stores (out, in), as nn.Linear does: copy them as they are."
_matrices("bert-transposed", "BERT's matrices are transposed", _SQUARE, _AS_STORED, torch.t, "qkvo")
_matrices(
    "bert-heads-transposed",
    "BERT's query, key and value are transposed",
    _SQUARE,
    _AS_STORED,
    torch.t,
    "qkv",
)
_matrices("bert-output-transposed", "BERT's output.dense is transposed", _SQUARE, _AS_STORED, torch.t, "o")
for _roles, _said in (("qk", "query and key are"), ("q", "query is"), ("k", "key is"), ("v", "value is")):
    _matrices(
        f"bert-{_roles}-transposed",
        f"Of the four matrices, BERT's {_said} transposed",
        _SQUARE,
        _AS_STORED,
        torch.t,
        _roles,
    )
_matrices(
    "bert-output-not-loaded",
    "The weights of W_o are not loaded: they stay as they were drawn",
    "Maps are right, outputs are noise, and others each time.",
    "copy attention.output.dense into W_o.",
    torch.zeros_like,
    "o",
)


@mistake(
    "bert-nothing-loaded",
    "Nothing is loaded: the layer keeps the weights that it was made with",
    "load_state_dict(…, strict=False) keeps silent where no name fits; so does copying into a copy.",
    "rename query → W_q, key → W_k, value → W_v, output.dense → W_o, and load with strict=True.",
    stage="bert_matrices",
    also={"bert_biases": lambda biases: {name: torch.zeros_like(x) for name, x in biases.items()}},
)
def _(matrices: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(W) for name, W in matrices.items()}


def _without(*roles: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda biases: {
        name: torch.zeros_like(x) if name.removeprefix("b_") in roles else x for name, x in biases.items()
    }


def _biases(id: str, title: str, effect: str, roles: str) -> None:
    hint = "BERT has a bias in each projection: MultiHeadAttention(…, bias=True), and copy all four."
    mistake(id, title, effect, hint, stage="bert_biases")(_without(*roles))


_biases(
    "bert-no-biases",
    "The biases are not copied: there are none, or they stay as they were drawn",
    "Maps are close to the right ones, and not right.",
    "qkvo",
)
_biases(
    "bert-no-biases-of-heads",
    "The biases of queries, keys and values are not copied",
    "Maps are close to the right ones, and not right.",
    "qkv",
)
_biases("bert-no-output-bias", "The bias of the output is not copied", "All outputs are off by one row.", "o")
_biases("bert-no-query-bias", "The bias of the queries is not copied", "Maps are not right, values are.", "q")
_biases(
    "bert-no-key-bias",
    "The bias of the keys is not copied",
    "It adds the same to each score of a row, so nothing shows; but the layer is not BERT's.",
    "k",
)
_biases("bert-no-value-bias", "The bias of the values is not copied", "Maps are right, outputs are not.", "v")


def _other_biases(id: str, taken: str, title: str, effect: str) -> None:
    @mistake(id, title, effect, "each projection has its own.", stage="bert_biases")
    def _(biases: dict[str, Tensor]) -> dict[str, Tensor]:
        return {f"b_{role}": biases[f"b_{other}"] for role, other in zip("qkvo", taken)}


_other_biases(
    "bert-one-bias",
    "qqqo",
    "The bias of the queries is used for keys and values too",
    "Maps are right, since a key's bias adds the same to each score of a row; outputs are not.",
)
_other_biases(
    "bert-biases-of-keys-and-values-exchanged",
    "qvko",
    "The biases of keys and values are exchanged",
    "Maps are right, outputs are off by one row.",
)
_other_biases(
    "bert-biases-of-queries-and-keys-exchanged",
    "kqvo",
    "The biases of queries and keys are exchanged",
    "Maps are close to the right ones, and not right.",
)
_other_biases(
    "bert-query-bias-for-keys",
    "qqvo",
    "The bias of the queries is used for the keys too, a copied line left as it was",
    "It adds the same to each score of a row, so nothing shows; but the layer is not BERT's.",
)
_other_biases(
    "bert-key-bias-for-values",
    "qkko",
    "The bias of the keys is used for the values too, a copied line left as it was",
    "Maps are right, outputs are off by one row.",
)
_other_biases(
    "bert-value-bias-for-output",
    "qkvv",
    "The bias of the values is used for the output too, a copied line left as it was",
    "Maps are right, outputs are off by one row.",
)


@mistake(
    "bert-twelve-heads",
    "12 heads, whatever is asked for",
    "Right for BERT-base only; a small model has fewer.",
    "use num_heads.",
    stage="bert_heads",
)
def _(num_heads: int, d_model: int) -> int:
    return 12


@mistake(
    "bert-one-head",
    "One head, whatever is asked for",
    "One map comes back.",
    "use num_heads.",
    stage="bert_heads",
)
def _(num_heads: int, d_model: int) -> int:
    return 1


def _heads_of_64(id: str, title: str, effect: str, least: int) -> None:
    hint = "use num_heads: what a model has is not seen from its tensors, only in its config."

    @mistake(id, title, effect, hint, stage="bert_heads")
    def _(num_heads: int, d_model: int) -> int:
        heads = max(least, d_model // 64)
        if heads == 0:
            mha.MultiHeadAttention(d_model, heads)  # raises
        return heads


_heads_of_64(
    "bert-heads-of-64",
    "There are d_model // 64 heads, whatever is asked for",
    "Right for BERT-base and BERT-large only; a small model would have none: an error.",
    0,
)
_heads_of_64(
    "bert-heads-of-64-at-least-one",
    "There are d_model // 64 heads, but at least one, whatever is asked for",
    "Right for BERT-base and BERT-large only; a small model has narrower heads.",
    1,
)


@mistake(
    "bert-head-size-for-heads",
    "The size of a head, d_model / num_heads, stands where the number of heads is wanted",
    "BERT-base would have 64 heads of 12 numbers: right shapes of the output, and another number of maps.",
    "MultiHeadAttention(d_model, num_heads, bias=True).",
    stage="bert_heads",
)
def _(num_heads: int, d_model: int) -> int:
    return d_model // num_heads


# ---------------------------------------------------------------- the layer that comes back


def _given(id: str, title: str, effect: str, hint: str) -> Callable[[Stage], Stage]:
    return mistake(id, title, effect, hint, stage="bert_give")


@_given(
    "bert-dropout-on",
    "The layer comes back in training mode, with dropout",
    "Weights are dropped at random whenever it is run.",
    "make it without dropout, or return layer.eval().",
)
def _(layer: Loaded) -> Loaded:
    return Loaded(layer, drops=True)


@_given(
    "bert-other-d_model",
    "The layer is made with another d_model than the tensors have",
    "768 is that of BERT-base, and the rows of the embeddings are words: the tensors do not fit.",
    "take d_model from a tensor of the attention: state_dict[…query.weight].size(0).",
)
def _(layer: Loaded) -> Loaded:
    raise bert_is_of_another_size()


@_given(
    "bert-made-without-biases",
    "The layer is made without biases, and BERT's are to be copied into it",
    "There is no place for them: an error.",
    "MultiHeadAttention(d_model, num_heads, bias=True).",
)
def _(layer: Loaded) -> Loaded:
    raise bert_has_no_biases()


def _in_dtype(id: str, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")

    @_given(
        id,
        f"The layer comes back in {name}",
        "BERT's tensors are float32, and so is what it will be given.",
        "copy the tensors as they are: no .half(), no .double().",
    )
    def _(layer: Loaded) -> Loaded:
        return Loaded({name: x.to(dtype) if isinstance(x, Tensor) else x for name, x in layer.items()})


_in_dtype("bert-in-float64", torch.float64)
_in_dtype("bert-in-float16", torch.float16)
_in_dtype("bert-in-bfloat16", torch.bfloat16)


def _heads_mixed(id: str, which: str, names: tuple[str, ...]) -> None:
    @_given(
        id,
        f"The rows of {which} are put in another order: number 0 of all heads, then number 1 …",
        "Each head of the layer is a mixture. Llama's weights are turned so to be rotated; BERT's are not.",
        "copy them as they are: head i has rows i·d_k to (i + 1)·d_k - 1.",
    )
    def _(layer: Loaded) -> Loaded:
        h = layer["num_heads"]
        return Loaded(
            {
                **layer,
                **{name: layer[name].unflatten(0, (h, -1)).transpose(0, 1).flatten(0, 1) for name in names},
            }
        )


_heads_mixed("bert-rows-mixed", "query, key and value", ("W_q", "W_k", "W_v"))
_heads_mixed("bert-rows-mixed-with-biases", "query, key and value, and their biases,", (
    "W_q", "W_k", "W_v", "b_q", "b_k", "b_v",
))  # fmt: skip
_heads_mixed("bert-rows-mixed-of-queries-and-keys", "query and key", ("W_q", "W_k"))


def _multiplied(id: str, title: str, names: tuple[str, ...]) -> None:
    @_given(id, title, "The layer scales by itself: that is undone.", "copy them as they are.")
    def _(layer: Loaded) -> Loaded:
        root = (layer["d_model"] / layer["num_heads"]) ** 0.5
        return Loaded({**layer, **{name: layer[name] * root for name in names}})


_multiplied("bert-scaled-up", "BERT's query, weight and bias, is multiplied by √d_k", ("W_q", "b_q"))
_multiplied("bert-weight-scaled-up", "BERT's query.weight is multiplied by √d_k", ("W_q",))


def _divided(id: str, title: str, names: tuple[str, ...]) -> None:
    @_given(id, title, "The layer scales by itself: the scores are divided twice.", "copy them as they are.")
    def _(layer: Loaded) -> Loaded:
        root = (layer["d_model"] / layer["num_heads"]) ** 0.5
        return Loaded({**layer, **{name: layer[name] / root for name in names}})


_divided("bert-scaled", "BERT's query, weight and bias, is divided by √d_k", ("W_q", "b_q"))
_divided("bert-weight-scaled", "BERT's query.weight is divided by √d_k", ("W_q",))
_divided("bert-key-scaled", "BERT's key, weight and bias, is divided by √d_k", ("W_k", "b_k"))
_divided("bert-key-weight-scaled", "BERT's key.weight is divided by √d_k", ("W_k",))


def _of_another_kind(id: str, kind: str, title: str, hint: str) -> None:
    @_given(f"bert-given-{id}", title, "It cannot be used as a layer of the package.", hint)
    def _(layer: Loaded) -> Loaded:
        raise bert_is_of_another_kind(kind)


@_given(
    "bert-given-torch-layer",
    "PyTorch's nn.MultiheadAttention comes back, not mha.MultiHeadAttention",
    "It cannot be used as a layer of the package.",
    "make a mha.MultiHeadAttention(d_model, num_heads, bias=True); from_torch makes one of PyTorch's.",
)
def _(layer: Loaded) -> Loaded:
    return Loaded(layer, kind=nn.MultiheadAttention.__name__)


_of_another_kind(
    "dict",
    "dict",
    "The tensors come back in a dict, not in a layer",
    "make a MultiHeadAttention(d_model, num_heads, bias=True), load them into it and return it.",
)
_of_another_kind(
    "tuple",
    "tuple",
    "The tensors come back in a tuple, not in a layer",
    "make a MultiHeadAttention(d_model, num_heads, bias=True), load them into it and return it.",
)
_of_another_kind(
    "list-of-layers",
    "ModuleList",
    "A list of layers comes back, not a layer",
    "load the one layer that is asked for, and return it.",
)
_of_another_kind(
    "what-load-says",
    "_IncompatibleKeys",
    "What load_state_dict returns comes back, not the layer",
    "load_state_dict fills the layer and returns what did not fit: return the layer itself.",
)
