"""What goes wrong when keys and values are kept, and when new tokens attend to them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mha import KVCache
from mha.check.catalogue import Stage, mistake
from mha.check.exercises.cache import (
    CACHE,
    Kept,
    cached_positions,
    missing,
    other_arguments,
    turn_keys,
    turn_queries,
)

Join = Callable[[Tensor | None, Tensor], Tensor]


def _raising(error: Exception) -> Stage:
    def stage(*_: Any) -> Any:
        raise error

    return stage


# ---------------------------------------------------------------- the class, and whose the tokens are


def _unusable(id: str, title: str, effect: str, hint: str, stage: str, error: Exception) -> None:
    """Enter what raises before anything else of a class can be seen, so that no second mistake can."""
    others = {name: right for name, right in CACHE.items() if name != stage}
    mistake(id, title, effect, hint, stage=stage, also=others)(_raising(error))


_unusable(
    "cache-append-takes-other-arguments",
    "append asks for other arguments than keys and values",
    "It raises a TypeError in the first step.",
    "def append(self, k, v): whatever else is needed, k and v tell.",
    "cache_take",
    other_arguments("append(k, v)"),
)
_unusable(
    "cache-class-takes-arguments",
    "The class asks for arguments, and is made with none: KVCache()",
    "It raises a TypeError before there is a cache.",
    "give each argument of __init__ a default, or make buffers when the first k and v come.",
    "cache_new",
    other_arguments("KVCache()"),
)
_unusable(
    "cache-has-no-append",
    "The class has no method append",
    "It raises an AttributeError in the first step; in transformers the method is called update.",
    "def append(self, k, v), which returns all keys and all values.",
    "cache_take",
    missing("append"),
)
mistake(
    "cache-has-no-len",
    "The class has no method __len__, which len(cache) calls",
    "A method or an attribute called len, length or size does not do: len(cache) raises a TypeError.",
    "def __len__(self), with two underscores on each side.",
    stage="cache_length",
)(_raising(missing("__len__")))
mistake(
    "cache-has-no-reset",
    "The class has no method reset",
    "It raises an AttributeError when a new sequence begins.",
    "def reset(self), which forgets keys and values.",
    stage="cache_reset",
)(_raising(missing("reset")))
mistake(
    "cache-shared-by-all",
    "All caches share one store: a list of the class, or one that is a default argument",
    "A second cache starts with the tokens of the first, and each grows with what the other is given.",
    "make the lists in __init__: self.keys = [].",
    stage="cache_new",
)(lambda shared: shared)


@mistake(
    "cache-shared-and-emptied",
    "All caches share one store, which each new cache empties",
    "Making a second cache makes the first forget, and each grows with what the other is given.",
    "make the lists in __init__: self.keys = [], not in the class.",
    stage="cache_new",
)
def _(shared: Kept) -> Kept:
    shared.k = shared.v = None
    shared.steps = shared.tokens = 0
    return shared


# ---------------------------------------------------------------- what is taken for what


def _taken(id: str, title: str, effect: str, hint: str, take: Callable[..., Any]) -> None:
    mistake(id, title, effect, hint, stage="cache_take")(take)


_taken(
    "cache-values-take-keys",
    "The new keys are joined to the old values too",
    "Right in the first step; later values are keys, or an error says that sizes do not match.",
    "join the values with v: torch.cat([self.v, v], dim=2).",
    lambda c, k, v: (k, v if c.k is None else k),
)
_taken(
    "cache-keys-take-values",
    "The new values are joined to the old keys too",
    "Right in the first step; later keys are values, or an error says that sizes do not match.",
    "join the keys with k: torch.cat([self.k, k], dim=2).",
    lambda c, k, v: (k if c.k is None else v, v),
)
_taken(
    "cache-later-keys-and-values-exchanged",
    "After the first step, new keys go to the values and new values to the keys",
    "Right in the first step; later keys are values and the other way round.",
    "join k to the keys and v to the values.",
    lambda c, k, v: (k, v) if c.k is None else (v, k),
)


@mistake(
    "cache-values-join-keys",
    "The new values are joined to the old keys, not to the old values",
    "Right in the first step; then the old values are keys, or an error says that sizes do not match.",
    "torch.cat([self.v, v], dim=2).",
    stage="cache_take",
    also={"cache_values": lambda kept, new: new},
)
def _(c: Kept, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return k, v if c.k is None else torch.cat([c.k, v], dim=2)


def _written_over(c: Kept, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    if c.k is not None and c.v is not None:
        c.k, c.v = c.k[:, :, : c.steps], c.v[:, :, : c.steps]
    return k, v


mistake(
    "cache-place-advances-by-1",
    "The place to write to advances by 1 in each step, whatever the number of its tokens",
    "Right for one token at a time; else a step writes over the end of the one before.",
    "self.pos += k.size(2).",
    stage="cache_take",
    also={"cache_length": lambda c: c.steps},
)(_written_over)

# ---------------------------------------------------------------- what is kept


def _kept(id: str, title: str, effect: str, hint: str, join: Join) -> None:
    """Enter a way to keep both keys and values wrongly."""
    mistake(id, title, effect, hint, stage="cache_keys", also={"cache_values": join})(join)


def _along(dim: int) -> Join:
    return lambda kept, new: new if kept is None else torch.cat([kept, new], dim=dim)


def _into_one_place(new: Tensor) -> Tensor:
    place = torch.zeros_like(new[:, :, :1])
    place[:] = new
    return place


_kept(
    "cache-grows-in-heads",
    "The cache grows along dim 1, the heads",
    "The number of heads grows and the length does not; with one head the error comes later.",
    "in (B, h, L, d_k) the tokens are dim 2 (or -2).",
    _along(1),
)
_kept(
    "cache-grows-in-batch",
    "The cache grows along dim 0, the batch",
    "The number of examples grows and the length does not.",
    "in (B, h, L, d_k) the tokens are dim 2 (or -2).",
    _along(0),
)
_kept(
    "cache-grows-in-numbers",
    "The cache grows along dim -1, the numbers of a token",
    "Keys get longer, and there are not more of them.",
    "in (B, h, L, d_k) the tokens are dim 2 (or -2).",
    _along(-1),
)
_kept(
    "cache-appended-twice",
    "Every step is appended twice",
    "The cache is twice as long as the text.",
    "update the cache in one place only.",
    lambda kept, new: torch.cat([new, new] if kept is None else [kept, new, new], dim=2),
)
_kept(
    "cache-later-steps-twice",
    "Every step but the first is appended twice",
    "The cache is longer than the text from the second step on.",
    "update the cache in one place only.",
    lambda kept, new: new if kept is None else torch.cat([kept, new, new], dim=2),
)
_kept(
    "cache-first-step-twice",
    "The first step is appended twice",
    "The first keys count double: they are set, and then appended as well.",
    "append with else, or return after the first step.",
    lambda kept, new: torch.cat([new if kept is None else kept, new], dim=2),
)
_kept(
    "cache-appended-in-front",
    "New tokens are put in front of the old ones",
    "Order is lost: a causal mask hides the old tokens instead of the later ones.",
    "torch.cat([kept, new], dim=2): the new ones behind.",
    lambda kept, new: new if kept is None else torch.cat([new, kept], dim=2),
)
_kept(
    "cache-overwritten",
    "Each step replaces what was kept",
    "A token sees only the tokens of its own step.",
    "torch.cat([kept, new], dim=2).",
    lambda kept, new: new,
)
_kept(
    "cache-never-updated",
    "Only the first step is kept",
    "Later tokens see the beginning, and not even themselves.",
    "assign what torch.cat returns: it changes nothing in place.",
    lambda kept, new: new if kept is None else kept,
)
_kept(
    "cache-stacked",
    "The steps are stacked along a new axis",
    "A fifth axis appears in the second step.",
    "torch.cat joins along an axis that is there: torch.cat([kept, new], dim=2).",
    lambda kept, new: new if kept is None else torch.stack([kept, new], dim=2),
)
_kept(
    "cache-last-token-of-step",
    "Only the last token of each step is kept",
    "Right for one token at a time; of a prompt only the end is left.",
    "append all tokens of the step.",
    lambda kept, new: new[:, :, -1:] if kept is None else torch.cat([kept, new[:, :, -1:]], dim=2),
)
_kept(
    "cache-last-token-of-later-steps",
    "After the first step, only the last token of each is kept",
    "Right for a prompt followed by one token at a time; of a longer step the beginning is lost.",
    "append all tokens of the step.",
    lambda kept, new: new if kept is None else torch.cat([kept, new[:, :, -1:]], dim=2),
)
_kept(
    "cache-first-token-of-step",
    "Only the first token of each step is kept",
    "Right for one token at a time; of a prompt only the beginning is left.",
    "append all tokens of the step.",
    lambda kept, new: new[:, :, :1] if kept is None else torch.cat([kept, new[:, :, :1]], dim=2),
)
_kept(
    "cache-room-for-one-token",
    "Each step is written into the place of one token",
    "Right for one token at a time; several tokens do not fit, and an error says so.",
    "write to [pos : pos + k.size(2)], and advance by as many.",
    lambda kept, new: torch.cat(([] if kept is None else [kept]) + [_into_one_place(new)], dim=2),
)
_kept(
    "cache-float32",
    "Keys and values are kept as float32, whatever they come as",
    "Other dtypes come back as float32, and do not go together with the queries.",
    "make buffers with dtype=k.dtype and device=k.device, or with k.new_zeros(…).",
    lambda kept, new: new.float() if kept is None else torch.cat([kept, new.float()], dim=2),
)
_kept(
    "cache-half-precision",
    "Keys and values are kept in half precision, whatever they come as",
    "They come back rounded and as float16, and do not go together with the queries.",
    "keep the dtype of k and v.",
    lambda kept, new: new.half() if kept is None else torch.cat([kept, new.half()], dim=2),
)
_kept(
    "cache-reversed",
    "All tokens are turned round in every step",
    "Old tokens change their order again and again.",
    "torch.cat([kept, new], dim=2), without flip.",
    lambda kept, new: (new if kept is None else torch.cat([kept, new], dim=2)).flip(2),
)
_kept(
    "cache-added",
    "New keys and values are added to the old ones as numbers",
    "An error where lengths differ, else one token in the place of two.",
    "torch.cat([kept, new], dim=2) lays them one behind the other.",
    lambda kept, new: new if kept is None else kept + new,
)


def _one_of_two(id: str, title: str, effect: str, hint: str, stage: str, join: Join) -> None:
    mistake(id, title, effect, hint, stage=stage)(join)


for _what, _other in (("keys", "values"), ("values", "keys")):
    _one_of_two(
        f"cache-only-{_what}-grow",
        f"Only the {_what} are appended; the {_other} are those of the last step",
        "Keys and values differ in length from the second step on.",
        f"append the {_other} too.",
        f"cache_{_other}",
        lambda kept, new: new,
    )
    _one_of_two(
        f"cache-{_other}-of-first-step",
        f"The {_other} stay those of the first step",
        "Keys and values differ in length from the second step on.",
        f"append the {_other} too.",
        f"cache_{_other}",
        lambda kept, new: new if kept is None else kept,
    )
    _one_of_two(
        f"cache-{_other}-in-front",
        f"New {_other} are put in front of the old ones",
        "Each key belongs to the value of another token.",
        "torch.cat([kept, new], dim=2), for both alike.",
        f"cache_{_other}",
        lambda kept, new: new if kept is None else torch.cat([new, kept], dim=2),
    )
    _one_of_two(
        f"cache-{_other}-appended-twice",
        f"The {_other} are appended twice",
        "There are twice as many as there are tokens.",
        "update the cache in one place only.",
        f"cache_{_other}",
        lambda kept, new: torch.cat([new, new] if kept is None else [kept, new, new], dim=2),
    )


# ---------------------------------------------------------------- what append returns


def _without_last(x: Tensor, count: int) -> Tensor:
    return x[:, :, : x.size(2) - count]


def _in_one_buffer(c: Kept, room: int) -> tuple[Tensor, Tensor]:
    """Return keys and values as parts of one buffer each: what was returned before changes with them."""
    if room and c.steps == 1:
        c.given.clear()  # the first step makes a new buffer
    now = _with_room(c.k, room), _with_room(c.v, room)
    for before in c.given:
        for old, new in zip(before, now, strict=True):
            both = min(old.size(2), new.size(2))
            old[:, :, :both] = new[:, :, :both]
    c.given.append(now)
    return now


def _with_room(x: Tensor, room: int) -> Tensor:
    return torch.cat([x, x.new_zeros(x.size(0), x.size(1), room, x.size(3))], dim=2)


def _given(id: str, title: str, effect: str, hint: str, give: Callable[..., Any]) -> None:
    mistake(id, title, effect, hint, stage="cache_give")(give)


_given(
    "cache-returns-new-only",
    "append returns the new keys and values only",
    "The cache is right, but the new tokens do not see the old ones.",
    "return all that is kept.",
    lambda c, k, v: (k, v),
)
_given(
    "cache-returns-values-first",
    "append returns the values first and the keys second",
    "Whoever unpacks them takes one for the other.",
    "return keys, values.",
    lambda c, k, v: (c.v, c.k),
)
_given(
    "cache-returns-nothing",
    "append returns nothing",
    "The caller gets None in place of keys and values.",
    "return all keys and all values.",
    lambda c, k, v: None,
)
_given(
    "cache-returns-keys-only",
    "append returns the keys only",
    "The values are missing.",
    "return all keys and all values.",
    lambda c, k, v: c.k,
)
_given(
    "cache-returns-keys-twice",
    "append returns the keys in place of the values too",
    "The output is a mix of keys.",
    "return all keys and all values.",
    lambda c, k, v: (c.k, c.k),
)
_given(
    "cache-returns-length",
    "append returns how long the cache is",
    "The caller gets a number in place of keys and values.",
    "return all keys and all values.",
    lambda c, k, v: c.k.size(2),
)
_given(
    "cache-returns-last-token",
    "append returns the last token's keys and values only",
    "The new tokens do not see the old ones.",
    "return all that is kept.",
    lambda c, k, v: (c.k[:, :, -1:], c.v[:, :, -1:]),
)
_given(
    "cache-returns-whole-buffer",
    "append returns the whole buffer, with the room behind the last token",
    "Queries attend to keys of zeros that stand for no token, and the causal mask does not fit.",
    "return what is filled: self.k[:, :, : self.pos].",
    lambda c, k, v: _in_one_buffer(c, room=1),
)
_given(
    "cache-returns-nothing-at-first",
    "The first append returns nothing",
    "The return stands in the branch of the later steps only: the caller cannot unpack None.",
    "return all keys and all values in every step: behind the if and its else.",
    lambda c, k, v: None if c.steps == 1 else (c.k, c.v),
)
_given(
    "cache-returns-nothing-later",
    "Only the first append returns something",
    "The return stands in the branch of the first step only: from the second on the caller gets None.",
    "return all keys and all values in every step: behind the if and its else.",
    lambda c, k, v: (c.k, c.v) if c.steps == 1 else None,
)
_given(
    "cache-returns-what-was-before",
    "append returns what was kept before the new tokens were added",
    "The new tokens see the old ones and not themselves.",
    "join first, and return all that is kept then.",
    lambda c, k, v: (k, v) if c.steps == 1 else tuple(_without_last(x, k.size(2)) for x in (c.k, c.v)),
)
_given(
    "cache-returns-nothing-of-the-first",
    "append returns what was kept before, None at first",
    "The new tokens see the old ones and not themselves; in the first step there is nothing.",
    "join first, and return all that is kept then.",
    lambda c, k, v: (None, None) if c.steps == 1 else tuple(_without_last(x, k.size(2)) for x in (c.k, c.v)),
)
_given(
    "cache-returns-tokens-before-heads",
    "append returns keys and values as (B, L, h, d_k)",
    "Heads and tokens are exchanged: scores are those of one head with another.",
    "keep and return (B, h, L, d_k), as they come.",
    lambda c, k, v: (c.k.transpose(1, 2), c.v.transpose(1, 2)),
)
_given(
    "cache-returns-keys-transposed",
    "append returns the keys transposed, (B, h, d_k, L)",
    "Whoever transposes them for the scores undoes it.",
    "return keys (B, h, L, d_k); transpose where the scores are made.",
    lambda c, k, v: (c.k.transpose(-2, -1), c.v),
)
_given(
    "cache-returns-length-too",
    "append returns the length beside keys and values",
    "Three things come back where two are unpacked.",
    "return keys and values; len(cache) tells the length.",
    lambda c, k, v: (c.k, c.v, c.k.size(2)),
)
_given(
    "cache-returns-one-tensor",
    "append returns keys and values stacked in one tensor",
    "Right to unpack, but only where d_v = d_k.",
    "return the pair: return self.k, self.v.",
    lambda c, k, v: torch.stack([c.k, c.v]),
)


# ---------------------------------------------------------------- length and reset


def _length(id: str, title: str, effect: str, hint: str, length: Callable[..., int]) -> None:
    mistake(id, title, effect, hint, stage="cache_length")(length)


for _dim, _name in ((0, "examples"), (1, "heads"), (3, "numbers of a key")):
    _length(
        f"cache-length-of-{_name.split()[0]}",
        f"len() counts the {_name}",
        "New tokens are put at a wrong position, the same in every step.",
        "in (B, h, L, d_k) the tokens are dim 2: k.size(2).",
        lambda c, dim=_dim: 0 if c.k is None else c.k.size(dim),
    )
_length(
    "cache-length-of-steps",
    "len() counts the steps, not the tokens",
    "Right for one token at a time; after a prompt, positions are too small.",
    "count tokens: k.size(2).",
    lambda c: c.steps,
)
_length(
    "cache-length-of-python",
    "len() is that of the tensor, len(k), its first axis, also of an empty cache 0",
    "It counts examples; for one example it is always 1.",
    "len(tensor) is size(0); tokens are k.size(2).",
    lambda c: 0 if c.k is None else len(c.k),
)
_length(
    "cache-length-both",
    "len() counts keys and values together",
    "It is twice the number of tokens.",
    "each token has one key and one value: k.size(2).",
    lambda c: 0 if c.k is None else c.k.size(2) + c.v.size(2),
)
_length(
    "cache-length-one-less",
    "len() is one less than the number of tokens",
    "That is the position of the last token, not of the next.",
    "k.size(2), without - 1.",
    lambda c: 0 if c.k is None else c.k.size(2) - 1,
)
_length(
    "cache-length-of-empty",
    "len() of an empty cache asks None for its size",
    "An error before the first step, when the first position is asked for.",
    "return 0 if nothing is kept.",
    lambda c: c.k.size(2),
)
_length(
    "cache-length-of-all-numbers",
    "len() counts all numbers of all keys",
    "New tokens are put at positions far too large.",
    "count tokens: k.size(2).",
    lambda c: 0 if c.k is None else c.k.numel(),
)
_length(
    "cache-length-returns-nothing",
    "__len__ returns nothing",
    "len(cache) raises a TypeError: None cannot be interpreted as an integer.",
    "return the number of tokens, 0 if there is none.",
    lambda c: None,
)
_length(
    "cache-length-of-empty-is-none",
    "__len__ of an empty cache returns nothing",
    "len(cache) raises a TypeError before the first step, when the first position is asked for.",
    "return 0 if nothing is kept.",
    lambda c: None if c.k is None else c.k.size(2),
)
_length(
    "cache-length-is-shape",
    "__len__ returns the shape, not one number of it",
    "len(cache) raises a TypeError: it has to be an integer.",
    "k.size(2).",
    lambda c: 0 if c.k is None else c.k.shape,
)
_length(
    "cache-length-one-more",
    "len() is one more than the number of tokens",
    "New tokens leave a gap behind the old ones.",
    "k.size(2), without + 1.",
    lambda c: 0 if c.k is None else c.k.size(2) + 1,
)
_length(
    "cache-length-of-empty-is-one",
    "len() counts from 1: an empty cache has length 1",
    "The first token gets position 1, and each later one is one too far too.",
    "start the counter with 0.",
    lambda c: 1 + (0 if c.k is None else c.k.size(2)),
)
_length(
    "cache-length-of-last-step",
    "len() is the number of tokens of the last step",
    "Right in the first step; later the counter is set where it should be increased.",
    "self.length += k.size(2), or k.size(2) of all keys.",
    lambda c: c.last,
)
_length(
    "cache-length-never-reset",
    "len() goes on counting after a reset",
    "A new sequence starts at the position at which the old one ended.",
    "set the counter to 0 in reset, or ask the keys: k.size(2).",
    lambda c: c.ever,
)
_length(
    "cache-length-of-batch-and-tokens",
    "len() counts the tokens of all examples together",
    "It is B times too large.",
    "all examples have the same positions: k.size(2).",
    lambda c: 0 if c.k is None else c.k.size(0) * c.k.size(2),
)


def _copied(kept: Tensor | None, new: Tensor) -> Tensor:
    return new.clone() if kept is None else torch.cat([kept, new], dim=2)


def _reset(id: str, title: str, effect: str, hint: str, reset: Callable[..., Any]) -> None:
    mistake(id, title, effect, hint, stage="cache_reset")(reset)


_reset(
    "cache-reset-does-nothing",
    "reset forgets nothing",
    "A new sequence sees the tokens of the old one.",
    "set keys and values to None; assign to self.k, not to k.",
    lambda c: (c.k, c.v),
)
_reset(
    "cache-reset-keys-only",
    "reset forgets the keys and keeps the values",
    "In a new sequence there are more values than keys.",
    "set both to None.",
    lambda c: (None, c.v),
)
_reset(
    "cache-reset-values-only",
    "reset forgets the values and keeps the keys",
    "In a new sequence there are more keys than values.",
    "set both to None.",
    lambda c: (c.k, None),
)
_reset(
    "cache-reset-to-zeros",
    "reset sets keys and values to zeros instead of removing them",
    "A new sequence sees tokens that never were, and its positions do not start at 0.",
    "set both to None.",
    lambda c: tuple(None if x is None else torch.zeros_like(x) for x in (c.k, c.v)),
)
_reset(
    "cache-reset-keeps-last",
    "reset keeps the last token",
    "A new sequence sees the last token of the old one.",
    "set both to None.",
    lambda c: tuple(None if x is None else x[:, :, -1:] for x in (c.k, c.v)),
)
mistake(
    "cache-reset-counter-only",
    "reset sets the length to 0 and keeps keys and values",
    "len() is right, but a new sequence sees the tokens of the old one.",
    "forget keys and values too.",
    stage="cache_reset",
    also={"cache_length": lambda c: c.tokens},
)(lambda c: (c.k, c.v))
mistake(
    "cache-reset-zeroes-what-was-returned",
    "reset writes zeros into the tensors that append returned",
    "len() and what comes later are right; who still holds keys and values of before finds zeros.",
    "let go of the tensors, self.k = None, instead of zero_().",
    stage="cache_reset",
    also={"cache_keys": lambda kept, new: _copied(kept, new), "cache_values": lambda k, n: _copied(k, n)},
)(lambda c: tuple(x if x is None else [x.zero_(), None][1] for x in (c.k, c.v)))
mistake(
    "cache-writes-over-what-was-returned",
    "After a reset the same memory is written again: append returned a part of it",
    "Who still holds keys and values of the sequence before finds those of the new one.",
    "make new buffers in reset, or return copies.",
    stage="cache_reset",
    also={"cache_give": lambda c, k, v: _in_one_buffer(c, room=0)},
)(lambda c: (None, None))


# ---------------------------------------------------------------- positions behind a cache


@mistake(
    "cached-start-at-zero",
    "New tokens are rotated from position 0 in every step",
    "The first step is right; from the second on, distances are wrong and text derails.",
    "start at the number of cached tokens: start = len(cache).",
    stage="cached_start",
)
def _(cache: KVCache, L: int) -> int:
    return 0


@mistake(
    "cached-start-after-append",
    "The length of the cache is asked for after the new tokens are in it",
    "All positions are too large by the number of new tokens: distances to old tokens are wrong.",
    "start = len(cache) *before* append.",
    stage="cached_start",
)
def _(cache: KVCache, L: int) -> int:
    return len(cache) + L


@mistake(
    "cached-start-one-less",
    "The first new token gets the position of the last old one",
    "Two tokens share a position from the second step on.",
    "the next free position is len(cache).",
    stage="cached_start",
)
def _(cache: KVCache, L: int) -> int:
    return max(len(cache) - 1, 0)


@mistake(
    "cached-start-one-more",
    "Behind a cache, the new tokens start one position too far",
    "There is a gap between old and new tokens.",
    "positions are counted from 0: the next free one is len(cache).",
    stage="cached_start",
)
def _(cache: KVCache, L: int) -> int:
    return len(cache) + 1 if len(cache) else 0


@mistake(
    "cached-same-position",
    "All new tokens get the same position",
    "Right for one token at a time; a prompt loses its order.",
    "torch.arange(start, start + L).",
    stage="cached_positions",
)
def _(start: int, L: int) -> Tensor:
    return torch.full((L,), start)


@mistake(
    "cached-positions-backwards",
    "The positions of the new tokens run backwards",
    "Right for one token at a time; a prompt is read from its end.",
    "torch.arange(start, start + L).",
    stage="cached_positions",
)
def _(start: int, L: int) -> Tensor:
    return cached_positions(start, L).flip(0)


# ---------------------------------------------------------------- what is rotated


@mistake(
    "cached-queries-not-rotated",
    "The queries are not rotated",
    "A score depends on the key's position, not on the distance.",
    "rotate queries and keys alike.",
    stage="turn_queries",
)
def _(q: Tensor, positions: Tensor) -> Tensor:
    return q


@mistake(
    "cached-keys-not-rotated",
    "The new keys go into the cache as they are, not rotated",
    "They do not fit the rotated keys of earlier steps.",
    "rotate first, then append: the cache takes up rotated keys.",
    stage="turn_keys",
)
def _(k: Tensor, positions: Tensor) -> Tensor:
    return k


@mistake(
    "cached-nothing-rotated",
    "Neither queries nor keys are rotated",
    "Attention does not know the order of the tokens.",
    "apply_rope to both, with the positions of the new tokens.",
    stage="turn_queries",
    also={"turn_keys": lambda k, positions: k},
)
def _(q: Tensor, positions: Tensor) -> Tensor:
    return q


@mistake(
    "cached-values-rotated",
    "The values are rotated as well",
    "The weights are right, the output is not: what is mixed depends on where it stood.",
    "only queries and keys are rotated.",
    stage="turn_values",
)
def _(v: Tensor, positions: Tensor) -> Tensor:
    return turn_keys(v, positions)


@mistake(
    "cached-queries-from-zero",
    "The queries are rotated from position 0, the keys from their own",
    "The first step is right; afterwards the query believes to stand in front of all keys.",
    "queries and keys of the new tokens have the same positions.",
    stage="turn_queries",
)
def _(q: Tensor, positions: Tensor) -> Tensor:
    return turn_queries(q, positions - positions[0])


@mistake(
    "cached-keys-from-zero",
    "The keys are rotated from position 0, the queries from their own",
    "The first step is right; afterwards new keys seem to stand at the beginning.",
    "queries and keys of the new tokens have the same positions.",
    stage="turn_keys",
)
def _(k: Tensor, positions: Tensor) -> Tensor:
    return turn_keys(k, positions - positions[0])


@mistake(
    "cached-rotated-twice",
    "The new queries and keys are rotated twice",
    "Distances seem twice as large among new tokens, and wrong to old ones.",
    "rotate once, before append.",
    stage="turn_queries",
    also={"turn_keys": lambda k, positions: turn_keys(turn_keys(k, positions), positions)},
)
def _(q: Tensor, positions: Tensor) -> Tensor:
    return turn_queries(turn_queries(q, positions), positions)


def _append_then_rotate(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    k, v = cache.append(k, v)
    return turn_keys(k, torch.arange(k.size(2))), v


@mistake(
    "cached-all-keys-rotated-again",
    "The keys are appended as they are, and all keys of the cache rotated in every step",
    "What the cache holds is rotated once more; with a cache of its own, work is done again in every step.",
    "rotate the new keys only, and append them rotated.",
    stage="cached_append",
    also={"turn_keys": lambda k, positions: k},
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _append_then_rotate(cache, k, v)


@mistake(
    "cached-keys-rotated-before-and-after",
    "The keys are rotated before they are appended, and all of them again after",
    "Keys are turned by twice their position.",
    "rotate the new keys only, before append.",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _append_then_rotate(cache, k, v)


# ---------------------------------------------------------------- append and give


@mistake(
    "cached-not-used",
    "The new tokens attend to the new tokens only",
    "What append returns is not used: the text so far is forgotten.",
    "k_all, v_all = cache.append(k, v), and attend to these.",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    cache.append(k, v)
    return k, v


@mistake(
    "cached-appended-twice",
    "The new tokens are appended twice",
    "Each new key is seen twice, and gets twice the weight.",
    "call append once for each step.",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    cache.append(k, v)
    return cache.append(k, v)


@mistake(
    "cached-keys-and-values-exchanged",
    "Keys and values are exchanged",
    "Queries are compared with values, and keys are mixed.",
    "k_all, v_all = cache.append(k, v).",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    k, v = cache.append(k, v)
    return v, k


@mistake(
    "cached-reset",
    "The cache is reset in every step",
    "Each step is the beginning of a new text.",
    "the caller resets the cache, between two texts.",
    stage="cached_append",
    also={"cached_start": lambda cache, L: [cache.reset(), 0][1]},
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return cache.append(k, v)


@mistake(
    "cached-last-token-only",
    "Only the last new token's output comes back",
    "Right for one token at a time; of a prompt one row is left.",
    "return a row for each new token.",
    stage="cached_give",
)
def _(output: Tensor) -> Any:
    return output[:, :, -1:]


@mistake(
    "cached-merged",
    "The heads are joined: (B, L new, h·d_k)",
    "Joining is a step of its own.",
    "return (B, h, L new, d_k).",
    stage="cached_give",
)
def _(output: Tensor) -> Any:
    return output.transpose(1, 2).flatten(2)


@mistake(
    "cached-weights-too",
    "Weights come back beside the output of the new tokens",
    "Whoever uses the output as a tensor finds a tuple.",
    "return the output: of a pair, its first part.",
    stage="cached_give",
    also={"weigh": lambda weights, V: (weights @ V, weights)},
)
def _(output: Any) -> Any:
    return output
