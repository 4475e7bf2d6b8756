"""What goes wrong when rows are projected, cut into heads and joined, and when heads are shared."""

import torch
from torch import Tensor

from mha.check.catalogue import mistake

# ---------------------------------------------------------------- project


@mistake(
    "project-not-transposed",
    "x @ W, with W as nn.Linear stores it",
    "The same shape where W is square, and other numbers; an error where it is not.",
    "nn.Linear stores (out, in): x @ W.T.",
    stage="project",
)
def _(x: Tensor, W: Tensor) -> Tensor:
    return x @ W


@mistake(
    "project-elementwise",
    "x is multiplied with W number by number",
    "An error about shapes, or no mixing of the numbers of a token.",
    "each new number is a sum over all old ones: x @ W.T.",
    stage="project",
)
def _(x: Tensor, W: Tensor) -> Tensor:
    return x * W


@mistake(
    "project-from-the-left",
    "W @ x in place of x @ W.T",
    "An error, or a sum over tokens instead of over a token's numbers.",
    "tokens are the rows of x: x @ W.T.",
    stage="project",
)
def _(x: Tensor, W: Tensor) -> Tensor:
    return W @ x


# ---------------------------------------------------------------- split


@mistake(
    "split-view-only",
    "x is viewed as (B, h, L, d_k) at once, without a transpose",
    "The right shape and no error, but a head holds pieces of some tokens and nothing of others.",
    "view as (B, L, h, d_k) first, then transpose(1, 2).",
    stage="split",
)
def _(x: Tensor, num_heads: int) -> Tensor:
    B, L, d_model = x.shape
    return x.reshape(B, num_heads, L, d_model // num_heads)


@mistake(
    "split-no-transpose",
    "The result is (B, L, h, d_k): the transpose is missing",
    "Tokens stand before heads, so that each token's heads would attend to one another.",
    "add transpose(1, 2).",
    stage="split",
)
def _(x: Tensor, num_heads: int) -> Tensor:
    B, L, d_model = x.shape
    return x.reshape(B, L, num_heads, d_model // num_heads)


@mistake(
    "split-interleaved",
    "The last axis is cut as (d_k, h): each head takes every h-th number",
    "Trains as well as any, but weights made elsewhere do not fit.",
    "heads first, view(B, L, h, d_k): head i owns the columns from i · d_k on.",
    stage="split",
)
def _(x: Tensor, num_heads: int) -> Tensor:
    B, L, d_model = x.shape
    return x.reshape(B, L, d_model // num_heads, num_heads).permute(0, 3, 1, 2)


@mistake(
    "split-wrong-axes",
    "The last two axes are exchanged: (B, L, d_k, h) or (B, h, d_k, L)",
    "The heads stand in the right place, but a token's numbers do not stand together.",
    "exchange axes 1 and 2: transpose(1, 2).",
    stage="split",
)
def _(x: Tensor, num_heads: int) -> Tensor:
    B, L, d_model = x.shape
    return x.reshape(B, L, num_heads, d_model // num_heads).permute(0, 2, 3, 1)


@mistake(
    "split-batch-and-heads-in-one",
    "The result is (B·h, L, d_k): batch and heads share an axis",
    "An older convention; masks and merging have to know of it.",
    "keep four axes, (B, h, L, d_k).",
    stage="split",
)
def _(x: Tensor, num_heads: int) -> Tensor:
    B, L, d_model = x.shape
    d_k = d_model // num_heads
    return x.reshape(B, L, num_heads, d_k).transpose(1, 2).reshape(B * num_heads, L, d_k)


@mistake(
    "split-heads-first",
    "The result is (h, B, L, d_k): the heads stand before the batch",
    "The right numbers in another order; a mask of (B, 1, 1, Lk) would meet the heads.",
    "the batch stays in front: (B, h, L, d_k).",
    stage="split",
)
def _(x: Tensor, num_heads: int) -> Tensor:
    B, L, d_model = x.shape
    return x.reshape(B, L, num_heads, d_model // num_heads).permute(2, 0, 1, 3)


@mistake(
    "split-heads-and-size-exchanged",
    "num_heads is taken for d_k: h heads become d_model / h",
    "There are d_model / h heads of h numbers each.",
    "num_heads is how many there are: view(B, L, num_heads, d_model // num_heads).",
    stage="split",
)
def _(x: Tensor, num_heads: int) -> Tensor:
    B, L, d_model = x.shape
    return x.reshape(B, L, d_model // num_heads, num_heads).transpose(1, 2)


# ---------------------------------------------------------------- merge


@mistake(
    "merge-no-transpose",
    "The heads are reshaped to (B, L, h·d_k) without transposing back",
    "The right shape and no error, but a row mixes several tokens.",
    "transpose(1, 2) first, then reshape.",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    B, h, L, d_k = x.shape
    return x.reshape(B, L, h * d_k)


@mistake(
    "merge-view-not-contiguous",
    "view after transpose, without contiguous()",
    "An error: no view can lead from one head's piece to the next.",
    "use .contiguous().view(...) or .reshape(...).",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    B, h, L, d_k = x.shape
    return x.transpose(1, 2).view(B, L, h * d_k)


@mistake(
    "merge-averaged",
    "The heads are averaged instead of laid side by side",
    "d_k numbers are left of h·d_k.",
    "concatenate: (B, L, h·d_k).",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    return x.mean(dim=1)


@mistake(
    "merge-summed",
    "The heads are added up instead of laid side by side",
    "d_k numbers are left of h·d_k.",
    "concatenate: (B, L, h·d_k).",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    return x.sum(dim=1)


@mistake(
    "merge-maximum",
    "The largest of the heads is taken instead of all side by side",
    "d_k numbers are left of h·d_k.",
    "concatenate: (B, L, h·d_k).",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    return x.amax(dim=1)


@mistake(
    "merge-interleaved",
    "The heads' numbers alternate: (B, L, d_k, h) is flattened",
    "Rows belong to the right tokens, but W_o meets the numbers in another order.",
    "transpose(1, 2), so that the heads stand before their numbers.",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    B, h, L, d_k = x.shape
    return x.permute(0, 2, 3, 1).reshape(B, L, h * d_k)


@mistake(
    "merge-not-flattened",
    "The result is (B, L, h, d_k): the last two axes are not joined",
    "Four axes where three are wanted.",
    "reshape to (B, L, h·d_k) after the transpose.",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


@mistake(
    "merge-heads-reversed",
    "The heads are joined in reverse order",
    "Rows belong to the right tokens, but each head meets the block of W_o of another.",
    "head 0 comes first.",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    B, h, L, d_k = x.shape
    return x.flip(1).transpose(1, 2).reshape(B, L, h * d_k)


@mistake(
    "merge-axes-0-and-1",
    "Batch and heads are exchanged before the reshape",
    "A row mixes the examples of the batch.",
    "exchange axes 1 and 2: transpose(1, 2).",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    B, h, L, d_k = x.shape
    return x.transpose(0, 1).reshape(B, L, h * d_k)


# ---------------------------------------------------------------- repeat


@mistake(
    "repeat-tiled",
    "The heads come as 0, 1, 0, 1: repeat in place of repeat_interleave",
    "Neighbouring query heads read different key heads.",
    "each head's copies stand together, 0, 0, 1, 1: repeat_interleave(n_rep, dim=1).",
    stage="repeat",
)
def _(x: Tensor, n_rep: int) -> Tensor:
    return x.repeat(1, n_rep, 1, 1)


@mistake(
    "repeat-tokens",
    "The tokens are repeated instead of the heads",
    "The sequence grows, the number of heads does not.",
    "repeat along dim=1, the heads.",
    stage="repeat",
)
def _(x: Tensor, n_rep: int) -> Tensor:
    return x.repeat_interleave(n_rep, dim=2)


@mistake(
    "repeat-batch",
    "The examples are repeated instead of the heads",
    "The batch grows, the number of heads does not.",
    "repeat along dim=1, the heads.",
    stage="repeat",
)
def _(x: Tensor, n_rep: int) -> Tensor:
    return x.repeat_interleave(n_rep, dim=0)


@mistake(
    "repeat-nothing",
    "The heads are not repeated",
    "There are h_kv heads where h_kv·n_rep are wanted.",
    "repeat_interleave(n_rep, dim=1).",
    stage="repeat",
)
def _(x: Tensor, n_rep: int) -> Tensor:
    return x


@mistake(
    "repeat-once-too-often",
    "The heads are repeated n_rep + 1 times",
    "There is one copy too many of each head.",
    "n_rep counts all copies, the first included.",
    stage="repeat",
)
def _(x: Tensor, n_rep: int) -> Tensor:
    return torch.repeat_interleave(x, n_rep + 1, dim=1)
