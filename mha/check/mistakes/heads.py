"""What goes wrong when rows are projected, cut into heads and joined, and when heads are shared."""

from typing import Any

import torch
from torch import Tensor

from mha.check.catalogue import mistake
from mha.check.exercises.heads import merge_give

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


@mistake(
    "project-residual",
    "x is added to the result",
    "Each token keeps what it was besides; where W is not square, an error.",
    "a projection is x @ W.T and nothing else.",
    stage="project",
)
def _(x: Tensor, W: Tensor) -> Tensor:
    return x + x @ W.T


@mistake(
    "project-activation",
    "ReLU is applied to the result",
    "All that is negative becomes 0.",
    "a projection is linear: x @ W.T and nothing else.",
    stage="project",
)
def _(x: Tensor, W: Tensor) -> Tensor:
    return (x @ W.T).relu()


@mistake(
    "project-scaled",
    "The result is divided by the square root of the width of x",
    "All numbers are too small by one factor.",
    "scores are scaled, projections are not: x @ W.T.",
    stage="project",
)
def _(x: Tensor, W: Tensor) -> Tensor:
    return x @ W.T / x.size(-1) ** 0.5


@mistake(
    "project-softmax",
    "A softmax is applied to the result",
    "All numbers lie between 0 and 1 and add up to 1.",
    "the softmax comes later, on scores: x @ W.T.",
    stage="project",
)
def _(x: Tensor, W: Tensor) -> Tensor:
    return (x @ W.T).softmax(-1)


@mistake(
    "project-nothing",
    "x comes back as it was, not projected",
    "W has no effect.",
    "return x @ W.T: a tensor method gives a new tensor, and leaves x as it is.",
    stage="project",
)
def _(x: Tensor, W: Tensor) -> Tensor:
    return x


@mistake(
    "project-axes-exchanged",
    "The result is transposed: (B, d_out, L)",
    "Numbers stand where tokens should.",
    "(B, L, d_out) is wanted: transpose W alone, x @ W.T.",
    stage="project",
)
def _(x: Tensor, W: Tensor) -> Tensor:
    return (x @ W.T).mT


@mistake(
    "project-first-example",
    "Only the first example comes back",
    "The axis of the examples is missing.",
    "keep all axes of x: x @ W.T takes any number of them.",
    stage="project",
)
def _(x: Tensor, W: Tensor) -> Tensor:
    return (x @ W.T)[0]


@mistake(
    "project-as-float32",
    "The result comes back in float32, whatever x is",
    "In float64 digits are lost; elsewhere dtypes do not fit.",
    "compute in the dtype that comes: x @ W.T.",
    stage="project",
)
def _(x: Tensor, W: Tensor) -> Tensor:
    return x.float() @ W.float().T


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
    stage="split_give",
)
def _(heads: Tensor) -> Tensor:
    return heads.flatten(0, 1)


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


@mistake(
    "split-in-a-tuple",
    "The heads come back one by one, in a tuple",
    "x.chunk(num_heads, -1) gives num_heads tensors (B, L, d_k), not one tensor.",
    "stack them along a new axis behind the batch: torch.stack(x.chunk(num_heads, -1), dim=1).",
    stage="split",
)
def _(x: Tensor, num_heads: int) -> Any:
    return x.chunk(num_heads, dim=-1)


