"""What goes wrong when rows are projected, cut into heads and joined, and when heads are shared."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mha.check.catalogue import Stage, mistake
from mha.check.exercises.heads import drawn, merge, merge_give, split, split_give

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


def _projected(id: str, title: str, effect: str, hint: str, wrong: Callable[[Tensor, Tensor], Any]) -> None:
    mistake(id, title, effect, hint, stage="project")(wrong)


for _name, _activation in (("GELU", F.gelu), ("tanh", torch.tanh), ("A sigmoid", torch.sigmoid)):
    _projected(
        f"project-{_name.split()[-1].lower()}",
        f"{_name} is applied to the result",
        "What comes out is bent; feed-forward networks have activations, projections have none.",
        "a projection is linear: x @ W.T and nothing else.",
        lambda x, W, activation=_activation: activation(x @ W.T),
    )
for _id, _title, _wrong in (
    (
        "input-normalised",
        "x is normalised first (LayerNorm)",
        lambda x, W: F.layer_norm(x, x.shape[-1:]) @ W.T,
    ),
    (
        "rows-normalised",
        "The rows of W are scaled to length 1 first",
        lambda x, W: x @ F.normalize(W, dim=-1).T,
    ),
    ("twice", "W is applied twice", lambda x, W: x @ W.T @ W.T),
):
    _projected(
        f"project-{_id}",
        _title,
        "The shape is right where W is square, the numbers are others.",
        "a projection is x @ W.T, once, and nothing else.",
        _wrong,
    )
for _id, _title, _wrong in (
    ("leaky-relu", "A leaky ReLU is applied to the result", lambda x, W: F.leaky_relu(x @ W.T)),
    (
        "result-normalised",
        "The result is normalised (LayerNorm)",
        lambda x, W: F.layer_norm(x @ W.T, (W.size(0),)),
    ),
    (
        "result-of-length-1",
        "Each row of the result is scaled to length 1",
        lambda x, W: F.normalize(x @ W.T, dim=-1),
    ),
    (
        "input-of-length-1",
        "Each row of x is scaled to length 1 first",
        lambda x, W: F.normalize(x, dim=-1) @ W.T,
    ),
    (
        "scaled-by-result",
        "The result is divided by the square root of its own width",
        lambda x, W: x @ W.T / W.size(0) ** 0.5,
    ),
    ("columns-reversed", "The columns of W are in reverse order", lambda x, W: x @ W.flip(1).T),
    ("and-back", "W.T is applied, and W after it", lambda x, W: x @ W.T @ W),
    ("inverse", "The inverse of W is applied", lambda x, W: x @ torch.linalg.pinv(W)),
    ("symmetric", "W and W.T are averaged", lambda x, W: x @ (W + W.T) / 2),
    (
        "largest",
        "The largest product is taken, they are not added",
        lambda x, W: (x[..., None, :] * W).amax(-1),
    ),
    ("sum-of-all", "All is added up to one number", lambda x, W: (x @ W.T).sum()),
    ("as-half", "It is computed in half precision", lambda x, W: (x.half() @ W.half().T).to(x.dtype)),
    ("rounded", "The result is rounded to two digits", lambda x, W: (x @ W.T).round(decimals=2)),
    (
        "input-summed",
        "The letters of the einsum do not meet: the sum of x's numbers meets the sum of each row of W",
        lambda x, W: x.sum(-1, keepdim=True) * W.sum(1),
    ),
    (
        "input-summed-with-columns",
        "The letters of the einsum do not meet: the sum of x's numbers meets the sum of each column of W",
        lambda x, W: x.sum(-1, keepdim=True) * W.sum(0),
    ),
):
    _projected(
        f"project-{_id}",
        _title,
        "The numbers are others than the dot products of a token with the rows of W.",
        "a projection is x @ W.T, once, and nothing else.",
        _wrong,
    )
_TOKEN_HINT = "x @ W.T takes any number of leading axes: leave them alone."
for _id, _title, _wrong in (
    ("first-token", "Only the first token is projected: (B, d_out)", lambda x, W: x[:, 0] @ W.T),
    ("last-token", "Only the last token is projected: (B, d_out)", lambda x, W: x[:, -1] @ W.T),
    ("last-token-kept", "Only the last token is projected: (B, 1, d_out)", lambda x, W: x[:, -1:] @ W.T),
    ("over-batch", "The examples are added up: (L, d_out)", lambda x, W: (x @ W.T).sum(0)),
    ("over-tokens", "The tokens are added up: (B, d_out)", lambda x, W: (x @ W.T).sum(1)),
    ("flat", "Examples and tokens share an axis: (B·L, d_out)", lambda x, W: x.reshape(-1, x.size(-1)) @ W.T),
    (
        "squeezed",
        "Axes of size 1 are taken away from the projection: squeeze()",
        lambda x, W: (x @ W.T).squeeze(),
    ),
):
    _projected(
        f"project-{_id}",
        _title,
        "Each token of each example has a row of its own in the result, (B, L, d_out).",
        _TOKEN_HINT,
        _wrong,
    )
_projected(
    "project-reshaped",
    "W is reshaped to (in, out), not transposed",
    "view and reshape re-read the numbers of W in the same order: the rows stay what they are.",
    "rows become columns by W.T or W.transpose(0, 1) only.",
    lambda x, W: x @ W.reshape(W.size(1), W.size(0)),
)
_projected(
    "project-split-already",
    "The result is cut into heads already",
    "Four axes where three are wanted.",
    "project only; split_heads comes after it.",
    lambda x, W: (x @ W.T).unflatten(-1, (2, -1)).transpose(1, 2),
)
_projected(
    "project-mean",
    "The products are averaged instead of added up",
    "All numbers are too small, by the width of x.",
    "a sum over the numbers of a token: sum(-1), or x @ W.T.",
    lambda x, W: x @ W.T / x.size(-1),
)
_projected(
    "project-sum-over-outputs",
    "The sum runs over the outputs: each number of x meets the sum of its own row of W",
    "The numbers of a token are not mixed at all; an error where W is not square.",
    "number i of the result is (x * W[i]).sum(-1): the sum runs over the numbers of x.",
    lambda x, W: (x[..., None] * W).sum(-1),
)
_projected(
    "project-sum-over-own-column",
    "The sum runs over the wrong axis: each number of x meets the sum of its own column of W",
    "The numbers of a token are not mixed at all.",
    "number i of the result is (x * W[i]).sum(-1): the sum runs over the numbers of x.",
    lambda x, W: (x[..., None] * W.T).sum(-1),
)
_projected(
    "project-loop-over-inputs",
    "The loop over the rows of W runs to the width of x",
    "Outputs are missing where W has more rows, and there is an error where it has fewer.",
    "there are W.size(0) outputs.",
    lambda x, W: torch.stack([x @ W[i] for i in range(W.size(1))], dim=-1),
)


def _filled_like_x(x: Tensor, W: Tensor) -> Tensor:
    result = torch.zeros_like(x)
    for i in range(W.size(0)):
        result[..., i] = x @ W[i]
    return result


_projected(
    "project-room-like-x",
    "The result is given the width of x: zeros_like(x)",
    "Right where W is square; too much room, or too little, where it is not.",
    "the result is W.size(0) wide: x.new_zeros(*x.shape[:-1], W.size(0)).",
    _filled_like_x,
)


def _fresh(bias: bool, weight: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what a new nn.Linear computes with a bias or a weight that was drawn, from a fixed seed."""

    def wrong(x: Tensor, W: Tensor) -> Tensor:
        linear = drawn(W, bias, x.dtype)
        return F.linear(x, linear.weight if weight else W, linear.bias)

    return wrong


