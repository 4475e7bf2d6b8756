"""What goes wrong when attention is worked out in tiles."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mha.check.catalogue import mistake
from mha.check.exercises.tiles import TILES, tile_divide, tiles

# ---------------------------------------------------------------- tiles


@mistake(
    "tiles-last-dropped",
    "A last tile that is shorter is dropped",
    "Right where block divides the number of keys; else the last keys are never looked at.",
    "range(0, Lk, block) reaches them all; Lk // block rounds down.",
    stage="tiles",
)
def _(Lk: int, block: int, Q: Tensor) -> list[slice]:
    return [slice(i * block, (i + 1) * block) for i in range(Lk // block)]


@mistake(
    "tiles-first-only",
    "Only the first tile is looked at",
    "Right where one tile holds all keys.",
    "go through all of them before you return.",
    stage="tiles",
)
def _(Lk: int, block: int, Q: Tensor) -> list[slice]:
    return tiles(Lk, block, Q)[:1]


@mistake(
    "tiles-last-only",
    "Only the last tile counts: what was kept is started anew for each",
    "Right where one tile holds all keys.",
    "start largest, total and mix once, before the loop.",
    stage="tiles",
)
def _(Lk: int, block: int, Q: Tensor) -> list[slice]:
    return tiles(Lk, block, Q)[-1:]


@mistake(
    "tiles-overlap",
    "A tile takes one key too many, which the next takes again",
    "Keys at the borders count twice.",
    "a slice ends before its end: start : start + block.",
    stage="tiles",
)
def _(Lk: int, block: int, Q: Tensor) -> list[slice]:
    return [slice(start, start + block + 1) for start in range(0, Lk, block)]


@mistake(
    "tiles-step-1",
    "The tiles start at every key: the step of the range is missing",
    "Keys in the middle count `block` times.",
    "range(0, Lk, block).",
    stage="tiles",
)
def _(Lk: int, block: int, Q: Tensor) -> list[slice]:
    return [slice(start, start + block) for start in range(Lk)]


@mistake(
    "tiles-first-skipped",
    "The first tile is left out",
    "The first keys are never looked at.",
    "range(0, Lk, block) starts at 0.",
    stage="tiles",
)
def _(Lk: int, block: int, Q: Tensor) -> list[slice]:
    return tiles(Lk, block, Q)[1:]


@mistake(
    "tiles-last-dropped-but-the-first",
    "A last tile that is shorter is dropped, unless it is the only one",
    "Right where block divides the number of keys; else the last keys are never looked at.",
    "range(0, Lk, block) reaches them all; Lk // block rounds down.",
    stage="tiles",
)
def _(Lk: int, block: int, Q: Tensor) -> list[slice]:
    return tiles(max(Lk // block, 1) * block, block, Q)


@mistake(
    "tiles-end-one-block-early",
    "The tiles end one block before the last key: range(0, Lk - block, block)",
    "The last keys are never looked at, also where block divides their number.",
    "range(0, Lk, block) ends by itself.",
    stage="tiles",
)
def _(Lk: int, block: int, Q: Tensor) -> list[slice]:
    return tiles(Lk - block, block, Q)


@mistake(
    "tiles-end-one-key-early",
    "The tiles end one key early: range(0, Lk - 1, block)",
    "A last tile of one key is never looked at.",
    "range(0, Lk, block): its end is left out anyway.",
    stage="tiles",
)
def _(Lk: int, block: int, Q: Tensor) -> list[slice]:
    return tiles(Lk - 1, block, Q)


@mistake(
    "tiles-one-too-many",
    "There is one tile more than needed where block divides the number of keys",
    "The last tile is empty, and an empty tile has no largest score: an error.",
    "range(0, Lk, block), or as many as Lk / block rounded up: (Lk + block - 1) // block.",
    stage="tiles",
)
def _(Lk: int, block: int, Q: Tensor) -> list[slice]:
    return tiles((Lk // block + 1) * block, block, Q)


@mistake(
    "tiles-end-at-block",
    "The end of every tile is `block`: K[..., start:block, :]",
    "Every tile but the first is empty, and an empty tile has no largest score: an error.",
    "K[..., start : start + block, :].",
    stage="tiles",
)
def _(Lk: int, block: int, Q: Tensor) -> list[slice]:
    return [slice(start, block) for start in range(0, Lk, block)]


@mistake(
    "tiles-as-many-as-keys-in-one",
    "There are `block` tiles, which start at 0, 1, 2 …: range(block)",
    "`block` is how many keys are in a tile, not how many tiles there are.",
    "range(0, Lk, block).",
    stage="tiles",
)
def _(Lk: int, block: int, Q: Tensor) -> list[slice]:
    return [slice(start, start + block) for start in range(block)]


@mistake(
    "tiles-over-queries",
    "The tiles go over the number of queries, not of keys",
    "Keys behind it are never looked at.",
    "range(0, K.size(-2), block).",
    stage="tiles",
)
def _(Lk: int, block: int, Q: Tensor) -> list[slice]:
    return tiles(Q.size(-2), block, Q)


@mistake(
    "tiles-over-heads",
    "The tiles go over the number of heads, not of keys",
    "In (B, h, Lk, d_k) size(1) is h: keys behind it are never looked at.",
    "range(0, K.size(-2), block).",
    stage="tiles",
)
def _(Lk: int, block: int, Q: Tensor) -> list[slice]:
    return tiles(Q.size(1), block, Q)


@mistake(
    "tiles-over-numbers",
    "The tiles go over the numbers of a key, d_k, not over the keys",
    "Keys behind it are never looked at.",
    "range(0, K.size(-2), block).",
    stage="tiles",
)
def _(Lk: int, block: int, Q: Tensor) -> list[slice]:
    return tiles(Q.size(-1), block, Q)


@mistake(
    "tiles-of-heads",
    "A tile is cut from the heads, K[:, start:end], not from the keys",
    "Each tile has all keys of a few heads; where none is left, an error.",
    "the keys are the last axis but one: K[..., start:end, :].",
    stage="tile_keys",
    also={"tile_values": lambda V, part: V[:, part]},
)
def _(K: Tensor, part: slice) -> Tensor:
    return K[:, part]


@mistake(
    "tiles-of-numbers",
    "A tile is cut from the numbers of keys and values, K[..., start:end], not from the keys",
    "The parts do not fit the queries: an error.",
    "the keys are the last axis but one: K[..., start:end, :].",
    stage="tile_keys",
    also={"tile_values": lambda V, part: V[..., part]},
)
def _(K: Tensor, part: slice) -> Tensor:
    return K[..., part]


@mistake(
    "tile-values-of-the-first",
    "Every tile takes the values of the first",
    "Right where one tile holds all keys; an error where the last one is shorter.",
    "cut values as keys are: V[..., start:end, :].",
    stage="tile_values",
)
def _(V: Tensor, part: slice) -> Tensor:
    return V[..., : part.stop - part.start, :]


@mistake(
    "tile-values-not-cut",
    "The values are not cut into tiles",
    "An error where there is more than one tile: its weights are fewer than the values.",
    "cut values as keys are: V[..., start:end, :].",
    stage="tile_values",
)
def _(V: Tensor, part: slice) -> Tensor:
    return V


@mistake(
    "tile-keys-not-cut",
    "The keys are not cut into tiles",
    "An error where there is more than one tile: its values are fewer than the weights.",
    "cut keys as values are: K[..., start:end, :].",
    stage="tile_keys",
    also={"tile_values": TILES["tile_values"]},  # with no tiles at all, the result is right
)
def _(K: Tensor, part: slice) -> Tensor:
    return K


@mistake(
    "tile-filled-with-zeros",
    "The last tile is filled up with keys of zeros, and these count",
    "Their score is 0, not -inf: each takes a share of the weights.",
    "let the last tile be shorter, or set the scores of what is added to -inf.",
    stage="tile_fill",
)
def _(K: Tensor, V: Tensor, block: int) -> tuple[Tensor, Tensor]:
    missing = -K.size(-2) % block
    return F.pad(K, (0, 0, 0, missing)), F.pad(V, (0, 0, 0, missing))


# ---------------------------------------------------------------- which tiles a query looks at

HIDDEN = (
    -1e300
)  # in place of -inf, which would make the first sum NaN: it vanishes as soon as anything is seen


def _query_numbers(scores: Tensor) -> Tensor:
    return torch.arange(scores.size(-2))[:, None]


def _key_numbers(scores: Tensor, part: slice) -> Tensor:
    return part.start + torch.arange(scores.size(-1))


@mistake(
    "tile-on-diagonal",
    "A tile of queries looks only at the tile of keys with the same number",
    "Right where one tile holds all; else most keys are never looked at.",
    "two loops, or none over the queries: every query goes over all tiles of keys.",
    stage="tile_hide",
)
def _(scores: Tensor, part: slice, block: int) -> Tensor:
    other = _query_numbers(scores) // block != part.start // block
    return scores.masked_fill(other, HIDDEN)


@mistake(
    "tile-causal",
    "A causal mask is applied: query i sees the keys up to i only",
    "Nobody asked for a mask here; the first query gets the first value as it is.",
    "let every query look at all keys.",
    stage="tile_hide",
)
def _(scores: Tensor, part: slice, block: int) -> Tensor:
    return scores.masked_fill(_key_numbers(scores, part) > _query_numbers(scores), HIDDEN)


@mistake(
    "tile-not-behind-queries",
    "A tile of queries looks at the tiles of keys up to its own number only",
    "Nobody asked for a mask here; the last queries see more than the first.",
    "every query goes over all tiles of keys.",
    stage="tile_hide",
)
def _(scores: Tensor, part: slice, block: int) -> Tensor:
    later = part.start // block > _query_numbers(scores) // block
    return scores.masked_fill(later, HIDDEN)


# ---------------------------------------------------------------- the largest score


@mistake(
    "tile-starts-at-zero",
    "The largest score starts at 0 instead of -inf",
    "Right unless all scores lie far below 0: then all powers are 0, and 0 / 0 is NaN.",
    "start with -inf, which any score exceeds.",
    stage="tile_start",
)
def _(Q: Tensor) -> Tensor:
    return Q.new_zeros((*Q.shape[:-1], 1))


@mistake(
    "tile-starts-at-minus-10000",
    "The largest score starts at -10000 instead of -inf",
    "Right unless all scores lie below that: then all powers are 0, and 0 / 0 is NaN.",
    "start with -inf, which any score exceeds.",
    stage="tile_start",
)
def _(Q: Tensor) -> Tensor:
    return Q.new_full((*Q.shape[:-1], 1), -1e4)


@mistake(
    "tile-starts-at-plus-inf",
    "The largest score starts at +inf",
    "No score exceeds it: all powers are 0 and the result is NaN.",
    "start with -inf, which any score exceeds.",
    stage="tile_start",
)
def _(Q: Tensor) -> Tensor:
    return Q.new_full((*Q.shape[:-1], 1), float("inf"))


@mistake(
    "tile-largest-of-this-tile",
    "The largest score is that of the tile, not of all so far",
    "Right for small scores; where a later tile has a much smaller one, the old sums overflow.",
    "torch.maximum(largest, scores.amax(-1, keepdim=True)).",
    stage="tile_largest",
)
def _(largest: Tensor, scores: Tensor) -> Tensor:
    return scores.amax(dim=-1, keepdim=True)


@mistake(
    "tile-largest-not-handed-on",
    "The largest score so far is not handed on to the next tile: largest = larger is missing",
    "The factor for what was gathered is 0 in every tile: only the last one counts.",
    "set it at the end of each tile.",
    stage="tile_largest",
    also={"tile_shrink": lambda largest, larger: torch.zeros_like(larger)},
)
def _(largest: Tensor, scores: Tensor) -> Tensor:
    return scores.amax(dim=-1, keepdim=True)


@mistake(
    "tile-largest-over-queries",
    "The largest score is taken over the queries: dim=-2",
    "There is one for each key, not for each query: an error, or another result.",
    "scores.amax(dim=-1, keepdim=True): keys are the last axis.",
    stage="tile_largest",
)
def _(largest: Tensor, scores: Tensor) -> Tensor:
    return torch.maximum(largest, scores.amax(dim=-2, keepdim=True))


@mistake(
    "tile-largest-without-keepdim",
    "keepdim=True is missing in the largest score of a tile",
    "(B, h, Lq) does not go with (B, h, Lq, 1): an error, or the queries are compared with one another.",
    "scores.amax(dim=-1, keepdim=True).",
    stage="tile_largest",
)
def _(largest: Tensor, scores: Tensor) -> Tensor:
    return torch.maximum(largest, scores.amax(dim=-1))


@mistake(
    "tile-largest-never-updated",
    "The largest score of the first tile is kept for all",
    "Right for small scores; a much larger one in a later tile overflows.",
    "update it in every tile.",
    stage="tile_largest",
)
def _(largest: Tensor, scores: Tensor) -> Tensor:
    return torch.where(largest.isinf(), scores.amax(dim=-1, keepdim=True), largest)


@mistake(
    "tile-no-largest",
    "No largest score is subtracted",
    "Right for small scores; large ones overflow to inf / inf = NaN.",
    "keep the largest score so far, and subtract it before exp.",
    stage="tile_start",
    also={"tile_largest": lambda largest, scores: largest},
)
def _(Q: Tensor) -> Tensor:
    return Q.new_zeros((*Q.shape[:-1], 1))


@mistake(
    "tile-smallest",
    "The smallest score is kept in place of the largest",
    "All powers are at least 1: right for small scores, and large ones overflow.",
    "torch.maximum and amax.",
    stage="tile_largest",
)
def _(largest: Tensor, scores: Tensor) -> Tensor:
    smallest = scores.amin(dim=-1, keepdim=True)
    return torch.where(largest.isinf(), smallest, torch.minimum(largest, smallest))


@mistake(
    "tile-mean-score",
    "The mean score of the tile is taken in place of its largest",
    "Right for small scores; large ones, far above their mean, overflow.",
    "scores.amax(dim=-1, keepdim=True).",
    stage="tile_largest",
)
def _(largest: Tensor, scores: Tensor) -> Tensor:
    return torch.maximum(largest, scores.mean(dim=-1, keepdim=True))


@mistake(
    "tile-largest-absolute",
    "The largest absolute score is taken in place of the largest",
    "Right unless all scores lie far below 0: then all powers are 0, and 0 / 0 is NaN.",
    "scores.amax(dim=-1, keepdim=True), without abs().",
    stage="tile_largest",
)
def _(largest: Tensor, scores: Tensor) -> Tensor:
    return torch.maximum(largest, scores.abs().amax(dim=-1, keepdim=True))


@mistake(
    "tile-largest-of-all-queries",
    "One largest score for all queries",
    "Right for small scores; a query whose scores all lie far below becomes 0 / 0 = NaN.",
    "each query has its own: amax(dim=-1, keepdim=True).",
    stage="tile_largest",
)
def _(largest: Tensor, scores: Tensor) -> Tensor:
    return torch.maximum(largest, scores.amax().expand_as(largest))


# ---------------------------------------------------------------- shrink


@mistake(
    "tile-never-shrunk",
    "Neither the sum nor the mix is scaled down when the largest score grows, "
    "or the old largest is overwritten before the factor is worked out",
    "Right if the largest score is in the first tile; else old tiles count too much.",
    "multiply both by exp(old largest - new largest).",
    stage="tile_shrink",
)
def _(largest: Tensor, larger: Tensor) -> Tensor:
    return torch.ones_like(larger)


@mistake(
    "tile-shrink-inverted",
    "The factor for sum and mix is inverted: exp(new - old)",
    "It is infinite in the first tile, and inf · 0 is NaN.",
    "the factor is exp(old largest - new largest), at most 1.",
    stage="tile_shrink",
)
def _(largest: Tensor, larger: Tensor) -> Tensor:
    return (larger - largest).exp()


@mistake(
    "tile-shrink-without-exp",
    "The factor is the difference of the largest scores, without exp",
    "It is -inf in the first tile, and 0 where nothing changed.",
    "the factor is exp(old largest - new largest).",
    stage="tile_shrink",
)
def _(largest: Tensor, larger: Tensor) -> Tensor:
    return largest - larger


@mistake(
    "tile-shrink-inverted-after-the-first",
    "From the second tile on, the factor for sum and mix is inverted: exp(new - old)",
    "What was gathered grows where the largest score grows, and should shrink.",
    "the factor is exp(old largest - new largest), at most 1.",
    stage="tile_shrink",
)
def _(largest: Tensor, larger: Tensor) -> Tensor:
    return torch.where(largest.isinf(), torch.zeros_like(larger), (larger - largest).exp())


@mistake(
    "tile-shrink-without-exp-after-the-first",
    "From the second tile on, the factor is the difference of the largest scores, without exp",
    "It is 0 where the largest score stays: what was gathered is lost.",
    "the factor is exp(old largest - new largest).",
    stage="tile_shrink",
)
def _(largest: Tensor, larger: Tensor) -> Tensor:
    return torch.where(largest.isinf(), torch.zeros_like(larger), largest - larger)


@mistake(
    "tile-shrink-of-new-largest",
    "The factor is exp(-new largest): the old one is missing in it",
    "Old sums are scaled by more than the largest score has grown.",
    "the factor is exp(old largest - new largest).",
    stage="tile_shrink",
)
def _(largest: Tensor, larger: Tensor) -> Tensor:
    return (-larger).exp()


@mistake(
    "tile-shrink-of-old-largest",
    "The factor is exp(old largest): the new one is missing in it",
    "Old sums are scaled by what has nothing to do with how much the largest score has grown.",
    "the factor is exp(old largest - new largest).",
    stage="tile_shrink",
)
def _(largest: Tensor, larger: Tensor) -> Tensor:
    return largest.exp()


@mistake(
    "tile-shrink-zero",
    "What was gathered is lost wherever the largest score grows",
    "The factor is 0 there: right only if the largest score is in the first tile.",
    "the factor is exp(old largest - new largest).",
    stage="tile_shrink",
)
def _(largest: Tensor, larger: Tensor) -> Tensor:
    return (largest == larger).to(larger.dtype)


# ---------------------------------------------------------------- powers


@mistake(
    "tile-powers-of-old-largest",
    "The powers are relative to the largest score *before* this tile",
    "In the first tile that is -inf, and exp(inf) is inf.",
    "update the largest score first.",
    stage="tile_powers",
)
def _(scores: Tensor, larger: Tensor, largest: Tensor) -> Tensor:
    return (scores - largest).exp()


@mistake(
    "tile-powers-not-relative",
    "The largest score is not subtracted in the powers",
    "They do not fit the factor by which the old sums are scaled, and large scores overflow.",
    "exp(scores - new largest).",
    stage="tile_powers",
)
def _(scores: Tensor, larger: Tensor, largest: Tensor) -> Tensor:
    return scores.exp()


@mistake(
    "tile-powers-of-2",
    "exp2 of the scores, whose factor log2(e) is missing",
    "Weights are flatter than softmax would make them.",
    "use exp, or multiply the scores by log2(e) first, and use the same power in the factor.",
    stage="tile_powers",
)
def _(scores: Tensor, larger: Tensor, largest: Tensor) -> Tensor:
    return (scores - larger).exp2()


@mistake(
    "tile-powers-of-2-throughout",
    "exp2 everywhere, without log2(e) on the scores",
    "Weights are those of a softmax to base 2: flatter than asked for.",
    "multiply the scores by log2(e) first, or use exp.",
    stage="tile_powers",
    also={"tile_shrink": lambda largest, larger: (largest - larger).exp2()},
)
def _(scores: Tensor, larger: Tensor, largest: Tensor) -> Tensor:
    return (scores - larger).exp2()


@mistake(
    "tile-softmax-in-each",
    "Each tile has a softmax of its own",
    "Every tile gets the same say, whatever its scores.",
    "only exp(scores - largest) in the tile; divide by the sum over all tiles at the end.",
    stage="tile_powers",
)
def _(scores: Tensor, larger: Tensor, largest: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1)


@mistake(
    "tiles-weighted-by-largest-score",
    "Each tile has a softmax of its own, and the results are weighted by a softmax of the largest scores",
    "A tile counts by its largest score alone, not by the sum of its powers.",
    "weigh the tiles by exp(largest) times the sum of the powers, their log-sum-exp.",
    stage="tile_powers",
)
def _(scores: Tensor, larger: Tensor, largest: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1) * (scores.amax(dim=-1, keepdim=True) - larger).exp()


@mistake(
    "tile-powers-of-own-largest",
    "The powers are relative to the tile's own largest score, and are never brought to the common one",
    "Each tile counts as if it held the largest score of all.",
    "exp(scores - new largest), or multiply sum and mix of the tile by exp(its largest - new largest).",
    stage="tile_powers",
)
def _(scores: Tensor, larger: Tensor, largest: Tensor) -> Tensor:
    return (scores - scores.amax(dim=-1, keepdim=True)).exp()


# ---------------------------------------------------------------- total


@mistake(
    "tile-total-not-shrunk",
    "The mix is scaled down when the largest score grows, the sum is not",
    "The sum is too large, so that the output is too small.",
    "multiply the sum by exp(old largest - new largest) as well.",
    stage="tile_total",
)
def _(total: Tensor, shrink: Tensor, powers: Tensor) -> Tensor:
    return total + powers.sum(dim=-1, keepdim=True)


@mistake(
    "tile-total-shrunk-too-late",
    "The sum is scaled down after the new powers are added",
    "The new powers are scaled down too, though they are relative to the new largest already.",
    "total * shrink + powers.sum(-1, keepdim=True).",
    stage="tile_total",
)
def _(total: Tensor, shrink: Tensor, powers: Tensor) -> Tensor:
    return (total + powers.sum(dim=-1, keepdim=True)) * shrink


@mistake(
    "tile-total-inverted",
    "The sum is divided by exp(old - new) instead of multiplied",
    "It grows where it should shrink.",
    "multiply by exp(old largest - new largest), which is at most 1.",
    stage="tile_total",
)
def _(total: Tensor, shrink: Tensor, powers: Tensor) -> Tensor:
    return torch.where(total == 0, total, total / shrink) + powers.sum(dim=-1, keepdim=True)


@mistake(
    "tile-total-of-this-tile",
    "The sum is that of the last tile only",
    "The output is too large, more so the more tiles there are.",
    "add to what was there: total * shrink + powers.sum(-1, keepdim=True).",
    stage="tile_total",
)
def _(total: Tensor, shrink: Tensor, powers: Tensor) -> Tensor:
    return powers.sum(dim=-1, keepdim=True)


@mistake(
    "tile-total-counts-keys",
    "The number of keys is counted in place of the sum of the powers",
    "Rows of weights do not sum to 1.",
    "add up the powers.",
    stage="tile_total",
)
def _(total: Tensor, shrink: Tensor, powers: Tensor) -> Tensor:
    return total + powers.size(-1)


@mistake(
    "tile-total-largest-power",
    "The largest power of the tile is added in place of the sum",
    "The sum is too small.",
    "powers.sum(dim=-1, keepdim=True).",
    stage="tile_total",
)
def _(total: Tensor, shrink: Tensor, powers: Tensor) -> Tensor:
    return total * shrink + powers.amax(dim=-1, keepdim=True)


@mistake(
    "tile-total-of-own-largest",
    "What a tile adds to the sum is relative to its own largest score, what it adds to the mix is not",
    "Where the largest score is in another tile, its sum counts too much.",
    "multiply what the tile adds by exp(its largest - new largest).",
    stage="tile_total",
)
def _(total: Tensor, shrink: Tensor, powers: Tensor) -> Tensor:
    return total * shrink + (powers / powers.amax(dim=-1, keepdim=True)).sum(dim=-1, keepdim=True)


@mistake(
    "tile-total-over-queries",
    "The powers are added up over the queries: dim=-2",
    "There is one sum for each key, not for each query: an error, or another result.",
    "powers.sum(dim=-1, keepdim=True): keys are the last axis.",
    stage="tile_total",
)
def _(total: Tensor, shrink: Tensor, powers: Tensor) -> Tensor:
    return total * shrink + powers.sum(dim=-2, keepdim=True)


@mistake(
    "tile-total-without-keepdim",
    "keepdim=True is missing in the sum of the powers of a tile",
    "(B, h, Lq) does not go with (B, h, Lq, 1): an error, or the sums of all queries are mixed up.",
    "powers.sum(dim=-1, keepdim=True).",
    stage="tile_total",
)
def _(total: Tensor, shrink: Tensor, powers: Tensor) -> Tensor:
    return total * shrink + powers.sum(dim=-1)


@mistake(
    "tile-total-of-all-queries",
    "The powers of all queries are added up: sum() without dim",
    "One total for all rows, far too large.",
    "a total for each query: powers.sum(dim=-1, keepdim=True).",
    stage="tile_total",
)
def _(total: Tensor, shrink: Tensor, powers: Tensor) -> Tensor:
    return total * shrink + powers.sum()


# ---------------------------------------------------------------- mix

# Where each tile has a softmax of its own, there is no largest score of all, and no sum, to be wrong about.
_NOTHING_COMMON = {name: TILES[name] for name in ("tile_start", "tile_largest", "tile_shrink", "tile_total")}


@mistake(
    "tile-mix-sized-like-queries",
    "The mix is made as wide as the queries",
    "It fits only where d_v = d_k; else an error.",
    "as wide as the values: Q.new_zeros((*Q.shape[:-1], V.size(-1))).",
    stage="tile_mix_start",
)
def _(Q: Tensor, V: Tensor) -> Tensor:
    return torch.zeros_like(Q)


@mistake(
    "tile-mix-of-own-largest",
    "What a tile adds to the mix is relative to its own largest score, what it adds to the sum is not",
    "Where the largest score is in another tile, its values count too much.",
    "multiply what the tile adds by exp(its largest - new largest).",
    stage="tile_part",
)
def _(powers: Tensor, values: Tensor, scores: Tensor) -> Tensor:
    return (scores - scores.amax(dim=-1, keepdim=True)).exp() @ values


@mistake(
    "tile-kept-divided-in-part",
    "Only what a tile adds is divided by the sum so far, not what was there",
    "The weights of a row add up to more than 1.",
    "divide both or, once and at the end, the mix.",
    stage="tile_mix",
    also={"tile_divide": lambda mix, total, count: mix},
)
def _(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    return mix * shrink + part / total


@mistake(
    "tile-mix-not-shrunk",
    "The mix of values is not scaled down when the largest score grows",
    "Right if the largest score is in the first tile; else old tiles keep their old scale.",
    "multiply the mix by exp(old largest - new largest) before adding.",
    stage="tile_mix",
)
def _(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    return mix + part


@mistake(
    "tile-mix-inverted",
    "The mix is divided by exp(old - new) instead of multiplied",
    "It blows up where the largest score grows.",
    "multiply by exp(old largest - new largest), which is at most 1.",
    stage="tile_mix",
)
def _(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    return torch.where(mix == 0, mix, mix / shrink) + part


@mistake(
    "tile-mix-shrunk-too-late",
    "The mix is scaled down after the new values are added",
    "The new values are scaled down too; in the first tile they become 0.",
    "mix * shrink + powers @ values.",
    stage="tile_mix",
)
def _(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    return (mix + part) * shrink


@mistake(
    "tile-mix-of-this-tile",
    "The values of earlier tiles are forgotten",
    "Only the last tile is mixed, but divided by the sum over all.",
    "add to what was there: mix * shrink + powers @ values.",
    stage="tile_mix",
)
def _(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    return part


@mistake(
    "tile-divided-in-each",
    "The mix is divided by the sum in every tile",
    "Old tiles are divided again and again.",
    "divide once, after the last tile.",
    stage="tile_mix",
    also={"tile_divide": lambda mix, total, count: mix},
)
def _(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    return (mix * shrink + part) / total


@mistake(
    "tile-divided-in-each-and-at-the-end",
    "The mix is divided by the sum in every tile and once more at the end",
    "The output is too small.",
    "divide once, after the last tile.",
    stage="tile_mix",
)
def _(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    return (mix * shrink + part) / total


@mistake(
    "tiles-averaged",
    "Each tile has a softmax of its own, and the results are averaged",
    "Every tile gets the same say, whatever its scores.",
    "keep one sum over all tiles, relative to the largest score so far.",
    stage="tile_mix",
    also={
        **_NOTHING_COMMON,
        "tile_powers": lambda scores, larger, largest: torch.softmax(scores, dim=-1),
        "tile_divide": lambda mix, total, count: mix / count,
    },
)
def _(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    return mix + part


@mistake(
    "tiles-summed",
    "Each tile has a softmax of its own, and the results are added up",
    "The weights of a row add up to the number of tiles.",
    "keep one sum over all tiles, relative to the largest score so far, and divide by it at the end.",
    stage="tile_mix",
    also={
        **_NOTHING_COMMON,
        "tile_powers": lambda scores, larger, largest: torch.softmax(scores, dim=-1),
        "tile_divide": lambda mix, total, count: mix,
    },
)
def _(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    return mix + part


@mistake(
    "tiles-averaged-by-size",
    "Each tile has a softmax of its own, and the results are averaged by the number of their keys",
    "Every key's tile gets the same say, whatever its scores.",
    "keep one sum over all tiles, relative to the largest score so far.",
    stage="tile_mix",
    also={
        **_NOTHING_COMMON,
        "tile_powers": lambda scores, larger, largest: torch.softmax(scores, dim=-1) * scores.size(-1),
        "tile_total": lambda total, shrink, powers: total + powers.size(-1),
    },
)
def _(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    return mix + part


@mistake(
    "tiles-joined",
    "Each tile has a softmax of its own, and the results are joined along the queries",
    "There are Lq rows for each tile: a tile is one of keys, and its result belongs to all queries.",
    "keep one sum and one mix over all tiles, and return Lq rows.",
    stage="tile_mix",
    also={
        **_NOTHING_COMMON,
        "tile_powers": lambda scores, larger, largest: torch.softmax(scores, dim=-1),
        "tile_divide": lambda mix, total, count: mix,
    },
)
def _(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    return torch.cat([mix, part], dim=-2) if before.any() else part


@mistake(
    "tile-added-to-the-average",
    "Each tile has a softmax of its own, and the result is averaged with what was there: (old + new) / 2",
    "The last tile has half the say, whatever its scores.",
    "keep one sum over all tiles, relative to the largest score so far.",
    stage="tile_mix",
    also={
        **_NOTHING_COMMON,
        "tile_powers": lambda scores, larger, largest: torch.softmax(scores, dim=-1),
        "tile_divide": lambda mix, total, count: mix,
    },
)
def _(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    return torch.where(before == 0, part, (mix + part) / 2)


# ---------------------------------------------------------------- divide


@mistake(
    "tile-never-divided",
    "The mix is not divided by the sum of the powers",
    "The weights do not sum to 1: the output is too large.",
    "return mix / total.",
    stage="tile_divide",
)
def _(mix: Tensor, total: Tensor, count: int) -> Tensor:
    return mix


@mistake(
    "tile-multiplied",
    "The mix is multiplied by the sum of the powers",
    "The output is far too large.",
    "return mix / total.",
    stage="tile_divide",
)
def _(mix: Tensor, total: Tensor, count: int) -> Tensor:
    return mix * total


@mistake(
    "tile-divided-by-tiles",
    "The mix is divided by the number of tiles instead of by the sum",
    "The weights do not sum to 1.",
    "return mix / total.",
    stage="tile_divide",
)
def _(mix: Tensor, total: Tensor, count: int) -> Tensor:
    return mix / count


@mistake(
    "tile-total-kept-beside",
    "Output and sum come back, not the output alone",
    "Whoever uses the result gets a tuple.",
    "return mix / total.",
    stage="tile_divide",
)
def _(mix: Tensor, total: Tensor, count: int) -> tuple[Tensor, Tensor]:
    return mix / total, total


def _whole_mix(mix: Tensor, total: Tensor, count: int) -> Tensor:
    """A mix that is divided already."""
    return mix


@mistake(
    "tile-kept-divided-and-divided-again",
    "The mix is rightly kept divided by the sum so far, and divided once more at the end",
    "Outputs are too small: they are divided twice.",
    "divide in each tile or at the end, not both.",
    stage="tile_mix",
    also={"tile_divide": tile_divide},
)
def _(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    return (mix * before * shrink + part) / total


@mistake(
    "tile-shares-exchanged",
    "The old result gets the share of the new tile, and the new tile that of the old result",
    "Right for one tile; else tiles with large scores count little.",
    "the new tile's share is its own sum divided by both: sigmoid(lse_new - lse_old).",
    stage="tile_mix",
    also={"tile_divide": _whole_mix},
)
def _(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    old = before * shrink
    new = total - old
    return torch.where(before == 0, part / new, (mix * new + part / new * old) / total)


@mistake(
    "tile-joined-with-the-last",
    "Each tile is weighed against the one before it, not against all before it: its sum replaces the old",
    "Right for two tiles; with more, the early ones are forgotten step by step.",
    "keep the sum of all tiles so far: lse = torch.logaddexp(lse, lse_new).",
    stage="tile_mix",
    also={
        "tile_largest": lambda largest, scores: scores.amax(dim=-1, keepdim=True),
        "tile_shrink": lambda largest, larger: largest - larger,
        "tile_total": lambda total, shrink, powers: powers.sum(dim=-1, keepdim=True),
        "tile_divide": _whole_mix,
    },
)
def _(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor, before: Tensor) -> Tensor:
    old = (before.log() + shrink - total.log()).sigmoid()
    return mix * old + part / total * (1 - old)


@mistake(
    "tile-softmax-added",
    "To the old mix the tile's own softmax is added, not its exponentials",
    "Each tile's values count as if its exponentials added up to 1; the sum takes them as they are.",
    "powers @ values; divide once, at the end.",
    stage="tile_part",
)
def _(powers: Tensor, values: Tensor, scores: Tensor) -> Tensor:
    return scores.softmax(dim=-1) @ values


@mistake(
    "tile-mean-of-powers",
    "The mean of the exponentials is added to the sum, not their sum",
    "Outputs are too large, by about the size of a tile.",
    "powers.sum(dim=-1, keepdim=True).",
    stage="tile_total",
)
def _(total: Tensor, shrink: Tensor, powers: Tensor) -> Tensor:
    return total * shrink + powers.mean(dim=-1, keepdim=True)


@mistake(
    "tile-largest-of-head",
    "The largest score is that of all queries of a head, not of each row",
    "Right for small scores; a row whose scores are far lower has exponentials of 0 only: 0 / 0.",
    "scores.amax(dim=-1, keepdim=True).",
    stage="tile_largest",
)
def _(largest: Tensor, scores: Tensor) -> Tensor:
    return torch.maximum(largest, scores.amax(dim=(-2, -1), keepdim=True))


@mistake(
    "tile-scaled-by-block",
    "The scores are divided by √block, not by √d_k",
    "Weights are too peaked or too flat, and others for each size of the tiles.",
    "math.sqrt(Q.size(-1)).",
    stage="tile_hide",
    also={"scale": lambda scores, d_k, num_heads: scores},
)
def _(scores: Tensor, part: slice, block: int) -> Tensor:
    return scores / math.sqrt(block)


# ---------------------------------------------------------------- give


@mistake(
    "tile-scaled-at-the-end",
    "The output is divided by √d_k, the scores are not",
    "Weights are too peaked, and the output is too small.",
    "divide the scores, before exp.",
    stage="tile_give",
    also={"scale": lambda scores, d_k, num_heads: scores},
)
def _(output: Tensor, block: int, Q: Tensor) -> Tensor:
    return output / math.sqrt(Q.size(-1))


@mistake(
    "tile-last-queries-missing",
    "The queries are cut into tiles too, and a last one that is shorter is dropped",
    "Rows are missing at the end of the output.",
    "range(0, Lq, block) reaches them all; the queries need no tiles.",
    stage="tile_give",
)
def _(output: Tensor, block: int, Q: Tensor) -> Tensor:
    return output[..., : output.size(-2) // block * block, :]


@mistake(
    "tile-last-queries-zero",
    "The queries are cut into tiles too, and the rows of a last one that is shorter stay zero",
    "The last rows of the output are never written.",
    "range(0, Lq, block) reaches them all; the queries need no tiles.",
    stage="tile_give",
)
def _(output: Tensor, block: int, Q: Tensor) -> Tensor:
    written = torch.arange(output.size(-2)) < output.size(-2) // block * block
    return output * written[:, None]


@mistake(
    "tile-merged",
    "The heads are joined: (B, Lq, h·d_v)",
    "Joining is a step of its own.",
    "return (B, h, Lq, d_v).",
    stage="tile_give",
)
def _(output: Tensor, block: int, Q: Tensor) -> Tensor:
    return output.transpose(1, 2).flatten(2)


@mistake(
    "tile-scale-by-values",
    "The scores are divided by √d_v: d_k is read off the values",
    "Right where values are as wide as keys.",
    "divide by the root of what a score sums over: Q.size(-1).",
    stage="tile_fill",
)
def _(K: Tensor, V: Tensor, block: int) -> tuple[Tensor, Tensor]:
    return K * math.sqrt(K.size(-1) / V.size(-1)), V
