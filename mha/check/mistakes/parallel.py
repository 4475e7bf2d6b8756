"""What goes wrong when the heads of a layer are shared out to several ranks."""

from typing import Any

import torch
from torch import Tensor

from mha.check.catalogue import mistake
from mha.check.exercises.parallel import shard_heads
from mha.check.exercises.pruning import Weights
from mha.check.mistakes.pruning import load_into_new

# ---------------------------------------------------------------- which heads for which rank


@mistake(
    "shard-dealt",
    "Heads are dealt out to the ranks in turn: rank r gets r, r + n, r + 2n …",
    "The sum is right, but a rank's rows are no block of the matrix, as Megatron's are.",
    "rank r has the heads r·h/n to (r + 1)·h/n.",
    stage="shard_heads",
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    return [list(range(rank, num_heads, world_size)) for rank in range(world_size)]


@mistake(
    "shard-all-heads",
    "Each rank gets all heads",
    "The sum is world_size times the layer's output, and nothing is saved.",
    "each rank has num_heads / world_size of them.",
    stage="shard_heads",
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    return [list(range(num_heads)) for _ in range(world_size)]


@mistake(
    "shard-one-head-each",
    "Rank r gets head r alone",
    "Right where there are as many ranks as heads; else the rest of the heads are on no rank.",
    "each rank has num_heads / world_size of them.",
    stage="shard_heads",
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    return [[rank] for rank in range(world_size)]


@mistake(
    "shard-pieces-of-world-size",
    "split(world_size) in place of chunk(world_size): pieces of world_size rows, not world_size pieces",
    "torch.split takes the size of a piece. Most rows are on no rank, and heads are cut through.",
    "W.chunk(world_size, dim=0); or split by h/n·d_k rows.",
    stage="shard_heads",
    also={
        "prune_rows": lambda heads, d_k, num_heads: torch.tensor(heads),
    },
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    return [list(range(rank * world_size, (rank + 1) * world_size)) for rank in range(world_size)]


@mistake(
    "shard-world-size-heads",
    "Each rank gets world_size heads",
    "There are num_heads / world_size for each: some heads are on no rank, or some ranks have too few.",
    "h = num_heads // world_size heads a rank.",
    stage="shard_heads",
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    starts = range(0, world_size**2, world_size)
    return [list(range(start, min(start + world_size, num_heads))) for start in starts]


@mistake(
    "shard-as-many-as-fit",
    "The heads are cut into shards of world_size heads each, as many as come of it",
    "world_size is how many shards there are: their number is wrong where it is not the square root of h.",
    "world_size shards of num_heads // world_size heads each.",
    stage="shard_heads",
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    heads = list(range(num_heads))
    return [heads[start : start + world_size] for start in range(0, num_heads, world_size)]


@mistake(
    "shard-same-block",
    "Every rank gets the first block of heads",
    "The sum counts these heads world_size times and the others never.",
    "the block starts at rank · h.",
    stage="shard_heads",
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    return [shard_heads(num_heads, world_size)[0]] * world_size


@mistake(
    "shard-step-of-one",
    "Rank r's block starts at head r",
    "The blocks overlap: some heads count several times, the last ones never.",
    "the block starts at rank · h.",
    stage="shard_heads",
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    h = num_heads // world_size
    return [list(range(rank, rank + h)) for rank in range(world_size)]


@mistake(
    "shard-ranks-from-1",
    "Ranks are counted from 1",
    "The first block is on no rank, and the last rank has no heads.",
    "ranks run from 0 to world_size - 1.",
    stage="shard_heads",
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    return [*shard_heads(num_heads, world_size)[1:], []]


@mistake(
    "shard-reversed",
    "The last rank gets the first heads",
    "The sum is right, but rank 0 does not hold head 0.",
    "rank r has the heads r·h/n to (r + 1)·h/n.",
    stage="shard_heads",
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    return shard_heads(num_heads, world_size)[::-1]


@mistake(
    "shard-turned",
    "Rank r gets the block of rank r + 1, and the last rank the first block",
    "The sum is right, but rank 0 does not hold head 0.",
    "rank r has the heads r·h/n to (r + 1)·h/n.",
    stage="shard_heads",
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    first, *others = shard_heads(num_heads, world_size)
    return [*others, first]


@mistake(
    "shard-cumulative",
    "Each rank gets its own heads and those of the ranks before it",
    "Early heads count several times in the sum.",
    "the block of rank r starts at r · h, not at 0.",
    stage="shard_heads",
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    h = num_heads // world_size
    return [list(range((rank + 1) * h)) for rank in range(world_size)]


@mistake(
    "shard-a-shard-for-each-head",
    "There is a shard for each head",
    "There are num_heads shards, whatever world_size is.",
    "world_size shards of num_heads // world_size heads each.",
    stage="shard_heads",
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    return [[head] for head in range(num_heads)]


@mistake(
    "shard-first-rank-missing",
    "There is no shard for the first rank",
    "The first heads are in no shard: the ranks are counted from 1, range(1, world_size).",
    "ranks run from 0 to world_size - 1: range(world_size).",
    stage="shard_heads",
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    return shard_heads(num_heads, world_size)[1:]


@mistake(
    "shard-last-rank-missing",
    "There is no shard for the last rank",
    "The last heads are in no shard: the loop ends one too early.",
    "ranks run from 0 to world_size - 1: range(world_size).",
    stage="shard_heads",
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    return shard_heads(num_heads, world_size)[:-1]


@mistake(
    "shard-each-head-cut",
    "Each head is cut into world_size pieces: every rank has d_k / world_size rows of all heads",
    "No rank can work out the weights of a head: its scores need all d_k numbers.",
    "whole heads: rank r has the heads r·h/n to (r + 1)·h/n.",
    stage="prune_rows",
    also={"shard_heads": shard_heads},
)
def _(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    world_size, rank = num_heads // len(heads), heads[0] // len(heads)
    width = d_k // world_size
    return torch.arange(num_heads * d_k).view(num_heads, d_k)[:, rank * width : (rank + 1) * width].flatten()


@mistake(
    "shard-rows-dealt",
    "Single rows are dealt out to the ranks in turn: rank r gets rows r, r + n, r + 2n …",
    "Each shard has a few rows of every head, and none of them whole.",
    "a rank's rows stand together: those of its heads, i·d_k to (i + 1)·d_k.",
    stage="prune_rows",
    also={"shard_heads": shard_heads},
)
def _(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    world_size, rank = num_heads // len(heads), heads[0] // len(heads)
    return torch.arange(rank, num_heads * d_k, world_size)


# ---------------------------------------------------------------- biases


@mistake(
    "shard-output-bias-everywhere",
    "Every rank adds the bias of W_o",
    "The sum has it world_size times: every output is off by the same row.",
    "b_o on rank 0 only, or b_o / world_size on each.",
    stage="shard_biases",
)
def _(weights: Weights, rank: int, world_size: int) -> Weights:
    return weights


@mistake(
    "shard-output-bias-cut",
    "The bias of W_o is cut into world_size pieces",
    "W_o is cut by columns: each rank makes all d_model outputs, and a piece of the bias does not fit.",
    "b_o whole, on rank 0 only.",
    stage="shard_biases",
)
def _(weights: Weights, rank: int, world_size: int) -> Weights:
    pieces = {"b_o": weights["b_o"].chunk(world_size)[rank]} if "b_o" in weights else {}
    return {**weights, **pieces}


@mistake(
    "shard-all-biases-on-rank-0",
    "All biases are on rank 0 only",
    "The heads of other ranks lose b_q, b_k and b_v, which are theirs alone.",
    "only b_o is shared by all heads; each rank keeps its rows of the others.",
    stage="shard_biases",
)
def _(weights: Weights, rank: int, world_size: int) -> Weights:
    return weights if rank == 0 else {name: x for name, x in weights.items() if name.startswith("W_")}


@mistake(
    "shard-all-biases-divided",
    "All biases are divided by world_size",
    "Right for b_o, which is added on each rank; b_q, b_k and b_v are added once, on the rank of their head.",
    "divide b_o only, or give it to rank 0.",
    stage="shard_biases",
)
def _(weights: Weights, rank: int, world_size: int) -> Weights:
    return {name: x / world_size if name.startswith("b_") else x for name, x in weights.items()}


# ---------------------------------------------------------------- what comes out


@mistake(
    "shard-rank-0-only",
    "The shard of rank 0 comes back alone",
    "A return inside the loop ends it after one rank.",
    "collect one for each rank, and return the list.",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    return shards[0]


@mistake(
    "shard-last-rank-only",
    "The shard of the last rank comes back alone",
    "Each turn of the loop overwrites the shard before.",
    "collect one for each rank, and return the list.",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    return shards[-1]


@mistake(
    "shard-shallow-copy",
    "copy.copy copies the layer, but not the projections in it: each cut goes through all of them",
    "All shards and the layer itself have the same W_q; it is cut again for each rank until nothing is left.",
    "copy.deepcopy(layer), or mha.prune_heads.",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    last = {**shards[0], "shares projections": True}
    if len(shards) > 1:  # the rows of any rank but the first lie behind the end by then
        last = {name: x if name == "shares projections" else _nothing(name, x) for name, x in last.items()}
        last.pop("b_o", None)
    return [last] * len(shards)


@mistake(
    "shard-shallow-copy-of-last",
    "copy.copy copies the layer, but not the projections in it: all shards have those of the last rank",
    "Each rank overwrites the matrices of all before it, and of the layer itself.",
    "copy.deepcopy(layer), or mha.prune_heads.",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    return [{**shards[-1], "shares projections": True}] * len(shards)


def _nothing(name: str, x: Tensor) -> Tensor:
    return x[:, :0] if name == "W_o" else x[:0]


@mistake(
    "shard-num-heads-of-ranks",
    "num_heads of each shard is world_size",
    "Its rows are cut into the wrong number of heads: an error, or other numbers.",
    "num_heads // world_size.",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    n = len(shards)
    return shards if n * n == num_heads else [{**one, "num_heads": n} for one in shards]


@mistake(
    "shard-new-layer-too-wide",
    "The weights are loaded into a new MultiHeadAttention of d_model and the shard's heads",
    "Its heads share out all of d_model, so they are wider than the old ones: an error.",
    "d_k has to stay: copy the layer, then give it the smaller matrices.",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    for one in shards:
        load_into_new(one, num_heads // len(shards), one["W_q"].size(1))
    return shards


@mistake(
    "shard-new-layer-too-narrow",
    "The weights are loaded into a new MultiHeadAttention of d_model / world_size and the shard's heads",
    "It takes and gives tokens of fewer than d_model numbers: an error.",
    "d_model has to stay: copy the layer, then give it the smaller matrices.",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    for one in shards:
        load_into_new(one, num_heads // len(shards), one["W_q"].size(0))
    return shards


@mistake(
    "shard-no-list",
    "The shards come back in a dict by rank",
    "Whoever goes through it gets the ranks, not the shards.",
    "return a list: shards[rank].",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    return {str(rank): one for rank, one in enumerate(shards)}


@mistake(
    "shard-stacked",
    "The shards come back as one dict, each matrix stacked along a new axis for the ranks",
    "No rank can take its shard as a whole.",
    "return a list of dicts: shards[rank]['W_q'].",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    return {name: torch.stack([one[name] for one in shards if name in one]) for name in shards[0]}


@mistake(
    "shard-lists-by-name",
    "The shards come back as one dict of lists, a list of pieces for each matrix",
    "No rank can take its shard as a whole.",
    "return a list of dicts: shards[rank]['W_q'].",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    return {name: [one[name] for one in shards if name in one] for name in shards[0]}


@mistake(
    "shard-without-names",
    "Each shard is a tuple of tensors, without names",
    "Nobody can tell which is which.",
    "each shard is a dict: W_q, W_k, W_v, W_o, and the biases if there are any.",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    return [tuple(one.values()) for one in shards]


@mistake(
    "shard-one-dict-for-all",
    "One and the same dict is filled for each rank and put into the list",
    "All entries of the list are the shard of the last rank.",
    "make a new dict in each turn of the loop.",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    return [{name: x for one in shards for name, x in one.items()}] * len(shards)


@mistake(
    "shard-num-heads-left",
    "num_heads of each shard is still that of the whole layer",
    "Its rows are cut into too many heads: an error, or other numbers.",
    "num_heads // world_size.",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    return shards if len(shards) == 1 else [{**one, "num_heads": num_heads} for one in shards]


@mistake(
    "shard-shares-memory",
    "The shards' weights are views of the layer's",
    "The numbers are right, but training a shard changes the layer.",
    "give each shard copies: .detach().clone().",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    return [{**one, "shares memory": True} for one in shards]


@mistake(
    "shard-output-bias-shared",
    "A shard's W_o has the layer's bias itself",
    "The numbers are right, but training the shard changes the layer.",
    "nothing is cut off from b_o, and yet it has to be copied: .detach().clone().",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    return [{**one, "shares memory": True} if "b_o" in one else one for one in shards]