for _id, _title, _wrong in (
    ("bias", "The bias that a new nn.Linear draws is left in", _fresh(bias=True, weight=False)),
    (
        "weight",
        "A new nn.Linear is used with the weight that it draws, not with W",
        _fresh(bias=False, weight=True),
    ),
    (
        "weight-and-bias",
        "A new nn.Linear is used with all that it draws, not with W",
        _fresh(bias=True, weight=True),
    ),
):
    _projected(
        f"project-drawn-{_id}",
        _title,
        "Another result at each call: nn.Linear fills itself with random numbers.",
        "nn.Linear(…, bias=False) and W copied into its weight; or F.linear(x, W), which has neither.",
        _wrong,
    )

# As a sum over two heads: columns 0 to d_k - 1 of W for head 0, the others for head 1.


def _by_heads(wrong: Callable[[list[Tensor], list[Tensor]], Any]) -> Callable[[Tensor, Tensor], Any]:
    """Return a projection from the columns of x and of W, in two parts each."""
    return lambda x, W: wrong(list(x.chunk(2, dim=-1)), list(W.chunk(2, dim=-1)))


for _id, _title, _wrong in (
    ("last-head", "Only the last head's part is left: assigned, not added", lambda x, W: x[1] @ W[1].T),
    (
        "first-head",
        "Only the first head's part is there: the loop ends too early",
        lambda x, W: x[0] @ W[0].T,
    ),
    (
        "heads-averaged",
        "The heads' parts are averaged, not added",
        lambda x, W: (x[0] @ W[0].T + x[1] @ W[1].T) / 2,
    ),
    (
        "heads-joined",
        "The heads' parts are laid side by side, not added",
        lambda x, W: torch.cat([x[0] @ W[0].T, x[1] @ W[1].T], -1),
    ),
    (
        "heads-stacked",
        "The heads' parts are stacked, not added",
        lambda x, W: torch.stack([x[0] @ W[0].T, x[1] @ W[1].T], 1),
    ),
    (
        "heads-stacked-in-front",
        "The heads' parts are stacked in front, not added",
        lambda x, W: torch.stack([x[0] @ W[0].T, x[1] @ W[1].T]),
    ),
    (
        "heads-multiplied",
        "The heads' parts are multiplied, not added",
        lambda x, W: (x[0] @ W[0].T) * (x[1] @ W[1].T),
    ),
    ("heads-subtracted", "The second head's part is subtracted", lambda x, W: x[0] @ W[0].T - x[1] @ W[1].T),
    ("heads-crossed", "Each head meets the columns of the other", lambda x, W: x[0] @ W[1].T + x[1] @ W[0].T),
    (
        "heads-share-columns",
        "Both heads meet the same columns, the first",
        lambda x, W: (x[0] + x[1]) @ W[0].T,
    ),
    (
        "heads-share-last-columns",
        "Both heads meet the same columns, the last",
        lambda x, W: (x[0] + x[1]) @ W[1].T,
    ),
    ("first-head-twice", "The first head counts for both", lambda x, W: x[0] @ (W[0] + W[1]).T),
):
    _projected(
        f"project-{_id}",
        _title,
        "As a sum over heads, x @ W.T is the sum of each head's numbers times its own columns of W.",
        "total = total + x[..., part] @ W[:, part].T, with `part` the head's own numbers, for every head.",
        _by_heads(_wrong),
    )
