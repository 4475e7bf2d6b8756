"""What goes wrong when masks are made."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mha.check.catalogue import mistake
from mha.check.exercises.masks import HIDDEN, causal, causal_give, no_keys_given, padding, padding_rows

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
    stage="causal_sense",
)
def _(mask: Tensor) -> Tensor:
    return ~mask


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
    stage="causal_sense",
)
def _(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))


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


@mistake(
    "causal-forbidden-top-left",
    "The mask marks what is forbidden, triu(diagonal=1), and is aligned top-left",
    "Every query sees the future only; for Lq ≠ Lk the diagonal is in the wrong place, too.",
    "True means may attend: tril(diagonal=Lk - Lq).",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    Lk = Lq if Lk is None else Lk
    return torch.ones(Lq, Lk, dtype=torch.bool).triu(diagonal=1)


@mistake(
    "causal-excludes-self-top-left",
    "tril(diagonal=-1): a token may not see itself, and for Lq ≠ Lk the mask is aligned top-left",
    "The first token sees nothing.",
    "tril(diagonal=Lk - Lq) keeps the diagonal and lets the last query see the last key.",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    Lk = Lq if Lk is None else Lk
    return torch.ones(Lq, Lk, dtype=torch.bool).tril(diagonal=-1)


@mistake(
    "causal-generated",
    "The mask is that of nn.Transformer.generate_square_subsequent_mask(Lq)",
    "It is additive, 0 and -inf, and (Lq, Lq) whatever Lk is.",
    "a bool mask (Lq, Lk) is wanted, True where a query may attend.",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    return torch.full((Lq, Lq), -torch.inf).triu(diagonal=1)


@mistake(
    "causal-square-of-keys",
    "The mask is always (Lk, Lk)",
    "It fits where there are as many queries as keys only.",
    "the queries are its rows: (Lq, Lk), the last Lq rows of it.",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    Lk = Lq if Lk is None else Lk
    return torch.ones(Lk, Lk, dtype=torch.bool).tril()


@mistake(
    "causal-additive-finite",
    "An additive mask of 0 and a large negative number comes back",
    "0 is False: read as a mask, it forbids what it should allow.",
    "return bools, True where a query may attend.",
    stage="causal_sense",
)
def _(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, HIDDEN)


@mistake(
    "causal-itself-only",
    "A token may see itself only: the diagonal alone is True",
    "Nothing before it is seen.",
    "all keys up to the token itself: tril.",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    Lk = Lq if Lk is None else Lk
    return torch.eye(Lq, Lk, dtype=torch.bool)


@mistake(
    "causal-never-shifted-back",
    "For more queries than keys the mask is aligned top-left",
    "The first queries, which lie before all keys, see some.",
    "the shift is Lk - Lq, also where that is negative.",
    stage="causal",
    also={"causal_give": causal_give},  # elsewhere there never are more queries than keys
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    Lk = Lq if Lk is None else Lk
    return torch.ones(Lq, Lk, dtype=torch.bool).tril(diagonal=max(0, Lk - Lq))


@mistake(
    "causal-shift-without-sign",
    "The diagonal is shifted by |Lk - Lq|",
    "Right for Lk ≥ Lq; for more queries than keys the first queries see keys that lie after them.",
    "the shift is Lk - Lq, also where that is negative.",
    stage="causal",
    also={"causal_give": causal_give},
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    return _shifted(Lq, Lk or Lq, 0 if Lk is None or Lk >= Lq else 2 * (Lq - Lk))


@mistake(
    "causal-ones-in-front",
    "Lk - Lq columns of ones are put in front of a square mask",
    "For fewer keys than queries that is a negative number of columns: an error.",
    "compare positions, which may be negative: tril(diagonal=Lk - Lq).",
    stage="causal",
    also={"causal_give": causal_give},
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    return torch.cat([torch.ones(Lq, (Lk or Lq) - Lq, dtype=torch.bool), causal(Lq)], dim=1)


@mistake(
    "causal-last-rows",
    "The last Lq rows of a mask (Lk, Lk) are taken",
    "For more queries than keys there are not as many rows: the mask is (Lk, Lk).",
    "compare positions, which may be negative: tril(diagonal=Lk - Lq) of (Lq, Lk).",
    stage="causal",
    also={"causal_give": causal_give},
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    return causal(Lk or Lq)[-Lq:]


@mistake(
    "causal-no-default",
    "Lk is used although it is None: nothing takes its place where it is not given",
    "causal_mask(Lq) raises.",
    "first of all: if Lk is None: Lk = Lq.",
    stage="causal",
    also={"causal_give": causal_give},
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    if Lk is None:
        raise no_keys_given()
    return causal(Lq, Lk)


def _windows(id: str, title: str, effect: str, hint: str, seen: Callable[[Tensor, Tensor], Tensor]) -> None:
    @mistake(id, title, effect, hint, stage="causal")
    def _(Lq: int, Lk: int | None = None) -> Tensor:
        Lk = Lq if Lk is None else Lk
        positions = torch.arange(Lq)[:, None] + Lk - Lq  # of the queries among the keys
        return causal(Lq, Lk) & seen(positions, torch.arange(Lk)) & torch.ones(Lq, Lk, dtype=torch.bool)


_windows(
    "causal-past-hidden",
    "The keys before the first query are hidden",
    "Right for Lq = Lk; behind a cache the new tokens see one another only.",
    "each query sees all keys up to its own place, from the first on.",
    lambda q, k: k >= q.min(),
)
_windows(
    "causal-window",
    "A query sees no more than the last Lq keys up to its own place",
    "Right for Lq = Lk; behind a cache the oldest keys are lost.",
    "each query sees all keys up to its own place, from the first on.",
    lambda q, k: k > q - len(q),
)
_windows(
    "causal-new-hidden",
    "The keys of the new tokens are hidden, each token's own too",
    "Right nowhere but in the columns before them.",
    "each query sees all keys up to its own place, its own included.",
    lambda q, k: k < q.min(),
)


@mistake(
    "causal-rows-reversed",
    "The rows are in reverse order: the first query sees all keys, the last the fewest",
    "Most tokens see the future.",
    "the first query sees the fewest keys: row i sees keys 0 to i + Lk - Lq.",
    stage="causal",
)
def _(Lq: int, Lk: int | None = None) -> Tensor:
    return causal(Lq, Lk).flip(0)


@mistake(
    "causal-with-axes",
    "The mask is (1, 1, Lq, Lk)",
    "It broadcasts as (Lq, Lk) does, which was asked for.",
    "return (Lq, Lk); axes in front are added by broadcasting.",
    stage="causal_give",
)
def _(mask: Tensor) -> Tensor:
    return mask[None, None]


@mistake(
    "causal-list",
    "The mask comes as a list of lists",
    "PyTorch masks with tensors only.",
    "torch.tensor(rows) makes a tensor of it.",
    stage="causal_give",
)
def _(mask: Tensor) -> list[list[bool]]:
    return mask.tolist()


def _made(id: str, title: str, effect: str, hint: str, make: Callable[[int, int], Tensor]) -> None:
    """Enter a causal mask that is made from the start in another way, from Lq and Lk."""

    @mistake(id, title, effect, hint, stage="causal_give", also={"causal": causal})
    def _(mask: Tensor) -> Tensor:
        return make(*mask.shape)


def _row_by_row(Lq: int, Lk: int) -> Tensor:
    mask = torch.zeros(Lq, Lk, dtype=torch.bool)
    for i in range(Lq):
        mask[i, : i + 1 + Lk - Lq] = True
    return mask


_made(
    "causal-additive-top-left",
    "An additive mask of 0 and -inf comes back, and for Lq ≠ Lk it is aligned top-left",
    "As a mask where True means may attend, it hides all that may be seen.",
    "return bool, True where a query may attend: tril(diagonal=Lk - Lq).",
    lambda Lq, Lk: torch.full((Lq, Lk), -torch.inf).triu(diagonal=1),
)
_made(
    "causal-additive-finite-top-left",
    "An additive mask of 0 and a large negative number comes back, and for Lq ≠ Lk it is aligned top-left",
    "0 is False: read as a mask, it forbids what it should allow.",
    "return bool, True where a query may attend: tril(diagonal=Lk - Lq).",
    lambda Lq, Lk: torch.full((Lq, Lk), HIDDEN).triu(diagonal=1),
)
_made(
    "causal-negative-slice",
    "mask[i, : i + 1 + Lk - Lq] is written to where that is less than 0",
    "A negative end of a slice counts from the other side: the first of many queries see keys.",
    "max(0, …) around it; or tril(diagonal=Lk - Lq), which needs no loop.",
    _row_by_row,
)
_made(
    "causal-shift-one-short",
    "For Lq ≠ Lk the diagonal is shifted by one too little",
    "A new query behind a cache does not see itself.",
    "the shift is Lk - Lq: then the last query sees the last key.",
    lambda Lq, Lk: _shifted(Lq, Lk, -(Lq != Lk)),
)
_made(
    "causal-shift-one-far",
    "For Lq ≠ Lk the diagonal is shifted by one too much",
    "A new query behind a cache sees the one after it.",
    "the shift is Lk - Lq: then the last query sees the last key.",
    lambda Lq, Lk: _shifted(Lq, Lk, Lq != Lk),
)
_made(
    "causal-last-place-only",
    "A token may see itself only: one diagonal is True, which ends bottom-right",
    "Nothing before it is seen.",
    "all keys up to the token itself: tril without triu.",
    lambda Lq, Lk: _shifted(Lq, Lk, 0).triu(Lk - Lq),
)
_made(
    "causal-past-on-the-right",
    "The keys before the first query are added on the right of a square mask",
    "The oldest keys are hidden as if they were new, and the newest are seen by all.",
    "the cache comes first: columns of ones go on the left; or tril(diagonal=Lk - Lq).",
    lambda Lq, Lk: causal(Lq)[:, :Lk] if Lk < Lq else F.pad(causal(Lq), (0, Lk - Lq), value=True),
)
_made(
    "causal-columns-reversed",
    "The columns are in reverse order",
    "The triangle leans to the other side: the first query sees the last keys.",
    "row i sees keys 0 to i + Lk - Lq: tril, no flip.",
    lambda Lq, Lk: causal(Lq, Lk).flip(1),
)
_made(
    "causal-one-axis-more",
    "The mask is (1, Lq, Lk)",
    "It broadcasts as (Lq, Lk) does, which was asked for.",
    "return (Lq, Lk); axes in front are added by broadcasting.",
    lambda Lq, Lk: causal(Lq, Lk)[None],
)


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
    stage="padding_axes",
)
def _(mask: Tensor) -> Tensor:
    return mask


@mistake(
    "padding-one-axis-short",
    "The mask is (B, 1, L): one axis is missing",
    "It lines the batch up with the heads.",
    "add axes for heads and queries: mask[:, None, None, :].",
    stage="padding_axes",
)
def _(mask: Tensor) -> Tensor:
    return mask[:, None]


@mistake(
    "padding-hides-queries",
    "The mask is (B, 1, L, 1): it hides queries instead of keys",
    "Real tokens still look at padding.",
    "the keys are the last axis: mask[:, None, None, :].",
    stage="padding_axes",
)
def _(mask: Tensor) -> Tensor:
    return mask[:, None, :, None]


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
    stage="padding_axes",
)
def _(mask: Tensor) -> Tensor:
    return mask[:, None, None] & mask[:, None, :, None]


@mistake(
    "padding-axes-behind",
    "The mask is (B, L, 1, 1): the axes are added at the end",
    "Scores are (B, h, Lq, Lk): the tokens would be taken for heads.",
    "keys are the last axis: mask[:, None, None, :].",
    stage="padding_axes",
)
def _(mask: Tensor) -> Tensor:
    return mask[:, :, None, None]


@mistake(
    "padding-axes-in-front",
    "The mask is (1, 1, B, L): the axes are added in front",
    "Examples are taken for queries: each hides the keys of others.",
    "the batch stays in front: mask[:, None, None, :].",
    stage="padding_axes",
)
def _(mask: Tensor) -> Tensor:
    return mask[None, None]


@mistake(
    "padding-expanded",
    "The mask is spread out to (B, 1, L, L), the same row for each query",
    "It fits where there are as many queries as keys only.",
    "leave 1 for the queries: broadcasting does the rest.",
    stage="padding_give",
)
def _(mask: Tensor, lengths: Tensor, max_len: int) -> Tensor:
    return mask.expand(-1, 1, max_len, -1)


@mistake(
    "padding-first-length",
    "The first length is used for all examples",
    "All masks are alike.",
    "compare with lengths[:, None]: a row for each example.",
    stage="padding_rows",
)
def _(mask: Tensor, lengths: Tensor, max_len: int) -> Tensor:
    return mask[:1].expand_as(mask)


@mistake(
    "padding-to-the-longest",
    "The mask is as long as the longest example, not max_len",
    "It does not fit keys that are padded further.",
    "torch.arange(max_len): the length is given.",
    stage="padding_rows",
)
def _(mask: Tensor, lengths: Tensor, max_len: int) -> Tensor:
    return mask[..., : int(lengths.max())]


@mistake(
    "padding-all-true",
    "No padding is masked",
    "The padding is seen.",
    "True up to each length: torch.arange(max_len) < lengths[:, None].",
    stage="padding_rows",
    also={"padding": padding},
)
def _(mask: Tensor, lengths: Tensor, max_len: int) -> Tensor:
    return torch.ones_like(mask)


@mistake(
    "padding-at-least-one",
    "An example of length 0 shows its first token",
    "That token is padding.",
    "use the lengths as they are: a row may be False throughout.",
    stage="padding_rows",
)
def _(mask: Tensor, lengths: Tensor, max_len: int) -> Tensor:
    return mask | ((lengths == 0)[:, None] & (torch.arange(max_len) == 0))


@mistake(
    "padding-first-behind",
    "Only the first token behind each example is True: == in place of <",
    "Neither the tokens nor the rest of the padding are marked.",
    "all tokens before the length: torch.arange(max_len) < lengths[:, None].",
    stage="padding_rows",
    also={"padding": padding},
)
def _(mask: Tensor, lengths: Tensor, max_len: int) -> Tensor:
    return torch.arange(max_len) == lengths[:, None]


@mistake(
    "padding-one-row",
    "The mask is (L,): the axis of the examples is missing",
    "One row cannot hold a length for each example.",
    "compare (L,) with (B, 1), then add the axes of heads and queries.",
    stage="padding_give",
)
def _(mask: Tensor, lengths: Tensor, max_len: int) -> Tensor:
    return mask[0, 0, 0]


@mistake(
    "padding-additive-finite",
    "An additive mask of 0 and a large negative number comes back for the padding",
    "0 is False: read as a mask, it hides the real tokens.",
    "return bools, True for a real token.",
    stage="padding_give",
)
def _(mask: Tensor, lengths: Tensor, max_len: int) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, HIDDEN)


def _only_first(lengths: Tensor, rest: int) -> Tensor:
    return torch.cat([lengths[:1], torch.full_like(lengths[1:], rest)])


def _hidden_by_index(lengths: Tensor, max_len: int) -> Tensor:
    mask = torch.ones(len(lengths), max_len, dtype=torch.bool)
    for row, length in zip(mask, lengths.tolist()):
        row[length] = False
    return mask


def _padded(id: str, title: str, effect: str, hint: str, made: Callable[[Tensor, int], Tensor]) -> None:
    """Enter other rows (B, L) than those that are True for real tokens."""

    @mistake(id, title, effect, hint, stage="padding_rows", also={"padding": padding})
    def _(mask: Tensor, lengths: Tensor, max_len: int) -> Tensor:
        return made(lengths, max_len)


def _not_a_column(id: str, how: str, shape: Callable[[Tensor], Tensor], usual: bool = False) -> None:
    """Enter one way to go on from positions < lengths, each of which fails in another way.

    Args:
        usual: to be looked for wherever padding is masked, not only where nothing but its mask is made.
    """
    only_here = {} if usual else {"padding_rows": padding_rows}

    @mistake(
        f"padding-lengths-not-a-column{id}",
        f"lengths, (B,), meets the positions, (L,), without an axis of its own{how}",
        "Each length is compared with one position: an error, or a mask without examples.",
        "make lengths a column: positions < lengths[:, None] is (B, L).",
        stage="padding",
        also={"padding_axes": shape, **only_here},
    )
    def _(lengths: Tensor, max_len: int) -> Tensor:
        return torch.arange(max_len) < lengths


_not_a_column("", "", lambda mask: mask[:, None, None, :], usual=True)
_not_a_column("-in-front", "; axes are added in front", lambda mask: mask[None, None, None], usual=True)
_not_a_column("-left", ", and none is added", lambda mask: mask)
_not_a_column("-viewed", "; it is viewed as (B, 1, 1, L)", lambda mask: mask.view(-1, 1, 1, mask.size(0)))
_not_a_column("-unsqueezed", "; axes are added by unsqueeze", lambda mask: mask.unsqueeze(1).unsqueeze(1))
mistake(
    "padding-lengths-not-a-column-viewed-in-full",
    "lengths, (B,), meets the positions, (L,), without an axis of its own; view makes it (B, 1, 1, L)",
    "Each length is compared with one position: there are too few numbers for B rows, an error.",
    "make lengths a column: positions < lengths[:, None] is (B, L).",
    stage="padding",
    also={
        "padding_axes": lambda mask: mask,
        "padding_give": lambda mask, lengths, max_len: mask.view(len(lengths), 1, 1, max_len),
    },
)(lambda lengths, max_len: torch.arange(max_len) < lengths)
_padded(
    "padding-full-hidden",
    "An example without padding is hidden altogether: its slice [-0:] is everything",
    "-n counts from the end, but -0 is 0.",
    "count from the front: mask[i, ..., lengths[i]:] = False.",
    lambda lengths, max_len: padding(lengths * (lengths < max_len), max_len),
)
_padded(
    "padding-one-hidden",
    "Only the first token behind each example is hidden: != in place of <",
    "The rest of the padding is seen.",
    "all tokens before the length: torch.arange(max_len) < lengths[:, None].",
    lambda lengths, max_len: ~padding(lengths + 1, max_len) | padding(lengths, max_len),
)
_padded(
    "padding-last-hidden",
    "Only the last token of each example is hidden",
    "It is a real one, and all of the padding is seen.",
    "all tokens before the length: torch.arange(max_len) < lengths[:, None].",
    lambda lengths, max_len: torch.arange(max_len) != lengths[:, None] - 1,
)
_padded(
    "padding-last-only",
    "Only the last token of each example is True",
    "Neither the tokens before it nor the padding are marked.",
    "all tokens before the length: torch.arange(max_len) < lengths[:, None].",
    lambda lengths, max_len: torch.arange(max_len) == lengths[:, None] - 1,
)
_padded(
    "padding-as-wide-as-batch",
    "The mask has as many columns as there are examples",
    "len(lengths) is B, not the number of tokens.",
    "torch.arange(max_len): the length is given.",
    lambda lengths, max_len: padding(lengths, len(lengths)),
)


@mistake(
    "padding-examples-as-heads",
    "The mask is (1, B, 1, L): the examples stand where the heads belong",
    "Scores are (B, h, Lq, Lk): an error, or each head gets the mask of an example.",
    "the batch stays in front: mask[:, None, None, :].",
    stage="padding_axes",
)
def _(mask: Tensor) -> Any:
    return mask[None, :, None]


@mistake(
    "padding-transposed",
    "Positions and examples are exchanged: the mask is (L, 1, 1, B)",
    "The tokens are taken for examples.",
    "one row for each example: torch.arange(max_len) < lengths[:, None] is (B, L).",
    stage="padding_axes",
)
def _(mask: Tensor) -> Any:
    return mask.mT[:, None, None]


_padded(
    "padding-to-zero",
    "An example counts as real throughout if its length is not 0",
    "The padding is seen; lengths are taken for token ids.",
    "lengths says how many tokens are real: torch.arange(max_len) < lengths[:, None].",
    lambda lengths, max_len: (lengths != 0)[:, None].expand(-1, max_len),
)
_padded(
    "padding-longest-length",
    "The longest length is used for all examples of padding_mask",
    "Shorter examples show their padding.",
    "compare with lengths[:, None]: a row for each example.",
    lambda lengths, max_len: padding(lengths.max().expand_as(lengths), max_len),
)
_padded(
    "padding-shortest-length",
    "The shortest length is used for all examples: each hides its padding in all of them",
    "Longer examples lose their end.",
    "write to one row at a time, mask[i]; or compare with lengths[:, None].",
    lambda lengths, max_len: padding(lengths.min().expand_as(lengths), max_len),
)
_padded(
    "padding-last-length",
    "The last length is used for all examples: a loop writes over what it made before",
    "All masks are alike.",
    "write to one row at a time, mask[i]; or compare with lengths[:, None].",
    lambda lengths, max_len: padding(lengths[-1].expand_as(lengths), max_len),
)
_padded(
    "padding-last-row",
    "One mask, (1, 1, 1, L), comes back for all examples: that of the last",
    "The others see padding, or not all of their tokens.",
    "one row for each example: compare with lengths[:, None].",
    lambda lengths, max_len: padding(lengths[-1:], max_len),
)
_padded(
    "padding-first-row",
    "One mask, (1, 1, 1, L), comes back for all examples: that of the first",
    "The others see padding, or not all of their tokens.",
    "one row for each example: compare with lengths[:, None].",
    lambda lengths, max_len: padding(lengths[:1], max_len),
)
_padded(
    "padding-first-example-only",
    "The padding of the first example is hidden, that of the others is not",
    "A loop ends after one example, or 0 stands where i is meant.",
    "do it for each example; or compare with lengths[:, None], which needs no loop.",
    lambda lengths, max_len: padding(_only_first(lengths, max_len), max_len),
)
_padded(
    "padding-returned-early",
    "The first example has its mask, the others are hidden altogether",
    "The return stands in the loop: it ends after one example.",
    "return behind the loop.",
    lambda lengths, max_len: padding(_only_first(lengths, 0), max_len),
)
_padded(
    "padding-one-column-more",
    "The mask has max_len + 1 columns",
    "It does not fit the keys.",
    "torch.arange(max_len) counts 0 to max_len - 1.",
    lambda lengths, max_len: padding(lengths, max_len + 1),
)
_padded(
    "padding-one-column-less",
    "The mask has max_len - 1 columns",
    "It does not fit the keys.",
    "torch.arange(max_len) counts 0 to max_len - 1.",
    lambda lengths, max_len: padding(lengths, max_len - 1),
)
_padded(
    "padding-viewed-from-transposed",
    "A mask (L, B) is viewed as (B, 1, 1, L), without a transpose",
    "The right shape, and the numbers of several examples in each row.",
    "compare positions with lengths[:, None], so that the examples come first.",
    lambda lengths, max_len: (torch.arange(max_len)[:, None] < lengths).view(-1, max_len),
)
_padded(
    "padding-one-hidden-by-index",
    "Only the token at position length is hidden: mask[i, length] = False",
    "The rest of the padding is seen; without padding there is no such token, an error.",
    "hide all from there on: mask[i, length:] = False.",
    _hidden_by_index,
)


@mistake(
    "padding-list",
    "The mask of padding comes as a list of lists",
    "PyTorch masks with tensors only.",
    "torch.tensor(rows) makes a tensor of it.",
    stage="padding_axes",
)
def _(mask: Tensor) -> Any:
    return mask[:, None, None].tolist()


# ---------------------------------------------------------------- two slips in one line

# Each makes its mask from the start, so it cannot meet another that makes one: hence the `also`.


@mistake(
    "causal-mirrored-top-left",
    "triu() in place of tril(), and for Lq ≠ Lk the mask is aligned top-left",
    "Each token sees itself and the future.",
    "rows are queries: keep what lies on and below the diagonal, tril(diagonal=Lk - Lq).",
    stage="causal_give",
    also={"causal": causal},
)
def _(mask: Tensor) -> Tensor:
    return torch.ones_like(mask).triu()


@mistake(
    "causal-sees-next-top-left",
    "tril(diagonal=1): a token may see the next one, and for Lq ≠ Lk the mask is aligned top-left",
    "The answer leaks: training looks perfect, generation is useless.",
    "the last query sees the last key and nothing beyond: tril(diagonal=Lk - Lq).",
    stage="causal_give",
    also={"causal": causal},
)
def _(mask: Tensor) -> Tensor:
    return torch.ones_like(mask).tril(diagonal=1)


@mistake(
    "padding-inverted-strict",
    "True marks the padding, but not its first token: > in place of <",
    "A model with it looks at nothing but padding.",
    "True means may attend: positions < lengths.",
    stage="padding_rows",
    also={"padding": padding},
)
def _(mask: Tensor, lengths: Tensor, max_len: int) -> Tensor:
    return ~padding(lengths + 1, max_len)
