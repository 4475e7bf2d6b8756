"""What goes wrong when heads are taken out of a layer."""

from typing import Any

import torch
from torch import Tensor, nn

import mha
from mha.check.catalogue import mistake
from mha.check.exercise import drawing_nothing
from mha.check.exercises.pruning import Weights, does_not_fit, prune_biases, prune_kept, prune_o

# ---------------------------------------------------------------- which heads


@mistake(
    "prune-keep-removed",
    "The heads in keep are removed and the others kept",
    "Just the heads that should go are left.",
    "keep names what stays.",
    stage="prune_kept",
)
def _(keep: list[int], num_heads: int) -> list[int]:
    return [head for head in range(num_heads) if head not in keep]


@mistake(
    "prune-keep-sorted",
    "The heads come out sorted, not in the order of keep",
    "The output is the same, since W_o adds the heads up; but head 0 of the new layer is not keep[0].",
    "go through keep as it is; `for head in range(num_heads) if head in keep` sorts it.",
    stage="prune_kept",
)
def _(keep: list[int], num_heads: int) -> list[int]:
    return sorted(keep)


@mistake(
    "prune-numbers-shift",
    "Heads are removed one after the other, by the numbers that they had at first",
    "After each, those behind it stand one place further to the front: the wrong ones go, or none.",
    "work out the rows of all heads in keep first, then cut once.",
    stage="prune_kept",
)
def _(keep: list[int], num_heads: int) -> list[int]:
    left = list(range(num_heads))
    for head in range(num_heads):
        if head not in keep:
            del left[head : head + 1]
    return left


@mistake(
    "prune-first-heads",
    "The first len(keep) heads are kept, whichever were asked for",
    "The shapes are right, and the heads are other ones.",
    "the numbers in keep say which rows to take: head i has rows i·d_k to (i + 1)·d_k.",
    stage="prune_kept",
)
def _(keep: list[int], num_heads: int) -> list[int]:
    return list(range(len(keep)))


@mistake(
    "prune-last-heads",
    "The last len(keep) heads are kept, whichever were asked for",
    "The shapes are right, and the heads are other ones.",
    "the numbers in keep say which rows to take: head i has rows i·d_k to (i + 1)·d_k.",
    stage="prune_kept",
)
def _(keep: list[int], num_heads: int) -> list[int]:
    return list(range(num_heads - len(keep), num_heads))


@mistake(
    "prune-keep-reversed",
    "The heads come out in the reverse order of keep",
    "The output is the same, since W_o adds the heads up; but head 0 of the new layer is not keep[0].",
    "put the rows of each head behind those that are there: torch.cat([rows, new]).",
    stage="prune_kept",
)
def _(keep: list[int], num_heads: int) -> list[int]:
    return keep[::-1]


@mistake(
    "prune-counted-from-1",
    "Heads are counted from 1",
    "Each head is the one before it; head 0 becomes the last, as negative numbers count from the end.",
    "the first head is head 0.",
    stage="prune_kept",
)
def _(keep: list[int], num_heads: int) -> list[int]:
    return [(head - 1) % num_heads for head in keep]


@mistake(
    "prune-one-head-returned",
    "Only the first head in keep is kept",
    "A return inside the loop ends it after one head.",
    "collect the rows of all heads in keep, then return.",
    stage="prune_kept",
)
def _(keep: list[int], num_heads: int) -> list[int]:
    return keep[:1]


@mistake(
    "prune-one-head-overwritten",
    "Only the last head in keep is kept",
    "Each turn of the loop overwrites the rows of the one before.",
    "collect the rows of all heads in keep: torch.cat.",
    stage="prune_kept",
)
def _(keep: list[int], num_heads: int) -> list[int]:
    return keep[-1:]


@mistake(
    "prune-span",
    "One slice is taken, from the first head to the last",
    "Right for neighbours in order; else the heads between them stay, too.",
    "take each head's rows by itself and join them: torch.cat.",
    stage="prune_kept",
)
def _(keep: list[int], num_heads: int) -> list[int]:
    return list(range(min(keep), max(keep) + 1))


# ---------------------------------------------------------------- which rows


def _slices(heads: list[int], d_model: int, begin: Any, end: Any) -> Tensor:
    """The numbers of several slices, which end where the row ends."""
    numbers = [n for head in heads for n in range(begin(head), min(end(head), d_model))]
    return torch.tensor(numbers, dtype=torch.long)