_projected(
    "project-heads-interleaved",
    "Every second number is taken for a head",
    "Numbers meet columns that are not theirs.",
    "head i has the numbers from i · d_k to (i + 1) · d_k - 1.",
    lambda x, W: torch.cat([x[..., ::2], x[..., 1::2]], dim=-1) @ W.T,
)
_projected(
    "project-heads-rows",
    "W is cut by rows, not by columns",
    "nn.Linear stores (out, in): the numbers of a head meet columns of W.",
    "x[..., part] @ W[:, part].T.",
    lambda x, W: sum(a @ b.T for a, b in zip(x.chunk(2, dim=-1), W.chunk(2), strict=True)),
)

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


def _split(id: str, title: str, effect: str, hint: str, wrong: Stage, *, alone: bool = False) -> None:
    """Enter a wrong split; `alone` is one that no layer shows, as an error hides it there."""
    mistake(id, title, effect, hint, stage="split", also={"split_give": split_give} if alone else None)(wrong)


def _right_heads(x: Tensor, num_heads: int) -> Tensor:
    """Split an x that need not lie in memory in order."""
    return split(x.contiguous(), num_heads)


def _only(i: int) -> Stage:
    """Return a split that fills one head and leaves the others 0."""

    def wrong(x: Tensor, num_heads: int) -> Tensor:
        right = _right_heads(x, num_heads)
        heads = torch.zeros_like(right)
        heads[:, i] = right[:, i]
        return heads

    return wrong


def _own_numbers_only(x: Tensor, num_heads: int) -> Tensor:
    """Return x for each head, with zeros for the numbers of the others."""
    owner = torch.arange(x.size(-1)) // (x.size(-1) // num_heads)
    return torch.stack([x * (owner == i) for i in range(num_heads)], dim=1)


for _id, _title, _wrong in (
    (
        "size-before-tokens",
        "x is viewed as (B, h, d_k, L), and its last two axes are exchanged",
        lambda x, h: x.reshape(x.size(0), h, -1, x.size(1)).transpose(2, 3),
    ),
    (
        "batch-and-tokens-in-one",
        "Examples and tokens share an axis: (h, B·L, d_k)",
        lambda x, h: _right_heads(x, h).transpose(0, 1).flatten(1, 2),
    ),
    (
        "zeros-for-others",
        "Each head keeps all d_model places, with zeros in those of the others",
        _own_numbers_only,
    ),
    (
        "numbers-reversed",
        "The numbers of a token are in reverse order: flip(-1) before they are cut",
        lambda x, h: _right_heads(x.flip(-1), h),
    ),
    (
        "size-first-then-turned",
        "x is viewed as (B, L, d_k, h), and axes 1 and 3 are exchanged: (B, h, d_k, L)",
        lambda x, h: x.reshape(*x.shape[:2], -1, h).transpose(1, 3),
    ),
):
    _split(
        f"split-{_id}",
        _title,
        "The axes are not examples, heads, tokens and numbers of a head, in this order.",
        "x.view(B, L, num_heads, d_k).transpose(1, 2).",
        _wrong,
        alone=True,
    )
for _id, _title, _wrong in (
    (
        "stacked-heads-first",
        "The heads are stacked in front or along the batch, and read back as if the examples came first",
        lambda x, h: _right_heads(x, h).transpose(0, 1).reshape(x.size(0), h, x.size(1), -1),
    ),
    (
        "stacked-heads-last",
        "The heads are stacked behind all else, (B, L, d_k, h), and viewed as (B, h, L, d_k)",
        lambda x, h: _right_heads(x, h).permute(0, 2, 3, 1).reshape(x.size(0), h, x.size(1), -1),
    ),
    (
        "joined-along-tokens-then-cut",
        "The heads are laid one behind the other along the tokens, and cut there as (L, h)",
        lambda x, h: _right_heads(x, h).reshape(x.size(0), x.size(1), h, -1).transpose(1, 2),
    ),
):
    _split(
        f"split-{_id}",
        _title,
        "The right shape, and numbers of other examples, tokens or heads in it.",
        "torch.stack(heads, dim=1) puts the heads' axis where it belongs; view never moves an axis.",
        _wrong,
        alone=True,
    )