@mistake(
    "split-first-head-only",
    "Only the first head comes back",
    "(B, L, d_k): the other heads' numbers are lost.",
    "keep all of them: (B, h, L, d_k).",
    stage="split",
)
def _(x: Tensor, num_heads: int) -> Any:
    return x[..., : x.size(-1) // num_heads]


@mistake(
    "split-each-head-all-numbers",
    "Each head gets all d_model numbers",
    "(B, h, L, d_model): x is repeated, not cut.",
    "the heads share the numbers of a token: d_model // num_heads for each.",
    stage="split",
)
def _(x: Tensor, num_heads: int) -> Any:
    return x[:, None].expand(-1, num_heads, -1, -1)


@mistake(
    "split-batch-behind-heads",
    "The result is (h·B, L, d_k): heads and batch share an axis, the heads in front",
    "torch.cat lays the heads along the batch.",
    "keep an axis for each: torch.stack(…, dim=1) gives (B, h, L, d_k).",
    stage="split_give",
)
def _(heads: Tensor) -> Any:
    return heads.transpose(0, 1).flatten(0, 1)


@mistake(
    "split-size-first",
    "The result is (B, d_k, L, h)",
    "The last axis of the view, d_k, is moved to the front in place of h.",
    "from (B, L, h, d_k), transpose(1, 2) or permute(0, 2, 1, 3).",
    stage="split",
)
def _(x: Tensor, num_heads: int) -> Any:
    B, L, d_model = x.shape
    return x.reshape(B, L, num_heads, d_model // num_heads).permute(0, 3, 1, 2)


@mistake(
    "split-heads-reversed",
    "The heads come in reverse order",
    "Head 0 gets the last numbers.",
    "head 0 has the first d_k numbers of each token.",
    stage="split",
)
def _(x: Tensor, num_heads: int) -> Any:
    return torch.stack(x.chunk(num_heads, dim=-1)[::-1], dim=1)


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


@mistake(
    "merge-along-tokens",
    "The heads are laid one behind the other along the tokens: (B, h·L, d_k)",
    "Each token comes h times, with one head's numbers each.",
    "join along the last axis: the numbers of all heads side by side.",
    stage="merge",
    also={"merge_give": merge_give},
)
def _(x: Tensor) -> Tensor:
    return x.flatten(1, 2)


@mistake(
    "merge-tokens-too",
    "Heads, tokens and numbers are joined into one axis: (B, L·h·d_k)",
    "There are no tokens any more.",
    "flatten(2) keeps the axis of the tokens.",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(1)


@mistake(
    "merge-first-head-only",
    "Only the first head comes back: (B, L, d_k)",
    "What the other heads found is lost.",
    "lay all heads side by side.",
    stage="merge",
    also={"merge_give": merge_give},
)
def _(x: Tensor) -> Tensor:
    return x[:, 0]


@mistake(
    "merge-tokens-first",
    "The result is (L, B, h·d_k): the tokens stand before the batch",
    "The wrong two axes are exchanged.",
    "transpose(1, 2) leaves the batch where it is.",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    return x.permute(2, 0, 1, 3).flatten(2)


@mistake(
    "merge-batch-and-tokens-in-one",
    "The result is (B·L, h·d_k): batch and tokens share an axis",
    "It cannot be told any more where an example ends.",
    "reshape to (B, L, h·d_k).",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(x.size(0) * x.size(2), -1)


@mistake(
    "merge-axes-2-and-3",
    "The last two axes are exchanged in place of heads and tokens",
    "Right shape, wrong numbers: a row holds numbers of several tokens.",
    "bring the heads behind the tokens: transpose(1, 2).",
    stage="merge",
)
def _(x: Tensor) -> Tensor:
    B, h, L, d_k = x.shape
    return x.transpose(2, 3).reshape(B, L, h * d_k)


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


@mistake(
    "repeat-axis-left",
    "The copies have an axis of their own: (B, h_kv, n_rep, L, d_k)",
    "Queries have four axes and do not meet them.",
    "join the axes of heads and copies: flatten(1, 2).",
    stage="repeat",
)
def _(x: Tensor, n_rep: int) -> Tensor:
    return x[:, :, None].expand(-1, -1, n_rep, -1, -1)


@mistake(
    "repeat-copies-stacked",
    "The copies are stacked on an axis before the heads: (B, n_rep, h_kv, L, d_k)",
    "Queries have four axes and do not meet them.",
    "repeat_interleave(n_rep, dim=1) keeps four axes.",
    stage="repeat",
)
def _(x: Tensor, n_rep: int) -> Tensor:
    return torch.stack([x] * n_rep, dim=1)


@mistake(
    "repeat-no-dim",
    "repeat_interleave is called without dim",
    "All axes are flattened, and each number repeated.",
    "say along which axis: x.repeat_interleave(n_rep, dim=1).",
    stage="repeat",
)
def _(x: Tensor, n_rep: int) -> Tensor:
    return x.repeat_interleave(n_rep)


@mistake(
    "repeat-numbers",
    "The numbers are repeated instead of the heads: dim=-1",
    "(B, h_kv, L, d_k·n_rep), and each head is as wide as several.",
    "the heads are axis 1.",
    stage="repeat",
)
def _(x: Tensor, n_rep: int) -> Tensor:
    return x.repeat_interleave(n_rep, dim=-1)


@mistake(
    "repeat-batch-tiled",
    "The whole batch is repeated: x.repeat(n_rep, 1, 1, 1)",
    "There are n_rep times as many examples, and no more heads.",
    "the heads are axis 1: x.repeat_interleave(n_rep, dim=1).",
    stage="repeat",
)
def _(x: Tensor, n_rep: int) -> Tensor:
    return x.repeat(n_rep, 1, 1, 1)


@mistake(
    "repeat-multiplied",
    "x is multiplied by n_rep",
    "Each number is n_rep times as large, and there are no more heads.",
    "each head is copied n_rep times: x.repeat_interleave(n_rep, dim=1).",
    stage="repeat",
)
def _(x: Tensor, n_rep: int) -> Tensor:
    return x * n_rep