@mistake(
    "prune-heads-as-rows",
    "Head numbers are used as row numbers",
    "One row is left for each head where there should be d_k.",
    "head i has d_k rows, i·d_k to (i + 1)·d_k.",
    stage="prune_rows",
)
def _(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    return torch.tensor(heads, dtype=torch.long)


@mistake(
    "prune-interleaved",
    "Rows are dealt out to the heads in turn: head i gets i, i + h, i + 2h …",
    "The right shapes, and a few rows of every head in each.",
    "a head's rows stand together: i·d_k to (i + 1)·d_k, or view(h, d_k, d_model)[keep].",
    stage="prune_rows",
)
def _(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    return torch.tensor([head + num_heads * n for head in heads for n in range(d_k)], dtype=torch.long)


@mistake(
    "prune-interleaved-by-number",
    "The rows are viewed as (d_k, h), and columns of that are taken",
    "A few rows of every head, and number 0 of all heads stands before number 1.",
    "a head's rows stand together: view(h, d_k, d_model)[keep].",
    stage="prune_rows",
)
def _(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    return torch.tensor([head + num_heads * n for n in range(d_k) for head in heads], dtype=torch.long)


@mistake(
    "prune-size-of-num-heads",
    "num_heads stands where the size of a head is wanted: rows i·h to (i + 1)·h - 1",
    "Right where there are as many heads as numbers in each; else rows of other heads, or none.",
    "a head has d_k rows: i * d_k to (i + 1) * d_k.",
    stage="prune_rows",
)
def _(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    return torch.tensor([n for i in heads for n in range(i * num_heads, (i + 1) * num_heads)])


@mistake(
    "prune-mask-as-index",
    "A mask of 0 and 1 is used as an index: it is of integers, not bool",
    "Rows 0 and 1 come back again and again.",
    "make the mask bool: torch.zeros(h * d_k, dtype=torch.bool), or give the numbers of the rows.",
    stage="prune_rows",
)
def _(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    return torch.tensor([int(head in heads) for head in range(num_heads) for _ in range(d_k)])


@mistake(
    "prune-number-by-number",
    "The rows of the heads come out number by number: number 0 of each head, then number 1 …",
    "The right rows in the wrong order: each head of the new layer is a mixture.",
    "all rows of keep[0] first, then those of keep[1]: no transpose before flatten.",
    stage="prune_rows",
)
def _(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    return torch.tensor([head * d_k + n for n in range(d_k) for head in heads], dtype=torch.long)


_D_K_ANEW = "d_k is worked out anew, as d_model / len(keep)"


@mistake(
    "prune-d_k-anew",
    _D_K_ANEW,
    "The blocks are too wide, begin at the wrong rows and reach beyond the last: an error.",
    "a head keeps the d_k that it was trained with: layer.d_k.",
    stage="prune_rows",
)
def _(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    wide = num_heads * d_k // len(heads)
    return torch.tensor([n for i in heads for n in range(i * wide, (i + 1) * wide)], dtype=torch.long)


@mistake(
    "prune-d_k-anew-in-slices",
    f"{_D_K_ANEW}, and slices are taken",
    "The blocks are too wide and begin at the wrong rows; a slice beyond the last row is short or empty.",
    "a head keeps the d_k that it was trained with: layer.d_k.",
    stage="prune_rows",
)
def _(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    wide = num_heads * d_k // len(heads)
    return _slices(heads, num_heads * d_k, lambda i: i * wide, lambda i: (i + 1) * wide)


@mistake(
    "prune-step-of-num-heads",
    "Head i is taken to start at row i·num_heads",
    "Right where d_k happens to be num_heads; else rows of two heads in one, or too few at the end.",
    "head i starts at row i·d_k.",
    stage="prune_rows",
)
def _(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    return _slices(heads, num_heads * d_k, lambda i: i * num_heads, lambda i: i * num_heads + d_k)


@mistake(
    "prune-step-of-one",
    "Head i is taken to start at row i",
    "The heads overlap: the right shapes, and rows of the wrong heads.",
    "head i starts at row i·d_k.",
    stage="prune_rows",
)
def _(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    return _slices(heads, num_heads * d_k, lambda i: i, lambda i: i + d_k)


@mistake(
    "prune-width-of-num-heads",
    "Each head is given num_heads rows",
    "Right where d_k happens to be num_heads; else the heads overlap or have gaps between them.",
    "a head has d_k = d_model / num_heads rows.",
    stage="prune_rows",
)
def _(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    step = num_heads
    return _slices(heads, num_heads * d_k, lambda i: i * step, lambda i: (i + 1) * step)


@mistake(
    "prune-row-short",
    "The last row of each head is left out",
    "Each head has d_k - 1 rows: a slice ends before its end.",
    "rows i·d_k to (i + 1)·d_k, written as a slice: [i * d_k : (i + 1) * d_k].",
    stage="prune_rows",
)
def _(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    return _slices(heads, num_heads * d_k, lambda i: i * d_k, lambda i: (i + 1) * d_k - 1)


@mistake(
    "prune-row-long",
    "The first row of the next head is taken along",
    "Each head but the last has d_k + 1 rows.",
    "a slice ends before its end: [i * d_k : (i + 1) * d_k].",
    stage="prune_rows",
)
def _(heads: list[int], d_k: int, num_heads: int) -> Tensor:
    return _slices(heads, num_heads * d_k, lambda i: i * d_k, lambda i: (i + 1) * d_k + 1)


# ---------------------------------------------------------------- W_q, W_k, W_v


@mistake(
    "prune-linear-indexed",
    "layer.W_q itself is indexed: it is an nn.Linear, not its matrix",
    "A module has no rows: an error.",
    "the matrix is layer.W_q.weight, the bias layer.W_q.bias.",
    stage="prune_q",
)
def _(weights: Weights, rows: Tensor) -> Tensor:
    return nn.Linear(1, 1, device="meta")[rows]  # type: ignore[index]


@mistake(
    "prune-columns",
    "W_q, W_k and W_v lose columns",
    "Each head still makes all its numbers, from a part of the token: (d_model, h kept · d_k).",
    "nn.Linear stores (out, in), and a head is some of what comes out: rows.",
    stage="prune_q",
    also={
        "prune_k": lambda weights, rows: weights["W_k"][:, rows],
        "prune_v": lambda weights, rows: weights["W_v"][:, rows],
    },
)
def _(weights: Weights, rows: Tensor) -> Tensor:
    return weights["W_q"][:, rows]


def _whole(role: str, effect: str) -> None:
    mistake(
        f"prune-{role}-whole",
        f"W_{role} keeps all its rows",
        effect,
        f"the same rows of W_q, W_k and W_v: W_{role}[rows].",
        stage=f"prune_{role}",
    )(lambda weights, rows: weights[f"W_{role}"])


_whole("q", "Queries have more heads than keys: an error, or numbers cut at the wrong places.")
_whole("k", "Keys have more heads than queries: an error, or numbers cut at the wrong places.")
_whole("v", "Values have more heads than there are weights for: an error, or a row too long for W_o.")


@mistake(
    "prune-k-from-q",
    "W_k is cut out of W_q, a copied line left as it was",
    "Everything fits, and the weights of attention are other ones.",
    "rows of W_k.",
    stage="prune_k",
)
def _(weights: Weights, rows: Tensor) -> Tensor:
    return weights["W_q"][rows]


@mistake(
    "prune-v-from-k",
    "W_v is cut out of W_k, a copied line left as it was",
    "Everything fits, and the output is another one.",
    "rows of W_v.",
    stage="prune_v",
)
def _(weights: Weights, rows: Tensor) -> Tensor:
    return weights["W_k"][rows]


@mistake(
    "prune-v-from-q",
    "W_v is cut out of W_q, a copied line left as it was",
    "Everything fits, and the output is another one.",
    "rows of W_v.",
    stage="prune_v",
)
def _(weights: Weights, rows: Tensor) -> Tensor:
    return weights["W_q"][rows]


@mistake(
    "prune-v-scaled-up",
    "W_v is multiplied by h / h kept, as if it were dropout",
    "The output is larger than with the other heads silent.",
    "W_o adds the heads up, it does not average them: leave the numbers as they are.",
    stage="prune_v",
)
def _(weights: Weights, rows: Tensor) -> Tensor:
    return weights["W_v"][rows] / _kept_share(weights, rows)


# ---------------------------------------------------------------- W_o


@mistake(
    "prune-o-rows",
    "W_o loses rows",
    "The output has fewer numbers than d_model, and the joined row still does not fit.",
    "W_o is (d_model, h·d_k): a head's numbers come *in*, so its part is columns.",
    stage="prune_o",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Tensor:
    return weights["W_o"][rows]


@mistake(
    "prune-o-whole",
    "W_o keeps all its columns",
    "An error about shapes: the joined row is shorter now.",
    "W_o[:, rows].",
    stage="prune_o",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Tensor:
    return weights["W_o"]


@mistake(
    "prune-o-sorted",
    "The columns of W_o are taken in ascending order, the rows of the others as asked for",
    "Right where keep ascends; else a head's numbers meet the columns of another.",
    "take the same index for all four: W_o.weight[:, rows].",
    stage="prune_o",
    also={"prune_kept": prune_kept},  # where the order is asked for
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Tensor:
    return weights["W_o"][:, rows.sort().values]


@mistake(
    "prune-all-but-o-sorted",
    "The rows of W_q, W_k and W_v are taken in ascending order, the columns of W_o as asked for",
    "Right where keep ascends; else a head's numbers meet the columns of another.",
    "take the same index for all four: W_o.weight[:, rows].",
    stage="prune_q",
    also={
        "prune_kept": prune_kept,
        "prune_k": lambda weights, rows: weights["W_k"][rows.sort().values],
        "prune_v": lambda weights, rows: weights["W_v"][rows.sort().values],
        "prune_biases": lambda weights, rows, num_heads: prune_biases(weights, rows.sort().values, num_heads),
    },
)
def _(weights: Weights, rows: Tensor) -> Tensor:
    return weights["W_q"][rows.sort().values]


@mistake(
    "prune-o-of-the-others",
    "W_o keeps the columns of the heads that go",
    "The heads that stay meet columns that others were trained with, or the wrong number of them.",
    "W_o.weight[:, rows]: the columns with the same numbers as the rows of W_q.",
    stage="prune_o",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Tensor:
    stays = torch.isin(torch.arange(weights["W_o"].size(1)), rows)
    return weights["W_o"][:, ~stays]


@mistake(
    "prune-o-both",
    "W_o loses rows and columns",
    "The output has fewer numbers than d_model, so that it cannot be added to X any more.",
    "the output stays d_model wide: columns only, W_o[:, rows].",
    stage="prune_o",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Tensor:
    return weights["W_o"][rows][:, rows]


@mistake(
    "prune-o-transposed",
    "W_o comes out transposed, (h kept · d_k, d_model)",
    "An error about shapes as soon as a head is gone.",
    "nn.Linear stores (out, in): (d_model, h kept · d_k).",
    stage="prune_o",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Tensor:
    return weights["W_o"][:, rows].T


@mistake(
    "prune-o-rows-turned",
    "W_o loses rows, and is turned so that it fits",
    "The right shape, and other numbers: a part of each head, as if W_o was stored the other way round.",
    "columns, without a transpose: W_o[:, rows].",
    stage="prune_o",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Tensor:
    return weights["W_o"][rows].T


@mistake(
    "prune-o-rows-reshaped",
    "W_o loses rows, and is reshaped so that it fits",
    "The right shape, and numbers of all heads in disorder.",
    "columns, without a reshape: W_o[:, rows].",
    stage="prune_o",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Tensor:
    return weights["W_o"][rows].reshape(weights["W_o"].size(0), -1)


@mistake(
    "prune-o-zeroed",
    "W_o keeps its size, with the other heads' columns set to zero",
    "An error about shapes: the joined row is shorter now.",
    "leave the columns out: W_o[:, rows].",
    stage="prune_o",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Tensor:
    return _zeroed(weights["W_o"].T, rows).T


@mistake(
    "prune-o-interleaved-by-number",
    "The columns of W_o are viewed as (d_k, h), and columns of that are taken",
    "The rows fit the heads, and the columns do not: every output is another one.",
    "view W_o as (d_model, h, d_k), and take [:, keep].",
    stage="prune_o",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Tensor:
    d_k = weights["W_o"].size(1) // num_heads
    columns = torch.arange(d_k)[:, None] * num_heads + rows[::d_k] // d_k
    return weights["W_o"][:, columns.flatten()]


@mistake(
    "prune-o-interleaved",
    "The columns of W_o are dealt out to the heads in turn: head i gets i, i + h, i + 2h …",
    "The rows fit the heads, and the columns do not: every output is another one.",
    "the same numbers as for the rows: i·d_k to (i + 1)·d_k.",
    stage="prune_o",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Tensor:
    d_k = weights["W_o"].size(1) // num_heads
    return weights["W_o"][:, rows // d_k + num_heads * (rows % d_k)]


def _kept_share(weights: Weights, rows: Tensor) -> float:
    return len(rows) / weights["W_o"].size(1)


@mistake(
    "prune-o-scaled-up",
    "W_o is multiplied by h / h kept, as if it were dropout",
    "The output is larger than with the other heads silent.",
    "W_o adds the heads up, it does not average them: leave the numbers as they are.",
    stage="prune_o",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Tensor:
    return prune_o(weights, rows, num_heads) / _kept_share(weights, rows)


@mistake(
    "prune-o-scaled-down",
    "W_o is multiplied by h kept / h",
    "The output is smaller than it should be: that would be a mean over the heads.",
    "W_o adds the heads up: leave the numbers as they are.",
    stage="prune_o",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Tensor:
    return prune_o(weights, rows, num_heads) * _kept_share(weights, rows)


# ---------------------------------------------------------------- biases


@mistake(
    "prune-no-biases",
    "No bias comes out",
    "Right for a layer without biases; others lose theirs.",
    "a head's rows of b_q, b_k and b_v, and b_o as it is.",
    stage="prune_biases",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Weights:
    return {}


@mistake(
    "prune-head-biases-missing",
    "b_q, b_k and b_v are left out, b_o is there",
    "Queries, keys and values are off by a row each.",
    "a head's rows of b_q, b_k and b_v as well: b[rows].",
    stage="prune_biases",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Weights:
    return {"b_o": weights["b_o"]} if "b_o" in weights else {}


@mistake(
    "prune-biases-from-q",
    "b_k and b_v are cut out of b_q, a copied line left as it was",
    "Everything fits, and keys and values are other ones.",
    "rows of b_k, and rows of b_v.",
    stage="prune_biases",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Weights:
    kept = prune_biases(weights, rows, num_heads)
    return {name: x if name == "b_o" else kept["b_q"] for name, x in kept.items()}


@mistake(
    "prune-biases-zero",
    "The biases are zeros: those of new projections, into which no bias was copied",
    "Right for a layer without biases; others lose theirs.",
    "copy a head's rows of b_q, b_k and b_v, and b_o as it is.",
    stage="prune_biases",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Weights:
    return {name: torch.zeros_like(x) for name, x in prune_biases(weights, rows, num_heads).items()}


@mistake(
    "prune-biases-whole",
    "b_q, b_k and b_v keep all their numbers",
    "An error about shapes, or the biases of other heads.",
    "one number for each row that stays: b[rows].",
    stage="prune_biases",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Weights:
    return {name: x for name, x in weights.items() if name.startswith("b_")}


@mistake(
    "prune-output-bias-missing",
    "The bias of W_o is left out",
    "Every output is off by the same row.",
    "b_o belongs to no head: it stays, whole.",
    stage="prune_biases",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Weights:
    return {name: x for name, x in prune_biases(weights, rows, num_heads).items() if name != "b_o"}


@mistake(
    "prune-output-bias-cut",
    "The bias of W_o loses the same rows as those of W_q, W_k and W_v",
    "It has a number for each of d_model outputs, and they all stay: an error about shapes.",
    "b_o belongs to no head: it stays, whole.",
    stage="prune_biases",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Weights:
    return {name: x[rows] for name, x in weights.items() if name.startswith("b_")}


@mistake(
    "prune-output-bias-scaled",
    "The bias of W_o is multiplied by h kept / h, a share for each head",
    "Every output is off by the same row.",
    "b_o belongs to no head: it stays as it is.",
    stage="prune_biases",
)
def _(weights: Weights, rows: Tensor, num_heads: int) -> Weights:
    kept = prune_biases(weights, rows, num_heads)
    return {name: x * _kept_share(weights, rows) if name == "b_o" else x for name, x in kept.items()}


# ---------------------------------------------------------------- what comes out


@mistake(
    "prune-tuple",
    "The pruned matrices come back as a tuple, without names",
    "Nobody can tell which is which.",
    "return a dict, W_q, W_k, W_v, W_o and b_q, b_k, b_v, b_o, or a layer.",
    stage="prune_give",
)
def _(weights: Weights, layer: mha.MultiHeadAttention) -> Any:
    return tuple(weights.values())


@mistake(
    "prune-transposed",
    "All pruned matrices are transposed",
    "Right for X @ W; but nn.Linear stores (out, in), and so does the layer.",
    "copy them as they are.",
    stage="prune_give",
)
def _(weights: Weights, layer: mha.MultiHeadAttention) -> Any:
    return {name: x.T if name.startswith("W_") else x for name, x in weights.items()}


@mistake(
    "prune-qkv-transposed",
    "W_q, W_k and W_v come out transposed",
    "Right for X @ W; but nn.Linear stores (out, in), and so does the layer.",
    "copy them as they are: (h kept · d_k, d_model).",
    stage="prune_give",
)
def _(weights: Weights, layer: mha.MultiHeadAttention) -> Any:
    return {name: x.T if name in ("W_q", "W_k", "W_v") else x for name, x in weights.items()}


@mistake(
    "prune-heads-not-joined",
    "W_q, W_k and W_v come out as (h kept, d_k, d_model)",
    "The right numbers, and an axis too many for nn.Linear.",
    "flatten the first two axes: (h kept · d_k, d_model).",
    stage="prune_give",
)
def _(weights: Weights, layer: mha.MultiHeadAttention) -> Any:
    return {
        name: x.unflatten(0, (-1, layer.d_k)) if name in ("W_q", "W_k", "W_v") else x
        for name, x in weights.items()
    }


@mistake(
    "prune-all-not-joined",
    "The matrices come out as (h kept, d_k, d_model), and W_o as (d_model, h kept, d_k)",
    "The right numbers, and an axis too many for nn.Linear.",
    "flatten the two axes of the heads: (h kept · d_k, d_model) and (d_model, h kept · d_k).",
    stage="prune_give",
)
def _(weights: Weights, layer: mha.MultiHeadAttention) -> Any:
    axes = {"W_q": 0, "W_k": 0, "W_v": 0, "W_o": 1}
    return {
        name: x.unflatten(axes[name], (-1, layer.d_k)) if name in axes else x for name, x in weights.items()
    }


_WHOLE = {  # no head's rows are left out
    "prune_k": lambda weights, rows: weights["W_k"],
    "prune_v": lambda weights, rows: weights["W_v"],
    "prune_biases": lambda weights, rows, num_heads: {
        name: x for name, x in weights.items() if name.startswith("b_")
    },
}


@mistake(
    "prune-masked-only",
    "The other heads' rows and columns are set to zero, and stay",
    "The output is right, but nothing is gained: as many parameters, as much work.",
    "leave the rows and columns out: the new matrices are smaller.",
    stage="prune_q",
    also={
        "prune_k": lambda weights, rows: _zeroed(weights["W_k"], rows),
        "prune_v": lambda weights, rows: _zeroed(weights["W_v"], rows),
        "prune_o": lambda weights, rows, num_heads: _zeroed(weights["W_o"].T, rows).T,
        "prune_biases": lambda weights, rows, num_heads: {
            name: x if name == "b_o" else _zeroed(x, rows)
            for name, x in weights.items()
            if name.startswith("b_")
        },
    },
)
def _(weights: Weights, rows: Tensor) -> Tensor:
    return _zeroed(weights["W_q"], rows)


@mistake(
    "prune-nothing",
    "All heads are still there",
    "The weights come back as they were.",
    "take the rows and columns of the heads to keep, and give those back.",
    stage="prune_q",
    also={**_WHOLE, "prune_o": lambda weights, rows, num_heads: weights["W_o"]},
)
def _(weights: Weights, rows: Tensor) -> Tensor:
    return weights["W_q"]


@mistake(
    "prune-output-columns-zeroed",
    "The other heads' columns of W_o are set to zero, and all else stays",
    "That silences heads, as mha.ablate_heads does; nothing is gained.",
    "leave the rows and columns out: the new matrices are smaller.",
    stage="prune_q",
    also={**_WHOLE, "prune_o": lambda weights, rows, num_heads: _zeroed(weights["W_o"].T, rows).T},
)
def _(weights: Weights, rows: Tensor) -> Tensor:
    return weights["W_q"]


def _zeroed(x: Tensor, rows: Tensor) -> Tensor:
    return torch.zeros_like(x).index_copy(0, rows, x[rows])


@mistake(
    "prune-num-heads-left",
    "num_heads of the new layer is still the old one",
    "The rows that are left are cut into too many heads: an error, or other numbers.",
    "num_heads = len(keep).",
    stage="prune_give",
)
def _(weights: Weights, layer: mha.MultiHeadAttention) -> Any:
    kept = weights["W_q"].size(0) // layer.d_k
    return weights if kept == layer.num_heads else {**weights, "num_heads": layer.num_heads}


@mistake(
    "prune-num-heads-of-removed",
    "num_heads of the new layer is the number of heads that were removed",
    "The rows that are left are cut into the wrong number of heads: an error, or other numbers.",
    "num_heads = len(keep).",
    stage="prune_give",
)
def _(weights: Weights, layer: mha.MultiHeadAttention) -> Any:
    kept = weights["W_q"].size(0) // layer.d_k
    removed = layer.num_heads - kept
    return weights if kept == removed else {**weights, "num_heads": removed}


@mistake(
    "prune-other-names",
    "The right matrices under other names than W_q, W_k, W_v, W_o",
    "Whoever looks one up by its name does not find it.",
    "the names of the docstring: W_q, W_k, W_v, W_o and b_q, b_k, b_v, b_o.",
    stage="prune_give",
)
def _(weights: Weights, layer: mha.MultiHeadAttention) -> Any:
    return {**weights, "other names": True}


@mistake(
    "prune-shares-memory",
    "The new layer's weights are views of the old one's",
    "The numbers are right, but training the one changes the other.",
    "give the new layer copies: .detach().clone().",
    stage="prune_give",
)
def _(weights: Weights, layer: mha.MultiHeadAttention) -> Any:
    return {**weights, "shares memory": True}


@mistake(
    "prune-shallow-copy",
    "copy.copy copies the layer, but not the projections in it",
    "The numbers are right, but the old layer has the same W_q, W_k, W_v and W_o: it is cut as well.",
    "copy.deepcopy(layer).",
    stage="prune_give",
)
def _(weights: Weights, layer: mha.MultiHeadAttention) -> Any:
    return {**weights, "shares projections": True}


@mistake(
    "prune-output-bias-shared",
    "The new layer's W_o has the old one's bias itself",
    "The numbers are right, but training the one changes the other.",
    "nothing is cut off from b_o, and yet it has to be copied: .detach().clone().",
    stage="prune_give",
)
def _(weights: Weights, layer: mha.MultiHeadAttention) -> Any:
    return {**weights, "shares memory": True} if "b_o" in weights else weights


@mistake(
    "prune-new-layer-of-d_model",
    "A new MultiHeadAttention of d_model and the heads kept is made, and its matrices are replaced",
    "It refuses where the heads kept do not divide d_model, and takes its heads for wider than they are.",
    "d_k has to stay: copy the layer, then give it the smaller matrices and their number of heads.",
    stage="prune_give",
)
def _(weights: Weights, layer: mha.MultiHeadAttention) -> Any:
    drawing_nothing(mha.MultiHeadAttention, layer.d_model, weights["W_q"].size(0) // layer.d_k)
    return weights


@mistake(
    "prune-new-layer-too-wide",
    "The weights are loaded into a new MultiHeadAttention(d_model, len(keep))",
    "Its heads share out all of d_model, so they are wider than the old ones, or do not divide it: an error.",
    "d_k has to stay: copy the layer, then give it the smaller matrices.",
    stage="prune_give",
)
def _(weights: Weights, layer: mha.MultiHeadAttention) -> Any:
    load_into_new(weights, weights["W_q"].size(0) // layer.d_k, layer.d_model)
    return weights


@mistake(
    "prune-new-layer-too-narrow",
    "The weights are loaded into a new MultiHeadAttention(len(keep) * d_k, len(keep))",
    "It takes and gives tokens of fewer than d_model numbers: an error.",
    "d_model has to stay: copy the layer, then give it the smaller matrices.",
    stage="prune_give",
)
def _(weights: Weights, layer: mha.MultiHeadAttention) -> Any:
    width = weights["W_q"].size(0)
    load_into_new(weights, width // layer.d_k, width)
    return weights


def load_into_new(weights: Weights, num_heads: int, d_model: int) -> None:
    """Load the weights into a new layer, which raises unless its heads are as wide as theirs."""
    made = drawing_nothing(lambda: mha.MultiHeadAttention(d_model, num_heads, bias="b_o" in weights))
    kinds = {"W": "weight", "b": "bias"}
    try:
        made.load_state_dict({f"W_{name[2:]}.{kinds[name[0]]}": x for name, x in weights.items()})
    except RuntimeError as error:
        raise (does_not_fit(error) or error) from None
