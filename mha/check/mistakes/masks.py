"""What goes wrong when masks are made."""

import torch
from torch import Tensor

from mha.check.catalogue import mistake
from mha.check.exercises.masks import causal, padding

# ---------------------------------------------------------------- causal


def _shifted(Lq: int, Lk: int, by: int) -> Tensor:
    return torch.ones(Lq, Lk, dtype=torch.bool).tril(Lk - Lq + by)


@mistake(
    "causal-excludes-self",
    "A token may not see itself: one diagonal too strict",
    "The first query has nothing to look at.",
    "keep the diagonal.",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    return _shifted(Lq, Lq if Lk is None else Lk, -1)


@mistake(
    "causal-sees-next",
    "A token may see the next one: one diagonal too generous",
    "The answer leaks: training looks perfect, generation is useless.",
    "the diagonal is the last thing that a token may see.",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    return _shifted(Lq, Lq if Lk is None else Lk, 1)


@mistake(
    "causal-forbidden",
    "The mask marks what is forbidden: True means 'ignore' in it",
    "Each token sees the future only.",
    "here True means may attend: return the complement.",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    return ~causal(Lq, Lk)


@mistake(
    "causal-mirrored",
    "The upper triangle with its diagonal: triu in place of tril",
    "Each token sees itself and the future.",
    "rows are queries: keep what lies on and *below* the diagonal, tril.",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    Lk = Lq if Lk is None else Lk
    return torch.ones(Lq, Lk, dtype=torch.bool).triu(Lk - Lq)


@mistake(
    "causal-top-left",
    "For Lq ≠ Lk the mask is aligned top-left",
    "Right for Lq = Lk; behind a cache the new tokens see only the oldest ones.",
    "the queries are the *last* Lq positions: shift the diagonal by Lk - Lq.",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    return torch.ones(Lq, Lq if Lk is None else Lk, dtype=torch.bool).tril()


@mistake(
    "causal-shifted-the-wrong-way",
    "For Lq ≠ Lk the diagonal is shifted by Lq - Lk",
    "Right for Lq = Lk; otherwise most keys are hidden.",
    "shift by Lk - Lq.",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    Lk = Lq if Lk is None else Lk
    return torch.ones(Lq, Lk, dtype=torch.bool).tril(Lq - Lk)


@mistake(
    "causal-additive",
    "An additive mask of 0 and -inf comes back",
    "As a mask where True means may attend, it hides all that may be seen.",
    "return bool: True where a query may attend.",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    allowed = causal(Lq, Lk)
    return torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf"))


@mistake(
    "causal-transposed-shape",
    "The mask is (Lk, Lq): its axes are exchanged",
    "Right shape only for Lq = Lk, and then the future is visible.",
    "queries are the rows: (Lq, Lk).",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    return causal(Lq, Lk).T


@mistake(
    "causal-ignores-lk",
    "Lk is ignored: the mask is always (Lq, Lq)",
    "It does not fit scores of more keys than queries.",
    "the mask has Lk columns.",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    return causal(Lq)


@mistake(
    "causal-all-true",
    "Nothing is masked",
    "Each token sees the future.",
    "False above the diagonal: tril.",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    return torch.ones_like(causal(Lq, Lk))


# ---------------------------------------------------------------- padding


@mistake(
    "padding-inverted",
    "True marks the padding instead of the real tokens",
    "A model with it looks at nothing but padding.",
    "True means may attend: positions < lengths.",
    stage="padding",
)
def _(lengths: Tensor, max_len: int) -> Tensor:
    return ~padding(lengths, max_len)


@mistake(
    "padding-no-axes",
    "The mask is (B, L): the axes of heads and queries are missing",
    "An error, or by accident each example's mask goes to one query.",
    "add them: mask[:, None, None, :].",
    stage="padding",
)
def _(lengths: Tensor, max_len: int) -> Tensor:
    return padding(lengths, max_len)[:, 0, 0]


@mistake(
    "padding-one-axis-short",
    "The mask is (B, 1, L): one axis is missing",
    "It lines the batch up with the heads.",
    "add axes for heads and queries: mask[:, None, None, :].",
    stage="padding",
)
def _(lengths: Tensor, max_len: int) -> Tensor:
    return padding(lengths, max_len)[:, 0]


@mistake(
    "padding-hides-queries",
    "The mask is (B, 1, L, 1): it hides queries instead of keys",
    "Real tokens still look at padding.",
    "the keys are the last axis: mask[:, None, None, :].",
    stage="padding",
)
def _(lengths: Tensor, max_len: int) -> Tensor:
    return padding(lengths, max_len).transpose(-2, -1)


@mistake(
    "padding-one-too-many",
    "One token of padding is taken for real: <= in place of <",
    "Each sequence sees one token too many.",
    "positions are counted from 0: positions < lengths.",
    stage="padding",
)
def _(lengths: Tensor, max_len: int) -> Tensor:
    return padding(lengths + 1, max_len)


@mistake(
    "padding-one-too-few",
    "The last real token is taken for padding",
    "Each sequence loses its last token.",
    "positions are counted from 0: positions < lengths.",
    stage="padding",
)
def _(lengths: Tensor, max_len: int) -> Tensor:
    return padding(lengths - 1, max_len)


@mistake(
    "padding-on-the-left",
    "The padding is taken to stand in front",
    "The last tokens are kept, the first hidden.",
    "the real tokens come first: positions < lengths.",
    stage="padding",
)
def _(lengths: Tensor, max_len: int) -> Tensor:
    return padding(lengths, max_len).flip(-1)


@mistake(
    "padding-additive",
    "An additive mask of 0 and -inf comes back for the padding",
    "As a mask where True means may attend, it hides all real tokens.",
    "return bool: True for a real token.",
    stage="padding",
)
def _(lengths: Tensor, max_len: int) -> Tensor:
    allowed = padding(lengths, max_len)
    return torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf"))


@mistake(
    "padding-square",
    "The mask is (B, 1, L, L): padded queries are hidden too",
    "Rows of padded queries are empty; harmless for attention, but not the shape asked for.",
    "one row serves all queries: (B, 1, 1, Lk).",
    stage="padding",
)
def _(lengths: Tensor, max_len: int) -> Tensor:
    keys = padding(lengths, max_len)
    return keys & keys.transpose(-2, -1)