_split(
    "split-along-tokens",
    "The tokens are cut into heads, not the numbers of each",
    "A head gets whole rows of some tokens, and sees nothing of the others.",
    "the heads divide the last axis: x.chunk(num_heads, dim=-1), or view(B, L, num_heads, d_k).",
    lambda x, num_heads: torch.stack(x.chunk(num_heads, dim=1), dim=1),
    alone=True,
)
_split(
    "split-view-and-transpose",
    "x is viewed as (B, h, L, d_k), and transposed then",
    "The view mixes tokens and heads, and the transpose puts the tokens in front.",
    "view as (B, L, h, d_k), then transpose(1, 2).",
    lambda x, num_heads: x.reshape(x.size(0), num_heads, x.size(1), -1).transpose(1, 2),
    alone=True,
)
_split(
    "split-transposed-first",
    "x is transposed before the view: (B, d_model, L) is viewed as (B, h, L, d_k)",
    "The right shape and no error, but a row holds one number of several tokens.",
    "view as (B, L, h, d_k) first, then transpose(1, 2).",
    lambda x, num_heads: x.transpose(1, 2).reshape(x.size(0), num_heads, x.size(1), -1),
)
_split(
    "split-view-turned",
    "x is viewed as (B, h, d_k, L) at once",
    "No token's numbers stand together.",
    "view as (B, L, h, d_k), then transpose(1, 2).",
    lambda x, num_heads: x.reshape(x.size(0), num_heads, -1, x.size(1)),
    alone=True,
)
_split(
    "split-tokens-before-batch",
    "The result is (L, B, h, d_k) or (L, h, B, d_k): axis 0 is exchanged",
    "The wrong axes change places.",
    "from (B, L, h, d_k), transpose(1, 2): the batch stays in front.",
    lambda x, num_heads: _right_heads(x, num_heads).permute(2, 0, 1, 3),
    alone=True,
)
_split(
    "split-axes-0-and-2",
    "The result is (h, L, B, d_k): axes 0 and 2 are exchanged",
    "The wrong two axes change places.",
    "from (B, L, h, d_k), transpose(1, 2): the batch stays in front.",
    lambda x, num_heads: _right_heads(x, num_heads).permute(1, 2, 0, 3),
    alone=True,
)
_split(
    "split-tokens-in-front",
    "The result is (L, h, B, d_k): x is read as (L, B, d_model), tokens first",
    "An older convention, that of nn.MultiheadAttention without batch_first.",
    "x is (B, L, d_model): the batch stands in front.",
    lambda x, num_heads: _right_heads(x, num_heads).permute(2, 1, 0, 3),
    alone=True,
)
_split(
    "split-batch-taken-for-tokens",
    "x is read as (L, B, d_model), and batch and heads share an axis",
    "The tokens are taken for examples: F.multi_head_attention_forward does this with x as (L, B, d_model).",
    "x is (B, L, d_model): view(B, L, num_heads, d_k).transpose(1, 2).",
    lambda x, num_heads: x.reshape(x.size(0), x.size(1) * num_heads, -1).transpose(0, 1),
    alone=True,
)
_split(
    "split-stacked-behind",
    "The heads are stacked on the last axis: (B, L, d_k, h)",
    "Heads have to stand behind the batch.",
    "torch.stack(x.chunk(num_heads, dim=-1), dim=1).",
    lambda x, num_heads: torch.stack(x.chunk(num_heads, dim=-1), dim=-1),
    alone=True,
)
_split(
    "split-along-the-length",
    "The cut heads are put one behind the other along the tokens: (B, h·L, d_k)",
    "torch.cat lengthens an axis that is there; a new axis is wanted.",
    "torch.stack(x.chunk(num_heads, dim=-1), dim=1).",
    lambda x, num_heads: torch.cat(x.chunk(num_heads, dim=-1), dim=1),
    alone=True,
)
_split(
    "split-one-step-apart",
    "A head starts one number after the one before: x[..., i : i + d_k]",
    "The heads overlap, and most numbers belong to several.",
    "head i starts at i · d_k: x[..., i * d_k : (i + 1) * d_k].",
    lambda x, num_heads: x.unfold(-1, x.size(-1) // num_heads, 1)[:, :, :num_heads].transpose(1, 2),
)
_split(
    "split-every-window",
    "unfold with step 1: every stretch of d_k numbers becomes a head",
    "There are too many heads, and they overlap.",
    "unfold(-1, d_k, d_k), or view(B, L, num_heads, d_k).",
    lambda x, num_heads: x.unfold(-1, x.size(-1) // num_heads, 1).transpose(1, 2),
    alone=True,
)
_split(
    "split-first-head-for-all",
    "Every head gets the first d_k numbers",
    "The slice does not depend on the head.",
    "head i has x[..., i * d_k : (i + 1) * d_k].",
    lambda x, num_heads: _right_heads(x, num_heads)[:, :1].expand(-1, num_heads, -1, -1),
)
_split(
    "split-without-first-head",
    "The first head is left out: the loop starts at 1",
    "There are h - 1 heads.",
    "range(num_heads) starts at 0.",
    lambda x, num_heads: _right_heads(x, num_heads)[:, 1:],
    alone=True,
)
_split(
    "split-without-last-head",
    "The last head is left out: the loop ends one too early",
    "There are h - 1 heads.",
    "range(num_heads) ends at num_heads - 1.",
    lambda x, num_heads: _right_heads(x, num_heads)[:, :-1],
    alone=True,
)
_split(
    "split-only-first-head-filled",
    "Only the first head is filled, the others stay 0",
    "The return stands inside of the loop.",
    "return behind the loop.",
    _only(0),
)
_split(
    "split-only-last-head-filled",
    "Only the last head is filled, the others stay 0",
    "The buffer is made anew for each head.",
    "make the buffer before the loop.",
    _only(-1),
)
_split(
    "split-first-example",
    "Only the first example comes back: (h, L, d_k)",
    "The axis of the examples is missing.",
    "keep the batch: view(B, L, num_heads, d_k).",
    lambda x, num_heads: _right_heads(x, num_heads)[0],
    alone=True,
)
_split(
    "split-scaled",
    "The heads are divided by √d_k",
    "Scores are scaled, not the heads; for keys and values it is wrong altogether.",
    "splitting only moves numbers.",
    lambda x, num_heads: _right_heads(x, num_heads) / (x.size(-1) // num_heads) ** 0.5,
)
_split(
    "split-squeezed",
    "Axes of size 1 are taken away from the split heads: squeeze()",
    "A batch of one example, or one token, loses its axis.",
    "keep all four axes: no squeeze().",
    lambda x, num_heads: _right_heads(x, num_heads).squeeze(),
    alone=True,
)
_split(
    "split-two-heads",
    "There are always two heads, whatever num_heads is",
    "Right for num_heads=2 only.",
    "use the argument: view(B, L, num_heads, d_model // num_heads).",
    lambda x, num_heads: _right_heads(x, 2),
    alone=True,
)
_split(
    "split-as-float32",
    "The heads come back in float32, whatever x is",
    "torch.zeros makes float32 unless it is told the dtype.",
    "x.new_zeros(…), or no buffer at all: view and transpose.",
    lambda x, num_heads: _right_heads(x, num_heads).float(),
    alone=True,
)
_split(
    "split-in-a-list",
    "The heads come back one by one, in a list",
    "A list has no shape, and does not multiply.",
    "stack them along a new axis behind the batch: torch.stack(heads, dim=1).",
    lambda x, num_heads: list(x.chunk(num_heads, dim=-1)),
    alone=True,
)
_split(
    "split-not-at-all",
    "x comes back as it was, not cut",
    "view and transpose give new tensors, and leave x as it is.",
    "return x.view(B, L, num_heads, d_k).transpose(1, 2).",
    lambda x, num_heads: x,
    alone=True,
)


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


def _merge(id: str, title: str, effect: str, hint: str, wrong: Stage, *, alone: bool = False) -> None:
    """Enter a wrong join; `alone` is one that no layer shows, as an error hides it there."""
    mistake(id, title, effect, hint, stage="merge", also={"merge_give": merge_give} if alone else None)(wrong)


def _filled(places: Callable[[int, int, int], slice], only: int | None = None) -> Stage:
    """Return a join into a buffer of zeros: head i goes to `places(i, h, d_k)`; `only` one is put there."""

    def wrong(x: Tensor) -> Tensor:
        B, h, L, d_k = x.shape
        result = x.new_zeros(B, L, h * d_k)
        for i in range(h) if only is None else [only % h]:
            result[..., places(i, h, d_k)] = x[:, i]
        return result

    return wrong


def _own_place(i: int, h: int, d_k: int) -> slice:
    return slice(i * d_k, (i + 1) * d_k)


_SIDE_BY_SIDE = "x.transpose(1, 2).reshape(B, L, h * d_k): all heads, side by side, for each token."
for _id, _title, _wrong in (
    (
        "tokens-before-batch",
        "The tokens are moved before the examples, and the rest is reshaped",
        lambda x: x.permute(2, 0, 1, 3).reshape(x.size(0), x.size(2), -1),
    ),
    (
        "divided-by-heads",
        "The joined heads are divided by their number",
        lambda x: merge(x) / x.size(1),
    ),
    (
        "added-at-one-place",
        "All heads are added at the place of the first; the other places stay 0",
        lambda x: F.pad(x.sum(1), (0, x.size(3) * (x.size(1) - 1))),
    ),
    (
        "numbers-reversed",
        "The numbers of a token are in reverse order",
        lambda x: merge(x).flip(-1),
    ),
):
    _merge(
        f"merge-{_id}",
        _title,
        "The numbers of the heads do not lie side by side as they are.",
        "x.transpose(1, 2).reshape(B, L, h * d_k).",
        _wrong,
        alone=True,
    )
_merge(
    "merge-sizes-misread",
    "The sizes of x are read as (B, L, h, d_k): the result is (B, h, L·d_k)",
    "A row for each head, with the numbers of all tokens.",
    "B, h, L, d_k = x.shape, and transpose(1, 2) before the reshape.",
    lambda x: x.flatten(2),
    alone=True,
)
_merge(
    "merge-sizes-exchanged",
    "The heads are transposed, but the sizes of heads and tokens are exchanged in the reshape",
    "There are as many rows as heads; only where h = L is it right.",
    "after B, h, L, d_k = x.shape it is reshape(B, L, h * d_k).",
    lambda x: x.transpose(1, 2).reshape(x.size(0), x.size(1), -1),
    alone=True,
)
_merge(
    "merge-squeezed",
    "Axes of size 1 are taken away from the joined heads: squeeze()",
    "A batch of one example, or one token, loses its axis.",
    "keep all three axes: no squeeze().",
    lambda x: merge(x).squeeze(),
    alone=True,
)
_merge(
    "merge-batch-squeezed",
    "The axis of the batch is taken away where it is 1: squeeze(0)",
    "Right for two examples and more.",
    "keep all three axes: no squeeze(0).",
    lambda x: merge(x).squeeze(0),
    alone=True,
)
_merge(
    "merge-stacked-behind",
    "The heads are stacked, not joined: (B, L, d_k, h)",
    "torch.stack makes a new axis; an axis that is there is to grow.",
    "torch.cat(x.unbind(1), dim=-1).",
    lambda x: x.permute(0, 2, 3, 1),
    alone=True,
)
_merge(
    "merge-along-batch",
    "The heads are laid one behind the other along the batch: (h·B, L, d_k)",
    "torch.cat joins along axis 0 unless it is told otherwise.",
    "torch.cat(x.unbind(1), dim=-1).",
    lambda x: x.transpose(0, 1).flatten(0, 1),
    alone=True,
)
_merge(
    "merge-batch-and-heads-in-one",
    "Batch and heads are made one axis: (B·h, L, d_k)",
    "That is how torch.bmm wants them; here they come apart again.",
    _SIDE_BY_SIDE,
    lambda x: x.flatten(0, 1),
    alone=True,
)
_merge(
    "merge-examples",
    "The examples are laid side by side, not the heads: (h, L, B·d_k)",
    "torch.cat(list(x)) takes x apart along axis 0, the batch.",
    "torch.cat(x.unbind(1), dim=-1): the heads are axis 1.",
    lambda x: torch.cat(x.unbind(0), dim=-1),
    alone=True,
)
_merge(
    "merge-examples-along-tokens",
    "The examples are laid one behind the other: (h, B·L, d_k)",
    "x is taken apart along axis 0, the batch.",
    "torch.cat(x.unbind(1), dim=-1): the heads are axis 1.",
    lambda x: torch.cat(x.unbind(0), dim=1),
    alone=True,
)
_merge(
    "merge-axes-1-and-3",
    "Heads and numbers are exchanged before the reshape, in place of heads and tokens",
    "Right shape, wrong numbers: a row holds numbers of several tokens.",
    "bring the heads behind the tokens: transpose(1, 2).",
    lambda x: x.transpose(1, 3).reshape(x.size(0), x.size(2), -1),
)
_merge(
    "merge-axes-0-and-2",
    "Batch and tokens are exchanged before the reshape",
    "A row mixes the examples of the batch.",
    "exchange axes 1 and 2: transpose(1, 2).",
    lambda x: x.transpose(0, 2).reshape(x.size(0), x.size(2), -1),
)
_merge(
    "merge-two-heads",
    "Only two heads are joined, however many there are",
    "Right for two heads only.",
    _SIDE_BY_SIDE,
    lambda x: merge(x[:, :2]),
    alone=True,
)
_merge(
    "merge-last-head-only",
    "Only the last head comes back: (B, L, d_k)",
    "Each head takes the place of the one before.",
    _SIDE_BY_SIDE,
    lambda x: x[:, -1],
    alone=True,
)
_merge(
    "merge-without-first-head",
    "In joining, the first head is left out: the loop starts at 1",
    "d_k numbers are missing in each row.",
    "range(h) starts at 0.",
    lambda x: x[:, 1:].transpose(1, 2).flatten(2),
    alone=True,
)
_merge(
    "merge-without-last-head",
    "In joining, the last head is left out: the loop ends one too early",
    "d_k numbers are missing in each row.",
    "range(h) ends at h - 1.",
    lambda x: x[:, :-1].transpose(1, 2).flatten(2),
    alone=True,
)
_merge(
    "merge-first-head-twice",
    "The first head comes twice",
    "The loop starts with the head that stands there already.",
    "start the loop at 1, or from an empty list.",
    lambda x: torch.cat([x[:, 0], merge(x)], dim=-1),
    alone=True,
)
_merge(
    "merge-overwritten",
    "A head is written one number after the one before: [..., i : i + d_k]",
    "It writes over most of that one, and the end of each row stays 0.",
    "head i starts at i · d_k: [..., i * d_k : (i + 1) * d_k].",
    _filled(lambda i, h, d_k: slice(i, i + d_k)),
)
_merge(
    "merge-only-last-head-filled",
    "Only the last head is there, the places of the others stay 0",
    "The buffer is made anew for each head.",
    "make the buffer before the loop.",
    _filled(_own_place, only=-1),
)
_merge(
    "merge-only-first-head-filled",
    "Only the first head is there, the places of the others stay 0",
    "The return stands inside of the loop.",
    "return behind the loop.",
    _filled(_own_place, only=0),
)
_merge(
    "merge-shape-on-transposed",
    "The reshape is to (L, B, h·d_k)",
    "Batch and tokens have changed their sizes.",
    "reshape to (B, L, h * d_k).",
    lambda x: merge(x).reshape(x.size(2), x.size(0), -1),
    alone=True,
)
_merge(
    "merge-tokens-and-heads-in-one",
    "Tokens and heads share an axis: (B, L·h, d_k)",
    "The transpose is there, and the wrong two axes are joined.",
    "join the last two: flatten(2), or reshape(B, L, h * d_k).",
    lambda x: x.transpose(1, 2).flatten(1, 2),
    alone=True,
)
_merge(
    "merge-numbers-before-tokens",
    "The result is (B, h·d_k, L)",
    "The numbers of a token stand in a column.",
    _SIDE_BY_SIDE,
    lambda x: merge(x).mT,
    alone=True,
)
_merge(
    "merge-all-flat",
    "Everything comes in one axis",
    "flatten() without arguments joins all axes.",
    "flatten(2) after transpose(1, 2).",
    lambda x: merge(x).flatten(),
    alone=True,
)
_merge(
    "merge-flat-without-transpose",
    "Heads, tokens and numbers are joined as they lie: (B, h·L·d_k)",
    "There are no tokens any more.",
    "transpose(1, 2), then flatten(2).",
    lambda x: x.flatten(1),
    alone=True,
)
_merge(
    "merge-multiplied",
    "The heads are multiplied with one another",
    "d_k numbers are left of h·d_k.",
    "concatenate: (B, L, h·d_k).",
    lambda x: x.prod(dim=1),
    alone=True,
)
_merge(
    "merge-first-example",
    "Only the first example comes back: (L, h·d_k)",
    "The axis of the examples is missing.",
    "keep the batch: reshape(B, L, h * d_k).",
    lambda x: merge(x)[0],
    alone=True,
)
_merge(
    "merge-as-float32",
    "The joined heads come back in float32, whatever x is",
    "torch.zeros makes float32 unless it is told the dtype.",
    "x.new_zeros(…), or no buffer at all: transpose and reshape.",
    lambda x: merge(x).float(),
    alone=True,
)
_merge(
    "merge-nothing",
    "x comes back as it was, not joined",
    "transpose and reshape give new tensors, and leave x as it is.",
    _SIDE_BY_SIDE,
    lambda x: x,
    alone=True,
)


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


def _repeated(id: str, title: str, effect: str, hint: str, wrong: Callable[[Tensor, int], Any]) -> None:
    mistake(id, title, effect, hint, stage="repeat")(wrong)


def _on_a_new_axis(axis: int) -> Callable[[Tensor, int], Tensor]:
    """Return a repetition on a new axis at the wrong place, reshaped as if it stood behind the heads."""

    def wrong(x: Tensor, n_rep: int) -> Tensor:
        B, h_kv, L, d_k = x.shape
        copies = torch.stack([x] * n_rep, dim=axis)
        return copies.reshape(B, h_kv * n_rep, L, d_k)

    return wrong


def _copies_at(places: Callable[[int, int], slice]) -> Callable[[Tensor, int], Tensor]:
    """Return a repetition that puts each head at one of its places, and leaves the others 0."""

    def wrong(x: Tensor, n_rep: int) -> Tensor:
        B, h_kv, L, d_k = x.shape
        result = x.new_zeros(B, h_kv * n_rep, L, d_k)
        result[:, places(h_kv, n_rep)] = x
        return result

    return wrong


_GROUPS = "each head's copies stand together, 0, 0, 1, 1: repeat_interleave(n_rep, dim=1)."
for _id, _axis, _where in (
    ("axis-behind-tokens", 3, "behind the tokens"),
    ("axis-last", 4, "behind the numbers"),
    ("axis-in-front", 0, "before the batch"),
):
    _repeated(
        f"repeat-{_id}",
        f"The copies are made on an axis {_where}, and reshaped as if it stood behind the heads",
        "The right shape and no error, but tokens or examples are spread over the heads.",
        "the new axis stands behind the heads: x[:, :, None], which reshape joins with them.",
        _on_a_new_axis(_axis),
    )
for _id, _title, _places in (
    (
        "first-copy-only",
        "Only the first copy of each head is filled, the others stay 0",
        lambda h, n: slice(0, None, n),
    ),
    (
        "last-copy-only",
        "Only the last copy of each head is filled, the others stay 0",
        lambda h, n: slice(n - 1, None, n),
    ),
    ("first-heads-only", "The heads fill the first places, the others stay 0", lambda h, n: slice(0, h)),
):
    _repeated(
        f"repeat-{_id}",
        _title,
        "Query heads that read the empty ones attend evenly, and get nothing.",
        _GROUPS,
        _copies_at(_places),
    )
for _id, _title, _wrong in (
    (
        "h_kv-times",
        "Each head is repeated as often as there are heads of keys",
        lambda x, n_rep: x.repeat_interleave(x.size(1), 1),
    ),
    (
        "h_kv-times-n_rep",
        "Each head is repeated n_rep times the number of heads of keys",
        lambda x, n_rep: x.repeat_interleave(n_rep * x.size(1), 1),
    ),
    (
        "power-of-2",
        "Each head is repeated 2 ** (n_rep - 1) times",
        lambda x, n_rep: x.repeat_interleave(2 ** (n_rep - 1), 1),
    ),
):
    _repeated(
        f"repeat-{_id}",
        _title,
        "Too many or too few heads, unless numbers happen to agree.",
        "n_rep says how often each head is repeated: x.repeat_interleave(n_rep, dim=1).",
        _wrong,
    )
_repeated(
    "repeat-to-a-total",
    "n_rep is taken for the number of query heads, and divided by that of x",
    "There are too few heads, or none at all.",
    "n_rep says how often each head is repeated: repeat_interleave(n_rep, dim=1).",
    lambda x, n_rep: x.repeat_interleave(n_rep // x.size(1), dim=1),
)
_repeated(
    "repeat-to-a-total-at-least-once",
    "n_rep is taken for the number of query heads, and divided by that of x, at least 1",
    "There are too few heads.",
    "n_rep says how often each head is repeated: repeat_interleave(n_rep, dim=1).",
    lambda x, n_rep: x.repeat_interleave(max(1, n_rep // x.size(1)), dim=1),
)
_repeated(
    "repeat-once-too-few",
    "The heads are repeated n_rep - 1 times",
    "One copy of each head is missing.",
    "n_rep counts all copies, the first included.",
    lambda x, n_rep: x.repeat_interleave(n_rep - 1, dim=1),
)
_repeated(
    "repeat-tiled-once-too-often",
    "x is joined to itself n_rep times: n_rep + 1 copies, as 0, 1, 0, 1",
    "There is one copy too many, and the copies of a head do not stand together.",
    _GROUPS,
    lambda x, n_rep: x.repeat(1, n_rep + 1, 1, 1),
)
_repeated(
    "repeat-doubled-each-time",
    "The heads are doubled n_rep times",
    "There are 2 to the power of n_rep copies of each.",
    _GROUPS,
    lambda x, n_rep: x.repeat(1, 2**n_rep, 1, 1),
)
_repeated(
    "repeat-doubled-one-time-less",
    "The heads are doubled n_rep - 1 times",
    "Two copies are right; after that there are too many.",
    _GROUPS,
    lambda x, n_rep: x.repeat(1, 2 ** (n_rep - 1), 1, 1),
)
_repeated(
    "repeat-always-two",
    "The heads are always repeated twice, whatever n_rep is",
    "Right for n_rep=2 only.",
    "use the argument: repeat_interleave(n_rep, dim=1).",
    lambda x, n_rep: x.repeat_interleave(2, dim=1),
)
_repeated(
    "repeat-mean",
    "The heads are averaged, and the mean serves for all",
    "All query heads read the same keys.",
    _GROUPS,
    lambda x, n_rep: x.mean(dim=1, keepdim=True).repeat(1, x.size(1) * n_rep, 1, 1),
)
_repeated(
    "repeat-first-head",
    "The first head serves for all",
    "All query heads read the same keys: that is multi-query attention.",
    _GROUPS,
    lambda x, n_rep: x[:, :1].repeat(1, x.size(1) * n_rep, 1, 1),
)
_repeated(
    "repeat-heads-expanded",
    "The axis of the heads is expanded: right for one head, an error for more",
    "expand repeats axes of size 1 only.",
    "give the copies an axis, x[:, :, None].expand(…), and join the two; or repeat_interleave.",
    lambda x, n_rep: x.expand(x.size(0), x.size(1) * n_rep, *x.shape[2:]),
)
_repeated(
    "repeat-heads-expanded-to-n_rep",
    "The axis of the heads is expanded to n_rep: right for one head only",
    "expand repeats axes of size 1 only; n_rep is the number of copies, not of heads.",
    "give the copies an axis, x[:, :, None].expand(…), and join the two; or repeat_interleave.",
    lambda x, n_rep: x.expand(-1, n_rep, -1, -1),
)
_repeated(
    "repeat-numbers-tiled",
    "The numbers are repeated, each row n_rep times: repeat(1, 1, 1, n_rep)",
    "Each head is as wide as several, and there are no more heads.",
    "the heads are axis 1: repeat_interleave(n_rep, dim=1).",
    lambda x, n_rep: x.repeat(1, 1, 1, n_rep),
)
_repeated(
    "repeat-tokens-tiled",
    "The sequence is repeated as a whole: (B, h_kv, n_rep·L, d_k)",
    "There are n_rep times as many tokens, and no more heads.",
    "the heads are axis 1: repeat_interleave(n_rep, dim=1).",
    lambda x, n_rep: x.repeat(1, 1, n_rep, 1),
)
_repeated(
    "repeat-divided",
    "The copies are divided by n_rep",
    "Keys and values are too small.",
    "copies are copies: repeat_interleave(n_rep, dim=1) and nothing else.",
    lambda x, n_rep: x.repeat_interleave(n_rep, dim=1) / n_rep,
)
_repeated(
    "repeat-reversed",
    "The heads come in reverse order: 1, 1, 0, 0",
    "Query heads read the keys of another group.",
    _GROUPS,
    lambda x, n_rep: x.flip(1).repeat_interleave(n_rep, dim=1),
)
_repeated(
    "repeat-tokens-before-heads",
    "The result is (B, L, h_kv·n_rep, d_k): the transpose back is missing",
    "Heads are looked for on axis 1.",
    "(B, h_kv·n_rep, L, d_k) is wanted.",
    lambda x, n_rep: x.repeat_interleave(n_rep, dim=1).transpose(1, 2),
)
_repeated(
    "repeat-batch-and-heads-in-one",
    "Batch and heads share an axis: (B·h_kv·n_rep, L, d_k)",
    "Queries have four axes and do not meet them.",
    "keep four axes, (B, h_kv·n_rep, L, d_k).",
    lambda x, n_rep: x.repeat_interleave(n_rep, dim=1).flatten(0, 1),
)
_repeated(
    "repeat-in-a-list",
    "The copies come back in a list",
    "A list has no shape, and does not multiply.",
    _GROUPS,
    lambda x, n_rep: [x] * n_rep,
)
_repeated(
    "repeat-not-when-one",
    "Nothing comes back for n_rep=1",
    "The return stands inside of the if.",
    "return x where there is nothing to repeat.",
    lambda x, n_rep: x.repeat_interleave(n_rep, dim=1) if n_rep > 1 else None,
)
for _name in ("axis", "dim"):
    _repeated(
        f"repeat-called-with-{_name}",
        f"repeat is called as numpy's is, with {_name}=1",
        "torch's repeat takes a factor for each axis; what numpy calls repeat is repeat_interleave.",
        "x.repeat_interleave(n_rep, dim=1).",
        lambda x, n_rep, name=_name: x.repeat(n_rep, **{name: 1}),
    )
_repeated(
    "repeat-view-not-contiguous",
    "view after expand",
    "An error: expand copies nothing, and no view can join the copies with the heads.",
    "use .reshape(...), which copies where it must.",
    lambda x, n_rep: (
        x[:, :, None].expand(-1, -1, n_rep, -1, -1).view(x.size(0), x.size(1) * n_rep, *x.shape[2:])
    ),
)


# ---------------------------------------------------------------- one of queries, keys and values

for _role, _what in (("q", "queries"), ("k", "keys"), ("v", "values")):
    mistake(
        f"split-view-only-of-{_what}",
        f"The {_what} alone are viewed as (B, h, L, d_k) at once, without a transpose",
        "Their heads hold pieces of some tokens; the others are split as they should be.",
        "split all three by one function: view(B, L, h, d_k), then transpose(1, 2).",
        stage=f"split_{_role}",
        alone=True,
    )(lambda x, num_heads: x.reshape(x.size(0), num_heads, x.size(1), -1))
    mistake(
        f"split-interleaved-of-{_what}",
        f"The {_what} alone are cut as (d_k, h): their heads take every h-th number",
        "Heads of two kinds meet: what is compared, or mixed, does not belong together.",
        "split all three by one function: view(B, L, h, d_k), then transpose(1, 2).",
        stage=f"split_{_role}",
        alone=True,
    )(lambda x, num_heads: x.unflatten(-1, (-1, num_heads)).permute(0, 3, 1, 2))
