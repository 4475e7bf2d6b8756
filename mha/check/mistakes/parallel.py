"""What goes wrong when the heads of a layer are shared out to several ranks."""

from typing import Any

from mha.check.catalogue import mistake
from mha.check.exercises.parallel import shard_heads
from mha.check.exercises.pruning import Weights

# ---------------------------------------------------------------- which heads for which rank


@mistake(
    "shard-heads-lost",
    "A world_size that does not divide num_heads is not refused",
    "The division rounds down, and the last heads are on no rank: the sum is not the layer's output.",
    "raise a ValueError where num_heads % world_size is not 0.",
    stage="shard_refuse",
)
def _(num_heads: int, world_size: int) -> bool:
    return False


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
    "shard-cumulative",
    "Each rank gets its own heads and those of the ranks before it",
    "Early heads count several times in the sum.",
    "the block of rank r starts at r · h, not at 0.",
    stage="shard_heads",
)
def _(num_heads: int, world_size: int) -> list[list[int]]:
    h = num_heads // world_size
    return [list(range((rank + 1) * h)) for rank in range(world_size)]


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
    "shard-no-list",
    "The shards come back in a dict by rank",
    "Whoever goes through it gets the ranks, not the shards.",
    "return a list: shards[rank].",
    stage="shard_give",
)
def _(shards: list[Weights], num_heads: int) -> Any:
    return {str(rank): one for rank, one in enumerate(shards)}


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
